//! The files that have slots: how they are found, and what is said of one in its slot and its row.
//!
//! Whoever has a file from here may find that its slot was given back meanwhile (`is_current`).

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_board::{FileRow, Listed, pause};
use holdfast_cache::FileRef;
use holdfast_canary::{Canary, on};
use holdfast_disk::{Access, Disk, DiskFile, Stat, locked};
use holdfast_media::Nvm;
use holdfast_pool::{MARK_AHEAD, MARK_CREATED, MARK_REMOVED, Parent, Slot, Stamp};

use super::file::{ManagedFile, Meta};
use super::state::Durable;
use super::upkeep::Upkeeps;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// The managed file of a slot, if its use has this generation.
    pub fn file(&self, place: FileRef) -> Option<Arc<ManagedFile<D::File>>> {
        let files = locked(&self.files);
        let file = files.get(place.slot.index())?.as_ref()?;
        (file.generation == place.generation).then(|| Arc::clone(file))
    }

    /// The file that has a slot now.
    pub fn file_now(&self, slot: Slot) -> Option<Arc<ManagedFile<D::File>>> {
        let generation = self.board.files().get(slot.index())?.generation();
        self.file(FileRef { slot, generation })
    }

    /// Whether the slot of a file is still its own.
    pub(super) fn is_current(&self, file: &ManagedFile<D::File>) -> bool {
        self.board.row(file.slot).generation() == file.generation
    }

    /// All managed files.
    pub fn managed(&self) -> Vec<Arc<ManagedFile<D::File>>> {
        locked(&self.files).iter().flatten().cloned().collect()
    }

    pub(super) fn managed_at(&self, dev: u64, ino: u64) -> Option<Arc<ManagedFile<D::File>>> {
        let slot = self.board.find(dev, ino)?;
        locked(&self.files)[slot.index()].clone().filter(|file| (file.dev, file.ino) == (dev, ino))
    }

    /// Has clients find a file by its inode. The caller has `files` locked.
    pub(super) fn list(&self, file: &ManagedFile<D::File>) {
        file.set_listed(true);
        self.board.insert(file.slot, file.dev, file.ino);
    }

    /// Has nobody find it any more. The caller has `files` locked.
    pub(super) fn unlist(&self, file: &ManagedFile<D::File>) {
        file.set_listed(false);
        self.board.remove(file.slot, file.dev, file.ino);
    }

    /// Makes the board say again by which inode each file is found, which generation its slot has,
    /// and that a file failed of which it says no state that there is; whether a stray store had
    /// it say something else.
    pub fn mend_table(&self) -> bool {
        let files = locked(&self.files);
        let listed = || files.iter().flatten().filter(|file| file.is_listed());
        let as_told: Vec<_> = listed()
            .map(|file| Listed { slot: file.slot, generation: file.generation, dev: file.dev, ino: file.ino })
            .collect();
        let mut was_damaged = self.board.mend_table(&as_told);
        for file in listed().filter(|file| self.board.row(file.slot).has_no_state()) {
            self.board.row(file.slot).fail_without_state();
            was_damaged = true;
        }
        was_damaged
    }

    /// Whether records of the file may be live, or something of it must still reach the disk.
    pub fn is_dirty(&self, file: &ManagedFile<D::File>) -> bool {
        let row = self.board.row(file.slot);
        if row.state().is_unsynced() {
            return false;
        }
        row.has_live_records() || file.meta().marks & MARK_CREATED != 0
    }

    /// Whether changes of the file are logged, or may be from the next sync on.
    pub fn is_absorbed(&self, file: &ManagedFile<D::File>) -> bool {
        self.is_current(file) && self.board.row(file.slot).state().is_managed()
    }

    /// A description of a managed file that can be written to, for repair; the fence is told that
    /// it is ours.
    pub(super) fn open_for_writing(&self, file: &ManagedFile<D::File>) -> io::Result<D::File> {
        if let Some(lent) = file.lent() {
            return lent.try_clone();
        }
        self.board.row(file.slot).note_open();
        file.held().reopen(Access::Write)
    }

    /// Persists the marks of a file, whose `meta` the caller has locked. Not when its slot was
    /// given back meanwhile: it may be another file's by now.
    pub(super) fn persist_marks(&self, file: &ManagedFile<D::File>, meta: &Meta) {
        if self.is_current(file) {
            // The bug leaves it out for good: else whatever is marked next would make up for it, if
            // it comes before the test is over.
            let left_out = if on(Canary::RemovalUnmarked) { MARK_REMOVED } else { 0 };
            self.slots().set_marks(file.slot, meta.marks & !left_out);
        }
    }

    /// Persists whether bytes of a file may be in the log and not in the page cache: if not, and
    /// the machine and its mount go on without us, recovery has only to sync it.
    pub(super) fn set_ahead(&self, file: &ManagedFile<D::File>, meta: &mut Meta, is_ahead: bool) {
        let is_ahead = is_ahead && !on(Canary::AheadForgotten);
        if (meta.marks & MARK_AHEAD != 0) != is_ahead {
            meta.marks ^= MARK_AHEAD;
            self.persist_marks(file, meta);
        }
    }

    /// Keeps a file out of state Behind for good; false when it is in it, and must leave it first.
    pub fn never_behind(&self, file: &ManagedFile<D::File>) -> bool {
        let mut meta = file.meta();
        meta.may_be_behind = false;
        !self.board.row(file.slot).state().lags()
    }

    /// The slot does not hold the creation of a file any more that the log never stood for.
    pub(super) fn disown(&self, file: &ManagedFile<D::File>) {
        let mut meta = file.meta();
        if meta.marks & MARK_CREATED != 0 {
            meta.marks &= !MARK_CREATED;
            self.persist_marks(file, &meta);
            let path = meta.path.clone();
            drop(meta);
            self.forget_created(&path);
        }
    }

    /// What a slot says of a file of which the file system says `stat`.
    pub fn stamp_of(&self, stat: &Stat, is_on_disk: bool) -> Stamp {
        stat.stamp(self.disk.boot(), is_on_disk)
    }

    /// The directory of a path, as its file system knows it. One that cannot be looked at stays
    /// unknown.
    pub(super) fn parent_of(&self, path: &Path) -> Option<Parent> {
        self.disk.directory(path.parent()?).ok()
    }

    /// Waits for who was about to do something with the slot of a file when its generation changed.
    pub(super) fn await_lookers(&self, file: &ManagedFile<D::File>) {
        while file.is_draining() {
            pause(Duration::from_micros(50));
        }
        drop(locked(&file.expiring));
        drop(locked(&file.times));
        drop(file.meta());
    }
}

/// A dead client may have made a file in state Behind longer, by a call of the kernel's that
/// readers see while there is no page row, and so may its record, written to the file again.
pub(super) fn keep_size<F: DiskFile>(row: &FileRow, file: &ManagedFile<F>) {
    if row.state().lags()
        && let Ok(stat) = file.held().stat()
    {
        row.raise_end(stat.size);
    }
}
