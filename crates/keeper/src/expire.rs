//! The expirer: brings dirty files to disk in batches, expires their records, frees segments and slots.
//!
//! In state Through draining never writes (design 5): it is `fsync` and expire. The expirer sleeps without a
//! time limit while nothing is dirty.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_board::{FileState, SegmentState, wait};
use holdfast_pool::{MARK_CREATED, MARK_VOID, SEGMENT_BYTES};

use crate::files::{ManagedFile, Synced};
use crate::keeper::{Keeper, locked};

/// A clean file that was not written for this long loses its slot, if nobody has it open for writing.
pub(crate) const IDLE_FILE: Duration = Duration::from_secs(3);
/// A file that was still open for writing then is looked at again after this long.
const OPEN_FILE: Duration = Duration::from_secs(60);
/// Removed files hold slots, disk space and page cache until their directories are synced; not more than this many.
pub(crate) const REMOVED_FILES_MAX: u32 = 8;
/// With more dirty files than this on one file system, one `syncfs` is cheaper than as many `fsync`s.
const SYNCFS_FILES_MIN: usize = 32;
/// Writers are slowed down once fewer than one in this many segments are free.
const THROTTLE_FREE_FRACTION: u64 = 4;
const IDLE: Duration = Duration::from_secs(3600);

/// Runs until the keeper stops; the last drain is the caller's.
pub(crate) fn run(keeper: &Arc<Keeper>) {
    let mut expirer = Expirer { keeper, segment_ns: 0 };
    while !keeper.is_stopping() {
        expirer.sleep_until_due();
        let wanted = keeper.drain_wanted.load(Ordering::SeqCst);
        let clean = expirer.cycle();
        let mut done = locked(&keeper.drain_done);
        if wanted > done.0 {
            *done = (wanted, clean);
            keeper.drain_signal.notify_all();
        }
    }
}

struct Expirer<'a> {
    keeper: &'a Arc<Keeper>,
    /// Time the last cycles took for a segment's worth of log, in nanoseconds.
    segment_ns: u64,
}

impl Expirer<'_> {
    fn sleep_until_due(&mut self) {
        let keeper = self.keeper;
        let header = keeper.board.header();
        let bell = &header.expirer_wake.word;
        let mut due: Option<Instant> = None;
        while !keeper.is_stopping() {
            let seen = bell.load(Ordering::SeqCst);
            if keeper.drain_wanted.load(Ordering::SeqCst) > locked(&keeper.drain_done).0 {
                return;
            }
            if keeper.removed_files.load(Ordering::SeqCst) >= REMOVED_FILES_MAX {
                keeper.release_removed();
                continue;
            }
            if !self.anything_dirty() {
                due = None;
                // Files that were settled one by one left dead segments behind; whoever waits for them rang.
                keeper.free_segments();
                header.sleep_idle(seen, || self.anything_dirty(), self.idle_files().unwrap_or(IDLE));
                self.retire_idle();
                continue;
            }
            let now = Instant::now();
            let due = *due.get_or_insert_with(|| {
                keeper.words().set_heartbeat_unix_s(Keeper::now_unix_s());
                now + Duration::from_millis(keeper.config.age_ms_max)
            });
            if now >= due || self.backlog_is_large() {
                return;
            }
            wait(bell, seen, due - now);
        }
    }

    fn anything_dirty(&self) -> bool {
        self.keeper.managed().iter().any(|file| self.needs_cycle(file))
    }

    fn needs_cycle(&self, file: &ManagedFile) -> bool {
        match self.keeper.board.files()[file.slot as usize].state() {
            FileState::Orphan => true,
            FileState::Through => self.keeper.is_dirty(file) || file.meta().unlinking.is_some(),
            _ => false,
        }
    }

    /// Whether enough is logged to go to work before the age limit.
    fn backlog_is_large(&self) -> bool {
        let (sealed, free) = self.count_segments();
        let total = u64::from(self.keeper.superblock.layout.segment_count);
        let min = match self.keeper.config.batch_bytes_min {
            0 => total * SEGMENT_BYTES / 8,
            bytes => bytes,
        };
        let max = match self.keeper.config.batch_bytes_max {
            0 => total * SEGMENT_BYTES / 2,
            bytes => bytes,
        };
        let backlog = sealed * SEGMENT_BYTES;
        backlog >= min.min(max) || (sealed > 0 && free * THROTTLE_FREE_FRACTION < total)
    }

    fn count_segments(&self) -> (u64, u64) {
        self.keeper.board.segments().iter().fold((0, 0), |(sealed, free), row| match row.state() {
            SegmentState::Sealed => (sealed + 1, free),
            SegmentState::Free => (sealed, free + 1),
            _ => (sealed, free),
        })
    }

    /// How long until an idle file may lose its slot; `None` when there is none to wait for.
    fn idle_files(&self) -> Option<Duration> {
        self.keeper
            .managed()
            .iter()
            .filter(|file| self.is_retirable(file))
            .map(|file| file.meta().look_at.saturating_duration_since(Instant::now()))
            .min()
            .map(|left| left.max(Duration::from_millis(100)))
    }

    fn is_retirable(&self, file: &ManagedFile) -> bool {
        self.keeper.board.files()[file.slot as usize].state() == FileState::Through
    }

    fn retire_idle(&self) {
        for file in self.keeper.managed() {
            if self.is_retirable(&file) && file.meta().look_at <= Instant::now() && !self.keeper.retire(&file)
            {
                file.meta().look_at = Instant::now() + OPEN_FILE;
            }
        }
    }

    /// One round over all dirty files. Returns whether everything found dirty at its start is on disk.
    fn cycle(&mut self) -> bool {
        let begun = Instant::now();
        let (sealed_before, _) = self.count_segments();
        let clean = self.keeper.expire_all();
        let (sealed_after, free) = self.count_segments();
        if let Some(freed) = sealed_before.checked_sub(sealed_after).filter(|&freed| freed > 0) {
            let segment_ns = begun.elapsed().as_nanos() as u64 / freed;
            self.segment_ns =
                if self.segment_ns == 0 { segment_ns } else { (self.segment_ns * 3 + segment_ns) / 4 };
        }
        self.throttle(free);
        if !clean {
            // The disk refused: do not hammer it.
            std::thread::sleep(Duration::from_millis(200));
        }
        clean
    }

    /// The fewer segments are free, the closer a writer's pace comes to that of the disk.
    fn throttle(&self, free: u64) {
        let low = u64::from(self.keeper.superblock.layout.segment_count) / THROTTLE_FREE_FRACTION;
        let ns = if free >= low { 0 } else { self.segment_ns * (low - free) / low.max(1) };
        let word = &self.keeper.board.header().throttle_ns;
        word.set(ns.min(50_000_000));
    }
}

impl Keeper {
    /// Settles every dirty file, makes names durable, gives back slots of removed files and frees dead segments.
    pub(crate) fn expire_all(&self) -> bool {
        self.words().set_heartbeat_unix_s(Self::now_unix_s());
        locked(&self.removing).retain(|file| !self.void_if_unlinked(file) && file.meta().unlinking.is_some());
        // What is settled below is on disk; directory syncs need not ask for it any more.
        locked(&self.fresh).retain(|file| file.meta().marks & MARK_CREATED != 0);
        let (void, live): (Vec<_>, Vec<_>) =
            self.managed().into_iter().partition(|file| file.meta().marks & MARK_VOID != 0);
        let dirty: Vec<_> = live
            .into_iter()
            .filter(|file| {
                let state = self.board.files()[file.slot as usize].state();
                matches!(state, FileState::Through | FileState::Failed) && self.is_dirty(file)
            })
            .collect();
        let mut clean = true;
        let mut synced = Vec::new();
        for (_, group) in by_file_system(&dirty) {
            clean &= self.sync_group(&group, &mut synced);
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
        clean && named
    }

    /// Gives back what removed files hold: their directories are synced, nothing else.
    fn release_removed(&self) {
        self.removed_files.store(0, Ordering::SeqCst);
        let mut void = self.managed();
        void.retain(|file| file.meta().marks & MARK_VOID != 0);
        if self.sync_names(&void, &[]) {
            self.free_segments();
        }
    }

    fn sync_group(&self, files: &[Arc<ManagedFile>], synced: &mut Vec<(Arc<ManagedFile>, Synced)>) -> bool {
        let mut clean = true;
        if files.len() >= SYNCFS_FILES_MIN {
            // Only to have the disk do the work of all at once; every file is still synced by itself below,
            // which is cheap by then and shows each file's own errors.
            self.counters.keeper_fsyncs.fetch_add(1, Ordering::Relaxed);
            let _ = rustix::fs::syncfs(&files[0].description);
        }
        for file in files {
            match self.sync_file(file) {
                Ok(covered) => synced.push((Arc::clone(file), covered)),
                Err(_) => clean = false,
            }
        }
        clean
    }

    /// Syncs the directories of new and removed names and gives back the slots of removed files.
    fn sync_names(&self, void: &[Arc<ManagedFile>], synced: &[(Arc<ManagedFile>, Synced)]) -> bool {
        let created =
            synced.iter().map(|(file, _)| file).filter(|file| file.meta().marks & MARK_CREATED != 0);
        let mut directories: HashSet<std::path::PathBuf> = HashSet::new();
        for file in void.iter().chain(created) {
            directories.extend(file.meta().directories.iter().cloned());
        }
        if let Err(error) = self.sync_directories(&directories) {
            self.report(format!("cannot bring a directory to disk: {error}"));
            return false;
        }
        for file in void {
            if self.board.lock_file(file.slot, crate::keeper::KEEPER_ID) {
                self.release(file);
                self.board.files()[file.slot as usize].unlock_exclusive(crate::keeper::KEEPER_ID);
            }
        }
        true
    }

    /// Frees every sealed segment whose records are all dead (invariant 3), and wakes who waits for space.
    pub(crate) fn free_segments(&self) {
        self.board.free_dead_segments();
    }

    /// Makes the expirer look, whether it sleeps with or without a limit.
    pub(crate) fn ring_expirer(&self) {
        self.board.header().ring_expirer();
    }

    /// Makes slots free for new files: everything is settled and unused slots are given back.
    pub(crate) fn free_slots(&self) {
        self.expire_all();
        for file in self.managed() {
            self.retire(&file);
        }
    }

    /// Brings everything to disk that is absorbed now; returns whether it is there.
    pub(crate) fn drain(&self) -> bool {
        let mut done = locked(&self.drain_done);
        let ticket = self.drain_wanted.fetch_add(1, Ordering::SeqCst) + 1;
        self.ring_expirer();
        while done.0 < ticket {
            done = self.drain_signal.wait(done).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        done.1
    }
}

fn by_file_system(files: &[Arc<ManagedFile>]) -> BTreeMap<u64, Vec<Arc<ManagedFile>>> {
    let mut groups: BTreeMap<u64, Vec<Arc<ManagedFile>>> = BTreeMap::new();
    for file in files {
        groups.entry(file.dev).or_default().push(Arc::clone(file));
    }
    groups
}
