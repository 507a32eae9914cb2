//! Removed files are let go of.
//!
//! When the last name of a file is gone its records are void, and the slot says so. Then the keeper
//! lets go of the file: nothing of it is open here any more, so its space is free as soon as no
//! program has it open. Only the slot stays, which has recovery remove the name again, until the
//! directory is on disk: a *grave*. Must never give a slot back before that, and never let go of a
//! file of which something is live.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_board::{Way, pause};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::MARK_VOID;

use super::file::{GONE, ManagedFile};
use super::state::{Durable, Grave};
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, locked};

/// Who is out of space tries again if something was let go of since then.
const FREED_RECENTLY: Duration = Duration::from_secs(1);
/// Threads that have a file when it is let go of are done with it within this time, or wait for
/// the disk, which has more to do for who is out of space: the first for who just removed it.
const LOOKERS_MAX: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// A removal may be looked at so often before its notice is given up.
const LOOKS_FOR_NOTICE: u32 = 8;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// If the last name of a file is gone, voids its records: nothing of it can be found after a
    /// crash, and a name that comes back is removed again by recovery (history 16). Returns whether
    /// it is so.
    pub fn void_if_unlinked(&self, file: &ManagedFile<D::File>) -> bool {
        let mut meta = file.meta();
        // Its slot may be another file's by now.
        if meta.marks & MARK_VOID != 0 || !self.is_current(file) {
            return true;
        }
        let row = self.board.row(file.slot);
        // A file leaves state Behind for good before its removal is announced: who has it open
        // reads on in the page cache.
        if meta.unlinking.is_none() || row.state().lags() {
            return false;
        }
        if !file.held().is_removed() && !on(Canary::RemovalAssumed) {
            return false;
        }
        // Before its notice the removal would count for nothing, and the notice for somebody
        // else's. One that was taken off with a sync of the directory does not come again.
        let is_noticed = meta.unlinking.as_ref().is_none_or(|path| self.is_noticed(path));
        if !is_noticed && meta.looks_for_notice < LOOKS_FOR_NOTICE {
            meta.looks_for_notice += 1;
            return false;
        }
        meta.marks |= MARK_VOID;
        self.persist_marks(file, &meta);
        self.board.go(file.slot, Way::Orphan);
        if let Some(removed) = meta.unlinking.take() {
            self.note_removed(&removed);
        }
        self.note_orphan(file);
        true
    }

    /// Takes what is removed from the list of what is about to be.
    pub(super) fn forget_removed(&self) {
        locked(&self.removing).retain(|file| !self.void_if_unlinked(file) && file.meta().unlinking.is_some());
    }

    /// Lets go of removed files, but for those that a client keeps from others at the moment:
    /// nothing of ours keeps their space. Waits for no disk. Returns whether there were any.
    pub fn let_go_removed(&self) -> bool {
        // Who comes second finds all of it done.
        let _turn = locked(&self.letting_go);
        self.looks_for_removed.store(false, Ordering::SeqCst);
        self.forget_removed();
        let orphans = std::mem::take(&mut *locked(&self.orphans));
        let mut found = false;
        for place in orphans {
            let Some(file) = self.file(place) else { continue };
            if self.try_let_go_removed(&file) {
                found = true;
            } else {
                locked(&self.orphans).push(place);
            }
        }
        if found {
            *locked(&self.freed) = Some(Instant::now());
        }
        found
    }

    /// For who is out of space (or, with `own`, removed a large file): lets go of all that is
    /// removed, and waits for the threads that look at it. Returns whether the space of something
    /// may be free by now that was not before.
    pub fn make_room(&self, own: bool) -> bool {
        let (begun, patience) = (Instant::now(), LOOKERS_MAX[usize::from(!own)]);
        loop {
            self.let_go_removed();
            let is_open = locked(&self.graves).values().any(|grave| grave.open.strong_count() > 0);
            if !is_open && locked(&self.orphans).is_empty() || begun.elapsed() >= patience {
                break;
            }
            *locked(&self.freed) = Some(Instant::now());
            pause(Duration::from_micros(50));
        }
        locked(&self.freed).is_some_and(|at| at.elapsed() < FREED_RECENTLY)
    }

    fn try_let_go_removed(&self, file: &Arc<ManagedFile<D::File>>) -> bool {
        match self.try_hold(file) {
            Ok(true) => {}
            Ok(false) => return true,
            Err(_) => return false,
        }
        if file.meta().marks & GONE != 0 {
            self.reap(file);
        }
        self.let_go(file);
        true
    }

    /// Lets go of a removed file, whose slot stays. Clients that have it open find it left to the
    /// kernel, by the generation that stays; others do not find it any more, nor a later file with
    /// its inode number instead.
    pub(super) fn reap(&self, file: &Arc<ManagedFile<D::File>>) {
        let row = self.board.row(file.slot);
        let mut files = locked(&self.files);
        if files[file.slot.index()].is_none() {
            return;
        }
        self.unlist(file);
        debug_assert_eq!(row.page_rows().get(), 0, "nothing of it is in the log alone");
        self.board.go(file.slot, Way::Orphan);
        self.drop_loaded(file);
        file.give_back();
        self.events.released(file);
        files[file.slot.index()] = None;
        let directories = file.meta().directories.clone();
        let (known, open) = (Arc::downgrade(file), file.whole());
        let grave = Grave { generation: file.generation, dev: file.dev, directories, known, open };
        locked(&self.graves).insert(file.slot, grave);
        drop(files);
        locked(&self.fresh).retain(|fresh| !Arc::ptr_eq(fresh, file));
        self.forget_rename(file);
    }
}
