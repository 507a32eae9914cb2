//! The expirer: decides when dirty files are brought to disk, and slows writers down when space is
//! short. What a round does is `durable::expire`; log space that needs no disk is the reclaimer's
//! (`crate::reclaim`). It sleeps without a time limit while nothing is dirty.

use holdfast_pool::{Seq, Slot};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_board::{SegmentState, monotonic_ns};
use holdfast_canary::{Canary, on};

use crate::ages::{Dirty, Due};
use crate::keeper::Keeper;
use crate::robust;
use crate::spiller::SpillRoom;
use holdfast_disk::OsFile;
use holdfast_disk::locked;
use holdfast_durable::{BYPASSED_FILE, ManagedFile, Pace};

/// A file that was still open for writing then is looked at again after this long.
const OPEN_FILE: Duration = Duration::from_secs(60);
/// Writers are slowed down once fewer than one in this many segments are free.
const THROTTLE_FREE_FRACTION: u64 = 4;
const IDLE: Duration = Duration::from_secs(3600);
/// How often it is seen whether files may be in state Behind, while something is dirty.
const REVIEW: Duration = Duration::from_secs(1);
/// How often files at rest are let go of while something is dirty.
const LET_GO_PAUSE: Duration = Duration::from_millis(250);
/// What is drained for want of space shall be on disk after about this long.
const BATCH: Duration = Duration::from_millis(40);
const BATCH_SEGMENTS_MIN: u64 = 4;
/// A file that is removed is let go of after so long, with what else is removed meanwhile: at once,
/// as people see it, and seldom enough to cost a program nothing that removes file after file.
const REMOVED_LOOK: Duration = Duration::from_millis(2);
/// A removal that was announced and is not made (its program stands still) is looked for less and
/// less often.
const REMOVED_LOOK_MAX: Duration = Duration::from_secs(1);
/// What a disk is thought to take for a byte until it has shown: 200 MB/s.
const FIRST_NS_PER_BYTE: u64 = 5;

/// What is said of a stray store into the counter that numbers are drawn from.
const COUNTER_MENDED: &str = "a program stored something into the memory that it shares with its keeper: the numbers of \
     records were put right, and none was lost; look for a stray pointer in it";

/// What is said of one into the word that says that the keeper lives.
const KEEPERS_WORD_MENDED: &str = "a program stored something into the memory that it shares with its keeper: all programs took the \
     keeper for dead, and some of their writes may have failed with EIO; they go on now; look for a \
     stray pointer in it";

/// Runs until the keeper stops; the last drain is the caller's.
pub(crate) fn run(keeper: &Arc<Keeper>) {
    let mut expirer = Expirer {
        keeper,
        segment_ns: 0,
        sealed_left: 0,
        reviewed: Instant::now(),
        let_go_at: Instant::now(),
        removed_look: (Instant::now(), REMOVED_LOOK),
        graves_since: None,
    };
    while !keeper.is_stopping() {
        let due = expirer.sleep_until_due();
        let wanted = keeper.drain_wanted.load(Ordering::SeqCst);
        if keeper.durable.board.counter_mended() != 0 {
            keeper.notes.once(COUNTER_MENDED.to_owned());
        }
        if robust::mend(keeper.durable.board.header(), &keeper.ending) {
            keeper.notes.once(KEEPERS_WORD_MENDED.to_owned());
        }
        let clean = expirer.cycle(due);
        if wanted > locked(&keeper.drain_done).0 {
            // Who asked may be about to unmount what it is on.
            keeper.durable.let_go_unused();
        }
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
    /// Sealed segments that the last round left.
    sealed_left: u64,
    /// When it was last seen whether files may be in state Behind.
    reviewed: Instant,
    /// When files at rest are let go of next, while something is dirty.
    let_go_at: Instant,
    /// When to look for removed files next, and how long to wait then.
    removed_look: (Instant, Duration),
    /// Slots of removed files have waited for their directories since then.
    graves_since: Option<Instant>,
}

/// What a cycle is about.
enum Round {
    /// Everything, now: somebody waits for it.
    All,
    /// By slot, the seqs up to which files are due.
    Some(HashMap<Slot, Seq>),
}

impl Expirer<'_> {
    fn sleep_until_due(&mut self) -> Round {
        let keeper = self.keeper;
        let header = keeper.durable.board.header();
        let bell = &header.expirer_wake;
        let mut was_dirty = false;
        loop {
            // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
            let seen = bell.rung();
            if keeper.is_stopping() {
                break;
            }
            if keeper.drain_wanted.load(Ordering::SeqCst) > locked(&keeper.drain_done).0 {
                return Round::All;
            }
            if keeper.durable.has_many_removed() {
                keeper.durable.release_removed();
                continue;
            }
            keeper.durable.commit_wanted();
            let removals = self.let_go_removed();
            if !self.anything_dirty() {
                was_dirty = false;
                // Files that were settled one by one left dead segments behind; whoever waits for
                // them rang.
                keeper.durable.free_segments();
                header.end_round();
                header.sleep_idle(seen, || self.anything_dirty(), self.idle_files().unwrap_or(IDLE));
                self.retire_idle();
                continue;
            }
            if !was_dirty {
                was_dirty = true;
                keeper.durable.beat();
            }
            let now = Instant::now();
            let (due, next) = self.look_at_ages(now);
            let graves_at = self.graves_since.map(|since| since + locked(&keeper.ages).limit());
            if !due.is_empty() || graves_at.is_some_and(|at| at <= now) {
                return Round::Some(due);
            }
            let commit_ns = keeper.durable.next_commit_ns();
            let commit_at =
                commit_ns.map(|at_ns| now + Duration::from_nanos(at_ns.saturating_sub(monotonic_ns())));
            let next =
                [Some(next), removals, graves_at, commit_at].into_iter().flatten().min().unwrap_or(next);
            if now >= self.reviewed + REVIEW {
                self.reviewed = now;
                keeper.durable.review_behind();
            }
            bell.sleep(seen, next.saturating_duration_since(now).min(REVIEW));
        }
        Round::Some(HashMap::new())
    }

    /// Lets go of what was removed a moment ago; when to do so again, if something is about to be
    /// removed.
    fn let_go_removed(&mut self) -> Option<Instant> {
        let durable = &self.keeper.durable;
        self.graves_since = durable.has_graves().then(|| self.graves_since.unwrap_or_else(Instant::now));
        if !durable.expects_removals() {
            self.removed_look.1 = Duration::ZERO;
            return None;
        }
        let now = Instant::now();
        let (at, pause) = self.removed_look;
        let is_news = pause.is_zero();
        if is_news || durable.looks_for_removed() && pause > REMOVED_LOOK {
            self.removed_look = (now + REMOVED_LOOK, REMOVED_LOOK);
        } else if at <= now {
            let pause =
                if durable.let_go_removed() { REMOVED_LOOK } else { (pause * 2).min(REMOVED_LOOK_MAX) };
            self.removed_look = (now + pause, pause);
            self.graves_since = durable.has_graves().then(|| self.graves_since.unwrap_or_else(Instant::now));
        }
        durable.expects_removals().then_some(self.removed_look.0)
    }

    /// The files that are due, and when to look again.
    fn look_at_ages(&mut self, now: Instant) -> (HashMap<Slot, Seq>, Instant) {
        let durable = &self.keeper.durable;
        let room = self.keeper.spill_room();
        let frames_short = room == SpillRoom::Short;
        // Where the log goes on, nothing has to reach its file for want of space.
        let backlog = self.backlog_is_large() && room == SpillRoom::None;
        let is_stuck = self.keeper.reclaim_stuck.load(Ordering::SeqCst);
        let is_crowded = self.is_crowded();
        let (mut due, mut next) = (HashMap::new(), now + REVIEW);
        for file in durable.managed() {
            if !self.needs_cycle(&file) {
                locked(&self.keeper.ages).done(file.slot);
                continue;
            }
            let row = durable.board.row(file.slot);
            let dirty = Dirty {
                slot: file.slot,
                generation: file.generation,
                newest_seq: row.newest_seq(),
                is_behind: row.state().lags(),
            };
            let age = locked(&self.keeper.ages).look(&dirty, || durable.board.settled_seq(file.slot), now);
            match age {
                // Its log space becomes free in no other way.
                _ if (backlog || is_crowded) && !dirty.is_behind => _ = due.insert(file.slot, Seq::MAX),
                Due::Now(_) if on(Canary::AgeIgnored) => {}
                Due::Now(seq) => _ = due.insert(file.slot, seq),
                // Much has gathered by now, in which neighbours are found: all that the frames
                // hold.
                _ if frames_short => _ = durable.seq_of_frames().map(|seq| due.insert(file.slot, seq)),
                _ if is_stuck && dirty.is_behind => _ = due.insert(file.slot, self.oldest_batch()),
                Due::At(at) => next = next.min(at),
            }
        }
        (due, next)
    }

    /// Up to which seq to drain for want of space: what is the oldest, and no more than is on disk
    /// in a moment, so that a writer who waits for space does not wait long.
    fn oldest_batch(&self) -> Seq {
        let durable = &self.keeper.durable;
        let layout = &durable.superblock.layout;
        let half = u64::from(layout.segment_count) / 2;
        // Not measured yet: a disk is taken for a slow one.
        let segment_ns =
            if self.segment_ns == 0 { layout.segment_bytes * FIRST_NS_PER_BYTE } else { self.segment_ns };
        let batch = match self.keeper.config.batch_bytes_max {
            0 => BATCH.as_nanos() as u64 / segment_ns.max(1),
            bytes => bytes / layout.segment_bytes,
        };
        durable
            .seq_of_oldest(batch.clamp(BATCH_SEGMENTS_MIN, half.max(BATCH_SEGMENTS_MIN)) as usize)
            .unwrap_or(Seq::MAX)
    }

    fn anything_dirty(&self) -> bool {
        let durable = &self.keeper.durable;
        durable.wants_commit()
            || durable.has_graves()
            || durable.managed().iter().any(|file| self.needs_cycle(file))
    }

    fn needs_cycle(&self, file: &ManagedFile<OsFile>) -> bool {
        let state = self.keeper.durable.board.row(file.slot).state();
        let is_live = || self.keeper.durable.is_dirty(file) || file.meta().unlinking.is_some();
        state.is_orphan() || state.is_managed() && is_live()
    }

    /// Whether enough is logged to go to work before the age limit.
    fn backlog_is_large(&mut self) -> bool {
        let (sealed, free) = self.count_segments();
        self.sealed_left = self.sealed_left.min(sealed);
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
        let backlog = (sealed - self.sealed_left) * segment_bytes;
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

    /// Whether so many files are managed that new ones may find no slot or no descriptor before
    /// those at rest are let go of.
    fn is_crowded(&self) -> bool {
        let durable = &self.keeper.durable;
        let files_max = u64::from(durable.superblock.layout.slot_count).min(holdfast_socket::files_max());
        // Those that were brought to the disk have two descriptors each, so half of it may be all.
        durable.managed().len() as u64 * 4 > files_max
    }

    /// Lets go of files at rest while others are written: of all where there are many, else of
    /// those that have been for a while.
    fn let_go_at_rest(&mut self) {
        let now = Instant::now();
        if now < self.let_go_at {
            return;
        }
        self.let_go_at = now + LET_GO_PAUSE;
        if self.is_crowded() { self.keeper.durable.retire_unused() } else { self.retire_idle() }
    }

    fn is_retirable(&self, file: &ManagedFile<OsFile>) -> bool {
        let state = self.keeper.durable.board.row(file.slot).state();
        state.is_managed() || state.is_bypassed()
    }

    fn retire_idle(&self) {
        for file in self.keeper.durable.managed() {
            if self.is_retirable(&file)
                && file.meta().look_at <= Instant::now()
                && !self.keeper.durable.retire(&file)
            {
                let bypassed = file.meta().bypass.is_some();
                file.meta().look_at = Instant::now() + if bypassed { BYPASSED_FILE } else { OPEN_FILE };
            }
        }
    }

    /// One round. Returns whether everything it was about is on disk.
    fn cycle(&mut self, round: Round) -> bool {
        let durable = &self.keeper.durable;
        let begun = Instant::now();
        let (sealed_before, _) = self.count_segments();
        let clean = match &round {
            Round::All => durable.expire_all(),
            Round::Some(due) => durable.expire_due(&|file| due.get(&file.slot).copied(), Pace::Gentle),
        };
        // One that was about a few files says nothing to who waits for space.
        let was_for_space = self.keeper.reclaim_stuck.load(Ordering::SeqCst)
            || durable.board.header().behind_files().get() == 0;
        if matches!(round, Round::Some(_)) && was_for_space {
            durable.board.header().end_round();
        }
        match round {
            Round::All => locked(&self.keeper.ages).keep(|_| false),
            Round::Some(due) => due.keys().for_each(|&slot| locked(&self.keeper.ages).done(slot)),
        }
        self.reviewed = Instant::now();
        let (sealed_after, free) = self.count_segments();
        if let Some(freed) = sealed_before.checked_sub(sealed_after).filter(|&freed| freed > 0) {
            let segment_ns = begun.elapsed().as_nanos() as u64 / freed;
            self.segment_ns =
                if self.segment_ns == 0 { segment_ns } else { (self.segment_ns * 3 + segment_ns) / 4 };
        }
        self.sealed_left = sealed_after;
        if free * THROTTLE_FREE_FRACTION >= u64::from(durable.superblock.layout.segment_count) {
            self.keeper.reclaim_stuck.store(false, Ordering::SeqCst);
        }
        self.throttle(free);
        self.let_go_at_rest();
        if !clean {
            // The disk refused: do not hammer it.
            std::thread::sleep(Duration::from_millis(200));
        }
        clean
    }

    /// The fewer segments are free, the closer a writer's pace comes to that of the disk.
    fn throttle(&self, free: u64) {
        if self.keeper.spill_room() != SpillRoom::None {
            return self.keeper.durable.board.header().set_throttle(Duration::ZERO);
        }
        let low = u64::from(self.keeper.durable.superblock.layout.segment_count) / THROTTLE_FREE_FRACTION;
        let ns = if free >= low { 0 } else { self.segment_ns * (low - free) / low.max(1) };
        self.keeper.durable.board.header().set_throttle(Duration::from_nanos(ns));
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
