//! What a file, a place in it, an open and the end of a call are called between a program and the
//! cache.
//!
//! It must never ask or change anything.

use holdfast_board::FileState;
use holdfast_pool::{Generation, Slot};

/// A cached place of a file in the board. Every use verifies it, so an old one does no harm
/// (history 20).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileRef {
    /// Row and slot.
    pub slot: Slot,
    /// Generation of their use.
    pub generation: Generation,
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
