//! What is known of removed files: those that are to be let go of, and the slots that stay behind
//! until a directory is on disk. Must never give one of these back before that.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use holdfast_board::Way;
use holdfast_cache::FileRef;
use holdfast_disk::{Disk, locked};
use holdfast_media::Nvm;

use super::file::ManagedFile;
use super::state::{Durable, KEEPER_ID};
use super::upkeep::Upkeeps;

/// Removed files have slots until their directories are synced, which waits for the disk: not more
/// of them than this.
pub const REMOVED_FILES_MAX: u32 = 64;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// A file has no name any more, and its slot says so. Rings the expirer when there are many.
    pub fn note_orphan(&self, file: &ManagedFile<D::File>) {
        locked(&self.orphans).push(file.place());
        if self.removed_files.fetch_add(1, Ordering::SeqCst) + 1 == REMOVED_FILES_MAX {
            self.ring_expirer();
        }
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
        if self.board.lingers(slot) || !self.try_hold_slot(slot) {
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
        self.let_go_as(slot, KEEPER_ID);
    }
}
