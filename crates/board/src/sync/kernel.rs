//! The real thing: the processor's atomics and shared futexes, because the sleepers are in different processes.

use core::time::Duration;
use std::sync::OnceLock;

pub use core::hint::spin_loop;
pub use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, fence};
use rustix::thread::Timespec;
use rustix::thread::futex::{self, Flags};

/// A moment at which the model checker may let others run; here there is nothing to it.
#[inline(always)]
pub fn moment() {}

/// See [`simulate_sleep`].
static SIMULATED: OnceLock<fn() -> bool> = OnceLock::new();

/// From now on every sleep in this process first asks `sleep`: where threads are simulated it lets others of them run
/// and answers true, and the sleeper looks again; elsewhere it answers false. Only the first call counts.
pub fn simulate_sleep(sleep: fn() -> bool) {
    let _ = SIMULATED.set(sleep);
}

fn is_simulated() -> bool {
    SIMULATED.get().is_some_and(|sleep| sleep())
}

/// Sleeps while `word` holds `seen`, at most for `timeout`; may return early for any reason.
pub fn wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    if is_simulated() {
        return;
    }
    // Errors mean «look again»: the value changed, the time is over, or a signal came.
    let _ = futex::wait(word, Flags::empty(), seen, Some(&timespec(timeout)));
}

/// Wakes up to `count` sleepers of `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    // The kernel takes a signed number, and wakes one sleeper where it is negative.
    let _ = futex::wake(word, Flags::empty(), count.min(i32::MAX as u32));
}

/// Sleeps for `span`, where nobody can wake the sleeper; may return early.
pub fn pause(span: Duration) {
    if !is_simulated() {
        let _ = rustix::thread::nanosleep(&timespec(span));
    }
}

fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: span.as_secs() as i64, tv_nsec: i64::from(span.subsec_nanos()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    #[test]
    fn all_sleepers_are_woken_at_once() {
        // The largest number was taken for -1 and woke one: a keeper that ended waited for a thread that slept on.
        let word = AtomicU32::new(0);
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while word.load(Ordering::SeqCst) == 0 {
                        wait(&word, 0, Duration::from_secs(60));
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(200));
            word.store(1, Ordering::SeqCst);
            wake(&word, u32::MAX);
        });
        assert!(begun.elapsed() < Duration::from_secs(30), "somebody slept on");
    }
}
