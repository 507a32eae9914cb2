//! What is remembered of an open description: whether its file is the log's, what it has reported
//! and synced, where its cursor is, and how the file looked when it was made.
//!
//! Atomics alone: threads share it, and a forked child has its copy. It keeps no descriptor open.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use holdfast_pool::{Generation, Seq, Slot};

use holdfast_board::{AtomicGeneration, AtomicSeq, Epoch};
use holdfast_cache::{FileRef, Origin};

use crate::backing::Stat;

/// The program may only write through it, so nobody can move its cursor by reading.
pub const WRITE_ONLY: u32 = 1 << 0;
/// The kernel's cursor is shared with another process, or was opened by others: never remember it.
pub const SHARED: u32 = 1 << 1;
/// `O_APPEND`.
pub const APPEND: u32 = 1 << 2;
/// The program asked for `O_DSYNC`; we opened without it.
pub const DSYNC: u32 = 1 << 3;
/// The program asked for `O_SYNC`; we opened without it.
pub const SYNC: u32 = 1 << 4;
/// `O_DIRECT`: the kernel alone knows which buffers and offsets will do.
pub const DIRECT: u32 = 1 << 5;
/// Its file was opened without a name (`O_TMPFILE`), and is the kernel's until it gets one.
pub const NAMELESS: u32 = 1 << 6;
/// Its file system was looked at.
const PLACED: u32 = 1 << 7;
/// It is none on which files are managed.
const FOREIGN: u32 = 1 << 8;
/// Its cursor may be moved by calls of which nobody knows that they are on it: never remember it.
const UNFOLLOWED: u32 = 1 << 9;
/// The flags of a description that `F_SETFL` changes.
pub const KERNEL_FLAGS: u32 = APPEND | DIRECT;

const PENDING: u32 = 0;
const MANAGED: u32 = 1;
const PLAIN: u32 = 2;

const CURSOR_UNKNOWN: u64 = u64::MAX;

/// What is known about the file behind a description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing yet: the keeper is asked at the first change.
    Pending(Origin),
    /// The cache's.
    Managed(FileRef),
    /// Left to the kernel.
    Plain,
}

/// One description.
pub struct Description {
    state: AtomicU32,
    flags: AtomicU32,
    slot: AtomicU32,
    lock: AtomicU32,
    /// The file's error epoch that this description has reported.
    pub seen_error: AtomicU32,
    origin: AtomicU32,
    /// The file's newest seq when it was last synced through this description, or became the
    /// cache's.
    pub synced_seq: AtomicSeq,
    slot_generation: AtomicGeneration,
    cursor: AtomicU64,
    born_ns: AtomicU64,
    device: AtomicU64,
    ino: AtomicU64,
    /// The kind of the name under which this open created the file ([`holdfast_board::kind_of`]),
    /// until its first sync; else 0.
    kind: AtomicU64,
    /// When the file's creation was noted in the ledger ([`Epoch::to_raw`]), until its slot is
    /// told; else 0.
    noted: AtomicU64,
    path_changes: AtomicU32,
}

/// Changes of metadata that this process made by path to files which were not the cache's.
static PATH_CHANGES: AtomicU32 = AtomicU32::new(0);

/// Counts such a change.
pub fn note_path_change() {
    PATH_CHANGES.fetch_add(1, Ordering::SeqCst);
}

impl Default for Description {
    fn default() -> Self {
        Self::new()
    }
}

impl Description {
    /// One that is not in use.
    pub const fn new() -> Self {
        Self {
            state: AtomicU32::new(PENDING),
            flags: AtomicU32::new(0),
            slot: AtomicU32::new(0),
            lock: AtomicU32::new(0),
            seen_error: AtomicU32::new(0),
            origin: AtomicU32::new(0),
            synced_seq: AtomicSeq::new(Seq::ZERO),
            slot_generation: AtomicGeneration::new(Generation::NONE),
            cursor: AtomicU64::new(CURSOR_UNKNOWN),
            born_ns: AtomicU64::new(0),
            device: AtomicU64::new(0),
            ino: AtomicU64::new(0),
            kind: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            path_changes: AtomicU32::new(0),
        }
    }

    /// Begins a use of it.
    pub fn begin(&self, flags: u32, origin: Origin) {
        self.flags.store(flags, Ordering::Relaxed);
        self.seen_error.store(0, Ordering::Relaxed);
        self.cursor.store(CURSOR_UNKNOWN, Ordering::Relaxed);
        self.ino.store(0, Ordering::Relaxed);
        self.noted.store(0, Ordering::Relaxed);
        self.kind.store(0, Ordering::Relaxed);
        self.origin.store(origin as u32, Ordering::Relaxed);
        self.state.store(PENDING, Ordering::Release);
    }

    /// In a forked child: other threads' locks went away with them, and what was noted in the
    /// ledger once is the parent's to take back.
    pub fn reset_for_child(&self) {
        self.lock.store(0, Ordering::Relaxed);
        self.noted.store(0, Ordering::Relaxed);
    }

    /// What is known of the file.
    #[inline]
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            MANAGED => State::Managed(FileRef {
                slot: Slot::new(self.slot.load(Ordering::Relaxed)),
                generation: self.slot_generation.load(Ordering::Relaxed),
            }),
            PLAIN => State::Plain,
            _ => State::Pending(match self.origin.load(Ordering::Relaxed) {
                1 => Origin::Created,
                2 => Origin::Opened,
                _ => Origin::Unknown,
            }),
        }
    }

    /// Sets what is known of the file.
    pub fn set_state(&self, state: State) {
        let word = match state {
            State::Pending(origin) => {
                self.origin.store(origin as u32, Ordering::Relaxed);
                PENDING
            }
            State::Managed(file) => {
                self.slot.store(file.slot.number(), Ordering::Relaxed);
                self.slot_generation.store(file.generation, Ordering::Relaxed);
                MANAGED
            }
            State::Plain => PLAIN,
        };
        self.state.store(word, Ordering::Release);
    }

    /// Remembers how a file looked when this open had created it.
    pub fn remember_birth(&self, stat: &Stat) {
        self.born_ns.store(stat.changed_ns, Ordering::Relaxed);
        self.device.store(stat.dev, Ordering::Relaxed);
        self.ino.store(stat.ino, Ordering::Relaxed);
        self.path_changes.store(PATH_CHANGES.load(Ordering::SeqCst), Ordering::Relaxed);
    }

    /// The file is as new as before, though this process moved its time of change.
    pub fn renew_birth(&self, stat: &Stat) {
        self.born_ns.store(stat.changed_ns, Ordering::Relaxed);
    }

    /// Remembers the kind of the name of a file that this open created.
    pub fn remember_kind(&self, kind: u64) {
        self.kind.store(kind, Ordering::Relaxed);
    }

    /// That kind, for the first sync alone.
    pub fn take_kind(&self) -> Option<u64> {
        let kind = self.kind.swap(0, Ordering::Relaxed);
        (kind != 0).then_some(kind)
    }

    /// Device and inode number of the file, if its open was seen.
    #[inline]
    pub fn file(&self) -> Option<(u64, u64)> {
        let ino = self.ino.load(Ordering::Relaxed);
        (ino != 0).then(|| (self.device.load(Ordering::Relaxed), ino))
    }

    /// Remembers when the file's creation was noted in the ledger. Until a slot holds it, it is
    /// pending.
    pub fn remember_noted(&self, noted: Option<Epoch>) {
        self.noted.store(noted.map_or(0, Epoch::to_raw), Ordering::SeqCst);
    }

    /// When the file's creation was noted, if nobody has taken that.
    pub fn noted(&self) -> Option<Epoch> {
        Epoch::from_raw(self.noted.load(Ordering::SeqCst))
    }

    /// When the file's creation was noted, for the one who is going to have a slot hold it.
    pub fn take_noted(&self) -> Option<Epoch> {
        Epoch::from_raw(self.noted.swap(0, Ordering::SeqCst))
    }

    /// Whether the file is as it was created. Another process' change within the same tick of a
    /// coarse clock is missed if it left the size alone.
    pub fn is_as_born(&self, stat: &Stat) -> bool {
        stat.size == 0
            && stat.changed_ns == self.born_ns.load(Ordering::Relaxed)
            && PATH_CHANGES.load(Ordering::SeqCst) == self.path_changes.load(Ordering::Relaxed)
    }

    /// The flags, as the program wants them.
    #[inline]
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Sets flags.
    pub fn add_flags(&self, flags: u32) {
        self.flags.fetch_or(flags, Ordering::Relaxed);
    }

    /// Clears flags.
    pub fn remove_flags(&self, flags: u32) {
        self.flags.fetch_and(!flags, Ordering::Relaxed);
    }

    /// Whether its file lies where files are managed; `look` finds out, once.
    #[inline]
    pub fn may_be_managed(&self, look: impl FnOnce(Option<u64>) -> bool) -> bool {
        let flags = self.flags();
        if flags & PLACED == 0 {
            let is_managed = look(self.file().map(|(device, _)| device));
            self.add_flags(PLACED | if is_managed { 0 } else { FOREIGN });
            return is_managed;
        }
        flags & FOREIGN == 0
    }

    /// Whether the cursor can be remembered: only we can move it, and only by calls that have
    /// hooks.
    #[inline]
    pub fn remembers_cursor(&self) -> bool {
        self.flags() & (WRITE_ONLY | SHARED | APPEND | UNFOLLOWED) == WRITE_ONLY
    }

    /// The remembered cursor. The caller holds the lock.
    #[inline]
    pub fn cursor(&self) -> Option<u64> {
        let cursor = self.cursor.load(Ordering::Relaxed);
        (cursor != CURSOR_UNKNOWN && self.remembers_cursor()).then_some(cursor)
    }

    /// From now on nobody goes by a cursor that is remembered. Only inside a critical section.
    #[cold]
    pub fn unfollow_cursor(&self) {
        self.add_flags(UNFOLLOWED);
        // Who goes by it now is done with it afterwards.
        self.locked(|| self.set_cursor(None));
    }

    /// Remembers the cursor, or forgets it. The caller holds the lock to remember; anybody may
    /// forget.
    #[inline]
    pub fn set_cursor(&self, cursor: Option<u64>) {
        self.cursor.store(cursor.unwrap_or(CURSOR_UNKNOWN), Ordering::Relaxed);
    }

    /// Makes a call that moves the cursor in a way that is not followed. Whoever follows it holds
    /// the same lock: a cursor that was learned while the call was under way would be where it was
    /// before, and a record of the next write would stand for another place than the kernel's, so
    /// that what recovery makes is not what was visible (invariant 1).
    /// Only inside a critical section.
    #[inline]
    pub fn moving_cursor<R>(&self, call: impl FnOnce() -> R) -> R {
        if !self.remembers_cursor() {
            return call();
        }
        self.locked(|| {
            self.set_cursor(None);
            call()
        })
    }

    /// Runs `work` with the row locked. Only inside a critical section; never in a child that runs
    /// in our memory.
    #[inline]
    pub fn locked<R>(&self, work: impl FnOnce() -> R) -> R {
        if self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.lock.swap(2, Ordering::Acquire) != 0 {
                holdfast_board::wait(&self.lock, 2, Duration::from_millis(100));
            }
        }
        let result = work();
        if self.lock.swap(0, Ordering::Release) == 2 {
            holdfast_board::wake(&self.lock, 1);
        }
        result
    }
}
