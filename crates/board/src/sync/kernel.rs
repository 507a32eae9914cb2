//! The real thing: the processor's atomics and shared futexes, because the sleepers are in
//! different processes.

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

/// From now on every sleep in this process first asks `sleep`: where threads are simulated it lets
/// others of them run and answers true, and the sleeper looks again; elsewhere it answers false.
/// Only the first call counts.
pub fn simulate_sleep(sleep: fn() -> bool) {
    let _ = SIMULATED.set(sleep);
}

fn is_simulated() -> bool {
    SIMULATED.get().is_some_and(|sleep| sleep())
}

/// How often to look at something before sleeping: not at all where threads are simulated, for none
/// runs meanwhile.
pub fn spins(times: u32) -> u32 {
    if SIMULATED.get().is_some() { 0 } else { times }
}

/// Sleeps while `word` holds `seen`, at most for `timeout`; may return early for any reason.
pub fn wait(word: &AtomicU32, seen: u32, timeout: Duration) {
    if is_simulated() {
        return;
    }
    // Errors mean «look again»: the value changed, the time is over, or a signal came.
    let _ = futex::wait(word, Flags::empty(), seen, Some(&timespec(timeout)));
}

/// The monotonic clock, for how long something takes; `None` where threads are simulated, which
/// wait for as long as they are made to.
pub fn now_ns() -> Option<u64> {
    SIMULATED.get().is_none().then(crate::clock::monotonic_ns)
}

/// Wakes up to `count` sleepers of `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    // The kernel takes the count for a signed one, and of minus one it makes one.
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
    use std::time::Instant;

    /// A keeper that stopped hung for ever when two of its threads slept on one bell: only one of
    /// them was woken.
    #[test]
    fn all_sleepers_are_woken() {
        let (word, asleep) = (AtomicU32::new(0), AtomicU32::new(0));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    asleep.fetch_add(1, core::sync::atomic::Ordering::SeqCst);
                    // The value never changes: only a wake-up ends this before its time.
                    wait(&word, 0, Duration::from_secs(20));
                });
            }
            while asleep.load(core::sync::atomic::Ordering::SeqCst) < 3 {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(300));
            wake(&word, u32::MAX);
        });
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
}
