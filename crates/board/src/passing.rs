//! Calls under way that change a file without the log: those of files that have no row yet
//! (durability = sync) or are left to the kernel. Whoever has a file logged from some moment on
//! must know that none of them is still to land.
//!
//! A caller notes itself, looks for the file's row, and goes on only when there is none that is
//! logged; the other side shows the row first and looks here afterwards. One of the two sees the
//! other. What a dead client left is cleared with its lanes.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Calls that can be noted at a time; for more the file gets its row at once.
pub(crate) const PASSING_ROWS: usize = 32;

/// One call under way.
#[repr(C)]
#[derive(Default)]
pub struct PassingRow {
    /// The client that makes it, 0 when there is none.
    owner: AtomicU32,
    /// Inode number of the file; another file system's with the same number is only waited for in
    /// vain.
    ino: AtomicU64,
}

impl PassingRow {
    /// Notes a call of `client`, if the row is free.
    pub(crate) fn begin(&self, client: u32, ino: u64) -> bool {
        let is_taken = self.owner.load(Ordering::Relaxed) == 0
            && self.owner.compare_exchange(0, client, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if is_taken {
            self.ino.store(ino, Ordering::SeqCst);
        }
        is_taken
    }

    /// The call is over.
    pub fn end(&self) {
        self.ino.store(0, Ordering::SeqCst);
        self.owner.store(0, Ordering::SeqCst);
    }

    pub(crate) fn is_about(&self, ino: u64) -> bool {
        self.ino.load(Ordering::SeqCst) == ino
    }

    pub(crate) fn clear(&self, client: u32) {
        if self.owner.load(Ordering::SeqCst) == client {
            self.end();
        }
    }
}
