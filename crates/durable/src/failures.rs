//! What follows when the disk refuses: nothing expires, the file's clients hear of it, and the log
//! is written to the file anew before the next sync counts (invariant 4).

use std::io;

use holdfast_board::Way;
use holdfast_canary::{Canary, on};
use holdfast_disk::Disk;
use holdfast_media::Nvm;

use super::file::ManagedFile;
use super::state::Durable;
use super::upkeep::Upkeeps;

/// Tries of a failing sync before a file counts as failed and its writers get errors.
const FAILURES_MAX: u32 = 5;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    pub(super) fn drain_failed(&self, file: &ManagedFile<D::File>, error: &io::Error) {
        self.sync_failed(file, error);
    }

    pub(super) fn sync_failed(&self, file: &ManagedFile<D::File>, error: &io::Error) {
        if !self.is_current(file) {
            return;
        }
        let row = self.board.row(file.slot);
        row.note_error();
        let mut meta = file.meta();
        // Of what is damaged in the log the kernel has lost nothing.
        if error.kind() != io::ErrorKind::InvalidData {
            meta.rewrite = !on(Canary::NoRewrite);
            // A keeper that dies before the rewrite leaves a page cache that lacks bytes.
            self.set_ahead(file, &mut meta, true);
        }
        meta.failures += 1;
        self.events.trouble(format!("{}: cannot bring it to disk: {error}", meta.path.display()));
        if meta.failures == FAILURES_MAX {
            // Its page rows stay where readers find them.
            self.board.go(file.slot, Way::Fail);
            self.events.trouble(format!(
                "{}: given up after {FAILURES_MAX} tries; its writers get errors, the log keeps what was acknowledged",
                meta.path.display()
            ));
        }
    }
}
