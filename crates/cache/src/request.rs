//! What a client asks of the keeper and what it is answered, and the one codec between these and
//! the words of a request cell.
//!
//! Decoding is total: clients are not believed, so any words are a request or none, and what
//! decodes encodes to the same words again. Must never allocate: the client's side is the preloaded
//! library's.

use holdfast_board::{AnswerWords, Epoch, RequestWords};
use holdfast_pool::{Generation, Slot};

use crate::errno::Errno;
use crate::file::{FileRef, Origin};
use crate::reason::{Reason, Unseen};
use holdfast_board::Inode;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Manage the file behind a descriptor. Answers [`Answer::Place`]; [`Refusal::AskSole`] asks
    /// for the same with `sole` first; [`Refusal::Kernels`] leaves the file to the kernel.
    Register {
        /// The asker's descriptor.
        fd: i32,
        /// How it came to be.
        origin: Origin,
        /// When the file's creation was noted, if the asker did that.
        noted: Option<Epoch>,
        /// In the second half: whether no other description of the file exists.
        sole: Option<bool>,
    },
    /// Something about a file that has a slot.
    File(FileRef, FileRequest),
    /// Make a directory durable. [`Refusal::Kernels`] leaves it to the kernel.
    SyncDirectory {
        /// The asker's descriptor of it.
        fd: i32,
        /// Changes are pending in the ledger of its file system.
        really: bool,
    },
    /// What a program writes is not seen. Answers [`Answer::News`].
    Unseen {
        /// Why.
        why: Unseen,
        /// Which program.
        program: Program,
    },
    /// A directory was renamed: the files below it have other names.
    Moved,
    /// Let go of removed files. Answers [`Answer::Room`].
    Room {
        /// The asker has just removed a large file; else it found no space on a disk.
        own: bool,
    },
    /// A file system that the asker unmounts is busy: bring what is pending of files that no
    /// program has open for writing to the disk, and let go of them.
    LetGo,
    /// Sync a file or directory which is at the path: a name of it was changed.
    LogAgain {
        /// Which one it must be.
        inode: Inode,
        /// What the path is relative to.
        dirfd: i32,
    },
    /// Behind a sync by the kernel: have a file system commit what is pending, unless somebody did
    /// since the keeper's own last sync there.
    Follow {
        /// Its device number.
        device: u64,
        /// Which one it was.
        behind: Behind,
    },
}

/// A sync by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behind {
    /// As its program asked for.
    Sync,
    /// More than that: from now on it counts as the keeper's own.
    Whole {
        /// What [`holdfast_board::LedgerRow::own_sync`] was before it.
        own_sync: u64,
    },
}

/// What is asked about a file that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRequest {
    /// Bring it to the disk and expire it.
    Settle {
        /// The asker keeps the file's writers out.
        held: bool,
    },
    /// Settle it and leave it to the kernel.
    Bypass {
        /// Why.
        reason: Reason,
        /// And have no description of it any more, nor a slot.
        let_go: bool,
    },
    /// The name in the path is about to be removed. [`Refusal::NotHeld`]: other names stay; settle
    /// the file and count the change. [`Refusal::Held`]: leave state Behind first.
    Unlinking {
        /// What the path is relative to.
        dirfd: i32,
    },
    /// The file is about to get the name in the path.
    Naming {
        /// What the path is relative to.
        dirfd: i32,
        /// In place of its only one: the slot is to hold the rename, or [`Refusal::NotHeld`].
        onto: Option<Onto>,
    },
    /// The call announced by `Unlinking` or `Naming` failed: the older name stands.
    Withdraw,
    /// It has no live records and was renamed over: if that was its last name, its slot is free.
    Replaced,
    /// Bring its page rows to the page cache. The client keeps its writers out.
    Drain {
        /// To change the file then by a call of its own, behind which it asks for `Left`.
        for_call: bool,
    },
    /// The call is over for which the file was drained, and its writers are still kept out:
    /// recovery is to know how the file was left.
    Left,
    /// `Drain`, and leave state Behind.
    Through {
        /// Never to come back to it.
        for_good: bool,
    },
    /// The asker, which keeps it from its writers, is about to have it leave state Unsynced.
    /// Answers [`Answer::Logged`].
    Log,
    /// Have its file system commit what is pending in its ledger. [`Refusal::Kernels`]: it makes
    /// changes durable file by file, so the asker's own sync does what it does natively.
    Commit {
        /// Behind a sync of the asker's, if it does so and a commit is due.
        behind_sync: bool,
    },
    /// The kernel tells other things of it than its clients left, or what others did is all that a
    /// sync of it can be for: enter in the ledger what the kernel told of anybody's changes, see
    /// whether somebody outside changed this file, and have what the kernel has now be durable if
    /// so.
    Hear,
}

/// What stands at a name that a file is about to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onto {
    /// Nothing.
    Free,
    /// A file.
    Taken,
}

/// Whose writes are not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The asker's own.
    Own,
    /// Those of a child in the asker's memory.
    Child,
    /// Those of the program at the path.
    Named {
        /// What the path is relative to.
        dirfd: i32,
    },
}

/// What the keeper answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// The file is managed, and here.
    Place(FileRef),
    /// The file may leave state Unsynced.
    Logged {
        /// Its slot holds its creation and its only name.
        is_held: bool,
        /// Its slot says that it was created.
        was_created: bool,
    },
    /// Whether the keeper heard of it for the first time.
    News(bool),
    /// Whether space may be free that was not.
    Room(bool),
}

/// Why the keeper did not do what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is the kernel's.
    Kernels,
    /// The keeper is dead, or the disk failed.
    Failed,
    /// No words that ask for anything.
    Malformed,
    /// See whether the description is the file's only one, and ask again.
    AskSole,
    /// No slot can hold the change of names; nothing was noted.
    NotHeld,
    /// No slot can hold the name: it is too long, or cannot be found.
    NoName,
    /// Somebody has the file in state Behind, whom only the asker may wait for.
    Held,
    /// What the kernel said to the keeper, and says to the program so.
    Os(Errno),
}

impl From<Refusal> for Errno {
    /// The one place where what the keeper refuses becomes what a program may see.
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Kernels | Refusal::NotHeld | Refusal::AskSole => Self::EOPNOTSUPP,
            Refusal::Failed => Self::EIO,
            Refusal::Held => Self::EBUSY,
            Refusal::Malformed => Self::EINVAL,
            Refusal::NoName => Self::ENAMETOOLONG,
            Refusal::Os(errno) => errno,
        }
    }
}

/// The first word of a request.
mod kind {
    pub(super) const REGISTER: u32 = 1;
    pub(super) const SOLE: u32 = 2;
    pub(super) const SETTLE: u32 = 3;
    pub(super) const BYPASS: u32 = 4;
    pub(super) const UNLINKING: u32 = 5;
    pub(super) const NAMING: u32 = 6;
    pub(super) const WITHDRAW: u32 = 7;
    pub(super) const SYNC_DIRECTORY: u32 = 8;
    pub(super) const REPLACED: u32 = 9;
    pub(super) const DRAIN: u32 = 10;
    pub(super) const THROUGH: u32 = 11;
    pub(super) const UNSEEN: u32 = 12;
    pub(super) const MOVED: u32 = 13;
    pub(super) const LOG: u32 = 14;
    pub(super) const COMMIT: u32 = 15;
    pub(super) const HEAR: u32 = 16;
    pub(super) const ROOM: u32 = 17;
    pub(super) const LOG_AGAIN: u32 = 18;
    pub(super) const FOLLOW: u32 = 19;
    pub(super) const LEFT: u32 = 20;
    pub(super) const LET_GO: u32 = 21;
}

impl Request {
    /// The words of a cell for it.
    pub fn encode(self) -> RequestWords {
        let (kind, args) = match self {
            Self::Register { fd, origin, noted, sole } => {
                let noted = noted.map_or(0, Epoch::to_raw);
                match sole {
                    None => (kind::REGISTER, [from_fd(fd), origin as u64, 0, noted]),
                    Some(sole) => (kind::SOLE, [from_fd(fd), origin as u64, u64::from(sole), noted]),
                }
            }
            Self::File(file, request) => {
                let (kind, [first, second]) = request.encode();
                (kind, [u64::from(file.slot), file.generation.get(), first, second])
            }
            Self::SyncDirectory { fd, really } => {
                (kind::SYNC_DIRECTORY, [from_fd(fd), u64::from(really), 0, 0])
            }
            Self::Unseen { why, program } => match program {
                Program::Own => (kind::UNSEEN, [why as u64, 0, 0, 0]),
                Program::Child => (kind::UNSEEN, [why as u64, 1, 0, 0]),
                Program::Named { dirfd } => (kind::UNSEEN, [why as u64, 2, from_fd(dirfd), 0]),
            },
            Self::Moved => (kind::MOVED, [0; 4]),
            Self::Room { own } => (kind::ROOM, [u64::from(own), 0, 0, 0]),
            Self::LetGo => (kind::LET_GO, [0; 4]),
            Self::LogAgain { inode, dirfd } => {
                (kind::LOG_AGAIN, [inode.device, inode.ino, from_fd(dirfd), 0])
            }
            Self::Follow { device, behind: Behind::Sync } => (kind::FOLLOW, [device, 0, 0, 0]),
            Self::Follow { device, behind: Behind::Whole { own_sync } } => {
                (kind::FOLLOW, [device, 1, own_sync, 0])
            }
        };
        RequestWords { kind, args }
    }

    /// What the words of a cell ask for, if anything.
    pub fn decode(words: RequestWords) -> Option<Self> {
        let request = Self::read(words)?;
        // Whatever was left unread must be empty.
        (request.encode() == words).then_some(request)
    }

    fn read(RequestWords { kind, args }: RequestWords) -> Option<Self> {
        let [first, second, third, fourth] = args;
        Some(match kind {
            kind::REGISTER | kind::SOLE => Self::Register {
                fd: to_fd(first)?,
                origin: Origin::from_word(second)?,
                noted: Epoch::from_raw(fourth),
                sole: if kind == kind::SOLE { Some(to_bool(third)?) } else { None },
            },
            kind::SYNC_DIRECTORY => Self::SyncDirectory { fd: to_fd(first)?, really: to_bool(second)? },
            kind::UNSEEN => {
                let program = match second {
                    0 => Program::Own,
                    1 => Program::Child,
                    2 => Program::Named { dirfd: to_fd(third)? },
                    _ => return None,
                };
                Self::Unseen { why: Unseen::from_u64(first)?, program }
            }
            kind::MOVED => Self::Moved,
            kind::ROOM => Self::Room { own: to_bool(first)? },
            kind::LET_GO => Self::LetGo,
            kind::LOG_AGAIN => {
                Self::LogAgain { inode: Inode { device: first, ino: second }, dirfd: to_fd(third)? }
            }
            kind::FOLLOW => {
                let behind = if to_bool(second)? { Behind::Whole { own_sync: third } } else { Behind::Sync };
                Self::Follow { device: first, behind }
            }
            _ => {
                let file = FileRef { slot: Slot::from_u64(first)?, generation: Generation::new(second) };
                Self::File(file, FileRequest::read(kind, third, fourth)?)
            }
        })
    }
}

impl FileRequest {
    fn encode(self) -> (u32, [u64; 2]) {
        match self {
            Self::Settle { held } => (kind::SETTLE, [u64::from(held), 0]),
            Self::Bypass { reason, let_go } => (kind::BYPASS, [reason as u64, u64::from(let_go)]),
            Self::Unlinking { dirfd } => (kind::UNLINKING, [from_fd(dirfd), 0]),
            Self::Naming { dirfd, onto } => {
                let onto = match onto {
                    None => 0,
                    Some(Onto::Free) => 1,
                    Some(Onto::Taken) => 2,
                };
                (kind::NAMING, [from_fd(dirfd), onto])
            }
            Self::Withdraw => (kind::WITHDRAW, [0; 2]),
            Self::Replaced => (kind::REPLACED, [0; 2]),
            Self::Drain { for_call } => (kind::DRAIN, [u64::from(for_call), 0]),
            Self::Left => (kind::LEFT, [0; 2]),
            Self::Through { for_good } => (kind::THROUGH, [u64::from(for_good), 0]),
            Self::Log => (kind::LOG, [0; 2]),
            Self::Commit { behind_sync } => (kind::COMMIT, [u64::from(behind_sync), 0]),
            Self::Hear => (kind::HEAR, [0; 2]),
        }
    }

    fn read(kind: u32, first: u64, second: u64) -> Option<Self> {
        Some(match kind {
            kind::SETTLE => Self::Settle { held: to_bool(first)? },
            kind::BYPASS => Self::Bypass { reason: Reason::from_word(first)?, let_go: to_bool(second)? },
            kind::UNLINKING => Self::Unlinking { dirfd: to_fd(first)? },
            kind::NAMING => {
                let onto = match second {
                    0 => None,
                    1 => Some(Onto::Free),
                    2 => Some(Onto::Taken),
                    _ => return None,
                };
                Self::Naming { dirfd: to_fd(first)?, onto }
            }
            kind::WITHDRAW => Self::Withdraw,
            kind::REPLACED => Self::Replaced,
            kind::DRAIN => Self::Drain { for_call: to_bool(first)? },
            kind::LEFT => Self::Left,
            kind::THROUGH => Self::Through { for_good: to_bool(first)? },
            kind::LOG => Self::Log,
            kind::COMMIT => Self::Commit { behind_sync: to_bool(first)? },
            kind::HEAR => Self::Hear,
            _ => return None,
        })
    }
}

impl Answer {
    /// The words of a cell for an answer or a refusal.
    pub fn encode(answer: Result<Self, Refusal>) -> AnswerWords {
        let (kind, reply) = match answer {
            Ok(Self::Done) => (0, [0; 2]),
            Ok(Self::Place(file)) => (1, [u64::from(file.slot), file.generation.get()]),
            Ok(Self::Logged { is_held, was_created }) => (2, [u64::from(is_held), u64::from(was_created)]),
            Ok(Self::News(is_news)) => (3, [u64::from(is_news), 0]),
            Ok(Self::Room(is_free)) => (4, [u64::from(is_free), 0]),
            Err(Refusal::Kernels) => (-1, [0; 2]),
            Err(Refusal::Failed) => (-2, [0; 2]),
            Err(Refusal::Malformed) => (-3, [0; 2]),
            Err(Refusal::AskSole) => (-4, [0; 2]),
            Err(Refusal::NotHeld) => (-5, [0; 2]),
            Err(Refusal::NoName) => (-6, [0; 2]),
            Err(Refusal::Held) => (-7, [0; 2]),
            Err(Refusal::Os(Errno(errno))) => (-8, [from_fd(errno), 0]),
        };
        AnswerWords { kind, reply }
    }

    /// What the words of a cell answer. Words that no keeper writes are a failure.
    ///
    /// # Errors
    /// What the keeper refused.
    pub fn decode(words: AnswerWords) -> Result<Self, Refusal> {
        let answer = Self::read(words).ok_or(Refusal::Failed)?;
        if Self::encode(answer) == words { answer } else { Err(Refusal::Failed) }
    }

    fn read(AnswerWords { kind, reply: [first, second] }: AnswerWords) -> Option<Result<Self, Refusal>> {
        Some(match kind {
            0 => Ok(Self::Done),
            1 => {
                Ok(Self::Place(FileRef { slot: Slot::from_u64(first)?, generation: Generation::new(second) }))
            }
            2 => Ok(Self::Logged { is_held: to_bool(first)?, was_created: to_bool(second)? }),
            3 => Ok(Self::News(to_bool(first)?)),
            4 => Ok(Self::Room(to_bool(first)?)),
            -1 => Err(Refusal::Kernels),
            -2 => Err(Refusal::Failed),
            -3 => Err(Refusal::Malformed),
            -4 => Err(Refusal::AskSole),
            -5 => Err(Refusal::NotHeld),
            -6 => Err(Refusal::NoName),
            -7 => Err(Refusal::Held),
            -8 => Err(Refusal::Os(Errno(to_fd(first)?))),
            _ => return None,
        })
    }
}

/// A descriptor, or an error number, as a word: those below 0 (`AT_FDCWD`) in its low half.
fn from_fd(fd: i32) -> u64 {
    u64::from(fd.cast_unsigned())
}

fn to_fd(word: u64) -> Option<i32> {
    u32::try_from(word).ok().map(u32::cast_signed)
}

fn to_bool(word: u64) -> Option<bool> {
    match word {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
