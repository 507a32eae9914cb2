//! The short section in which a thread holds locks: no signal handler may run in it (history 23).
//!
//! A handler that writes to a file would wait for the page lock its own thread holds. Nothing in the section may
//! wait for the program.

use crate::raw;

/// Runs `work` with all signals blocked.
#[inline]
pub fn section<R>(work: impl FnOnce() -> R) -> R {
    let before = raw::block_signals();
    let result = work();
    raw::restore_signals(before);
    result
}
