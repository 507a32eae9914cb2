//! The segments of the log, by their state and age. Nothing here frees one.

use holdfast_board::SegmentState;
use holdfast_disk::Disk;
use holdfast_media::Nvm;
use holdfast_pool::{Segment, Seq};

use super::state::Durable;
use super::upkeep::Upkeeps;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Free segments.
    pub fn count_free(&self) -> u32 {
        self.board.segments().iter().filter(|row| row.state() == SegmentState::Free).count() as u32
    }

    /// The sealed segments, by their highest seq.
    pub(super) fn sealed_by_age(&self) -> Vec<Segment> {
        let rows = (0..).map(Segment::new).zip(self.board.segments());
        let mut sealed: Vec<(Seq, Segment)> = rows
            .filter(|(_, row)| row.state() == SegmentState::Sealed)
            .map(|(segment, row)| (row.max_seq(), segment))
            .collect();
        sealed.sort_unstable();
        sealed.into_iter().map(|(_, segment)| segment).collect()
    }

    /// The highest seq in the older half, or whatever part, of the sealed segments.
    pub fn seq_of_oldest(&self, segments: usize) -> Option<Seq> {
        let sealed = self.sealed_by_age();
        let last = sealed.get(segments.min(sealed.len()).checked_sub(1)?)?;
        Some(self.board.segments()[last.index()].max_seq())
    }
}
