//! The real thing: the processor's atomics and shared futexes, because the sleepers are in different processes.

use core::time::Duration;

pub use core::hint::spin_loop;
pub use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, fence};
use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

fn span(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}

/// Sleeps while `word` holds `seen`, at most for `timeout`; may return early for any reason.
pub fn wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    // Errors mean «look again»: the value changed, the time is over, or a signal came.
    let _ = futex::wait(word, Flags::empty(), seen, Some(&span(timeout)));
}

/// Wakes up to `count` sleepers of `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, Flags::empty(), count);
}

/// Lets time pass where nobody wakes us.
pub fn pause(duration: Duration) {
    let _ = rustix::thread::nanosleep(&span(duration));
}
