//! What a dead client leaves on the board, and opening it again. Bytes and files are the keeper's
//! business: it rolls the operation forward, or makes the file durable, between the two halves.

use crate::board::Board;
use crate::lanes::Locked;
use crate::numbers::LaneIndex;
use crate::requests::RequestState;
use crate::segments::SegmentState;
use holdfast_pool::{Segment, Seq, Slot};

/// A lane whose owner is dead, as the owner left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLane {
    /// Which lane.
    pub index: LaneIndex,
    /// Slot of the file it was used for last.
    pub slot: Slot,
    /// The seq of the operation that was under way, if one had been drawn.
    pub seq: Option<Seq>,
    /// The segments it holds: all members of the operation's record are in them.
    pub segments: Vec<Segment>,
}

impl Board {
    /// The lanes of a dead client. Nobody else touches them until [`Board::open_lane`].
    pub fn dead_lanes(&self, client: u32) -> Vec<DeadLane> {
        let lanes = (0..).map(LaneIndex::new).zip(self.lanes());
        lanes
            .filter(|(_, lane)| lane.owner() == client)
            .map(|(index, lane)| {
                let seq = lane.seq();
                let under_way = seq != Seq::ZERO && lane.is_announced();
                let held = (0..).map(Segment::new).zip(self.segments());
                DeadLane {
                    index,
                    slot: lane.slot(),
                    seq: under_way.then_some(seq),
                    segments: held
                        .filter(|(_, row)| row.state() == SegmentState::Lane(index))
                        .map(|(segment, _)| segment)
                        .collect(),
                }
            })
            .collect()
    }

    /// Opens everything that a dead lane held, once its operation is finished.
    pub fn open_lane(&self, dead: &DeadLane) {
        let lane = &self.lanes()[dead.index.index()];
        // After a torn record nothing may be appended behind it: all of the lane's segments are
        // sealed.
        lane.leave_segment();
        for &segment in &dead.segments {
            self.segments()[segment.index()].set_state(SegmentState::Sealed);
        }
        if let Some(Locked { offset, bytes }) = lane.locks() {
            self.page_locks().unlock(dead.index, dead.slot, offset, bytes);
        }
        if let Some(row) = self.files().get(dead.slot.index()) {
            row.unlock_cursor(dead.index);
        }
        lane.forget_operation();
        lane.free();
        self.header().wake_for_lanes();
        self.header().ring_expirer();
    }

    /// The slots of the files that a dead client keeps to itself. Each is let go with
    /// `FileRow::unlock_exclusive`.
    pub fn files_held_by(&self, client: u32) -> Vec<Slot> {
        let rows = (0..).map(Slot::new).zip(self.files());
        rows.filter(|(_, row)| row.is_held_by(client)).map(|(slot, _)| slot).collect()
    }

    /// Frees the request cells of a dead client that nobody works on.
    pub fn free_cells(&self, client: u32) {
        for cell in self.requests() {
            if cell.client() == client && matches!(cell.state(), RequestState::Claimed | RequestState::Done) {
                cell.set_state(RequestState::Free);
            }
        }
    }
}
