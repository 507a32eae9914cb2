//! Which of the scanned records are live: rules 5 (groups) and 6 (cancels); the scan has applied 1
//! to 4.
//!
//! Since the scan drops expired records first, a group is judged by expiry before it is judged by
//! completeness (history 2).

use holdfast_pool::{Segment, Seq, Slot};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use holdfast_canary::{Canary, on};
use holdfast_log::Kind;

use super::entry::Entry;

/// The log of one slot.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotLog {
    /// Its live records, in the sorted list of all.
    pub(super) range: Range<usize>,
    /// Bytes of its live writes.
    pub(super) bytes: u64,
    /// Highest seq of its records, cancels and voided ones included: with this expired, none is
    /// live.
    pub(super) seq_max: Seq,
    /// Segments that hold records of it (cancels too: without them cancelled writes would come
    /// back).
    pub(super) segments: Vec<Segment>,
}

/// All live records, by slot, then in the order in which they were written.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) entries: Vec<Entry>,
    pub(super) slots: BTreeMap<Slot, SlotLog>,
    /// Slots of which two different records have one number.
    pub(super) contradicted: BTreeSet<Slot>,
}

impl Live {
    /// The live records of a slot.
    pub(super) fn of(&self, slot: Slot) -> &[Entry] {
        self.slots.get(&slot).map_or(&[], |log| &self.entries[log.range.clone()])
    }
}

/// The time of the last of these records, in nanoseconds since 1970.
pub(super) fn last_ns(entries: &[Entry]) -> Option<i64> {
    entries.iter().map(|entry| entry.unix_time_ns as i64).max()
}

/// Sorts and filters in place. Contradictions go to `damaged`.
pub(super) fn resolve(mut entries: Vec<Entry>, damaged: &mut Vec<String>) -> Live {
    // Stable, because that sort only merges runs that are sorted already.
    entries.sort_by_key(Entry::order);
    let (mut slots, mut contradicted) = (BTreeMap::new(), BTreeSet::new());
    let mut kept = 0;
    let mut from = 0;
    while from < entries.len() {
        let slot = entries[from].slot;
        let to = from + entries[from..].partition_point(|entry| entry.slot == slot);
        let mut log = SlotLog { seq_max: entries[to - 1].seq, ..SlotLog::default() };
        log.segments = segments(&entries[from..to]);
        let cancels = cancels(&entries[from..to]);
        let first = kept;
        while from < to {
            let seq = entries[from].seq;
            let end = from + entries[from..to].iter().take_while(|entry| entry.seq == seq).count();
            let cancel = if cancels.is_empty() { None } else { cancels.get(&seq) };
            // What is kept never outruns what was read: a write has at most the members found.
            let mut keep = |entries: &mut [Entry], entry: Entry| {
                log.bytes += if entry.kind == Kind::Write { u64::from(entry.bytes) } else { 0 };
                entries[kept] = entry;
                kept += 1;
            };
            if end - from == 1 && entries[from].group_count == 1 && cancel.is_none() {
                // Nearly all writes: nothing to weigh.
                if entries[from].kind != Kind::Cancel {
                    let entry = entries[from];
                    keep(&mut entries, entry);
                }
            } else {
                let told = damaged.len();
                let mut write = whole(&entries[from..end], damaged);
                if damaged.len() > told {
                    contradicted.insert(slot);
                }
                if let Some(&extent) = cancel {
                    cut(&mut write, extent);
                }
                for entry in write {
                    keep(&mut entries, entry);
                }
            }
            from = end;
        }
        log.range = first..kept;
        slots.insert(slot, log);
    }
    entries.truncate(kept);
    Live { entries, slots, contradicted }
}

fn segments(slot: &[Entry]) -> Vec<Segment> {
    let mut segments: Vec<Segment> =
        slot.chunk_by(|a, b| a.segment == b.segment).map(|run| run[0].segment).collect();
    segments.sort_unstable();
    segments.dedup();
    segments
}

/// Cancelled seq and bytes that stay valid. Of several cancels of one write the newest counts.
fn cancels(slot: &[Entry]) -> HashMap<Seq, u64> {
    slot.iter()
        .filter_map(|entry| Some((entry.cancels()?, entry.extent)))
        .filter(|_| !on(Canary::RecoverCancelled))
        .collect()
}

/// The members of a write if all of them are there, else nothing. Cancel records are no writes.
fn whole(found: &[Entry], damaged: &mut Vec<String>) -> Vec<Entry> {
    let mut members: Vec<Entry> = Vec::with_capacity(found.len());
    for entry in found.iter().filter(|entry| entry.kind != Kind::Cancel) {
        match members.last() {
            Some(last) if last.group_index == entry.group_index => {
                let same = (last.kind, last.file_offset, last.extent, last.bytes, last.group_count)
                    == (entry.kind, entry.file_offset, entry.extent, entry.bytes, entry.group_count);
                if !same {
                    damaged.push(format!(
                        "segment {}, byte {}: two different records have number {}; this one is left out",
                        entry.segment,
                        entry.at(),
                        entry.seq
                    ));
                }
            }
            _ => members.push(*entry),
        }
    }
    let count = members.first().map_or(0, |first| usize::from(first.group_count));
    let complete = members.len() == count
        && members.iter().all(|member| usize::from(member.group_count) == count)
        && (count == 1 || members.iter().all(|member| member.kind == Kind::Write));
    if complete || on(Canary::RecoverPartGroup) { members } else { Vec::new() }
}

/// Keeps the first `extent` bytes of a write (counted over all members); voids anything else.
fn cut(write: &mut Vec<Entry>, extent: u64) {
    let Some(start) = write.first().map(|first| first.file_offset) else { return };
    write.retain_mut(|entry| {
        let before = entry.file_offset.saturating_sub(start);
        let left = extent.saturating_sub(before).min(u64::from(entry.bytes));
        entry.bytes = left as u32;
        entry.kind == Kind::Write && left > 0
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(slot: Slot, seq: u64, kind: Kind) -> Entry {
        Entry {
            seq: Seq::new(seq),
            file_offset: 0,
            extent: 100,
            segment: Segment::new(1),
            line: 1,
            bytes: 100,
            slot,
            unix_time_ns: 0,
            group_index: 0,
            group_count: 1,
            kind,
            is_called: false,
            is_last: false,
        }
    }

    fn member(seq: u64, index: u16, count: u16) -> Entry {
        Entry {
            group_index: index,
            group_count: count,
            file_offset: u64::from(index) * 100,
            segment: Segment::new(u32::from(index) + 1),
            ..entry(Slot::new(0), seq, Kind::Write)
        }
    }

    fn seqs(live: &Live, slot: Slot) -> Vec<u64> {
        live.of(slot).iter().map(|entry| entry.seq.get()).collect()
    }

    #[test]
    fn records_are_sorted_by_slot_and_seq() {
        let entries = vec![
            entry(Slot::new(1), 5, Kind::Write),
            entry(Slot::new(0), 9, Kind::Write),
            entry(Slot::new(1), 3, Kind::Truncate),
        ];
        let live = resolve(entries, &mut Vec::new());
        assert_eq!(seqs(&live, Slot::new(0)), [9]);
        assert_eq!(seqs(&live, Slot::new(1)), [3, 5]);
        assert_eq!((live.slots[&Slot::new(1)].seq_max, live.slots[&Slot::new(1)].bytes), (Seq::new(5), 100));
    }

    #[test]
    fn a_group_is_whole_or_void() {
        let live = resolve(vec![member(4, 1, 3), member(4, 0, 3)], &mut Vec::new());
        assert!(live.of(Slot::new(0)).is_empty());
        assert_eq!(live.slots[&Slot::new(0)].seq_max, Seq::new(4));
        let live = resolve(vec![member(4, 1, 2), member(4, 0, 2)], &mut Vec::new());
        assert_eq!(live.of(Slot::new(0)).len(), 2);
    }

    #[test]
    fn members_that_disagree_are_no_group() {
        let live = resolve(vec![member(4, 0, 2), member(4, 1, 3)], &mut Vec::new());
        assert!(live.of(Slot::new(0)).is_empty());
    }

    #[test]
    fn a_cancel_cuts_a_group_at_the_byte() {
        let cancel = Entry { file_offset: 4, extent: 130, bytes: 0, ..entry(Slot::new(0), 7, Kind::Cancel) };
        let live = resolve(vec![member(4, 0, 3), member(4, 1, 3), member(4, 2, 3), cancel], &mut Vec::new());
        let kept: Vec<u32> = live.of(Slot::new(0)).iter().map(|entry| entry.bytes).collect();
        assert_eq!(kept, [100, 30]);
    }

    #[test]
    fn a_cancel_voids_what_is_no_write_and_only_what_is_older() {
        let cancel = |target, seq| Entry { file_offset: target, ..entry(Slot::new(0), seq, Kind::Cancel) };
        let entries = vec![
            entry(Slot::new(0), 4, Kind::Truncate),
            cancel(4, 6),
            entry(Slot::new(0), 9, Kind::Write),
            cancel(9, 8),
        ];
        let live = resolve(entries, &mut Vec::new());
        assert_eq!(seqs(&live, Slot::new(0)), [9]);
    }

    #[test]
    fn two_records_of_one_number_are_reported() {
        let other = Entry { file_offset: 5, line: 4, ..entry(Slot::new(0), 4, Kind::Write) };
        let mut damaged = Vec::new();
        let live = resolve(vec![other, entry(Slot::new(0), 4, Kind::Write)], &mut damaged);
        assert_eq!((live.of(Slot::new(0)).len(), damaged.len()), (1, 1));
        assert_eq!(live.of(Slot::new(0))[0].file_offset, 0);
    }
}
