//! Log space for one operation: segments are taken before any lock, and gone on in under new
//! generations.

use crate::stop::NoRoom;

#[cfg(shuttle)]
use holdfast_board::model::{Mutation, mutated};
use holdfast_board::{LaneEnd, SegmentRow, SegmentState, pause};
use holdfast_canary::{Canary, on};
use holdfast_log::{RECORD_HEADER_BYTES, record_bytes};
use holdfast_media::Nvm;
use holdfast_pool::{
    Generation, SEGMENT_HEADER_BYTES, Segment, SegmentUse, seal_segment, segment_generation, segment_seed,
    set_segment_generation,
};

use super::Lane;
use super::fit::{CANCEL_BYTES, LOOK_AGAIN, is_split, member_bytes_max};
use crate::clock::now_ns;

/// Rounds of expiry that free nothing, after which a writer gives up waiting for space: the first
/// of them may have begun before it came.
const ROUNDS_IN_VAIN: u64 = 2;
/// Rounds after which it gives up, though others found some.
const ROUNDS_MAX: u64 = 16;

impl<N: Nvm> Lane<'_, N> {
    pub(super) fn room(&self) -> u64 {
        self.end.map_or(0, |end| self.client.layout.segment_bytes - u64::from(end.at))
    }

    pub(crate) fn make_room(&mut self, bytes: u64) -> Result<(), NoRoom> {
        if record_bytes(bytes) + CANCEL_BYTES <= self.room() {
            return Ok(());
        }
        let layout = &self.client.layout;
        let here = if is_split(layout, bytes) { self.payload_room() } else { 0 };
        let count = (bytes - here).div_ceil(member_bytes_max(layout)).max(1) as usize;
        self.take_segments(count)?;
        if here == 0 {
            self.next_segment();
        }
        Ok(())
    }

    /// Payload bytes that fit into the rest of the present segment.
    pub(super) fn payload_room(&self) -> u64 {
        self.room().saturating_sub(RECORD_HEADER_BYTES + CANCEL_BYTES)
    }

    /// Takes `count` free segments, all or none, lowest first: a small working set stays in the
    /// processor's translation caches. Sleeps until some are freed; before that it slows down
    /// (throttling).
    fn take_segments(&mut self, count: usize) -> Result<(), NoRoom> {
        let header = self.client.board.header();
        let rows = self.client.board.segments();
        let freed = &header.segments_freed;
        let throttle = header.throttle(count as u32);
        if !throttle.is_zero() {
            self.stalled(|| pause(throttle));
        }
        let mut fell_short = false;
        let mut shortage = (0, 0);
        loop {
            let seen = freed.rung();
            // After the first try nothing is taken that would have to be given back: two that wait
            // for several segments each would wake one another without end.
            let is_free = |row: &&SegmentRow| row.state() == SegmentState::Free;
            if !fell_short || rows.iter().filter(is_free).take(count).count() == count {
                for (segment, row) in rows.iter().enumerate() {
                    if self.more_count == count {
                        break;
                    }
                    if row.try_take(self.index) {
                        self.row.reserve(self.more_count, Segment::at(segment));
                        self.more_count += 1;
                    }
                }
                if self.more_count == count {
                    return Ok(());
                }
                self.give_back();
                if !fell_short {
                    shortage = (header.rounds(), freed.rung());
                }
                fell_short = true;
            }
            let rounds = header.rounds().wrapping_sub(shortage.0);
            if rounds >= ROUNDS_MAX || rounds >= ROUNDS_IN_VAIN && shortage.1 == freed.rung() {
                header.no_room.add(1);
                return Err(NoRoom::Full);
            }
            if !self.client.keeper_alive() {
                return Err(NoRoom::Stopped);
            }
            header.ring_expirer();
            self.stalled(|| freed.sleep(seen, LOOK_AGAIN));
        }
    }

    /// Gives back the reserved segments that were not used; somebody may wait for just as many.
    pub(super) fn give_back(&mut self) {
        if self.more_used == self.more_count {
            return;
        }
        for place in self.more_used..self.more_count {
            let segment = self.row.reserved(place);
            self.client.board.segments()[segment.index()].set_state(SegmentState::Free);
        }
        self.more_count = self.more_used;
        self.client.board.header().announce_free_segments();
    }

    fn stalled(&self, sleep: impl FnOnce()) {
        let before = now_ns();
        sleep();
        self.row.count_stall(now_ns().saturating_sub(before));
    }

    /// Goes on in the next of the segments reserved, under a new generation. The one before stays
    /// with the lane until the operation is over: the keeper must find all members of a group
    /// there.
    pub(super) fn next_segment(&mut self) {
        debug_assert!(self.more_used < self.more_count, "as `has_room` says");
        let client = self.client;
        let rows = client.board.segments();
        let segment = self.row.reserved(self.more_used);
        self.more_used += 1;
        self.row.leave_segment();
        if let Some(before) = self.end.take() {
            rows[before.segment.index()].note_end(before.at);
            if on(Canary::SealedUnfenced) {
                self.persist_seal(before.segment, before.generation);
            }
        }
        let mut generation = client.board.draw_generation();
        if on(Canary::GenerationKept) {
            generation = segment_generation(&client.nvm, &client.layout, segment).unwrap_or(generation);
        }
        rows[segment.index()].clear_summary();
        #[cfg(shuttle)]
        if mutated(Mutation::RecordBeforeGeneration) {
            let offset = client.layout.segment_offset(segment);
            client.nvm.store_u64(offset, holdfast_pool::encode(generation.get(), offset));
        }
        #[cfg(shuttle)]
        let set_segment_generation = |nvm, layout, segment, generation| {
            if !mutated(Mutation::RecordBeforeGeneration) {
                set_segment_generation(nvm, layout, segment, generation);
            }
        };
        set_segment_generation(&client.nvm, &client.layout, segment, generation);
        let seed = segment_seed(&client.uuid, segment, generation);
        let end = LaneEnd { segment, at: SEGMENT_HEADER_BYTES as u32, generation, seed };
        self.row.set_end(&end);
        self.end = Some(end);
    }

    /// Nothing is appended to a segment of ours any more, and what is in it is durable: from here
    /// on what is missing there is damage. Before it is the log's, which may use it again.
    pub(super) fn seal(&self, segment: Segment) {
        // The lane's latest is as high as any of its segments'.
        self.persist_seal(segment, self.end.map_or(Generation::NONE, |end| end.generation));
        self.client.board.segments()[segment.index()].set_state(SegmentState::Sealed);
    }

    fn persist_seal(&self, segment: Segment, newest: Generation) {
        let (client, row) = (self.client, &self.client.board.segments()[segment.index()]);
        let generation = segment_generation(&client.nvm, &client.layout, segment);
        // Not of a use that another keeper began meanwhile: ours is over, and its numbers are
        // lower.
        let generation = generation.filter(|&it| it <= newest);
        if let (Some(generation), Some(end)) = (generation, row.end()) {
            let below = client.board.next_seq().next();
            seal_segment(
                &client.nvm,
                &client.layout,
                &client.uuid,
                SegmentUse { segment, generation },
                end,
                below,
            );
        }
    }

    /// Whether a payload fits into what is reserved. Segments behind these may be another lane's.
    pub(crate) fn has_room(&self, payload: u64) -> bool {
        let here = self.payload_room();
        let more = (self.more_count - self.more_used) as u64;
        record_bytes(payload) + CANCEL_BYTES <= self.room()
            || payload <= here + more * member_bytes_max(&self.client.layout)
    }

    /// Members a payload takes that fills the present segment and goes on in fresh ones.
    pub(super) fn members(&self, payload: u64) -> u16 {
        let rest = payload.saturating_sub(self.payload_room());
        1 + rest.div_ceil(member_bytes_max(&self.client.layout)) as u16
    }
}
