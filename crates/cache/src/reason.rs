//! Why the keeper is told that a file, or a program, is left to the kernel: numbers of requests,
//! and words for people.

use core::fmt;

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
    /// Root's watch has ended, which said who opens files.
    NoWatch = 21,
}

impl Reason {
    pub(crate) const ALL: [Self; 21] = [
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
        Self::NoWatch,
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
            Self::NoWatch => "root's watch has ended, and nothing says any more who opens it",
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
    /// A static program in which a call cannot be led to hooks.
    StaticCall = 21,
    /// A static program on a machine that lacks what it takes.
    StaticMachine = 22,
    /// A static program that could not be mapped, or changed.
    StaticForbidden = 23,
    /// A static program that makes memory executable.
    StaticLoads = 24,
    /// A static program that runs another process in its memory.
    StaticMemory = 25,
}

impl Unseen {
    pub(crate) const ALL: [Self; 25] = [
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
        Self::StaticCall,
        Self::StaticMachine,
        Self::StaticForbidden,
        Self::StaticLoads,
        Self::StaticMemory,
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
            Self::StaticCall => {
                "it is statically linked, and one of its system calls cannot be led to the log (use a dynamically \
                 linked build, or `holdfast mount`)"
            }
            Self::StaticMachine => {
                "it is statically linked, and this processor or kernel lacks FSGSBASE or XSAVEC (use a dynamically \
                 linked build, or `holdfast mount`)"
            }
            Self::StaticForbidden => "it is statically linked, and the system did not let its code be changed",
            Self::StaticLoads => {
                "it is statically linked, and makes memory executable: its calls may come from there (use a \
                 dynamically linked build, or `holdfast mount`)"
            }
            Self::StaticMemory => {
                "it is statically linked, and runs a process in its memory that it does not wait for (use a \
                 dynamically linked build, or `holdfast mount`)"
            }
            Self::OutOfReach => "the library or the keeper's socket does not exist in its root directory",
        })
    }
}
