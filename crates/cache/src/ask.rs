//! What a client asks of the keeper, and the round trip through a request cell.
//!
//! No descriptor and no allocation: the cell lies in the board and the client sleeps on its word.

use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::Ordering;
use core::time::Duration;

use holdfast_board::{
    Board, REQUEST_PATH_BYTES, RequestCell, RequestState, pause, spin_loop, spins, wait, wake,
};

use crate::client::Errno;

/// How long a client sleeps before it looks whether the keeper still lives.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Looks at the answer before going to sleep: longer than a quick request takes, about as long as a
/// wake-up does.
const SPINS: u32 = 4000;

/// Requests. `args` and `reply` are those of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ask {
    /// Manage the file behind descriptor `args[0]`, opened as `args[1]` (an `Origin`). Answers slot
    /// and generation; result `EAGAIN` asks for [`Ask::Sole`] first; `EOPNOTSUPP` leaves the file
    /// to the kernel. `args[3]` says when the file's creation was noted
    /// ([`holdfast_board::Epoch::to_raw`]); 0: not by who asks.
    Register = 1,
    /// Second half of `Register`: `args[2]` is 1 when no other description of the file exists.
    Sole = 2,
    /// Bring slot `args[0]` of generation `args[1]` to the disk and expire it. `args[2]` is 1 when
    /// the asker keeps the file's writers out.
    Settle = 3,
    /// Settle it and leave it to the kernel for `args[2]` (a [`Reason`]). `args[3]` is 1: and have
    /// no description of it any more, nor a slot.
    Bypass = 4,
    /// The name in the path, relative to descriptor `args[2]`, is about to be removed. Result
    /// `EAGAIN`: other names stay, so nothing was noted; settle the file and count the change.
    Unlinking = 5,
    /// The file is about to get the name in the path, relative to descriptor `args[2]`. `args[3]`
    /// is 1: in place of its only one, where nothing stands; the slot is to hold the rename. Result
    /// `EAGAIN`: it cannot, and nothing was noted.
    Naming = 6,
    /// The call announced by `Unlinking` or `Naming` failed: the older name stands.
    Withdraw = 7,
    /// Make the directory behind descriptor `args[0]` durable, really if `args[1]` is 1: changes
    /// are pending in the ledger of its file system. `EOPNOTSUPP` leaves it to the kernel.
    SyncDirectory = 8,
    /// A file without live records was renamed over: if that was its last name, its slot is free.
    Replaced = 9,
    /// Bring the page rows of slot `args[0]` of generation `args[1]` to the page cache. The client
    /// keeps its writers out. `args[2]` is 1: to change the file then by a call of its own, behind
    /// which it asks for [`Ask::Left`].
    Drain = 10,
    /// `Drain`, and leave state Behind; `args[2]` is 1: for good.
    Through = 11,
    /// What a program writes is not seen, for `args[0]` (an [`Unseen`]). Its name is in the path,
    /// relative to descriptor `args[2]`; none means the client's own program, or, if `args[1]` is
    /// 1, a child in its memory.
    Unseen = 12,
    /// A directory was renamed: the files below it have other names.
    Moved = 13,
    /// Slot `args[0]` of generation `args[1]`, which the asker keeps from its writers, is about to
    /// leave state Unsynced. Answers 1 when the slot holds the file's creation and its only name,
    /// and 1 when the slot says that it was created.
    Log = 14,
    /// Have the file system of slot `args[0]` of generation `args[1]` commit what is pending in its
    /// ledger. `EOPNOTSUPP`: it makes changes durable file by file, so the asker's own sync does
    /// what it does natively. `args[2]` is 1: behind a sync of the asker's, if it does so and a
    /// commit is due.
    Commit = 15,
    /// The kernel tells other things of slot `args[0]` of generation `args[1]` than its clients
    /// left, or what others did is all that a sync of it can be for: enter in the ledger what the
    /// kernel told of anybody's changes, see whether somebody outside changed this file, and have
    /// what the kernel has now be durable if so.
    Hear = 16,
    /// Let go of removed files: the asker found no space on a disk, or (`args[0]` is 1) removed a
    /// large file. Answers 1 if space may be free that was not.
    Room = 17,
    /// Sync the file or directory with inode number `args[1]` on device `args[0]`, which is at the
    /// path relative to descriptor `args[2]`: a name of it was changed.
    LogAgain = 18,
    /// Behind a sync by the kernel on device `args[0]`: have that file system commit what is
    /// pending, unless somebody did since the keeper's own last sync there.
    Follow = 19,
    /// The call is over for which slot `args[0]` of generation `args[1]` was drained, and its
    /// writers are still kept out: recovery is to know how the file was left.
    Left = 20,
}

impl Ask {
    /// Decodes a cell's kind.
    pub fn from_u32(value: u32) -> Option<Self> {
        [
            Self::Register,
            Self::Sole,
            Self::Settle,
            Self::Bypass,
            Self::Unlinking,
            Self::Naming,
            Self::Withdraw,
            Self::SyncDirectory,
            Self::Replaced,
            Self::Drain,
            Self::Through,
            Self::Unseen,
            Self::Moved,
            Self::Log,
            Self::Commit,
            Self::Hear,
            Self::Room,
            Self::LogAgain,
            Self::Follow,
            Self::Left,
        ]
        .into_iter()
        .find(|ask| *ask as u32 == value)
    }
}

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
    const ALL: [Self; 20] = [
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

    /// Decodes an argument; unknown values read as `Uncovered`.
    pub fn from_u64(value: u64) -> Self {
        Self::ALL.into_iter().find(|reason| *reason as u64 == value).unwrap_or(Self::Uncovered)
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
    const ALL: [Self; 20] = [
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
            if cell.advance(RequestState::Free, RequestState::Claimed) {
                cell.client.store(client, Ordering::Relaxed);
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

fn post<'a>(
    board: &'a Board,
    client: u32,
    ask: Ask,
    args: [u64; 4],
    path: Option<&CStr>,
) -> Option<&'a RequestCell> {
    let cell = claim(board, client)?;
    cell.kind.store(ask as u32, Ordering::Relaxed);
    for (place, value) in cell.args.iter().zip(args) {
        place.store(value, Ordering::Relaxed);
    }
    cell.set_path(path.map_or(b"", CStr::to_bytes));
    cell.set_state(RequestState::Posted);
    let doorbell = &board.header().request_wake.word;
    doorbell.fetch_add(1, Ordering::SeqCst);
    wake(doorbell, 1);
    Some(cell)
}

/// Asks and waits for the answer. `EIO` when the keeper is dead.
pub(crate) fn ask(
    board: &Board,
    client: u32,
    ask: Ask,
    args: [u64; 4],
    path: Option<&CStr>,
) -> Result<[u64; 2], Errno> {
    if path.is_some_and(|path| path.to_bytes().len() > REQUEST_PATH_BYTES) {
        return Err(Errno::ENAMETOOLONG);
    }
    let cell = post(board, client, ask, args, path).ok_or(Errno::EIO)?;
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
        let is_lost = cell.state() == RequestState::Free || cell.client.load(Ordering::Relaxed) != client;
        if is_lost || !board.header().keeper_alive() {
            return Err(Errno::EIO);
        }
        wait(&cell.state, seen, LOOK_AGAIN);
    }
    let result = cell.result.load(Ordering::Relaxed);
    let reply = [cell.reply[0].load(Ordering::Relaxed), cell.reply[1].load(Ordering::Relaxed)];
    cell.set_state(RequestState::Free);
    if result == 0 { Ok(reply) } else { Err(Errno(result)) }
}
