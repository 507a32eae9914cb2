//! One round of expiry: dirty files are synced in groups, their records voided, dead segments and
//! unused slots given back.
//!
//! In state Through draining never writes (design 5): it is `fsync` and expire. In state Behind the
//! sync of a file drains its page rows first. When a round is due is the keeper's matter
//! (`crate::expire`).

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_board::FileState;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::MARK_CREATED;

use super::looks::GONE;
use super::settle::{Synced, Writers};
use super::{Durable, ManagedFile, Pace, locked};
use crate::disk::{Disk, DiskFile, Stat};

/// A clean file that was not written for this long loses its slot, if nobody has it open for
/// writing.
pub(crate) const IDLE_FILE: Duration = Duration::from_secs(3);
/// A file that was left to the kernel is looked at this often: once nobody has it open for writing,
/// its slot is given back, and who opens it next finds it as any other file.
pub(crate) const BYPASSED_FILE: Duration = Duration::from_secs(2);
/// Removed files hold slots, disk space and page cache until their directories are synced, which
/// waits for the disk: not more of them than this, each counted as a file and once more for each
/// [`REMOVED_BYTES`] of it.
pub(crate) const REMOVED_FILES_MAX: u32 = 64;
const REMOVED_BYTES: u64 = 1 << 20;
/// With more dirty files than this on one file system, one `syncfs` is cheaper than as many
/// `fsync`s.
const SYNCFS_FILES_MIN: usize = 32;

/// A file that is due, and the seq up to which its records are.
type Chosen<F> = (Arc<ManagedFile<F>>, u64);
/// A file with what its sync covered.
type Covered<F> = (Arc<ManagedFile<F>>, Synced);

impl<N: Nvm, D: Disk> Durable<N, D> {
    /// Settles every dirty file, makes names durable, gives back slots of removed files and frees
    /// dead segments. False when something could not be brought to disk.
    pub fn expire_all(&self) -> bool {
        let clean = self.expire_due(&|_| Some(u64::MAX), Pace::Full);
        self.note_round();
        clean
    }

    /// Everything that was live when the last call of this was made has been tried: who waits for
    /// log space since may give up.
    pub fn note_round(&self) {
        self.board.header().rounds.add(1);
    }

    /// As `expire_all`, for the files and the records up to the seqs that `due` says. Nothing else
    /// but their bytes waits: names are made durable and removed files given back in every round.
    pub fn expire_due(&self, due: &dyn Fn(&ManagedFile<D::File>) -> Option<u64>, pace: Pace) -> bool {
        self.beat();
        self.follow_names();
        self.forget_removed();
        // What is settled below is on disk; directory syncs need not ask for it any more.
        locked(&self.fresh).retain(|file| file.meta().marks & MARK_CREATED != 0);
        let (void, live): (Vec<_>, Vec<_>) =
            self.managed().into_iter().partition(|file| file.meta().marks & GONE != 0);
        let dirty: Vec<_> = live
            .into_iter()
            .filter_map(|file| {
                let state = self.board.files()[file.slot as usize].state();
                let is_dirty = (state.is_absorbed() || state == FileState::Failed) && self.is_dirty(&file);
                let seq_max = if is_dirty { due(&file) } else { None };
                seq_max.map(|seq_max| (file, seq_max))
            })
            .collect();
        let mut clean = true;
        let mut synced = Vec::new();
        for (_, group) in by_file_system(&dirty) {
            clean &= self.sync_group(&group, pace, &mut synced);
        }
        let named = self.sync_names(&void, &synced);
        for (file, covered) in synced {
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

    /// Gives back what removed files hold: their directories are synced, nothing else.
    pub fn release_removed(&self) {
        self.removed_files.store(0, Ordering::SeqCst);
        self.forget_removed();
        let mut void = self.managed();
        void.retain(|file| file.meta().marks & GONE != 0);
        if self.sync_names(&void, &[]) {
            self.free_segments();
        }
    }

    /// Takes what is removed from the list of what is about to be: a file on it stays open, and
    /// keeps its space.
    pub(super) fn forget_removed(&self) {
        locked(&self.removing).retain(|file| !self.void_if_unlinked(file) && file.meta().unlinking.is_some());
    }

    /// A file was removed for good. Rings the expirer when enough were.
    pub(crate) fn count_removed(&self, stat: Option<&Stat>) {
        let weight =
            1 + stat.map_or(0, |stat| stat.size / REMOVED_BYTES).min(REMOVED_FILES_MAX.into()) as u32;
        let before = self.removed_files.fetch_add(weight, Ordering::SeqCst);
        if before < REMOVED_FILES_MAX && before + weight >= REMOVED_FILES_MAX {
            self.ring_expirer();
        }
    }

    fn sync_group(&self, files: &[Chosen<D::File>], pace: Pace, synced: &mut Vec<Covered<D::File>>) -> bool {
        let mut clean = true;
        if files.len() >= SYNCFS_FILES_MIN {
            // Only to have the disk do the work of all at once; every file is still synced by
            // itself below, which is cheap by then and shows each file's own errors.
            self.syncs.fetch_add(1, Ordering::Relaxed);
            let first = &files[0].0;
            let row = &self.board.files()[first.slot as usize];
            if let Ok(description) = first.description(&row.client_opens) {
                description.sync_file_system();
            }
        }
        for (file, seq_max) in files {
            match self.sync_file(file, Writers::MayBeIn, *seq_max, pace) {
                Ok(covered) => synced.push((Arc::clone(file), covered)),
                Err(_) => clean = false,
            }
        }
        clean
    }

    /// Syncs the directories of new and removed names and gives back the slots of removed files.
    fn sync_names(&self, void: &[Arc<ManagedFile<D::File>>], synced: &[Covered<D::File>]) -> bool {
        let created =
            synced.iter().map(|(file, _)| file).filter(|file| file.meta().marks & MARK_CREATED != 0);
        let mut directories: HashSet<PathBuf> = HashSet::new();
        for file in void.iter().chain(created) {
            directories.extend(file.meta().directories.iter().cloned());
        }
        if on(Canary::ReleaseBeforeDirectorySync) {
            void.iter().for_each(|file| self.slots().release(file.slot));
        }
        if let Err(error) = self.sync_directories(&directories) {
            self.events.trouble(format!("cannot bring a directory to disk: {error}"));
            return false;
        }
        for file in void {
            // Who has it now is done with it before the next round.
            if matches!(self.try_hold(file), Ok(true)) {
                self.release(file);
                self.let_go(file);
            }
        }
        true
    }

    /// Makes slots free for new files: everything is settled and unused slots are given back.
    pub fn free_slots(&self) {
        self.expire_all();
        for file in self.managed() {
            self.retire(&file);
        }
    }
}

fn by_file_system<F>(files: &[Chosen<F>]) -> BTreeMap<u64, Vec<Chosen<F>>> {
    let mut groups: BTreeMap<u64, Vec<Chosen<F>>> = BTreeMap::new();
    for (file, seq_max) in files {
        groups.entry(file.dev).or_default().push((Arc::clone(file), *seq_max));
    }
    groups
}
