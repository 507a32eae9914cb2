//! Segment rows: who has a segment and which files' records are in it.
//!
//! The summary is written before the record it describes, so it always covers what the segment
//! holds.

use crate::numbers::{AtomicSeq, LaneIndex};
use crate::sync::{AtomicU32, Ordering};
use holdfast_pool::{Seq, Slot};

/// Files told apart in a summary; with more the segment is judged by its highest seq alone.
const SUMMARY_SLOTS: usize = 4;
const OVERFLOW: u32 = 1;
/// Bits of the flags below where the records end, in lines.
const END_SHIFT: u32 = 8;
/// Records begin at multiples of this many bytes, and so they end.
const LINE_BYTES: u32 = 64;

/// Who has a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Nobody; every record in it is dead (invariant 3).
    Free,
    /// The lane with this index.
    Lane(LaneIndex),
    /// Full; waits until its records are dead.
    Sealed,
    /// Holds records that recovery set aside.
    Pinned,
}

impl SegmentState {
    fn code(self) -> u32 {
        match self {
            Self::Free => 0,
            Self::Sealed => 1,
            Self::Pinned => 2,
            Self::Lane(lane) => 0x100 + lane.number(),
        }
    }
}

/// One segment.
#[repr(C, align(64))]
#[derive(Default)]
pub struct SegmentRow {
    state: AtomicU32,
    flags: AtomicU32,
    seqs: [AtomicSeq; SUMMARY_SLOTS],
    /// Slot + 1 of each entry, 0 for none.
    slots: [AtomicU32; SUMMARY_SLOTS],
    max_seq: AtomicSeq,
}

impl SegmentRow {
    /// The state now.
    pub fn state(&self) -> SegmentState {
        match self.state.load(Ordering::Acquire) {
            0 => SegmentState::Free,
            1 => SegmentState::Sealed,
            2 => SegmentState::Pinned,
            // None has such a number if this is less.
            code => SegmentState::Lane(LaneIndex::new(code.wrapping_sub(0x100))),
        }
    }

    /// Sets the state.
    pub fn set_state(&self, state: SegmentState) {
        self.state.store(state.code(), Ordering::Release);
    }

    /// Takes a free segment for a lane.
    pub fn try_take(&self, lane: LaneIndex) -> bool {
        let code = SegmentState::Lane(lane).code();
        self.state.load(Ordering::Relaxed) == 0
            && self.state.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Empties the summary of a segment just taken.
    pub fn clear_summary(&self) {
        self.flags.store(0, Ordering::Relaxed);
        self.max_seq.store(Seq::ZERO, Ordering::Relaxed);
        for slot in &self.slots {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that a record of `slot` with `seq` is about to be written here. Only the segment's
    /// owner calls it.
    #[inline]
    pub fn note(&self, slot: Slot, seq: Seq) {
        self.max_seq.store(seq, Ordering::Relaxed);
        for index in 0..SUMMARY_SLOTS {
            let held = self.slots[index].load(Ordering::Relaxed);
            if held == slot.word() || held == 0 {
                self.seqs[index].store(seq, Ordering::Relaxed);
                self.slots[index].store(slot.word(), Ordering::Release);
                return;
            }
        }
        self.flags.fetch_or(OVERFLOW, Ordering::Release);
    }

    /// Notes where the records of a segment end, to which its lane appends nothing more.
    pub fn note_end(&self, end: u32) {
        self.flags.fetch_or((end / LINE_BYTES) << END_SHIFT, Ordering::Relaxed);
    }

    /// Where they end, if that was noted.
    pub fn end(&self) -> Option<u32> {
        let lines = self.flags.load(Ordering::Relaxed) >> END_SHIFT;
        (lines != 0).then_some(lines * LINE_BYTES)
    }

    /// As `note`, for a copy of an older record.
    pub fn note_copy(&self, slot: Slot, seq: Seq) {
        let max_seq = self.max_seq.load(Ordering::Relaxed).max(seq);
        let known = (0..SUMMARY_SLOTS)
            .find(|&index| self.slots[index].load(Ordering::Relaxed) == slot.word())
            .map_or(Seq::ZERO, |index| self.seqs[index].load(Ordering::Relaxed));
        self.note(slot, seq.max(known));
        self.max_seq.store(max_seq, Ordering::Release);
    }

    /// The highest seq of the records here.
    pub fn max_seq(&self) -> Seq {
        self.max_seq.load(Ordering::Acquire)
    }

    /// Whether every record here is dead, given each slot's `expired_seq` ([`Seq::MAX`] for a
    /// slot whose records are void) and the lowest one of all slots with live records.
    pub fn is_dead(&self, expired_seq: impl Fn(Slot) -> Seq, expired_seq_min: Seq) -> bool {
        let max_seq = self.max_seq.load(Ordering::Acquire);
        if max_seq <= expired_seq_min {
            return true;
        }
        self.flags.load(Ordering::Acquire) & OVERFLOW == 0
            && (0..SUMMARY_SLOTS).all(|index| match self.slots[index].load(Ordering::Acquire) {
                0 => true,
                word => self.seqs[index].load(Ordering::Relaxed) <= expired_seq(Slot::new(word - 1)),
            })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_segment_dies_when_each_of_its_files_has_expired() {
        let row = SegmentRow::default();
        row.note(Slot::new(3), Seq::new(10));
        row.note(Slot::new(4), Seq::new(11));
        row.note(Slot::new(3), Seq::new(12));
        let is_dead = |three, four, lowest| {
            let expired = |slot| Seq::new(if slot == Slot::new(3) { three } else { four });
            row.is_dead(expired, Seq::new(lowest))
        };
        assert!(!is_dead(12, 10, 0));
        assert!(!is_dead(11, 11, 0));
        assert!(is_dead(12, 11, 0));
        assert!(is_dead(0, 0, 12));
    }

    #[test]
    fn copies_of_older_records_never_lower_what_a_summary_says() {
        let row = SegmentRow::default();
        for (slot, seq) in [(3, 20), (4, 9), (3, 12)] {
            row.note_copy(Slot::new(slot), Seq::new(seq));
        }
        assert_eq!(row.max_seq(), Seq::new(20));
        let expired = |three| move |slot| Seq::new(if slot == Slot::new(3) { three } else { 9 });
        assert!(!row.is_dead(expired(19), Seq::ZERO));
        assert!(row.is_dead(expired(20), Seq::ZERO));
    }

    #[test]
    fn with_too_many_files_only_the_lowest_expiry_counts() {
        let row = SegmentRow::default();
        for slot in 0..5 {
            row.note(Slot::new(slot), Seq::new(20).after(slot.into()));
        }
        assert!(!row.is_dead(|_| Seq::new(1000), Seq::new(23)));
        assert!(row.is_dead(|_| Seq::ZERO, Seq::new(24)));
    }
}
