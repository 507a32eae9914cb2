//! Where a file ends, as its row knows it.
//!
//! Whoever makes a file longer holds its cursor lock, or has the file exclusively. Processes
//! outside may do so as well, so every use of the end is verified but in state Behind, where the
//! kernel's size lags and the board's is the only one. Must never say that a file ends before bytes
//! that somebody was told of.

use crate::files::{FileRow, NO_SIZE};
use crate::sync::Ordering;

impl FileRow {
    /// Where the file ends while no write that makes it longer is under way, or [`NO_SIZE`].
    ///
    /// `SeqCst`: who tells a client's change from an outsider's looks at the end before and after
    /// looks at the cursor lock, the exclusive word and the state, which are `SeqCst` as well, and
    /// judges by the order of these looks.
    #[inline]
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }

    /// As [`FileRow::end`], for who only shows it, or looks more closely before it acts (relaxed).
    #[inline]
    pub fn end_hint(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    /// As [`FileRow::end`], for who then reads page rows without a lock. Acquire, for the release
    /// of [`FileRow::extend_end`]: below this end the rows are there.
    #[inline]
    pub fn end_of_rows(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// The file ends here: it was cut, or the kernel said so.
    ///
    /// `SeqCst`: who then finds the file's exclusive word and cursor lock free, and asks the kernel
    /// for the size, must find this end and no older one, or a client's call would pass for an
    /// outsider's. No caller is on a path where a weaker store would show.
    #[inline]
    pub fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::SeqCst);
    }

    /// Nobody knows where the file ends. `SeqCst`, as it comes before a call of the kernel's that
    /// may move the end: who sees what that did must not find the end from before.
    #[inline]
    pub fn forget_end(&self) {
        self.set_end(NO_SIZE);
    }

    /// The file ends no earlier than here.
    ///
    /// A maximum, as the keeper comes here for a dead client while others write. The look comes
    /// first because most writes end below, and an exchange would take the row's line from all who
    /// write to the file. `SeqCst` as [`FileRow::set_end`].
    #[inline]
    pub fn raise_end(&self, end: u64) {
        if self.end.load(Ordering::SeqCst) < end {
            self.end.fetch_max(end, Ordering::SeqCst);
        }
    }

    /// As [`FileRow::raise_end`], of a write that is in page rows alone. Its lane holds the cursor
    /// lock if it makes the file longer, so nobody else moves the end then: the look may be
    /// relaxed, and a store does. Release: whoever sees the end finds the rows below it.
    #[inline]
    pub fn extend_end(&self, end: u64) {
        if self.end.load(Ordering::Relaxed) < end {
            self.end.store(end, Ordering::Release);
        }
    }
}
