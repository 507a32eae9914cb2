//! A process attached to a keeper: what the preloaded library calls.
//!
//! Here is what it knows and whom it asks. How it writes, reads and syncs is in modules of their
//! own; this one must never know a design.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU64, Ordering};

#[cfg(not(shuttle))]
use holdfast_board::BoardError;
use holdfast_board::{Board, Epoch, FileRow, LedgerRow, TAKER_ID};
use holdfast_canary::{Canary, on};
use holdfast_media::{Mapping, Nvm};
use holdfast_pool::{Layout, Seq, Slot};
#[cfg(not(shuttle))]
use rustix::fd::BorrowedFd;

use crate::ask::ask;
use crate::errno::Errno;
use crate::file::{FileRef, Look, Origin, Outcome, Seen};
use crate::reason::{Reason, Unseen};
use crate::request::{Answer, FileRequest, Program, Refusal, Request};
use crate::stop::Stop;
#[cfg(not(shuttle))]
use crate::wire::{WIRE_VERSION, Welcome};

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
    pub(crate) fn unlocked(&self) -> Stop {
        if self.keeper_alive() { Stop::Taken } else { Stop::Error(Errno::EIO) }
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
        self.row(file).note_open();
    }

    /// Whether opens must be announced before they are made.
    #[inline]
    pub fn announces_opens(&self) -> bool {
        self.board.header().announces_opens()
    }

    /// Makes an open of the library's, so that a fence which asks knows it for one.
    #[inline]
    pub fn open_announced<R>(&self, tid: impl FnOnce() -> u32, open: impl FnOnce() -> R) -> R {
        let header = self.board.header();
        if !header.asks_openers.seems_on() {
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
        end > self.row(file).end_hint()
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
    pub fn newest_seq(&self, file: FileRef) -> Seq {
        self.row(file).newest_seq()
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
        Ok(let_go_is_done(self.ask_about(file, FileRequest::Hear))?)
    }

    /// Whether descriptions of the program's may be leased.
    #[inline]
    pub fn leases_files(&self) -> bool {
        self.board.header().leases_files()
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

    /// Has the keeper let go of removed files, which it keeps open for a moment: `own` if this
    /// process has just removed a large one, else because a disk is full. Whether space may be free
    /// by now that was not. Not with a lock held.
    pub fn make_room(&self, own: bool) -> bool {
        self.ask(Request::Room { own }) == Ok(Answer::Room(true))
    }

    /// Has the keeper let go of all files that no program has open for writing, with what is
    /// pending of them on the disk. Not with a lock held.
    pub fn let_go_unused(&self) {
        // Without a keeper nobody holds them.
        let _ = self.ask(Request::LetGo);
    }

    /// Brings a file to the disk and expires it: afterwards the log holds nothing of what was done
    /// before. `held` says that the caller keeps the file's writers out.
    pub(crate) fn settle(&self, file: FileRef, held: bool) -> Result<(), Refusal> {
        let_go_is_done(self.ask_about(file, FileRequest::Settle { held }))
    }

    /// [`Client::settle`] for all files, for a process that nobody will follow any more.
    pub fn settle_all(&self) {
        for (slot, row) in self.board.files().iter().enumerate() {
            if row.state().is_absorbed() {
                let generation = row.generation();
                // Fails only when the keeper is dead or the disk refuses the data; then every write
                // to the file fails too.
                let _ = self.settle(FileRef { slot: Slot::at(slot), generation }, false);
            }
        }
    }

    /// Whether some fence hears of the opens of others, so that they need not be vouched for.
    pub fn hears_opens(&self) -> bool {
        let header = self.board.header();
        self.announces_opens() || header.asks_openers.seems_on()
    }

    /// Leaves a file to the kernel for good, after it is settled.
    pub fn bypass(&self, file: FileRef, reason: Reason) -> Result<(), Errno> {
        Ok(let_go_is_done(self.ask_about(file, FileRequest::Bypass { reason, let_go: false }))?)
    }

    /// As [`Client::bypass`], and the keeper lets go of the file: nothing of Holdfast has it open
    /// afterwards. The caller must not use the place any more.
    pub fn let_go(&self, file: FileRef, reason: Reason) -> Result<(), Errno> {
        Ok(let_go_is_done(self.ask_about(file, FileRequest::Bypass { reason, let_go: true }))?)
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

    /// The ledger of a file's file system.
    #[inline]
    pub(crate) fn ledger(&self, row: &FileRow) -> Option<&LedgerRow> {
        self.board.header().ledger(row.device())
    }

    /// Tells the keeper that a child is about to be forked, so that it waits for the child's hello.
    pub fn announce_fork(&self) {
        self.board.header().announce_fork();
    }

    /// Takes an announcement back: the fork failed.
    pub fn withdraw_fork(&self) {
        self.board.header().end_fork();
    }
}

/// Of a file that the keeper has let go of nothing is live, and it is the kernel's.
pub(crate) fn let_go_is_done(answer: Result<Answer, Refusal>) -> Result<(), Refusal> {
    match answer {
        Ok(_) | Err(Refusal::Kernels) => Ok(()),
        Err(refusal) => Err(refusal),
    }
}
