//! The round trip of a request through a cell, and what clients give as reasons.
//!
//! No descriptor and no allocation: the cell lies in the board and the client sleeps on its word.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;

use holdfast_board::{
    Board, REQUEST_PATH_BYTES, RequestCell, RequestState, pause, spin_loop, spins, wait, wake,
};

use crate::request::{Answer, Refusal, Request};

/// How long a client sleeps before it looks whether the keeper still lives.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Looks at the answer before going to sleep: longer than a quick request takes, about as long as a
/// wake-up does.
const SPINS: u32 = 4000;

/// Why a file is left to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// A shared writable mapping: its stores cannot be seen.
    MappedShared = 1,
    /// io_uring or libaio in the process.
    AsyncIo = 2,
    /// A writable descriptor went to a program or process that Holdfast cannot follow.
    HandedAway = 3,
    /// A descriptor whose opening was not seen.
    UnknownOrigin = 4,
    /// Somebody else has the file open for writing.
    Outsider = 5,
    /// It is not known whether somebody else has the file open.
    CannotTell = 6,
    /// Not ext4, xfs or btrfs.
    FileSystem = 7,
    /// Left out by the include and exclude patterns.
    Pattern = 8,
    /// No fence covers it: not below an `--exclusive` directory, and no other fence is in use.
    NoFence = 9,
    /// The keeper cannot reach it under its path (another mount namespace or root), or the path is
    /// too long.
    Unreachable = 10,
    /// The keeper may not open it.
    Permission = 11,
    /// No free slot although everything expired.
    NoSlot = 12,
    /// A system call changed it in a way the log cannot hold.
    Uncovered = 13,
    /// The C library writes it by system calls of its own, in front of which nothing can be put.
    Libc = 14,
    /// The program also makes system calls of its own.
    OwnCalls = 15,
    /// It is append-only or immutable: recovery could not write to it.
    Fixed = 16,
    /// The keeper may have no more files open.
    NoDescriptor = 17,
    /// Its program gave up rights, and is not followed any more.
    GaveUp = 18,
    /// The pool was removed while it was in use.
    NoPool = 19,
    /// A process stood still in the midst of a change of it.
    StoodStill = 20,
}

impl Reason {
    pub(crate) const ALL: [Self; 20] = [
        Self::MappedShared,
        Self::AsyncIo,
        Self::HandedAway,
        Self::UnknownOrigin,
        Self::Outsider,
        Self::CannotTell,
        Self::FileSystem,
        Self::Pattern,
        Self::NoFence,
        Self::Unreachable,
        Self::Permission,
        Self::NoSlot,
        Self::Uncovered,
        Self::Libc,
        Self::OwnCalls,
        Self::Fixed,
        Self::NoDescriptor,
        Self::GaveUp,
        Self::NoPool,
        Self::StoodStill,
    ];

    /// Decodes an argument.
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u64 == word)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MappedShared => "mapped shared and writable",
            Self::AsyncIo => "the program uses io_uring or libaio",
            Self::HandedAway => "a writable descriptor was handed to another program",
            Self::UnknownOrigin => "its opening was not seen",
            Self::Outsider => "a process outside Holdfast has it open for writing",
            Self::CannotTell => "it cannot be told whether others have it open for writing",
            Self::FileSystem => "its file system is not ext4, xfs or btrfs",
            Self::Pattern => "left out by --include or --exclude",
            Self::NoFence => "no fence covers it (use --exclusive DIR, or run as root for fanotify)",
            Self::Unreachable => "the keeper cannot reach it under its path",
            Self::Permission => "the keeper may not open it",
            Self::NoSlot => "no file slot was free (use a larger pool)",
            Self::Uncovered => "a system call changed it around the log",
            Self::OwnCalls => "its program also makes system calls of its own",
            Self::Fixed => {
                "it is append-only or immutable (chattr +a, +i), so recovery could not write to it"
            }
            Self::NoDescriptor => "the keeper may have no more files open (raise the limit, `ulimit -n`)",
            Self::NoPool => "the pool was removed while it was in use",
            Self::StoodStill => "a process stood still in the midst of a change of it, and others waited",
            Self::GaveUp => "its program gave up rights, and is not absorbed any more",
            Self::Libc => "musl writes it by system calls of its own (stdio, dprintf or POSIX AIO)",
        })
    }
}

/// Why what a program writes is not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Unseen {
    /// libc's entries could not be replaced in it.
    Unpatched = 1,
    /// It was started without the library in its environment.
    Environment = 2,
    /// It runs with more privilege than who started it, and the loader ignores the library.
    Privileged = 3,
    /// It has no loader.
    Static = 4,
    /// The library or the keeper's socket is not under its path where the program runs.
    OutOfReach = 5,
    /// It has set up io_uring or libaio.
    AsyncIo = 6,
    /// It makes system calls of its own that cannot be led to hooks.
    OwnCalls = 7,
    /// It runs as another user than the keeper.
    OtherUser = 8,
    /// Its real, effective and saved users are not one, so it may become another one.
    MixedUser = 9,
    /// It gave up rights: a filter of system calls.
    Filter = 10,
    /// It gave up rights: another user or group.
    Identity = 11,
    /// It gave up rights: capabilities.
    Capabilities = 12,
    /// It gave up rights: Landlock.
    Landlock = 13,
    /// It gave up rights: a namespace of users.
    Namespace = 14,
    /// It gave up rights: another root directory.
    Root = 15,
    /// It gave up rights: another root directory, without the library.
    RootWithout = 16,
    /// A static Go program with C code, or without fixed addresses.
    GoWithC = 17,
    /// A Go program whose calls were not found.
    GoUnknown = 18,
    /// A Go program without C code on a machine without FSGSBASE.
    GoMachine = 19,
    /// A Go program that could not be mapped, or changed.
    GoForbidden = 20,
}

impl Unseen {
    pub(crate) const ALL: [Self; 20] = [
        Self::Unpatched,
        Self::Environment,
        Self::Privileged,
        Self::Static,
        Self::OutOfReach,
        Self::AsyncIo,
        Self::OwnCalls,
        Self::OtherUser,
        Self::MixedUser,
        Self::Filter,
        Self::Identity,
        Self::Capabilities,
        Self::Landlock,
        Self::Namespace,
        Self::Root,
        Self::RootWithout,
        Self::GoWithC,
        Self::GoUnknown,
        Self::GoMachine,
        Self::GoForbidden,
    ];

    /// Decodes an argument.
    pub fn from_u64(value: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|unseen| *unseen as u64 == value)
    }
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unpatched => "libc's entries could not be replaced in it",
            Self::Environment => "it was started with an environment without the library",
            Self::Privileged => "it runs with more privilege, and the loader ignores the library",
            Self::Static => "it is statically linked",
            Self::AsyncIo => "it uses io_uring or libaio",
            Self::OwnCalls => "it makes system calls of its own, as Go's libraries do",
            Self::OtherUser => {
                "it runs as another user than its keeper, which serves one (start it with `holdfast run --user NAME`)"
            }
            Self::MixedUser => {
                "its real, effective and saved user are not one, so that it may become another than its keeper's"
            }
            Self::Filter => "it gave up rights: it filters its system calls",
            Self::Identity => {
                "it gave up rights: it became another user, or changed its groups (start it with `holdfast run --user NAME`)"
            }
            Self::Capabilities => "it gave up rights: it dropped capabilities",
            Self::Landlock => "it gave up rights: it restricted itself by Landlock",
            Self::Namespace => "it gave up rights: it entered a user namespace",
            Self::Root => "it gave up rights: it changed its root directory",
            Self::RootWithout => {
                "it gave up rights: it changed its root directory, where the library does not exist for what it starts"
            }
            Self::GoWithC => {
                "it is a static Go program with C code or without fixed addresses (build it with CGO_ENABLED=0)"
            }
            Self::GoUnknown => {
                "it is a Go program whose system calls are not where they are known to be (build it with go1.19 or later)"
            }
            Self::GoMachine => "it is a Go program without C code, and this processor or kernel has no FSGSBASE",
            Self::GoForbidden => "it is a Go program, and the system did not let its code be changed",
            Self::OutOfReach => "the library or the keeper's socket does not exist in its root directory",
        })
    }
}

fn claim(board: &Board, client: u32) -> Option<&RequestCell> {
    let cells = board.requests();
    loop {
        for index in 0..cells.len() {
            let cell = &cells[(client as usize + index) % cells.len()];
            if cell.claim(client) {
                return Some(cell);
            }
        }
        if !board.header().keeper_alive() {
            return None;
        }
        // All cells are taken: as many clients wait for answers, one of which is due soon.
        pause(Duration::from_micros(100));
    }
}

fn post<'a>(board: &'a Board, client: u32, request: Request, path: Option<&CStr>) -> Option<&'a RequestCell> {
    let cell = claim(board, client)?;
    cell.post(request.encode(), path.map_or(b"", CStr::to_bytes));
    let doorbell = &board.header().request_wake.word;
    doorbell.fetch_add(1, Ordering::SeqCst);
    wake(doorbell, 1);
    Some(cell)
}

/// Asks and waits for the answer; a path goes with what is asked about a name.
pub(crate) fn ask(
    board: &Board,
    client: u32,
    request: Request,
    path: Option<&CStr>,
) -> Result<Answer, Refusal> {
    if path.is_some_and(|path| path.to_bytes().len() > REQUEST_PATH_BYTES) {
        return Err(Refusal::NoName);
    }
    let cell = post(board, client, request, path).ok_or(Refusal::Failed)?;
    for _ in 0..spins(SPINS) {
        if cell.state() == RequestState::Done {
            break;
        }
        spin_loop();
    }
    loop {
        let seen = cell.state.load(Ordering::Acquire);
        if cell.state() == RequestState::Done {
            break;
        }
        // The keeper frees the cell of a client that it knows no more: a child may ask in the name
        // of a parent that ended.
        let is_lost = cell.state() == RequestState::Free || cell.client() != client;
        if is_lost || !board.header().keeper_alive() {
            return Err(Refusal::Failed);
        }
        wait(&cell.state, seen, LOOK_AGAIN);
    }
    let answer = Answer::decode(cell.answer());
    cell.set_state(RequestState::Free);
    answer
}
