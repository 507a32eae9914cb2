//! A process attached to a keeper: what the preloaded library calls.
//!
//! A sync is absorbed here, unless something changed that the log does not hold: of the file
//! (`FileRow::unlogged`), which its own sync brings to the disk, or of its file system (the
//! ledger), which a commit of the keeper's does (invariant 9).

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(not(shuttle))]
use holdfast_board::BoardError;
use holdfast_board::{Board, Commits, Epoch, FileRow, FileState, LEASES_FILES, LedgerRow, TAKER_ID};
use holdfast_canary::{Canary, on};
use holdfast_media::{Mapping, Nvm};
use holdfast_pool::Layout;
#[cfg(not(shuttle))]
use rustix::fd::BorrowedFd;

use crate::ask::{Reason, Unseen, ask};
use crate::design::{Designs, Stock, ToSync};
use crate::lane::now_ns;
use crate::request::{Answer, FileRequest, Program, Refusal, Request};
#[cfg(not(shuttle))]
use crate::wire::{WIRE_VERSION, Welcome};

/// An error number, as the program will see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Input/output error: nothing is acknowledged any more.
    pub const EIO: Self = Self(5);
    /// No space left: not for want of disk space, but of log space that expiry could give.
    pub const ENOSPC: Self = Self(28);
    /// The file must leave state Behind first.
    pub const EBUSY: Self = Self(16);
    /// A file stands at the name.
    pub const EEXIST: Self = Self(17);
    /// Not a pool or board this library knows, or nothing that this kernel can be asked for.
    pub const EINVAL: Self = Self(22);
    /// Path longer than a request can carry.
    pub const ENAMETOOLONG: Self = Self(36);
    /// Left to the kernel.
    pub const EOPNOTSUPP: Self = Self(95);
    /// Within the cache alone, and none of the kernel's: the keeper takes the file from who has it
    /// and stands still. Nothing was done.
    pub(crate) const TAKEN: Self = Self(-1);
}

/// A cached place of a file in the board. Every use verifies it, so an old one does no harm
/// (history 20).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileRef {
    /// Row and slot.
    pub slot: u32,
    /// Generation of their use.
    pub generation: u64,
}

/// How a descriptor came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Origin {
    /// This open created the file.
    Created = 1,
    /// An open we saw; the file was there.
    Opened = 2,
    /// A descriptor whose opening was not seen.
    Unknown = 3,
    /// The C library writes through it where we do not see it: never managed.
    Libc = 4,
    /// Its process writes by io_uring or libaio, where we do not see it: never managed.
    AsyncIo = 5,
    /// The file is about to be mapped shared and writable: never managed.
    Mapped = 6,
}

impl Origin {
    pub(crate) const ALL: [Self; 6] =
        [Self::Created, Self::Opened, Self::Unknown, Self::Libc, Self::AsyncIo, Self::Mapped];

    /// Whether a keeper never manages a file for such a descriptor.
    pub fn is_never_managed(self) -> bool {
        !matches!(self, Self::Created | Self::Opened)
    }

    /// Decodes an argument.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|origin| *origin as u64 == word)
    }
}

/// Where a write goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A given byte offset.
    At(u64),
    /// The description's cursor; `known` only if nobody else can move it.
    Cursor {
        /// The cursor, if the caller tracked it.
        known: Option<u64>,
    },
    /// The end of the file.
    Append,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done and durable.
    Absorbed {
        /// Bytes written.
        bytes: usize,
        /// Where they went.
        offset: u64,
    },
    /// Done by the kernel, in state Unsynced or while the file was taken from us, who stood still:
    /// as durable as it is natively.
    Passed {
        /// Bytes written.
        bytes: usize,
    },
    /// The file is left to the kernel: make the call, honour `O_SYNC`.
    Kernel,
    /// The slot was given back meanwhile: register the descriptor again and retry.
    Stale,
}

/// A file found in the board.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Its place.
    pub file: FileRef,
    /// Its state.
    pub state: FileState,
}

/// What the kernel tells of a file without being asked for its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Its size.
    pub size: u64,
    /// Its names.
    pub links: u64,
    /// The print of its mode and owner ([`holdfast_board::ownership_print`]).
    pub ownership: u32,
}

/// What ends beyond it is the kernel's to take or to refuse: below it lies what every supported
/// file system takes, with blocks as small as they come.
const FILE_BYTES_MAX: u64 = 1 << 40;

/// A process attached to a keeper. Threads share it; a forked child attaches anew.
pub struct Client<N: Nvm = Mapping> {
    pub(crate) nvm: N,
    pub(crate) board: Board,
    pub(crate) layout: Layout,
    pub(crate) uuid: [u8; 16],
    pub(crate) id: u32,
    /// Where the search for a free lane begins; `None`: it depends on the thread.
    pub(crate) first_lane: Option<usize>,
    /// The process' limit of file sizes: what ends beyond it is the kernel's to refuse.
    pub(crate) size_limit: AtomicU64,
}

#[cfg(not(shuttle))]
impl Client<Mapping> {
    /// Maps the board and the pool named by the keeper's welcome. The descriptors may be closed
    /// afterwards.
    pub fn attach(welcome: &Welcome, board: BorrowedFd<'_>, pool: BorrowedFd<'_>) -> Result<Self, Errno> {
        let layout = Layout::new(welcome.pool_bytes.get()).map_err(|_| Errno::EINVAL)?;
        let fits = welcome.version.get() == WIRE_VERSION
            && welcome.client.get() != 0
            && layout.slot_count == welcome.slot_count.get()
            && layout.segment_count == welcome.segment_count.get();
        if !fits {
            return Err(Errno::EINVAL);
        }
        let (info, delay) = welcome.media().ok_or(Errno::EINVAL)?;
        let board =
            Board::open(board, layout.slot_count, layout.segment_count).map_err(|error| match error {
                BoardError::Os(errno) => Errno(errno),
                BoardError::Unknown => Errno::EINVAL,
            })?;
        let nvm = Mapping::from_fd(pool, &info, welcome.read_only_bytes.get()).map_err(|_| Errno::EINVAL)?;
        nvm.set_delay(delay);
        Ok(Self::new(nvm, board, layout, welcome.uuid, welcome.client.get()))
    }

    /// Takes pool and board away from this process while some thread may still use them: it finds
    /// an empty board, whose keeper is dead.
    pub fn cover(&self) {
        self.board.cover();
        self.nvm.cover();
    }
}

impl<N: Nvm> Client<N> {
    /// A client over parts that are mapped already (keeper, tests).
    pub fn new(nvm: N, board: Board, layout: Layout, uuid: [u8; 16], id: u32) -> Self {
        let size_limit = AtomicU64::new(FILE_BYTES_MAX);
        Self { nvm, board, layout, uuid, id, first_lane: None, size_limit }
    }

    /// The same client, whose operations begin their search for a free lane at a given one: what it
    /// does can then be repeated exactly.
    pub fn with_first_lane(mut self, lane: usize) -> Self {
        self.first_lane = Some(lane);
        self
    }

    /// Tells the process' limit of file sizes (`RLIMIT_FSIZE`), in bytes.
    pub fn set_size_limit(&self, bytes: u64) {
        self.size_limit.store(bytes.min(FILE_BYTES_MAX), Ordering::Relaxed);
    }

    /// The board.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Whether the keeper lives; if not, nothing may be acknowledged.
    #[inline]
    pub fn keeper_alive(&self) -> bool {
        self.board.header().keeper_alive() || on(Canary::DeadKeeperServed)
    }

    #[inline]
    /// The file's row.
    pub fn row(&self, file: FileRef) -> &FileRow {
        self.board.row(file.slot)
    }

    /// Whether the place still stands for the file it was found for.
    #[inline]
    pub fn is_current(&self, file: FileRef) -> bool {
        self.row(file).generation() == file.generation
    }

    /// Asks the keeper for something that has no name, and waits for the answer.
    pub(crate) fn ask(&self, request: Request) -> Result<Answer, Refusal> {
        ask(&self.board, self.id, request, None)
    }

    /// The same of a file.
    pub(crate) fn ask_about(&self, file: FileRef, request: FileRequest) -> Result<Answer, Refusal> {
        self.ask(Request::File(file, request))
    }

    /// The same of a file and a name.
    pub(crate) fn ask_about_name(
        &self,
        file: FileRef,
        request: FileRequest,
        path: &CStr,
    ) -> Result<Answer, Refusal> {
        ask(&self.board, self.id, Request::File(file, request), Some(path))
    }

    /// Ends what `Board::lock_file` began.
    pub(crate) fn unlock_file(&self, file: FileRef) {
        self.board.unlock_file(file.slot, self.id);
    }

    /// Whether the file was taken from us, who stood still: what was called since is the kernel's,
    /// and no record that we write of it counts. If not, the calls made so far are covered by what
    /// is done when it is taken later.
    #[inline]
    pub(crate) fn is_taken(&self, file: FileRef) -> bool {
        // In this order: the slot's use ends before the file is let go of.
        let is_being_taken = self.row(file).is_held_by(TAKER_ID);
        is_being_taken || !self.is_current(file)
    }

    /// Why a lock was not to be had: the keeper is dead, or takes the file from who has the lock
    /// and stands still.
    pub(crate) fn unlocked(&self) -> Errno {
        if self.keeper_alive() { Errno::TAKEN } else { Errno::EIO }
    }

    /// What a call is that was made while the file was taken.
    pub(crate) fn outcome(&self, file: FileRef, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Absorbed { bytes, .. } if self.is_taken(file) => Outcome::Passed { bytes },
            outcome => outcome,
        }
    }

    /// Looks a file up by device and inode, without a system call.
    pub fn find(&self, dev: u64, ino: u64) -> Option<Seen> {
        let slot = self.board.find(dev, ino)?;
        let row = self.board.row(slot);
        let generation = row.generation();
        let state = row.state();
        state.is_in_use().then_some(Seen { file: FileRef { slot, generation }, state })
    }

    /// Whether the log still stands for this file.
    pub fn is_managed(&self, file: FileRef) -> bool {
        self.is_current(file) && self.row(file).state().is_absorbed()
    }

    /// Tells the fence that an open of a managed file was ours.
    pub fn note_open(&self, file: FileRef) {
        self.row(file).client_opens.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether opens must be announced before they are made.
    #[inline]
    pub fn announces_opens(&self) -> bool {
        self.board.header().announces_opens.word.load(Ordering::Relaxed) != 0
    }

    /// Makes an open of the library's, so that a fence which asks knows it for one.
    #[inline]
    pub fn open_announced<R>(&self, tid: impl FnOnce() -> u32, open: impl FnOnce() -> R) -> R {
        let header = self.board.header();
        if header.asks_openers.word.load(Ordering::Relaxed) == 0 {
            return open();
        }
        let opening = header.openers.begin(tid());
        let opened = open();
        opening.end();
        opened
    }

    /// Whether others may change the file, so that it is to be looked at before a sync of it is
    /// absorbed. Not in state Behind: the keeper hears of it there.
    #[inline]
    pub fn is_watched(&self, file: FileRef) -> bool {
        let row = self.row(file);
        row.is_watched() && row.state().keeps_up()
    }

    /// Whether a write up to `end` makes a file longer, as far as its size is known.
    #[inline]
    pub fn makes_longer(&self, file: FileRef, end: u64) -> bool {
        end > self.row(file).size_hint.load(Ordering::Relaxed)
    }

    /// Tells the keeper of a file that is not what its clients left, if what the kernel just told
    /// of it is not: a process outside cut it, removed it or gave it away without opening it, and
    /// the next sync must not be absorbed over that (invariant 9).
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    pub fn look_at(&self, file: FileRef, look: Look) -> Result<(), Errno> {
        let row = self.row(file);
        let is_touched = row.seems_touched(look.size, look.links) && !on(Canary::SizeUnlooked);
        // What is not in the log is synced really, mode and owner with it.
        let is_given =
            row.seems_given(look.ownership) && !row.needs_real_sync() && !on(Canary::AttributesUnlooked);
        if !(is_touched || is_given) || !self.is_current(file) {
            return Ok(());
        }
        self.have_heard(file)
    }

    /// The highest seq that was drawn for a file.
    pub fn newest_seq(&self, file: FileRef) -> u64 {
        self.row(file).newest_seq.load(Ordering::SeqCst)
    }

    /// Has the keeper hear of every change by others that was made before this is called.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    pub fn hear_all(&self, file: FileRef) -> Result<(), Errno> {
        let row = self.row(file);
        let is_heard = !row.is_watched() || !row.state().is_absorbed() || on(Canary::OthersUnasked);
        if is_heard { Ok(()) } else { self.have_heard(file) }
    }

    /// Makes a call that has the disk have what others did to any file, as [`Client::hear_all`]
    /// does of one. Nobody is told that it is over before all of that was heard, too.
    pub fn hearing_all<R>(&self, call: impl FnOnce() -> R) -> R {
        let header = self.board.header();
        let has_files = header.ledgers_in_use().next().is_some();
        if !has_files || on(Canary::OthersUnasked) {
            return call();
        }
        let hearing = header.ask_hearing();
        let result = call();
        // A dead keeper hears of nothing.
        header.hearings.wait_for(hearing, || self.keeper_alive());
        result
    }

    #[cold]
    fn have_heard(&self, file: FileRef) -> Result<(), Errno> {
        let_go_is_done(self.ask_about(file, FileRequest::Hear))
    }

    /// Whether descriptions of the program's may be leased.
    #[inline]
    pub fn leases_files(&self) -> bool {
        self.board.header().announces_opens.word.load(Ordering::Relaxed) == LEASES_FILES
    }

    /// Asks the keeper to manage the file behind `fd`; `None` leaves it to the kernel. `noted` says
    /// when its creation was noted, if the caller did that. `sole` tells whether no other
    /// description of the file exists; it is called once the fence stands.
    pub fn register(
        &self,
        fd: i32,
        origin: Origin,
        noted: Option<Epoch>,
        sole: impl FnOnce() -> bool,
    ) -> Result<Option<FileRef>, Errno> {
        let mut answer = self.ask(Request::Register { fd, origin, noted, sole: None });
        if answer == Err(Refusal::AskSole) {
            answer = self.ask(Request::Register { fd, origin, noted, sole: Some(sole()) });
        }
        match answer {
            Ok(Answer::Place(file)) => Ok(Some(file)),
            Ok(_) => Err(Errno::EIO),
            Err(Refusal::Kernels) => Ok(None),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// The kernel alone is about to answer a sync of the file with this device and inode; for
    /// [`Client::note_kernels_sync_took`].
    pub fn note_kernels_sync(&self, file: (u64, u64)) -> u64 {
        let header = self.board.header();
        header.syncs_real.add(1);
        header.synced_by_kernel.note(file);
        now_ns()
    }

    /// It has answered one that began then.
    pub fn note_kernels_sync_took(&self, begun_ns: u64) {
        self.board.header().syncs_took.note(now_ns().saturating_sub(begun_ns));
    }

    /// Has the keeper let go of removed files, which it keeps open for a moment: `own` if this
    /// process has just removed a large one, else because a disk is full. Whether space may be free
    /// by now that was not. Not with a lock held.
    pub fn make_room(&self, own: bool) -> bool {
        self.ask(Request::Room { own }) == Ok(Answer::Room(true))
    }

    /// Brings a file to the disk and expires it: afterwards the log holds nothing of what was done
    /// before. `held` says that the caller keeps the file's writers out.
    pub(crate) fn settle(&self, file: FileRef, held: bool) -> Result<(), Errno> {
        let_go_is_done(self.ask_about(file, FileRequest::Settle { held }))
    }

    /// [`Client::settle`] for all files, for a process that nobody will follow any more.
    pub fn settle_all(&self) {
        for (slot, row) in self.board.files().iter().enumerate() {
            if row.state().is_absorbed() {
                let generation = row.generation();
                // Fails only when the keeper is dead or the disk refuses the data; then every write
                // to the file fails too.
                let _ = self.settle(FileRef { slot: slot as u32, generation }, false);
            }
        }
    }

    /// Whether some fence hears of the opens of others, so that they need not be vouched for.
    pub fn hears_opens(&self) -> bool {
        let header = self.board.header();
        self.announces_opens() || header.asks_openers.word.load(Ordering::Relaxed) != 0
    }

    /// Leaves a file to the kernel for good, after it is settled.
    pub fn bypass(&self, file: FileRef, reason: Reason) -> Result<(), Errno> {
        let_go_is_done(self.ask_about(file, FileRequest::Bypass { reason, let_go: false }))
    }

    /// As [`Client::bypass`], and the keeper lets go of the file: nothing of Holdfast has it open
    /// afterwards. The caller must not use the place any more.
    pub fn let_go(&self, file: FileRef, reason: Reason) -> Result<(), Errno> {
        let_go_is_done(self.ask_about(file, FileRequest::Bypass { reason, let_go: true }))
    }

    /// Tells the keeper that what a program writes is not seen, so that it can say so. `program` is
    /// a path and the descriptor it is relative to; `None`: this one. True when the keeper hears it
    /// for the first time.
    pub fn note_unseen(&self, why: Unseen, program: Option<(i32, &CStr)>) -> bool {
        let (program, path) = match program {
            Some((dirfd, path)) => (Program::Named { dirfd }, Some(path)),
            None => (Program::Own, None),
        };
        ask(&self.board, self.id, Request::Unseen { why, program }, path) == Ok(Answer::News(true))
    }

    /// Tells the keeper why what a child writes that runs in this program's memory is not seen.
    pub fn note_unseen_child(&self, why: Unseen) {
        let _ = self.ask(Request::Unseen { why, program: Program::Child });
    }

    /// Notes a change of a file's content that the log does not hold: the next sync is real
    /// (invariant 9).
    pub fn note_unlogged(&self, file: FileRef) {
        if self.is_current(file) {
            self.row(file).note_unlogged();
        }
    }

    /// Notes a change of a file that is the journal's (mode, owner, times, attributes, allocation):
    /// it is pending in the ledger. Where changes become durable file by file, the file's next sync
    /// is real.
    pub fn note_attributes(&self, file: FileRef) {
        self.note_time();
        if self.is_current(file) {
            let row = self.row(file);
            row.note_unlogged();
            // What it is now the keeper sees when it hears of this.
            row.set_ownership(0);
            if let Some(ledger) = self.ledger(row) {
                ledger.note();
            }
        }
    }

    /// A call is being made that moves a file's time of change and nothing else. What others did is
    /// told by that time and by the same notices: so it is heard of before the call and behind it
    /// ([`Client::hear_all`]).
    pub fn note_touched(&self, file: FileRef) {
        if self.is_current(file) {
            self.row(file).note_touched();
        }
    }

    /// The keeper has heard of that call.
    pub fn end_touched(&self, file: FileRef) {
        if self.is_current(file) {
            self.row(file).take_touched();
        }
    }

    /// The ledger of a file's file system.
    #[inline]
    pub(crate) fn ledger(&self, row: &FileRow) -> Option<&LedgerRow> {
        self.board.header().ledger(row.dev.load(Ordering::Relaxed))
    }

    /// Has the file system commit what is pending. False where that is not the way of the file
    /// system.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the file system cannot commit.
    fn commit_pending(&self, file: FileRef) -> Result<bool, Errno> {
        let ledger = self.ledger(self.row(file));
        let is_clean = ledger.is_some_and(LedgerRow::is_clean) || on(Canary::PendingIgnored);
        if is_clean { Ok(true) } else { self.commit(file, ledger) }
    }

    /// Before a record of `file` becomes durable: nothing earlier on its file system is pending any
    /// more but its own creation, which the slot holds with that record (invariant 10). Not with a
    /// lock held.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the file system cannot commit.
    #[inline]
    pub(crate) fn follow_pending(&self, file: FileRef) -> Result<(), Errno> {
        let row = self.row(file);
        let ledger = self.ledger(row);
        let is_clean = ledger.is_some_and(|ledger| ledger.is_clean() || ledger.is_clean_but(row.noted()));
        if is_clean || !row.state().is_absorbed() || on(Canary::PendingIgnored) {
            return Ok(());
        }
        self.follow_by_commit(file, ledger)
    }

    #[cold]
    fn follow_by_commit(&self, file: FileRef, ledger: Option<&LedgerRow>) -> Result<(), Errno> {
        let is_committed = self.commit(file, ledger)?;
        // File by file: what is pending of this very file comes first.
        if !is_committed && self.row(file).needs_real_sync() && !on(Canary::OwnPendingIgnored) {
            self.settle(file, false)?;
        }
        Ok(())
    }

    #[cold]
    fn commit(&self, file: FileRef, ledger: Option<&LedgerRow>) -> Result<bool, Errno> {
        if let Some(ledger) = ledger.filter(|ledger| ledger.commits() == Commits::ByFile) {
            self.board.header().want_commit(ledger);
            return Ok(false);
        }
        match self.ask_about(file, FileRequest::Commit { behind_sync: false }) {
            Ok(_) => Ok(true),
            Err(Refusal::Kernels) => Ok(false),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Tells the keeper that a child is about to be forked, so that it waits for the child's hello.
    pub fn announce_fork(&self) {
        self.board.header().forks_pending.word.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes an announcement back: the fork failed.
    pub fn withdraw_fork(&self) {
        self.board.header().forks_pending.word.fetch_sub(1, Ordering::SeqCst);
    }

    /// For [`Client::sync`] by a description that reports what fails from now on.
    pub fn errors_until_now(&self, file: FileRef) -> AtomicU32 {
        AtomicU32::new(self.row(file).error_epoch.load(Ordering::SeqCst))
    }

    /// Answers a program's `fsync` or `fdatasync`, or ends a write that it asked to be synchronous.
    ///
    /// Every managed byte is durable already, so only changes that the log does not hold need the
    /// disk (invariant 9): those of the file by `raw`, which must be a whole `fsync` whatever the
    /// program asked for, as it counts for attributes, too; and those that are pending on its file
    /// system by a commit, since a sync by the program need not commit anything (invariant 11). A
    /// failure met in the background is reported once per description.
    ///
    /// # Errors
    /// What the sync reported, or `EIO` when the keeper is dead.
    pub fn sync(
        &self,
        file: FileRef,
        seen_error: &AtomicU32,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.sync_by::<Stock>(file, seen_error, raw)
    }

    /// [`Client::sync`], with a set of designs.
    ///
    /// # Errors
    /// What the sync reported, or `EIO` when the keeper is dead.
    pub fn sync_by<D: Designs>(
        &self,
        file: FileRef,
        seen_error: &AtomicU32,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if !self.keeper_alive() {
            return Err(Errno::EIO);
        }
        let row = self.row(file);
        let state = row.state();
        let inode = (row.dev.load(Ordering::Relaxed), row.ino.load(Ordering::Relaxed));
        let is_current = self.is_current(file);
        if !is_current || !(state.is_absorbed() || state.is_failed()) {
            let begun_ns = self.note_kernels_sync(if is_current { inode } else { (0, 0) });
            let synced = raw();
            self.note_kernels_sync_took(begun_ns);
            return synced;
        }
        let epoch = row.error_epoch.load(Ordering::SeqCst);
        let has_news =
            seen_error.load(Ordering::SeqCst) != epoch && seen_error.swap(epoch, Ordering::SeqCst) != epoch;
        if has_news || state.is_failed() {
            return Err(Errno::EIO);
        }
        // A file without a single record cannot be built anew by recovery: its existence is the
        // kernel's to sync.
        let is_blank = row.is_blank();
        let is_committed = on(Canary::NamesUncounted) || self.commit_pending(file)?;
        // Who keeps the writers out may be in the middle of a change around the log that is seen
        // already.
        let is_logged = (!row.needs_real_sync() || on(Canary::UnloggedIgnored)) && !row.is_exclusive();
        if is_logged && !is_blank && is_committed {
            D::dispatch(state, ToSync(self, file)).unwrap_or(Ok(()))?;
            self.board.header().syncs_absorbed.count(file.slot);
            return if self.keeper_alive() { Ok(()) } else { Err(Errno::EIO) };
        }
        // The disk is about to have what others did: nothing may be replayed over that.
        self.hear_all(file)?;
        let covered = row.unlogged();
        let begun_ns = self.note_kernels_sync(inode);
        row.begin_sync();
        let synced = raw();
        row.end_sync(synced.is_err());
        self.note_kernels_sync_took(begun_ns);
        synced?;
        let covered = if on(Canary::SyncCoversLater) { row.unlogged() } else { covered };
        row.note_synced(covered);
        self.commit_behind_sync(file);
        Ok(())
    }

    /// A sync of a file by the kernel is over: where changes are made durable file by file, the
    /// file system is had commit what else is pending, once a second. Not with a lock held.
    #[inline]
    pub fn commit_behind_sync(&self, file: FileRef) {
        if self.ledger(self.row(file)).is_some_and(LedgerRow::is_due) {
            // The sync is over; a commit that fails leaves pending what is.
            let _ = self.ask_about(file, FileRequest::Commit { behind_sync: true });
        }
    }

    /// A sync by the kernel is over: where the keeper's own last one may have left it nothing to
    /// commit, what is pending is committed (invariant 9).
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the file system cannot commit.
    #[inline]
    pub fn follow_sync(&self, device: u64) -> Result<(), Errno> {
        let may_leave_out = self.board.header().ledger(device).is_some_and(LedgerRow::may_leave_out);
        if !may_leave_out || on(Canary::OwnSyncUnmatched) {
            return Ok(());
        }
        self.ask(Request::Follow { device })?;
        Ok(())
    }

    /// Whether a sync of a file without a row, which is over, had better be followed so: the file
    /// gets a row then.
    pub fn is_commit_due(&self, device: u64) -> bool {
        let is_wanted = |ledger: &LedgerRow| ledger.is_due() || ledger.is_to_begin();
        self.board.header().ledger(device).is_some_and(is_wanted)
    }
}

/// Of a file that the keeper has let go of nothing is live, and it is the kernel's.
pub(crate) fn let_go_is_done(answer: Result<Answer, Refusal>) -> Result<(), Errno> {
    match answer {
        Ok(_) | Err(Refusal::Kernels) => Ok(()),
        Err(refusal) => Err(refusal.into()),
    }
}
