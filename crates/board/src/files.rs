//! File rows: what all clients must agree on about one file. Row and on-media slot have the same index.

use core::time::Duration;

use crate::census::Census;
use crate::locks::{WAITERS, lock_word, unlock_word};
use crate::sync::{AtomicU32, AtomicU64, Ordering, wait};
use crate::times::Changes;

/// `size_hint` when nothing is known.
pub const NO_SIZE: u64 = u64::MAX;

/// How a file's writes are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FileState {
    /// The row is free.
    Free = 0,
    /// Logged, then written to the page cache.
    Through = 1,
    /// Logged; the page cache follows later, and page rows tell what it lacks.
    Behind = 2,
    /// Left to the kernel, for a reason the keeper knows.
    Bypassed = 3,
    /// Its last name is gone: nothing of it can be found after a crash, so nothing needs to be logged.
    Orphan = 4,
    /// The disk refuses it for good: writes fail, the log keeps what was acknowledged.
    Failed = 5,
    /// Nobody has asked for its durability yet (durability = sync): the kernel's until the first sync, and its writers announce
    /// themselves, so that none is under way when that comes.
    Unsynced = 6,
}

impl FileState {
    /// Whether its writes are absorbed.
    #[inline]
    pub fn is_absorbed(self) -> bool {
        matches!(self, Self::Through | Self::Behind)
    }

    /// Decodes a stored state; unknown values read as Bypassed, which is always safe.
    pub fn from_u32(value: u32) -> Self {
        match value {
            0 => Self::Free,
            1 => Self::Through,
            2 => Self::Behind,
            4 => Self::Orphan,
            5 => Self::Failed,
            6 => Self::Unsynced,
            _ => Self::Bypassed,
        }
    }
}

/// One file.
#[repr(C, align(128))]
#[derive(Default)]
pub struct FileRow {
    /// A [`FileState`].
    pub state: AtomicU32,
    /// 0, or who keeps all writers out: a client id, or `u32::MAX >> 1` for the keeper.
    pub exclusive: AtomicU32,
    /// Generation of the slot's use; a client that remembers another one asks again.
    pub generation: AtomicU64,
    /// Device number.
    pub dev: AtomicU64,
    /// Inode number.
    pub ino: AtomicU64,
    /// 1 once a record of this use stays: recovery could make the file from it. One that is not written yet, or was
    /// cancelled, does not count.
    pub recorded: AtomicU32,
    /// 1 while pages of the file may be loaded.
    pub loaded: AtomicU32,
    /// Highest seq drawn for this file; raised before the record is written.
    pub newest_seq: AtomicU64,
    /// Copy of the slot's `expired_seq`.
    pub expired_seq: AtomicU64,
    /// The file's size while no write that makes it longer is under way, or [`NO_SIZE`]. Whoever makes it longer holds the
    /// cursor lock, or has the file exclusively. Every use is verified, since processes outside may append; in state Behind
    /// it is what counts, since the kernel's size lags.
    pub size_hint: AtomicU64,
    /// When it was written last in state Behind, in nanoseconds since 1970; 0: not since a program set its times.
    pub written_ns: AtomicU64,
    /// State Behind: the page that was written last.
    pub written_page: AtomicU64,
    /// Raised by every change that the log does not hold (metadata, bytes from before us).
    pub unlogged: AtomicU64,
    /// The value of `unlogged` that a real sync has covered (invariant 9).
    pub unlogged_synced: AtomicU64,
    /// Serializes writes at a shared cursor or at the end of the file; holds lane + 1.
    pub cursor_lock: AtomicU32,
    /// Raised when bringing the file to disk failed; each description reports it once.
    pub error_epoch: AtomicU32,
    /// Real syncs by clients that failed: the keeper's own description may not show their error.
    pub sync_failures: AtomicU32,
    /// Real syncs by clients that may be under way; never too low.
    pub syncs_under_way: AtomicU32,
    /// Page rows of the file; while it has none, the page cache has all of it.
    pub page_rows: Census,
    /// Opens by clients, for telling theirs from those of outsiders (inotify fence).
    pub client_opens: AtomicU64,
}

// Two cache lines: by its alignment, one more field would make it four.
#[cfg(not(shuttle))]
const _: () = assert!(size_of::<FileRow>() == 128);

impl FileRow {
    /// The state now.
    #[inline]
    pub fn state(&self) -> FileState {
        FileState::from_u32(self.state.load(Ordering::SeqCst))
    }

    /// Sets the state; the caller holds the row exclusively.
    pub fn set_state(&self, state: FileState) {
        self.state.store(state as u32, Ordering::SeqCst);
    }

    /// Keeps new writers out. Those under way must still be waited for (see `Board::lock_file`).
    pub(crate) fn lock_exclusive(&self, who: u32, keeper: &AtomicU32) -> bool {
        lock_word(&self.exclusive, who, keeper)
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

    /// Sleeps until nobody keeps writers out, or a moment has passed.
    pub fn wait_shared(&self) {
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

    /// Serializes cursor and append writes; false when the keeper has died.
    #[inline]
    pub fn lock_cursor(&self, lane: u32, keeper: &AtomicU32) -> bool {
        lock_word(&self.cursor_lock, lane + 1, keeper)
    }

    /// Ends what `lock_cursor` began; nothing happens when `lane` does not hold it.
    #[inline]
    pub fn unlock_cursor(&self, lane: u32) {
        unlock_word(&self.cursor_lock, lane + 1);
    }

    /// Whether a sync must reach the kernel: something changed that the log does not hold (invariant 9).
    #[inline]
    pub fn needs_real_sync(&self) -> bool {
        self.unlogged.load(Ordering::SeqCst) > self.unlogged_synced.load(Ordering::SeqCst)
    }

    /// Notes that a record of the file stays.
    #[inline]
    pub fn note_recorded(&self) {
        if self.recorded.load(Ordering::Relaxed) == 0 {
            self.recorded.store(1, Ordering::SeqCst);
        }
    }

    /// Whether the log has nothing of which the file could be made.
    #[inline]
    pub fn is_blank(&self) -> bool {
        self.recorded.load(Ordering::SeqCst) == 0
    }

    /// What tells changes of its times; to be asked before the kernel is: what changes afterwards is then seen as a change.
    pub fn changes(&self) -> Changes {
        Changes {
            unlogged: self.unlogged.load(Ordering::SeqCst),
            written_ns: self.written_ns.load(Ordering::SeqCst),
        }
    }

    /// Notes a change that the log does not hold.
    pub fn note_unlogged(&self) {
        self.unlogged.fetch_add(1, Ordering::SeqCst);
    }
}
