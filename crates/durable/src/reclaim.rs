//! Log space without the disk: records that newer ones cover are dead, and a segment with few live
//! ones is emptied by copying these to another (state Behind).
//!
//! Page rows are the proof, record headers say of what: each record of a segment is looked up
//! before the segment is given back, nothing is counted on the way. A segment is never emptied by
//! draining some of its records (history 1). Readers and writers find the bytes of a row under its
//! page lock, and rows are pointed to the copies under the same.

#[cfg(not(shuttle))]
use holdfast_board::Page;
use holdfast_board::{Content, SegmentState, Source, pieces};
use holdfast_canary::{Canary, on};
use holdfast_log::{
    Draft, Header, Kind, RECORD_HEADER_BYTES, Tail, append, read_record, record_bytes, scan_headers,
};
use holdfast_media::{Bytes, Nvm};
use holdfast_pool::{
    SEGMENT_HEADER_BYTES, Segment, SegmentUse, Superblock, seal_segment, segment_seed, set_segment_generation,
};

use super::reclaimer::Reclaimer;
use super::state::{Durable, KEEPER_LANE};
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, locked};

/// Whoever waits for space hears of it after so many segments.
const ANNOUNCE_SEGMENTS: u32 = 8;
/// In smaller pools the segment that copies go to is not kept from one pass to the next.
const KEEP_TAIL_SEGMENTS_MIN: u32 = 64;

/// How hard to try.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Segments that shall be free.
    pub free_goal: u32,
    /// Most bytes of live records that are copied to free a segment.
    pub copy_bytes_max: u64,
    /// Segments that may be looked at in vain.
    pub vain_looks_max: u32,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reclaimed {
    /// Segments given back.
    pub freed: u32,
    /// Bytes of records copied for it.
    pub copied_bytes: u64,
    /// Free segments now.
    pub free: u32,
}

/// The live records of a segment.
#[derive(Default)]
struct Census {
    places: Vec<u32>,
    bytes: u64,
    /// Some cannot be copied: they live and die with others.
    is_bound: bool,
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Frees every sealed segment whose records have all expired (invariant 3), and wakes who waits
    /// for space.
    pub fn free_segments(&self) {
        let _alone = self.reclaiming.take();
        self.board.free_dead_segments();
        self.free_frames();
    }

    /// Does something while nobody gives segments back.
    pub fn instead_of_reclaiming<R>(&self, act: impl FnOnce() -> R) -> R {
        let _alone = self.reclaiming.take();
        act()
    }

    /// Frees segments whose records have expired or are covered by newer ones, oldest first, and
    /// copies the live records of those that have few. Never waits for the disk.
    pub fn reclaim(&self, effort: Effort) -> Reclaimed {
        let _alone = self.reclaiming.take();
        let mut reclaimer = locked(&self.reclaimer);
        self.board.free_dead_segments();
        let mut result = Reclaimed { free: self.count_free(), ..Reclaimed::default() };
        let mut vain_looks = 0;
        for segment in self.sealed_by_age() {
            if result.free >= effort.free_goal || vain_looks >= effort.vain_looks_max {
                break;
            }
            if !reclaimer.is_worth_a_look(&self.board, segment, effort.copy_bytes_max) {
                continue;
            }
            let census = self.census(segment);
            let is_empty = census.places.is_empty() || on(Canary::LiveSegmentFreed);
            let copied = if is_empty {
                Some(0)
            } else if census.is_bound || census.bytes > effort.copy_bytes_max {
                None
            } else {
                self.empty(&mut reclaimer, segment, &census).then_some(census.bytes)
            };
            let Some(copied) = copied else {
                let live_bytes = if census.is_bound { u64::MAX } else { census.bytes };
                reclaimer.note_vain_look(&self.board, &self.superblock.layout, segment, live_bytes);
                vain_looks += 1;
                continue;
            };
            self.board.segments()[segment.index()].set_state(SegmentState::Free);
            result.copied_bytes += copied;
            result.freed += 1;
            result.free = if copied == 0 { result.free + 1 } else { self.count_free() };
            if result.freed.is_multiple_of(ANNOUNCE_SEGMENTS) {
                self.board.header().announce_free_segments();
            }
        }
        if self.superblock.layout.segment_count < KEEP_TAIL_SEGMENTS_MIN {
            self.seal_tail(&mut reclaimer);
        }
        if !result.freed.is_multiple_of(ANNOUNCE_SEGMENTS) {
            self.board.header().announce_free_segments();
        }
        result
    }

    /// Looks up every record of a sealed segment: nobody appends to it, and whatever is in it is in
    /// the page rows, if it belongs there.
    fn census(&self, segment: Segment) -> Census {
        let mut census = Census::default();
        let layout = &self.superblock.layout;
        let mut headers = Vec::with_capacity((layout.segment_bytes / holdfast_board::PAGE_BYTES) as usize);
        scan_headers(&self.nvm, layout, segment, |at, header| {
            // All of them lie anywhere in the table: waiting for one after the other would take
            // most of the time.
            #[cfg(not(shuttle))]
            self.board.prefetch_page(header.slot, Page::of(header.file_offset));
            headers.push((at, *header));
        });
        for (at, header) in headers {
            if self.is_needed(&header) {
                census.places.push(at);
                census.bytes += record_bytes(u64::from(header.payload_bytes));
                census.is_bound |= header.kind != Kind::Write || header.group_count != 1;
            }
        }
        census
    }

    /// Whether a record may still be needed: it has not expired, and newer durable records, which
    /// live longer, are not known to cover all of it.
    fn is_needed(&self, header: &Header) -> bool {
        let Some(row) = self.board.files().get(header.slot.index()) else { return false };
        if header.seq <= self.board.expired_seq(header.slot) {
            return false;
        }
        // Groups live and die together (history 2).
        header.kind != Kind::Write || header.group_count != 1 || !self.is_covered(row, header)
    }

    /// Whether page rows say that newer durable records cover all of this one.
    pub(super) fn is_covered_by_rows(&self, header: &Header) -> bool {
        let (pages, bytes) = (self.board.pages(), u64::from(header.payload_bytes));
        // Headers are as clients wrote them.
        if header.file_offset.checked_add(bytes).is_none_or(|end| end > i64::MAX as u64) {
            return false;
        }
        pieces(header.file_offset, bytes)
            .map(|(page, lo, hi)| (page, lo, if on(Canary::CoveredInPart) { lo + 1 } else { hi }))
            .all(|(page, lo, hi)| pages.is_newer(header.slot, page, (lo, hi), header.seq))
    }

    /// Copies the live records of a segment, with their seqs, and points the rows to the copies
    /// once they are durable. False when there was no room; then nothing points to a copy.
    fn empty(&self, reclaimer: &mut Reclaimer, segment: Segment, census: &Census) -> bool {
        let layout = &self.superblock.layout;
        let mut moved = Vec::with_capacity(census.places.len());
        for &at in &census.places {
            let uuid = &self.superblock.uuid;
            let Some(header) = read_record(&self.nvm, layout, uuid, (segment, at), &mut reclaimer.buffer)
            else {
                // Damaged. Recovery reports it, and must find what is there.
                return false;
            };
            let bytes = record_bytes(u64::from(header.payload_bytes));
            let Some((to, tail)) = self.tail_with_room(reclaimer, bytes) else { return false };
            self.board.segments()[to.index()].note_copy(header.slot, header.seq);
            let payload = &reclaimer.buffer[RECORD_HEADER_BYTES as usize..];
            append(&self.nvm, &tail, &draft(&header), &[Bytes::from_slice(payload)], 0, payload.len());
            // Before the next one: a torn record is the last of its segment, or it is damage.
            if !on(Canary::DropFence) && !on(Canary::CopyUnfenced) {
                self.nvm.fence();
            }
            if let Some((_, tail)) = &mut reclaimer.tail {
                tail.at += bytes as u32;
            }
            let from = layout.segment_offset(segment) + u64::from(at) + RECORD_HEADER_BYTES;
            moved.push((header, from, tail.segment_offset + u64::from(tail.at) + RECORD_HEADER_BYTES));
        }
        moved.iter().all(|(header, from, to)| self.redirect(header, *from, *to))
    }

    /// Points the rows of a record to its copy. False when the keeper is stopping.
    fn redirect(&self, header: &Header, from: u64, to: u64) -> bool {
        let pages = self.board.pages();
        let (offset, bytes) = (header.file_offset, u64::from(header.payload_bytes));
        pieces(offset, bytes).all(|(page, lo, _)| {
            let start = page.offset() + u64::from(lo);
            if !self.lock_pages(header.slot, start, 1) {
                return false;
            }
            if let Some(row) = pages.find(header.slot, page)
                && row.holds
                && row.content.source == Source::Log(from + (start - offset))
                && !on(Canary::CopyUnredirected)
            {
                let source = Source::Log(to + (start - offset));
                pages.redirect(row.index, Content { source, ..row.content });
            }
            self.unlock_pages(header.slot, start, 1);
            true
        })
    }

    /// Where a copy of `bytes` goes; takes a free segment when the present one is full.
    fn tail_with_room(&self, reclaimer: &mut Reclaimer, bytes: u64) -> Option<(Segment, Tail)> {
        let layout = &self.superblock.layout;
        let fits = |tail: &Tail| u64::from(tail.at) + bytes <= layout.segment_bytes;
        if !reclaimer.tail.as_ref().is_some_and(|(_, tail)| fits(tail)) {
            let rows = self.board.segments();
            let segment = (0..).map(Segment::new).zip(rows).find(|(_, row)| row.try_take(KEEPER_LANE))?.0;
            self.seal_tail(reclaimer);
            let generation = self.board.draw_generation();
            rows[segment.index()].clear_summary();
            set_segment_generation(&self.nvm, layout, segment, generation);
            let seed = segment_seed(&self.superblock.uuid, segment, generation);
            let segment_offset = layout.segment_offset(segment);
            reclaimer.tail =
                Some((segment, Tail { segment_offset, at: SEGMENT_HEADER_BYTES as u32, generation, seed }));
        }
        reclaimer.tail.filter(|(_, tail)| fits(tail))
    }

    fn seal_tail(&self, reclaimer: &mut Reclaimer) {
        if let Some((segment, tail)) = reclaimer.tail.take() {
            let Superblock { layout, uuid, .. } = &self.superblock;
            let below = self.board.next_seq().next();
            let place = SegmentUse { segment, generation: tail.generation };
            seal_segment(&self.nvm, layout, uuid, place, tail.at, below);
            self.board.segments()[segment.index()].set_state(SegmentState::Sealed);
        }
    }
}

/// The same record at another place.
fn draft(header: &Header) -> Draft {
    Draft {
        kind: header.kind,
        slot: header.slot,
        slot_generation: header.slot_generation,
        seq: header.seq,
        file_offset: header.file_offset,
        extent: header.extent,
        unix_time_ns: header.unix_time_ns,
        group_index: header.group_index,
        group_count: header.group_count,
        is_called: header.is_called,
    }
}
