//! The mark in a slot for somebody outside: recovery replays nothing over what they did. Must never
//! take the mark of one away when another leaves.

use holdfast_disk::Disk;
use holdfast_media::Nvm;
use holdfast_pool::{MARK_CONFLICT, MARK_UNWATCHED};

use super::file::ManagedFile;
use super::state::Durable;
use super::upkeep::Upkeeps;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Until it is taken away nothing is replayed over what somebody outside did.
    pub fn mark_conflict(&self, file: &ManagedFile<D::File>) {
        let mut meta = file.meta();
        meta.conflicts += 1;
        meta.marks |= MARK_CONFLICT;
        self.persist_marks(file, &meta);
    }

    /// The same where nothing tells any more whether somebody opens it.
    pub fn mark_unwatched(&self, file: &ManagedFile<D::File>) {
        file.meta().marks |= MARK_UNWATCHED;
        self.mark_conflict(file);
    }

    /// Takes one mark away: that of somebody else stays.
    pub(super) fn end_conflict(&self, file: &ManagedFile<D::File>) {
        let is_last = {
            let mut meta = file.meta();
            meta.conflicts = meta.conflicts.saturating_sub(1);
            meta.conflicts == 0
        };
        if is_last {
            self.clear_conflict(file);
        }
    }

    pub(super) fn clear_conflict(&self, file: &ManagedFile<D::File>) {
        let mut meta = file.meta();
        meta.conflicts = 0;
        if meta.marks & MARK_CONFLICT != 0 {
            meta.marks &= !(MARK_CONFLICT | MARK_UNWATCHED);
            self.persist_marks(file, &meta);
        }
    }
}
