//! One round of expiry: dirty files are synced in groups, their records voided, dead segments and
//! unused slots given back.
//!
//! In state Through draining never writes: it is `fsync` and expire. In state Behind the sync of a
//! file drains its page rows first. When a round is due is the keeper's matter
//! (`crate::expire`).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use holdfast_cache::FileRef;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{MARK_CREATED, Seq};

use super::file::{GONE, IDLE_FILE, ManagedFile};
use super::state::Durable;
use super::sync::{Pace, Synced, Writers};
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, locked};

/// With more dirty files than this on one file system, one `syncfs` is cheaper than as many
/// `fsync`s.
const SYNCFS_FILES_MIN: usize = 32;

/// A file that is due, by its place, so that one which is removed meanwhile is not kept from being
/// let go of, and the seq up to which its records are.
type Chosen = (FileRef, Seq);
/// A file with what its sync covered.
type Covered = (FileRef, Synced);

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Settles every dirty file, makes names durable, gives back slots of removed files and frees
    /// dead segments. False when something could not be brought to disk.
    pub fn expire_all(&self) -> bool {
        let clean = self.expire_due(&|_| Some(Seq::MAX), Pace::Full);
        self.note_round();
        clean
    }

    /// Everything that was live when the last call of this was made has been tried: who waits for
    /// log space since may give up.
    pub fn note_round(&self) {
        self.board.header().end_round();
    }

    /// As `expire_all`, for the files and the records up to the seqs that `due` says. Nothing else
    /// but their bytes waits: names are made durable and removed files given back in every round.
    pub fn expire_due(&self, due: &dyn Fn(&ManagedFile<D::File>) -> Option<Seq>, pace: Pace) -> bool {
        self.beat();
        self.follow_names();
        self.let_go_removed();
        // What is settled below is on disk; directory syncs need not ask for it any more.
        locked(&self.fresh).retain(|file| file.meta().marks & MARK_CREATED != 0);
        let mut dirty: BTreeMap<u64, Vec<Chosen>> = BTreeMap::new();
        for file in self.managed() {
            let state = self.board.row(file.slot).state();
            let is_live = file.meta().marks & GONE == 0;
            if is_live
                && (state.is_absorbed() || state.is_failed())
                && self.is_dirty(&file)
                && let Some(seq_max) = due(&file)
            {
                dirty.entry(file.dev).or_default().push((file.place(), seq_max));
            }
        }
        let mut clean = true;
        let mut synced = Vec::new();
        for group in dirty.values() {
            clean &= self.sync_group(group, pace, &mut synced);
        }
        let named = self.sync_names(&synced);
        for (place, covered) in synced {
            let Some(file) = self.file(place) else { continue };
            if named || file.meta().marks & MARK_CREATED == 0 {
                self.expire(&file, covered);
            }
            let mut meta = file.meta();
            (meta.used, meta.look_at) = (Instant::now(), Instant::now() + IDLE_FILE);
        }
        self.free_segments();
        self.review_behind();
        clean && named
    }

    /// Gives back the slots of removed files: their directories are synced, nothing else.
    pub fn release_removed(&self) {
        self.removed_files.store(0, Ordering::SeqCst);
        self.let_go_removed();
        if self.sync_names(&[]) {
            self.free_segments();
        }
    }

    fn sync_group(&self, files: &[Chosen], pace: Pace, synced: &mut Vec<Covered>) -> bool {
        let mut clean = true;
        if files.len() >= SYNCFS_FILES_MIN
            && let Some(first) = files.iter().find_map(|(place, _)| self.file(*place))
        {
            // Only to have the disk do the work of all at once; every file is still synced by
            // itself below, which is cheap by then and shows each file's own errors.
            self.syncs.fetch_add(1, Ordering::Relaxed);
            let row = self.board.row(first.slot);
            if let Ok(description) = first.description(row) {
                self.having_committed(first.dev, || description.sync_file_system());
            }
        }
        for (place, seq_max) in files {
            let Some(file) = self.file(*place) else { continue };
            match self.sync_file(&file, Writers::MayBeIn, *seq_max, pace) {
                Ok(covered) => synced.push((*place, covered)),
                Err(_) => clean = false,
            }
        }
        clean
    }

    /// Syncs the directories of new and removed names and gives back the slots of removed files.
    fn sync_names(&self, synced: &[Covered]) -> bool {
        let (graves, mut directories) = self.graves();
        for file in synced.iter().filter_map(|(place, _)| self.file(*place)) {
            let meta = file.meta();
            if meta.marks & MARK_CREATED != 0 {
                directories.extend(meta.directories.iter().cloned());
            }
        }
        if on(Canary::ReleaseBeforeDirectorySync) {
            graves.iter().for_each(|place| self.slots().release(place.slot));
        }
        if let Err(error) = self.sync_directories(&directories) {
            self.events.trouble(format!("cannot bring a directory to disk: {error}"));
            return false;
        }
        graves.into_iter().for_each(|place| self.end_grave(place));
        true
    }

    /// Lets go of files that nobody has open for writing and of which nothing is pending. Never
    /// waits for who has a file.
    pub fn retire_unused(&self) {
        self.managed().iter().for_each(|file| _ = self.retire(file));
    }

    /// Lets go of everything but files that somebody has open for writing: what is pending is
    /// brought to the disk, and nothing of ours keeps a file system busy. Never waits for who has a
    /// file.
    pub fn let_go_unused(&self) {
        if self.managed().is_empty() && locked(&self.removing).is_empty() && !self.has_graves() {
            return;
        }
        self.expire_due(&|file| (!self.is_in_use(file)).then_some(Seq::MAX), Pace::Full);
        for file in self.managed() {
            let row = self.board.row(file.slot);
            // What it held before the log stood for it.
            if row.state().keeps_up() && row.needs_real_sync() && !self.is_in_use(&file) {
                // Who fails has its file stay; it is tried again with the next round.
                let _ = self.settle(&file, Writers::MayBeIn);
            }
            self.retire(&file);
        }
    }

    /// Whether somebody may have a file open for writing. Of one that is lent the program's
    /// description is in our own hands, whether it is closed there or not.
    fn is_in_use(&self, file: &ManagedFile<D::File>) -> bool {
        let row = self.board.row(file.slot);
        file.lent().is_none()
            && file.description(row).map_or(true, |description| description.is_open_for_writing())
    }

    /// Makes slots free for new files: everything is settled and unused slots are given back.
    pub fn free_slots(&self) {
        self.expire_all();
        for file in self.managed() {
            self.retire(&file);
        }
    }
}
