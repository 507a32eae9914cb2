//! The front of the board: sizes of its tables, the seq counter, the keeper's word and a few
//! counters.

use core::time::Duration;
use holdfast_pool::Slot;

use crate::alive::Alive;
use crate::census::{Census, Roll};
use crate::changing::Calls;
use crate::counter::{Counter, Draws, Tally};
use crate::habits::Habits;
use crate::hearings::{Hearing, Hearings};
use crate::ledger::{Epochs, LEDGER_ROWS, LedgerRow};
use crate::openers::Openers;
use crate::opens::{OPENS_ROWS, OpensRow};
use crate::passing::{PASSING_ROWS, PassingRow};
use crate::shown::Shown;
use crate::switches::{Bell, Switch};
use crate::sync::{AtomicU32, AtomicU64, Ordering, wait, wake};
use crate::synced::SyncedFiles;
use crate::taken::Taken;
use crate::took::Took;
use crate::treelog::TreeLog;

/// Values of `announces_opens`.
const ANNOUNCED: u32 = 1;
const LEASED: u32 = 2;

/// The board's front.
#[repr(C)]
#[derive(Default)]
pub struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) slot_count: AtomicU32,
    pub(crate) segment_count: AtomicU32,
    pub(crate) lane_count: AtomicU32,
    pub(crate) lock_count: AtomicU32,
    pub(crate) bucket_count: AtomicU32,
    pub(crate) request_count: AtomicU32,
    pub(crate) frame_count: AtomicU32,
    pub(crate) frame_hand: AtomicU32,
    pub(crate) loaded_count: AtomicU32,
    /// Odd while the file table is being rewritten.
    pub(crate) table_version: AtomicU64,
    /// Once it does not live nothing is acknowledged any more.
    pub(crate) keeper: Alive,
    /// The pool's one counter: every seq, segment generation and slot generation is drawn from it.
    pub(crate) counter: Draws,
    /// How often it was put right, since a program had stored something into it.
    pub(crate) counter_mended: Counter,
    /// Rung whenever segments become free; writers that need one sleep on it.
    pub segments_freed: Bell,
    /// 1 while somebody sleeps until a lane is let go.
    pub(crate) lanes_wanted: Switch,
    /// 1 while the expirer sleeps without a time limit: the first writer wakes it.
    pub(crate) expirer_idle: Switch,
    /// Makes the expirer look at once.
    pub expirer_wake: Bell,
    /// Segments that may still fill up before the keeper is rung: with 0 it hears of each one.
    pub(crate) quiet_segments: Switch,
    /// Rung with every posted request, and every hearing that is asked for.
    pub request_wake: Bell,
    /// What clients have the keeper hear beside their syncs.
    pub hearings: Hearings,
    /// Rung by who waits too long for somebody's file.
    pub stalled: Bell,
    /// Files that were taken from clients that stand still.
    pub taken: Taken,
    /// Forks announced by parents whose children have not said hello yet.
    pub(crate) forks_pending: Switch,
    /// Nanoseconds a writer waits per segment while space is short.
    pub(crate) throttle_ns: Counter,
    /// 1 while a log that is short goes on in a file: what can go to the page cache at once need
    /// not be brought there later. Set by the keeper.
    pub log_goes_on: Switch,
    /// 1 while files may be in state Behind; set by the keeper.
    pub write_behind: Switch,
    /// 1 when files are logged from their first sync on (durability = sync); set by the keeper.
    pub logs_on_sync: Switch,
    behind_files: Roll,
    /// 1 once a file was in that state: the kernel may show times of the keeper's own changes.
    pub times_kept: Switch,
    pub(crate) ledgers: [LedgerRow; LEDGER_ROWS],
    /// Not 0 when clients announce opens before they make them, [`LEASED`] when files are leased
    /// besides.
    announces_opens: Switch,
    opens: [OpensRow; OPENS_ROWS],
    /// Threads that are in opens of the library's, while a fence asks.
    pub openers: Openers,
    /// 1 when the fence asks who is in an open of the library's; set by the keeper.
    pub asks_openers: Switch,
    passing: [PassingRow; PASSING_ROWS],
    /// Calls under way that change what a journal has.
    pub changing: Calls,
    /// What new files are for.
    pub habits: Habits,
    /// What the log of btrfs has not any more because of our commits.
    pub tree_log: TreeLog,
    /// Files that must stay out of state Behind.
    pub shown: Shown,
    /// Syncs answered from the log, but for those that a ledger counts.
    absorbed_elsewhere: Tally,
    /// Syncs passed on to the kernel.
    pub syncs_real: Counter,
    /// Those of them for which the log would have had to commit what others did to the file system.
    pub syncs_crowded: Counter,
    /// What all of them took: those that are absorbed take less than to look at a clock.
    pub syncs_took: Took,
    /// Of which files.
    pub synced_by_kernel: SyncedFiles,
    /// Truncations and punches logged.
    pub truncates_absorbed: Counter,
    /// Raised before and after each truncation by a client, so that its smaller size is not taken
    /// for an outsider's.
    resizes: Counter,
    /// Times a file was brought to disk before a call went around the log.
    pub settles: Counter,
    /// Rounds of expiry that are over.
    pub(crate) rounds: Counter,
    /// Calls that went around the log because rounds of expiry did not give it room.
    pub no_room: Counter,
    /// When a client last changed something that no record holds, in nanoseconds since 1970:
    /// records made since are not older, though the clock of records is coarser.
    pub changed_ns: Counter,
    /// 1 where files have times, as on all disks but a simulated one; set by the keeper.
    pub has_times: Switch,
}

impl Header {
    /// The ledger of a file system on which files are managed, or were. `None`: on none so far, or
    /// on more file systems than can be told apart; then everything counts as pending.
    #[inline]
    pub fn ledger(&self, device: u64) -> Option<&LedgerRow> {
        self.ledgers.iter().find(|row| row.is_about(device))
    }

    /// Counts a sync that is answered from the log, where its file system has a ledger there.
    #[inline]
    pub fn count_absorbed(&self, ledger: Option<&LedgerRow>, slot: Slot) {
        ledger.map_or(&self.absorbed_elsewhere, |ledger| &ledger.absorbed).count(slot);
    }

    /// Syncs answered from the log so far.
    pub fn syncs_absorbed(&self) -> u64 {
        let ledgers = self.ledgers.iter().map(|row| row.absorbed.get());
        ledgers.fold(self.absorbed_elsewhere.get(), u64::saturating_add)
    }

    /// Asks the keeper to hear what others did.
    pub fn ask_hearing(&self) -> Hearing {
        let hearing = self.hearings.ask();
        self.request_wake.ring();
        hearing
    }

    /// Asks the keeper to have a file system commit when it has time.
    pub fn want_commit(&self, ledger: &LedgerRow) {
        ledger.want();
        self.wake_idle_expirer();
    }

    /// Notes that a file on `device` is managed from now on. The keeper alone does that, one at a
    /// time.
    pub fn enter_ledger(&self, device: u64) {
        let known = self.ledger(device);
        let free = || self.ledgers.iter().find(|row| !row.is_in_use());
        if let Some(row) = known.or_else(free) {
            row.enter(device);
        }
    }

    /// Notes that a file on `device` is managed no more.
    pub fn leave_ledger(&self, device: u64) {
        if let Some(row) = self.ledger(device).filter(|row| row.is_in_use()) {
            row.leave();
        }
    }

    /// The ledgers of file systems with managed files, with their devices.
    pub fn ledgers_in_use(&self) -> impl Iterator<Item = (u64, &LedgerRow)> {
        self.ledgers.iter().filter(|row| row.is_in_use()).filter_map(|row| Some((row.device()?, row)))
    }

    /// Files in state Behind, or about to be: while there are none every read is the kernel's.
    #[inline]
    pub fn behind_files(&self) -> &Census {
        &self.behind_files.census
    }

    /// Has clients announce opens before they make them. With `leased` those of managed files wait
    /// for the keeper, which may have them leased. Before programs are let in.
    pub fn have_opens_announced(&self, leased: bool) {
        self.announces_opens.set_level(if leased { LEASED } else { ANNOUNCED });
    }

    /// Whether opens are announced before they are made.
    #[inline]
    pub fn announces_opens(&self) -> bool {
        self.announces_opens.seems_on()
    }

    /// Whether files may be leased.
    #[inline]
    pub fn leases_files(&self) -> bool {
        self.announces_opens.level_hint() == LEASED
    }

    /// A client is about to truncate a file, or has: a smaller size that is seen meanwhile may be
    /// its doing.
    pub fn note_resize(&self) {
        self.resizes.add(1);
    }

    /// How often that was noted: the same answer twice, and none was under way that began or ended
    /// in between.
    pub fn resizes(&self) -> u64 {
        self.resizes.get()
    }

    /// The opens of files without a row, by inode number.
    pub fn opens(&self, ino: u64) -> &OpensRow {
        &self.opens[(ino % OPENS_ROWS as u64) as usize]
    }

    /// Notes that `client` is about to change the file of an inode without the log; `None` when too
    /// many such calls are under way. `hint` says where the search for a free row begins.
    pub fn begin_passing(&self, client: u32, ino: u64, hint: usize) -> Option<&PassingRow> {
        (0..PASSING_ROWS)
            .filter_map(|step| self.passing.get((hint + step) % PASSING_ROWS))
            .find(|row| row.begin(client, ino))
    }

    /// Whether such a call is under way.
    pub fn is_passed(&self, ino: u64) -> bool {
        self.passing.iter().any(|row| row.is_about(ino))
    }

    /// Takes away what a dead client noted.
    pub fn clear_passing(&self, client: u32) {
        self.passing.iter().for_each(|row| row.clear(client));
    }

    /// Notes a change on every file system that has a ledger: what is about to be made may be on
    /// any.
    pub fn note_all_ledgers(&self) -> Epochs {
        let mut noted = Epochs::default();
        for (row, epoch) in self.ledgers.iter().zip(&mut noted.0) {
            *epoch = row.device().map(|_| row.note());
        }
        noted
    }

    /// Takes the notes back: what was made is noted by itself, or nothing was.
    pub fn withdraw_from_ledgers(&self, noted: &Epochs) {
        for (row, epoch) in self.ledgers.iter().zip(&noted.0) {
            epoch.iter().for_each(|&epoch| row.hold(epoch));
        }
    }

    /// A client ended. If it may have died in the midst of a call that changes what a journal has,
    /// it may have changed something on any file system and not noted it.
    pub fn end_changing(&self, client: u32) {
        if self.changing.has(client) {
            self.note_all_ledgers();
            self.changing.clear(client);
        }
    }

    /// Whether the keeper is alive: one load, no system call. `SeqCst`: a write is acknowledged by
    /// what is seen here after its record is durable and its call is made, so a keeper that died
    /// before is not missed.
    #[inline]
    pub fn keeper_alive(&self) -> bool {
        self.keeper.is_on()
    }

    /// The keeper lives, by its thread with this number; also to put the word right, by who knows
    /// that nobody has said otherwise.
    pub fn begin_keeper(&self, tid: u32) {
        self.keeper.begin(tid);
    }

    /// The keeper's word, for the kernel: it marks the word when that thread dies.
    pub fn keeper_word(&self) -> &AtomicU32 {
        self.keeper.word()
    }

    /// Nothing is acknowledged any more, as if the keeper were dead. `SeqCst`: who announces an
    /// operation afterwards sees it, and those who announced one before are waited for.
    pub fn end_keeper(&self) {
        self.keeper.end();
    }

    /// Says that somebody waits for a lane. `SeqCst`: it looks at the lanes after that, and who
    /// lets one go looks here after that; one of the two sees the other.
    pub fn want_lane(&self) {
        self.lanes_wanted.set(true);
    }

    /// Sleeps until a lane was let go since [`Header::want_lane`]; may return early.
    pub fn sleep_for_lane(&self, limit: Duration) {
        wait(&self.lanes_wanted.word, 1, limit);
    }

    /// A lane was let go: wakes whoever waits for one.
    #[inline]
    pub fn lane_let_go(&self) {
        if self.lanes_wanted.is_on() {
            self.wake_for_lanes();
        }
    }

    /// As [`Header::lane_let_go`], after the death of who may have been about to wake them.
    pub(crate) fn wake_for_lanes(&self) {
        self.lanes_wanted.set(false);
        wake(&self.lanes_wanted.word, u32::MAX);
    }

    /// Whether the expirer sleeps because nothing was dirty.
    pub fn is_expirer_idle(&self) -> bool {
        self.expirer_idle.is_on()
    }

    /// A program is about to fork. Before it does: the keeper must not find nobody left meanwhile
    /// (`SeqCst`).
    pub fn announce_fork(&self) {
        self.forks_pending.word.fetch_add(1, Ordering::SeqCst);
    }

    /// There was no fork, or its child has said hello.
    pub fn end_fork(&self) {
        self.forks_pending.word.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many forks are announced whose children have not said hello. Stray stores may make it
    /// less than none.
    pub fn forks_pending(&self) -> i32 {
        self.forks_pending.level() as i32
    }
}
