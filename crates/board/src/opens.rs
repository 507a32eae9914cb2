//! Opens that clients announce before they make them, for a fence that is told of opens but not
//! whose they were (inotify).
//!
//! Opens of files that have a row are counted there. Those of others, by which a file may just be
//! getting its row, are counted here by inode number; another inode with the same place only makes
//! the count too high, for a moment.

use crate::sync::{AtomicU64, Ordering};

/// Places for inode numbers.
pub(crate) const OPENS_ROWS: usize = 32;

/// Opens of the inodes of one place.
#[repr(C)]
#[derive(Default)]
pub struct OpensRow {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl OpensRow {
    /// Counts an open that is about to be made.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// The open was made, or refused.
    pub fn end(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Opens announced so far.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Those that are over: of others a notice may still come.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }
}
