//! What a process knows of media: what they are, how many bytes, how they are written back.
//!
//! It must never look at a file: what is said here was found out elsewhere.

use std::fmt;

use crate::cpu::FlushPath;

/// The unit in which media is mapped with one page-table entry, and the size of a segment.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// What the bytes live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaKind {
    /// A DAX character device (`/dev/daxX.Y`).
    DaxDevice,
    /// A file on a DAX file system, mapped with MAP_SYNC.
    DaxFile,
    /// A file on tmpfs: survives a crash of the program, not a power cut.
    Volatile,
}

impl MediaKind {
    /// True if a power cut does not lose durable bytes.
    pub const fn is_persistent(self) -> bool {
        !matches!(self, MediaKind::Volatile)
    }
}

impl fmt::Display for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MediaKind::DaxDevice => "DAX device",
            MediaKind::DaxFile => "DAX file",
            MediaKind::Volatile => "volatile (tmpfs)",
        })
    }
}

/// What a process needs to know to map media that another one opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaInfo {
    /// What the bytes live on.
    pub kind: MediaKind,
    /// Number of bytes.
    pub len: u64,
    /// How cache lines are written back.
    pub flush: FlushPath,
}

impl fmt::Display for MediaInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} MiB, flush: {}", self.kind, self.len >> 20, self.flush)
    }
}
