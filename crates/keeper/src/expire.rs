//! The expirer: decides when dirty files are brought to disk, and slows writers down when space is short. What a round
//! does is `durable::expire`. It sleeps without a time limit while nothing is dirty.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_board::{FileState, SegmentState, wait};
use holdfast_canary::{Canary, on};

use crate::disk::OsFile;
use crate::durable::{ManagedFile, REMOVED_FILES_MAX, locked};
use crate::keeper::Keeper;

/// A file that was still open for writing then is looked at again after this long.
const OPEN_FILE: Duration = Duration::from_secs(60);
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
        let header = keeper.durable.board.header();
        let bell = &header.expirer_wake.word;
        let mut due: Option<Instant> = None;
        while !keeper.is_stopping() {
            let seen = bell.load(Ordering::SeqCst);
            if keeper.drain_wanted.load(Ordering::SeqCst) > locked(&keeper.drain_done).0 {
                return;
            }
            if keeper.durable.removed_files.load(Ordering::SeqCst) >= REMOVED_FILES_MAX {
                keeper.durable.release_removed();
                continue;
            }
            if !self.anything_dirty() {
                due = None;
                // Files that were settled one by one left dead segments behind; whoever waits for them rang.
                keeper.durable.free_segments();
                header.sleep_idle(seen, || self.anything_dirty(), self.idle_files().unwrap_or(IDLE));
                self.retire_idle();
                continue;
            }
            let now = Instant::now();
            let due = *due.get_or_insert_with(|| {
                keeper.durable.beat();
                let age = Duration::from_millis(keeper.config.age_ms_max);
                now + if on(Canary::AgeIgnored) { IDLE } else { age }
            });
            if now >= due || self.backlog_is_large() {
                return;
            }
            wait(bell, seen, due - now);
        }
    }

    fn anything_dirty(&self) -> bool {
        self.keeper.durable.managed().iter().any(|file| self.needs_cycle(file))
    }

    fn needs_cycle(&self, file: &ManagedFile<OsFile>) -> bool {
        match self.keeper.durable.board.files()[file.slot as usize].state() {
            FileState::Orphan => true,
            FileState::Through | FileState::Behind => {
                self.keeper.durable.is_dirty(file) || file.meta().unlinking.is_some()
            }
            _ => false,
        }
    }

    /// Whether enough is logged to go to work before the age limit.
    fn backlog_is_large(&self) -> bool {
        let (sealed, free) = self.count_segments();
        let layout = &self.keeper.durable.superblock.layout;
        let (total, segment_bytes) = (u64::from(layout.segment_count), layout.segment_bytes);
        let min = match self.keeper.config.batch_bytes_min {
            0 => total * segment_bytes / 8,
            bytes => bytes,
        };
        let max = match self.keeper.config.batch_bytes_max {
            0 => total * segment_bytes / 2,
            bytes => bytes,
        };
        let backlog = sealed * segment_bytes;
        backlog >= min.min(max) || (sealed > 0 && free * THROTTLE_FREE_FRACTION < total)
    }

    fn count_segments(&self) -> (u64, u64) {
        self.keeper.durable.board.segments().iter().fold((0, 0), |(sealed, free), row| match row.state() {
            SegmentState::Sealed => (sealed + 1, free),
            SegmentState::Free => (sealed, free + 1),
            _ => (sealed, free),
        })
    }

    /// How long until an idle file may lose its slot; `None` when there is none to wait for.
    fn idle_files(&self) -> Option<Duration> {
        self.keeper
            .durable
            .managed()
            .iter()
            .filter(|file| self.is_retirable(file))
            .map(|file| file.meta().look_at.saturating_duration_since(Instant::now()))
            .min()
            .map(|left| left.max(Duration::from_millis(100)))
    }

    fn is_retirable(&self, file: &ManagedFile<OsFile>) -> bool {
        self.keeper.durable.board.files()[file.slot as usize].state().is_absorbed()
    }

    fn retire_idle(&self) {
        for file in self.keeper.durable.managed() {
            if self.is_retirable(&file)
                && file.meta().look_at <= Instant::now()
                && !self.keeper.durable.retire(&file)
            {
                file.meta().look_at = Instant::now() + OPEN_FILE;
            }
        }
    }

    /// One round over all dirty files. Returns whether everything found dirty at its start is on disk.
    fn cycle(&mut self) -> bool {
        let begun = Instant::now();
        let (sealed_before, _) = self.count_segments();
        let clean = self.keeper.durable.expire_all();
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
        let low = u64::from(self.keeper.durable.superblock.layout.segment_count) / THROTTLE_FREE_FRACTION;
        let ns = if free >= low { 0 } else { self.segment_ns * (low - free) / low.max(1) };
        let word = &self.keeper.durable.board.header().throttle_ns;
        word.set(ns.min(50_000_000));
    }
}

impl Keeper {
    /// Brings everything to disk that is absorbed now; returns whether it is there.
    pub(crate) fn drain(&self) -> bool {
        if on(Canary::DrainCommandIdle) {
            return true;
        }
        let mut done = locked(&self.drain_done);
        let ticket = self.drain_wanted.fetch_add(1, Ordering::SeqCst) + 1;
        self.durable.ring_expirer();
        while done.0 < ticket {
            done = self.drain_signal.wait(done).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        done.1
    }
}
