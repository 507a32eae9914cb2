//! What a dead client leaves behind: half an operation, locks, cells. Its operation is rolled forward when its
//! record is whole, else nothing of it exists; then everything it held is opened (history 15).

use std::sync::atomic::Ordering;

use holdfast_board::NO_SIZE;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::rewrite::roll_forward;
use super::{Durable, Writers};
use crate::disk::Disk;

impl<N: Nvm, D: Disk> Durable<N, D> {
    /// Repairs everything of `client`, which is dead or has become another program.
    pub fn repair(&self, client: u32) {
        for dead in self.board.dead_lanes(client) {
            if let Some(seq) = dead.seq.filter(|_| !on(Canary::RollForwardSkipped)) {
                self.finish_operation(dead.slot, seq, &dead.segments);
                if let Some(row) = self.board.files().get(dead.slot as usize) {
                    // It may have made the file longer, and did not live to say so.
                    row.size_hint.store(NO_SIZE, Ordering::SeqCst);
                }
            }
            self.board.open_lane(&dead);
        }
        self.withdraw_announced(client);
        // It may have changed names and died before it counted that.
        self.board.header().note_all_names();
        for slot in self.board.files_held_by(client) {
            let row = &self.board.files()[slot as usize];
            // A call around the log may have been under way: what it did is made durable before others go on.
            if let Some(file) = self.file(u64::from(slot), row.generation.load(Ordering::SeqCst)) {
                let _ = self.settle(&file, Writers::KeptOut);
            }
            row.size_hint.store(NO_SIZE, Ordering::SeqCst);
            row.unlock_exclusive(client);
        }
        self.board.free_cells(client);
    }

    /// Rolls an operation forward under the locks its owner still holds. Where that cannot be done, the file is
    /// made durable as it is: the operation was not acknowledged.
    fn finish_operation(&self, slot: u32, seq: u64, segments: &[u32]) {
        let generation =
            self.board.files().get(slot as usize).map_or(0, |row| row.generation.load(Ordering::SeqCst));
        let Some(file) = self.file(u64::from(slot), generation) else { return };
        let rolled =
            roll_forward(&self.nvm, &self.superblock, segments, seq, &mut || self.open_for_writing(&file));
        if let Err(error) = rolled {
            let path = file.meta().path.display().to_string();
            self.events.trouble(format!("{path}: cannot finish the write of a dead process: {error}"));
        }
    }
}
