//! What a dead client leaves behind: half an operation, locks, cells. Its operation is rolled forward when its
//! record is whole, else nothing of it exists; then everything it held is opened (history 15).

use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_board::{FileState, LaneRow, RequestState, SegmentState, wake};
use holdfast_log::Kind;
use holdfast_media::Nvm;

use super::rewrite::roll_forward;
use super::{Durable, KEEPER_ID};
use crate::disk::Disk;

impl<N: Nvm, D: Disk> Durable<N, D> {
    /// Repairs everything of `client`, which is dead or has become another program.
    pub fn repair(&self, client: u32) {
        self.repair_lanes(client);
        self.repair_files(client);
    }

    /// First half: its operations, page locks and cells. Waits for nobody: others may be dead, too, and wait for this.
    pub fn repair_lanes(&self, client: u32) {
        for (index, lane) in self.board.lanes().iter().enumerate() {
            if lane.owner.load(Ordering::SeqCst) == client {
                self.repair_lane(index as u32, lane);
            }
        }
        self.withdraw_removals(client);
        for cell in self.board.requests() {
            if cell.client.load(Ordering::Relaxed) == client
                && matches!(cell.state(), RequestState::Claimed | RequestState::Done)
            {
                cell.set_state(RequestState::Free);
            }
        }
    }

    /// Whether it keeps others out of a file.
    pub fn keeps_files(&self, client: u32) -> bool {
        self.board.files().iter().any(|row| row.exclusive.load(Ordering::SeqCst) & KEEPER_ID == client)
    }

    /// Second half: the files it kept others out of. Waits for page locks and the disk.
    pub fn repair_files(&self, client: u32) {
        for cell in self.board.requests() {
            let asked = || cell.client.load(Ordering::SeqCst) == client;
            // What it asked under its lock must not be done without it.
            if asked() && !cell.advance(RequestState::Posted, RequestState::Free) {
                while asked() && cell.state() == RequestState::Taken {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        for (slot, row) in self.board.files().iter().enumerate() {
            // A call around the log may have been under way: what it did is made durable before others go on.
            if row.exclusive.load(Ordering::SeqCst) & KEEPER_ID == client {
                if let Some(file) = self.file(slot as u64, row.generation.load(Ordering::SeqCst)) {
                    let _ = self.settle_held(&file);
                }
                row.unlock_exclusive(client);
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
            self.finish_operation(lane, slot, seq, &segments);
        }
        self.board.frames().free_taken(index);
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

    /// Rolls an operation forward under the locks its owner still holds. Where that cannot be done, the log is applied
    /// anew before the file's next sync: the operation was not acknowledged.
    ///
    /// In state Behind its owner may have entered some of its pages and not others. All rows of its range are drained, which
    /// leaves nothing newer than the page cache there, and its record follows.
    fn finish_operation(&self, lane: &LaneRow, slot: u32, seq: u64, segments: &[u32]) {
        let Some(row) = self.board.files().get(slot as usize) else { return };
        let Some(file) = self.file(u64::from(slot), row.generation.load(Ordering::SeqCst)) else { return };
        let range = (lane.lock_offset.load(Ordering::SeqCst), lane.lock_bytes.load(Ordering::SeqCst));
        let rolled = roll_forward(&self.nvm, &self.superblock, segments, seq, &mut || {
            let target = self.open_for_writing(&file)?;
            if range.1 > 0 {
                self.drain_held(&target, slot, range)?;
            }
            Ok(target)
        });
        match rolled {
            Ok(Some(done)) if row.state() == FileState::Behind => match done.kind {
                Kind::Write => _ = row.size_hint.fetch_max(done.file_offset + done.extent, Ordering::SeqCst),
                Kind::Truncate => row.size_hint.store(done.file_offset, Ordering::SeqCst),
                Kind::Punch | Kind::Cancel => {}
            },
            Ok(_) => {}
            Err(error) => {
                let mut meta = file.meta();
                meta.rewrite = true;
                self.events.trouble(format!(
                    "{}: cannot finish the write of a dead process: {error}",
                    meta.path.display()
                ));
            }
        }
    }
}
