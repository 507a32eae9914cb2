//! Slows media down, so that slower NVM can be studied on DRAM.
//!
//! It must cost nothing when off: callers test [`Throttle::is_on`], one predictable branch.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rustix::time::{ClockId, clock_gettime};

/// What is added to the media's own speed. All zero: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delay {
    /// Each fence takes at least this long.
    pub write_latency_ns: u64,
    /// Streamed and flushed bytes leave at most this fast; the fence waits for them. Counted per
    /// mapping, that is per process.
    pub bandwidth_bytes_per_s: u64,
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.write_latency_ns, self.bandwidth_bytes_per_s) {
            (0, 0) => f.write_str("no delay"),
            (ns, 0) => write!(f, "at least {ns} ns per fence"),
            (ns, bandwidth) => write!(f, "at least {ns} ns per fence, at most {bandwidth} bytes/s"),
        }
    }
}

/// The delay of a mapping and the time at which its emulated device has taken all bytes so far.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    on: AtomicBool,
    write_latency_ns: AtomicU64,
    bandwidth_bytes_per_s: AtomicU64,
    busy_until_ns: AtomicU64,
}

impl Throttle {
    pub(crate) fn set(&self, delay: Delay) {
        self.write_latency_ns.store(delay.write_latency_ns, Relaxed);
        self.bandwidth_bytes_per_s.store(delay.bandwidth_bytes_per_s, Relaxed);
        self.busy_until_ns.store(0, Relaxed);
        self.on.store(delay != Delay::default(), Relaxed);
    }

    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// Queues `bytes` on the emulated device.
    #[cold]
    pub(crate) fn charge(&self, bytes: u64) {
        let bandwidth = self.bandwidth_bytes_per_s.load(Relaxed);
        if bandwidth == 0 || bytes == 0 {
            return;
        }
        let cost_ns = (bytes as u128 * 1_000_000_000 / bandwidth as u128) as u64;
        let now = now_ns();
        // fetch_update never fails with a closure that always gives a value.
        let _ = self.busy_until_ns.fetch_update(Relaxed, Relaxed, |busy| Some(busy.max(now) + cost_ns));
    }

    /// Spins until the fence's latency has passed and the queued bytes have left.
    #[cold]
    pub(crate) fn wait(&self) {
        let start = now_ns();
        let until = (start + self.write_latency_ns.load(Relaxed)).max(self.busy_until_ns.load(Relaxed));
        while now_ns() < until {
            std::hint::spin_loop();
        }
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn off_by_default_and_after_reset() {
        let throttle = Throttle::default();
        assert!(!throttle.is_on());
        throttle.set(Delay { write_latency_ns: 1, bandwidth_bytes_per_s: 0 });
        assert!(throttle.is_on());
        throttle.set(Delay::default());
        assert!(!throttle.is_on());
    }

    #[test]
    fn fence_takes_the_latency() {
        let throttle = Throttle::default();
        throttle.set(Delay { write_latency_ns: 200_000, bandwidth_bytes_per_s: 0 });
        let start = Instant::now();
        for _ in 0..10 {
            throttle.wait();
        }
        assert!(start.elapsed() >= Duration::from_millis(2));
    }

    #[test]
    fn bytes_leave_at_the_bandwidth() {
        let throttle = Throttle::default();
        throttle.set(Delay { write_latency_ns: 0, bandwidth_bytes_per_s: 100 << 20 });
        let start = Instant::now();
        for _ in 0..256 {
            throttle.charge(4096);
            throttle.wait();
        }
        // 1 MiB at 100 MiB/s.
        assert!(start.elapsed() >= Duration::from_millis(10));
    }
}
