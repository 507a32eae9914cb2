//! Sleeping on a word of the board: shared futexes, because the sleepers are in different processes.

use core::sync::atomic::AtomicU32;
use core::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// Sleeps while `word` holds `seen`, at most for `timeout`; may return early for any reason.
pub fn wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    // Errors mean «look again»: the value changed, the time is over, or a signal came.
    let _ = futex::wait(word, Flags::empty(), seen, Some(&timeout));
}

/// Wakes up to `count` sleepers of `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, Flags::empty(), count);
}
