//! The words in which a sync of a file is asked for, and what it covered is told.
//!
//! Whoever decides by them is above; nothing here touches a file.

use holdfast_pool::Seq;
use std::io;

use holdfast_disk::Stat;

/// How fast to drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Somebody waits until it is on the disk.
    Full,
    /// Somebody waits to see it: the disk is not asked for anything, whose queue they would wait
    /// for.
    Shown,
    /// Nobody does: the writers come first.
    Gentle,
}

/// Whether somebody keeps a file's writers out. Who asks for a settle often does, and waits for it:
/// locking the file once more would wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Who asks does.
    KeptOut,
    /// Who asks does not. Somebody else may, and may wait for the thread that asks: what would have
    /// to wait for them is refused ([`io::ErrorKind::WouldBlock`]), to be tried again.
    MayBeIn,
}

/// Whether an error only says that somebody has the file now.
pub fn is_held(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// What a successful sync of a file covered.
pub struct Synced {
    pub(super) settled: Seq,
    pub(super) unlogged: u64,
    /// Names that the slot had when it began; `None`: one of them was about to be given.
    pub(super) names: Option<u64>,
    /// What the file system said of the file before it began.
    pub(super) stat: Option<Stat>,
}

impl Synced {
    /// Records up to a seq, and nothing else.
    pub(super) fn of(settled: Seq) -> Self {
        Self { settled, unlogged: 0, names: None, stat: None }
    }
}
