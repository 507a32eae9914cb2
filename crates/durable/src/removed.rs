//! Removed files: what is live of them, and what is kept of them for how long.
//!
//! When the last name of a file is gone its records are void, and the slot says so. Then the keeper
//! lets go of the file: nothing of it is open here any more, so its space is free as soon as no
//! program has it open. Only the slot stays, which has recovery remove the name again, until the
//! directory is on disk: a *grave*. Must never give a slot back before that, and never let go of a
//! file of which something is live.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_board::{Way, pause};
use holdfast_cache::FileRef;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::MARK_VOID;

use super::file::{GONE, ManagedFile};
use super::state::{Durable, Grave, KEEPER_ID};
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, locked};

/// Removed files have slots until their directories are synced, which waits for the disk: not more
/// of them than this.
pub const REMOVED_FILES_MAX: u32 = 64;
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

    /// A file has no name any more, and its slot says so. Rings the expirer when there are many.
    pub fn note_orphan(&self, file: &ManagedFile<D::File>) {
        locked(&self.orphans).push(file.place());
        if self.removed_files.fetch_add(1, Ordering::SeqCst) + 1 == REMOVED_FILES_MAX {
            self.ring_expirer();
        }
    }

    /// Takes what is removed from the list of what is about to be.
    pub(super) fn forget_removed(&self) {
        locked(&self.removing).retain(|file| !self.void_if_unlinked(file) && file.meta().unlinking.is_some());
    }

    /// A removal is about to be made: somebody is to look for it soon
    /// ([`Durable::let_go_removed`]).
    pub(super) fn expect_removal(&self) {
        if !self.looks_for_removed.swap(true, Ordering::SeqCst) {
            self.ring_expirer();
        }
    }

    /// Whether so many files were removed that their slots are given back now.
    pub fn has_many_removed(&self) -> bool {
        self.removed_files.load(Ordering::SeqCst) >= REMOVED_FILES_MAX
    }

    /// Whether the expirer looks for removed files in a moment.
    pub fn looks_for_removed(&self) -> bool {
        self.looks_for_removed.load(Ordering::SeqCst)
    }

    /// Whether removals were announced that are not seen yet, or files without a name are not let
    /// go of yet.
    pub fn expects_removals(&self) -> bool {
        !locked(&self.removing).is_empty() || !locked(&self.orphans).is_empty()
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

    /// Sees to files that others removed and that were heard of, as far as nobody has them.
    pub fn see_removals(&self) {
        for file in self.managed().into_iter().filter(|file| file.meta().marks & GONE != 0) {
            // Who has it is done with it soon, or it is seen to later.
            let _ = self.look(&file, false);
        }
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
            self.bury(file);
        }
        self.let_go(file);
        true
    }

    /// Lets go of a removed file, whose slot stays. Clients that have it open find it left to the
    /// kernel, by the generation that stays; others do not find it any more, nor a later file with
    /// its inode number instead.
    pub(super) fn bury(&self, file: &Arc<ManagedFile<D::File>>) {
        let row = self.board.row(file.slot);
        let mut files = locked(&self.files);
        if files[file.slot.index()].is_none() {
            return;
        }
        self.board.remove(file.slot);
        debug_assert_eq!(row.page_rows.get(), 0, "nothing of it is in the log alone");
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

    /// How many slots of removed files wait for their directories.
    pub fn graves_count(&self) -> usize {
        locked(&self.graves).len()
    }

    /// Whether any do.
    pub fn has_graves(&self) -> bool {
        self.graves_count() != 0
    }

    /// Directories of removed files on a device whose slots are in use.
    pub(super) fn directories_of_graves(&self, device: u64) -> Vec<PathBuf> {
        let graves = locked(&self.graves);
        let on_it = graves.values().filter(|grave| grave.dev == device);
        on_it.flat_map(|grave| grave.directories.iter().cloned()).collect()
    }

    /// What is to be synced so that the slots of removed files can be given back, and these slots.
    pub(super) fn graves(&self) -> (Vec<FileRef>, HashSet<PathBuf>) {
        let graves = locked(&self.graves);
        let places =
            graves.iter().map(|(&slot, grave)| FileRef { slot, generation: grave.generation }).collect();
        (places, graves.values().flat_map(|grave| grave.directories.iter().cloned()).collect())
    }

    /// Gives the slot of a removed file back, unless a client has it at the moment: the directories
    /// of its names were synced.
    pub(super) fn end_grave(&self, FileRef { slot, generation }: FileRef) {
        // Who stands still in an operation on it is not waited for.
        if self.board.lingers(slot) || !self.board.try_lock_file(slot, KEEPER_ID) {
            return;
        }
        let row = self.board.row(slot);
        let found = {
            let graves = locked(&self.graves);
            let grave = graves.get(&slot).filter(|grave| grave.generation == generation);
            grave.map(|grave| (grave.known.clone(), grave.dev))
        };
        if let Some((known, dev)) = found {
            // As at the end of any slot's use: who looks from here on leaves it alone, and whoever
            // has looked is waited for.
            row.end_use();
            if let Some(known) = known.upgrade() {
                self.await_lookers(&known);
            }
            let _files = locked(&self.files);
            self.board.go(slot, Way::Release);
            self.slots().release(slot);
            locked(&self.graves).remove(&slot);
            self.board.header().leave_ledger(dev);
        }
        row.unlock_exclusive(KEEPER_ID);
    }
}
