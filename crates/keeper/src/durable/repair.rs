//! What a dead client leaves behind: half an operation, locks, cells. Its operation is rolled forward when its
//! record is whole, else nothing of it exists; then everything it held is opened (history 15).

use std::sync::atomic::Ordering;

use holdfast_board::{LaneRow, NO_SIZE, RequestState, SegmentState, wake};
use holdfast_media::Nvm;

use super::rewrite::roll_forward;
use super::{Durable, Writers};
use crate::disk::Disk;

impl<N: Nvm, D: Disk> Durable<N, D> {
    /// Repairs everything of `client`, which is dead or has become another program.
    pub fn repair(&self, client: u32) {
        for (index, lane) in self.board.lanes().iter().enumerate() {
            if lane.owner.load(Ordering::SeqCst) == client {
                self.repair_lane(index as u32, lane);
            }
        }
        self.withdraw_announced(client);
        // It may have changed names and died before it counted that.
        self.board.header().note_all_names();
        for (slot, row) in self.board.files().iter().enumerate() {
            // A call around the log may have been under way: what it did is made durable before others go on.
            if row.exclusive.load(Ordering::SeqCst) & 0x7fff_ffff == client {
                if let Some(file) = self.file(slot as u64, row.generation.load(Ordering::SeqCst)) {
                    let _ = self.settle(&file, Writers::KeptOut);
                }
                row.size_hint.store(NO_SIZE, Ordering::SeqCst);
                row.unlock_exclusive(client);
            }
        }
        for cell in self.board.requests() {
            if cell.client.load(Ordering::Relaxed) == client
                && matches!(cell.state(), RequestState::Claimed | RequestState::Done)
            {
                cell.set_state(RequestState::Free);
            }
        }
    }

    fn repair_lane(&self, index: u32, lane: &LaneRow) {
        let slot = lane.slot.load(Ordering::SeqCst);
        let seq = lane.seq.load(Ordering::SeqCst);
        let mut segments = Vec::new();
        for (segment, row) in self.board.segments().iter().enumerate() {
            if row.state() == SegmentState::Lane(index) {
                segments.push(segment as u32);
            }
        }
        if seq != 0 && lane.announce.load(Ordering::SeqCst) != 0 {
            self.finish_operation(slot, seq, &segments);
            if let Some(row) = self.board.files().get(slot as usize) {
                // It may have made the file longer, and did not live to say so.
                row.size_hint.store(NO_SIZE, Ordering::SeqCst);
            }
        }
        // After a torn record nothing may be appended behind it: all of the lane's segments are sealed.
        lane.segment.store(0, Ordering::SeqCst);
        for segment in segments {
            self.board.segments()[segment as usize].set_state(SegmentState::Sealed);
        }
        let bytes = lane.lock_bytes.load(Ordering::SeqCst);
        if bytes > 0 {
            let offset = lane.lock_offset.load(Ordering::SeqCst);
            self.board.page_locks().unlock(index, slot, offset, bytes);
            lane.lock_bytes.store(0, Ordering::SeqCst);
        }
        if let Some(row) = self.board.files().get(slot as usize) {
            row.unlock_cursor(index);
        }
        lane.seq.store(0, Ordering::SeqCst);
        lane.announce.store(0, Ordering::SeqCst);
        lane.owner.store(0, Ordering::SeqCst);
        let wanted = &self.board.header().lanes_wanted.word;
        wanted.store(0, Ordering::SeqCst);
        wake(wanted, u32::MAX);
        self.ring_expirer();
    }

    /// Rolls an operation forward under the locks its owner still holds. Where that cannot be done, the file is
    /// made durable as it is: the operation was not acknowledged.
    fn finish_operation(&self, slot: u32, seq: u64, segments: &[u32]) {
        let generation =
            self.board.files().get(slot as usize).map_or(0, |row| row.generation.load(Ordering::SeqCst));
        let Some(file) = self.file(u64::from(slot), generation) else { return };
        let rolled =
            roll_forward(&self.nvm, &self.superblock, segments, seq, &mut || self.open_for_writing(&file));
        if let (Ok(true), Some(row)) = (&rolled, self.board.files().get(slot as usize)) {
            row.note_recorded();
        }
        if let Err(error) = rolled {
            let path = file.meta().path.display().to_string();
            self.events.trouble(format!("{path}: cannot finish the write of a dead process: {error}"));
        }
    }
}
