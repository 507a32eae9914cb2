//! File rows: what all clients must agree on about one file. Row and on-media slot have the same
//! index.

use crate::numbers::{AtomicGeneration, AtomicSeq, LaneIndex};
use core::time::Duration;
use holdfast_pool::Generation;

use crate::census::Census;
use crate::header::Header;
use crate::ledger::Epoch;
use crate::mix::{mix, upper};
use crate::owner::{WAITERS, Waiter, lock_word, unlock_word};
use crate::stalls::Held;
use crate::sync::{AtomicU32, AtomicU64, Ordering, wait};
use crate::times::Changes;

/// The end of a file when nothing is known.
pub const NO_SIZE: u64 = u64::MAX;

/// Who takes files from clients that stand still, as an owner in the board: the keeper, by a name
/// that tells whoever waits for these clients to go back.
pub const TAKER_ID: u32 = 0x7fff_fffe;

const LOADED: u32 = 1;
const WATCHED: u32 = 2;
const TOUCHED: u32 = 4;
const STALLED: u32 = 8;
const WANTED: u32 = 16;
/// The bits of [`FileRow`]'s flags above these hold a print of mode and owner.
const FLAGS: u32 = LOADED | WATCHED | TOUCHED | STALLED | WANTED;

/// One file.
#[repr(C, align(128))]
#[derive(Default)]
pub struct FileRow {
    /// A [`crate::FileState`].
    pub(crate) state: AtomicU32,
    /// 0, or who keeps all writers out: a client id, or `u32::MAX >> 1` for the keeper.
    pub(crate) exclusive: AtomicU32,
    /// Generation of the slot's use; a client that remembers another one asks again.
    pub(crate) generation: AtomicGeneration,
    /// Device number.
    pub(crate) dev: AtomicU64,
    /// Inode number.
    pub(crate) ino: AtomicU64,
    /// 1 once a record of this use stays: recovery could make the file from it. One that is not
    /// written yet, or was cancelled, does not count. Before that 0, or from 2 on when the file's
    /// creation was noted in the ledger.
    recorded: AtomicU32,
    /// [`LOADED`] while pages of the file may be loaded, [`WATCHED`] when nobody vouched that there
    /// are no outsiders, [`TOUCHED`] when a client has moved the time of change and nothing else
    /// since somebody looked, [`STALLED`] when somebody waits too long for who has the file,
    /// [`WANTED`] while the keeper wants to take it from them; above them the [`ownership_print`]
    /// that the keeper saw last, or 0.
    flags: AtomicU32,
    /// Highest seq drawn for this file; raised before the record is written.
    pub(crate) newest_seq: AtomicSeq,
    /// Copy of the slot's `expired_seq`.
    pub(crate) expired_seq: AtomicSeq,
    /// See [`FileRow::end`].
    pub(crate) end: AtomicU64,
    /// When it was written last in state Behind, in nanoseconds since 1970; 0: not since a program
    /// set its times.
    pub(crate) written_ns: AtomicU64,
    /// State Behind: the page that was written last.
    pub(crate) written_page: AtomicU64,
    /// Raised by every change that the log does not hold (metadata, bytes from before us).
    pub(crate) unlogged: AtomicU64,
    /// The value of `unlogged` that a real sync has covered (invariant 9).
    pub(crate) unlogged_synced: AtomicU64,
    /// Serializes writes at a shared cursor or at the end of the file; holds lane + 1.
    pub(crate) cursor_lock: AtomicU32,
    /// Raised when bringing the file to disk failed; each description reports it once.
    pub(crate) error_epoch: AtomicU32,
    /// Real syncs by clients that failed: the keeper's own description may not show their error.
    pub(crate) sync_failures: AtomicU32,
    /// Real syncs by clients that may be under way; never too low.
    pub(crate) syncs_under_way: AtomicU32,
    /// Page rows of the file; while it has none, the page cache has all of it.
    page_rows: Census,
    /// Opens by clients, for telling theirs from those of outsiders (inotify fence).
    pub(crate) client_opens: AtomicU64,
}

// Two cache lines: by its alignment, one more field would make it four.
#[cfg(not(shuttle))]
const _: () = assert!(size_of::<FileRow>() == 128);

impl FileRow {
    /// Keeps new writers out. Those under way must still be waited for (see `Board::lock_file`).
    pub(crate) fn lock_exclusive(&self, who: u32, header: &Header) -> bool {
        lock_word(&self.exclusive, who, &Waiter { header, row: Some(self), may_be_taken: false })
    }

    /// As `lock_exclusive`, if nobody has it.
    pub(crate) fn try_lock_exclusive(&self, who: u32) -> bool {
        self.exclusive.compare_exchange(0, who, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Lets writers in again; false when `who` did not hold the row.
    pub fn unlock_exclusive(&self, who: u32) -> bool {
        unlock_word(&self.exclusive, who)
    }

    /// Whether somebody keeps writers out.
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        self.exclusive.load(Ordering::SeqCst) != 0
    }

    /// Whether `who` keeps writers out.
    pub fn is_held_by(&self, who: u32) -> bool {
        self.exclusive.load(Ordering::SeqCst) & !WAITERS == who
    }

    /// Who keeps writers out, or 0.
    pub fn holder(&self) -> u32 {
        self.exclusive.load(Ordering::SeqCst) & !WAITERS
    }

    /// Takes the file from who keeps writers out (0: from nobody); false when that is not them.
    pub(crate) fn seize(&self, from: u32, who: u32) -> bool {
        [from, from | WAITERS].into_iter().any(|word| {
            self.exclusive.compare_exchange(word, who | WAITERS, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        })
    }

    /// As [`crate::Board::wait_shared`], and nobody is told of it.
    pub(crate) fn wait_shared(&self) {
        let seen = self.exclusive.load(Ordering::SeqCst);
        if seen != 0 {
            // Mark as waited for, so that the holder wakes us.
            let marked = seen | WAITERS;
            if seen == marked
                || self.exclusive.compare_exchange(seen, marked, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                wait(&self.exclusive, marked, Duration::from_millis(50));
            }
        }
    }

    /// Serializes cursor and append writes; false when the keeper has died, or takes the file.
    #[inline]
    pub fn lock_cursor(&self, lane: LaneIndex, header: &Header) -> bool {
        lock_word(&self.cursor_lock, lane.word(), &Waiter { header, row: Some(self), may_be_taken: true })
    }

    /// Ends what `lock_cursor` began; nothing happens when `lane` does not hold it.
    #[inline]
    pub fn unlock_cursor(&self, lane: LaneIndex) {
        unlock_word(&self.cursor_lock, lane.word());
    }

    /// Whether a sync must reach the kernel: something changed that the log does not hold
    /// (invariant 9).
    #[inline]
    pub fn needs_real_sync(&self) -> bool {
        self.unlogged.load(Ordering::SeqCst) > self.unlogged_synced.load(Ordering::SeqCst)
    }

    /// The file has no record yet. `noted` says when its creation was noted in the ledger, if a
    /// slot is to hold it.
    pub fn set_blank(&self, noted: Option<Epoch>) {
        // One of the last two epochs there are is not remembered: then the creation stays pending.
        let word = noted.and_then(|epoch| u32::try_from(epoch.to_raw() + 1).ok());
        self.recorded.store(word.unwrap_or(0), Ordering::SeqCst);
    }

    /// Notes that a record of the file stays. When that makes its slot hold its creation: when that
    /// was noted.
    #[inline]
    pub fn note_recorded(&self) -> Option<Epoch> {
        if self.recorded.load(Ordering::Relaxed) == 1 {
            return None;
        }
        noted(self.recorded.swap(1, Ordering::SeqCst))
    }

    /// The file's creation is on the disk, though no record of the file stays: when it was noted.
    pub fn take_noted(&self) -> Option<Epoch> {
        let word = self.recorded.load(Ordering::SeqCst);
        let taken =
            self.recorded.compare_exchange(word, u32::from(word == 1), Ordering::SeqCst, Ordering::SeqCst);
        taken.ok().and_then(noted)
    }

    /// When the file's creation was noted in the ledger, while the log has no record of it.
    #[inline]
    pub fn noted(&self) -> Option<Epoch> {
        noted(self.recorded.load(Ordering::SeqCst))
    }

    /// Whether pages of the file may be loaded.
    #[inline]
    pub fn may_be_loaded(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & LOADED != 0
    }

    /// Notes whether they may be.
    pub fn set_loaded(&self, may_be: bool) {
        self.set_flag(LOADED, may_be);
    }

    /// Whether others than clients may change the file.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Notes whether they may.
    pub fn set_watched(&self, may: bool) {
        self.set_flag(WATCHED, may);
    }

    /// A client made a call that moved the time of change and nothing else.
    pub fn note_touched(&self) {
        self.set_flag(TOUCHED, true);
    }

    /// Whether one did since this was asked last.
    pub fn take_touched(&self) -> bool {
        let was_touched = self.flags.load(Ordering::SeqCst) & TOUCHED != 0;
        if was_touched {
            self.set_flag(TOUCHED, false);
        }
        was_touched
    }

    /// Whether somebody did since this was asked last.
    pub fn take_stalled(&self) -> bool {
        let was_stalled = self.flags.load(Ordering::SeqCst) & STALLED != 0;
        if was_stalled {
            self.set_flag(STALLED, false);
        }
        was_stalled
    }

    /// Says whether the keeper wants to take the file: whoever waits for its writers lets it have
    /// it first.
    pub fn set_wanted(&self, is_wanted: bool) {
        self.set_flag(WANTED, is_wanted);
    }

    /// Whether it does.
    pub(crate) fn is_wanted(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & WANTED != 0
    }

    /// Notes mode and owner, by their [`ownership_print`]; 0: nobody knows them.
    pub fn set_ownership(&self, print: u32) {
        self.update_flags(|flags| flags & FLAGS | print);
    }

    fn set_flag(&self, flag: u32, on: bool) {
        self.update_flags(|flags| if on { flags | flag } else { flags & !flag });
    }

    fn update_flags(&self, change: impl Fn(u32) -> u32) {
        let mut flags = self.flags.load(Ordering::SeqCst);
        loop {
            let wanted = change(flags);
            match self.flags.compare_exchange(flags, wanted, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => flags = now,
            }
        }
    }

    /// Whether size and links, as the kernel just told them, say that somebody changed the file who
    /// is no client. Such a change may also be one that a client is making: who keeps the file's
    /// writers out can tell.
    pub fn seems_touched(&self, size: u64, links: u64) -> bool {
        if links == 0 {
            return true;
        }
        // In this order: a client that made the file longer before the kernel was asked has let go
        // of the cursor only after it told the size.
        let is_growing = self.cursor_lock.load(Ordering::SeqCst) != 0;
        let known = self.end();
        known != NO_SIZE && size != known && !(is_growing && size > known)
    }

    /// Whether mode and owner are known: no client changed them since they were seen.
    pub fn knows_ownership(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & !FLAGS != 0
    }

    /// Whether mode and owner are others than the keeper saw last, by their [`ownership_print`].
    pub fn seems_given(&self, print: u32) -> bool {
        let known = self.flags.load(Ordering::SeqCst) & !FLAGS;
        known != 0 && known != print
    }

    /// Whether the log has nothing of which the file could be made.
    #[inline]
    pub fn is_blank(&self) -> bool {
        self.recorded.load(Ordering::SeqCst) != 1
    }

    /// What tells changes of its times; to be asked before the kernel is: what changes afterwards
    /// is then seen as a change.
    pub fn changes(&self) -> Changes {
        Changes {
            unlogged: self.unlogged.load(Ordering::SeqCst),
            written_ns: self.written_ns.load(Ordering::SeqCst),
        }
    }

    /// Notes a change that the log does not hold.
    pub fn note_unlogged(&self) -> u64 {
        self.unlogged.fetch_add(1, Ordering::SeqCst)
    }

    /// How many such changes there were by now. A sync that begins after this is called covers so
    /// many ([`FileRow::note_synced`]).
    pub fn unlogged(&self) -> u64 {
        self.unlogged.load(Ordering::SeqCst)
    }

    /// A real sync is over that covers so many of them: a later one that covers fewer takes nothing
    /// back.
    pub fn note_synced(&self, covered: u64) {
        self.unlogged_synced.fetch_max(covered, Ordering::SeqCst);
    }

    /// Whether a real sync covers so many of them.
    pub fn is_synced(&self, unlogged: u64) -> bool {
        unlogged <= self.unlogged_synced.load(Ordering::SeqCst)
    }

    /// A client's sync by the kernel begins. Until it ends it may take the kernel's only notice of
    /// an error: whoever finds none under way, and then no new failure, knows of all.
    pub fn begin_sync(&self) {
        self.syncs_under_way.fetch_add(1, Ordering::SeqCst);
    }

    /// It ends. Its failure is counted before it is not under way any more.
    pub fn end_sync(&self, has_failed: bool) {
        if has_failed {
            self.sync_failures.fetch_add(1, Ordering::SeqCst);
        }
        self.syncs_under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// How many are under way.
    pub fn syncs_under_way(&self) -> u32 {
        self.syncs_under_way.load(Ordering::SeqCst)
    }

    /// How many have failed.
    pub fn sync_failures(&self) -> u32 {
        self.sync_failures.load(Ordering::SeqCst)
    }

    /// Whether records of it are live, as far as its numbers say.
    #[inline]
    pub fn has_live_records(&self) -> bool {
        self.newest_seq() > self.expired_seq()
    }

    /// Page rows of the file; while it has none, the page cache has all of it.
    #[inline]
    pub fn page_rows(&self) -> &Census {
        &self.page_rows
    }

    /// Which use of the row this is.
    #[inline]
    pub fn generation(&self) -> Generation {
        self.generation.load(Ordering::SeqCst)
    }

    /// Nobody has been told of the row's next use: it begins with nothing synced by a client, and
    /// with bytes from before that no record holds, if `has_past` (invariant 9).
    /// [`FileRow::begin_use`] hands this over.
    pub fn clear_syncs(&self, has_past: bool) {
        self.unlogged.store(u64::from(has_past), Ordering::Relaxed);
        self.unlogged_synced.store(0, Ordering::Relaxed);
        self.sync_failures.store(0, Ordering::Relaxed);
        self.syncs_under_way.store(0, Ordering::Relaxed);
    }

    /// The row is of a file from now on. Everything else in it comes before this.
    pub fn begin_use(&self, generation: Generation) {
        self.generation.store(generation, Ordering::SeqCst);
    }

    /// The row is no file's any more: who looks from now on leaves it alone.
    pub fn end_use(&self) {
        self.generation.store(Generation::NONE, Ordering::SeqCst);
    }
}

impl Held for FileRow {
    /// Somebody waits too long for who has the file.
    fn note_stalled(&self) {
        self.set_flag(STALLED, true);
    }

    /// Whether the file is being taken from clients that stand still, so that nobody waits for them
    /// any more. Not in state Behind: there none of its lanes stands still.
    fn is_being_taken(&self) -> bool {
        self.is_held_by(TAKER_ID) && !self.state().lags()
    }
}

/// Mode and owner in 27 bits, never 0. That two differ and have the same print is possible, and
/// hides one from a look; the kernel's notice of the change is not hidden by it.
pub fn ownership_print(mode: u32, owner: u32, group: u32) -> u32 {
    let [mode, owner, group] = [mode & 0o7777, owner, group].map(u64::from);
    (upper(mix(mode, owner, group)) | (FLAGS + 1)) & !FLAGS
}

/// What a word of [`FileRow`] says of the creation of a file without a record.
fn noted(word: u32) -> Option<Epoch> {
    Epoch::from_raw(u64::from(word).checked_sub(1)?)
}
