//! What is remembered from one pass over the segments to the next, so that none is looked at in
//! vain again and again. It frees nothing.

use holdfast_board::{Board, PAGE_BYTES};
use holdfast_log::Tail;
use holdfast_pool::{Layout, Segment, Seq};

/// A segment that was not worth emptying is looked at again after this part of the pool was
/// written.
const LOOK_AGAIN_FRACTION: u64 = 16;

/// What is remembered from one pass to the next. Whoever frees segments does so in turn: one that
/// was looked at is then still in the same use.
#[derive(Default)]
pub(super) struct Reclaimer {
    /// The segment that copies go to.
    pub(super) tail: Option<(Segment, Tail)>,
    /// By segment.
    vain: Vec<VainLook>,
    pub(super) buffer: Vec<u8>,
}

/// A segment that was not worth emptying.
#[derive(Clone, Copy, Default)]
struct VainLook {
    /// Its use, as told by its highest seq.
    max_seq: Seq,
    /// What had to be copied.
    live_bytes: u64,
    /// It is looked at again when the counter has come so far.
    again_seq: Seq,
}

impl Reclaimer {
    /// Whether a segment that was looked at in vain has changed since, or may have.
    pub(super) fn is_worth_a_look(&self, board: &Board, segment: Segment, copy_bytes_max: u64) -> bool {
        let max_seq = board.segments()[segment.index()].max_seq();
        self.vain.get(segment.index()).is_none_or(|look| {
            look.max_seq != max_seq || look.live_bytes <= copy_bytes_max || look.again_seq <= board.next_seq()
        })
    }

    /// A segment was not worth emptying.
    pub(super) fn note_vain_look(
        &mut self,
        board: &Board,
        layout: &Layout,
        segment: Segment,
        live_bytes: u64,
    ) {
        self.vain.resize(layout.segment_count as usize, VainLook::default());
        let pages = u64::from(layout.segment_count) * layout.segment_bytes / PAGE_BYTES;
        self.vain[segment.index()] = VainLook {
            max_seq: board.segments()[segment.index()].max_seq(),
            live_bytes,
            again_seq: board.next_seq().after(pages / LOOK_AGAIN_FRACTION),
        };
    }
}
