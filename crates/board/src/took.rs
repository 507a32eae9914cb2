//! How long calls took: counts by powers of two. It counts for people and decides nothing.

use core::sync::atomic::AtomicU64;

use crate::sync::Ordering;

/// Counts there are; the last has no limit.
pub const TOOK_COUNTS: usize = 24;
/// What the first one is below, in nanoseconds.
const FIRST_NS: u64 = 1024;

/// Counts of calls by the time they took. Nothing is ordered by it, so the model checker, for which
/// each of its own atomics is a place to switch, need not see these.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Took {
    counts: [AtomicU64; TOOK_COUNTS],
    sum_ns: AtomicU64,
}

impl Took {
    /// Counts a call.
    pub fn note(&self, ns: u64) {
        let place = (ns / FIRST_NS).checked_ilog2().map_or(0, |log| log as usize + 1);
        if let Some(count) = self.counts.get(place.min(TOOK_COUNTS - 1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The counts, each with what its calls took less than, in nanoseconds.
    pub fn counts(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        self.counts.iter().enumerate().map(|(place, count)| {
            let below_ns = (place + 1 < TOOK_COUNTS).then_some(FIRST_NS << place);
            (below_ns, count.load(Ordering::Relaxed))
        })
    }

    /// What all of them took, in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn each_call_is_counted_once_and_below_its_limit() {
        for ns in [0, 1, 1023, 1024, 1025, 2047, 2048, 1_000_000, 1 << 33, u64::MAX] {
            let took = Took::default();
            took.note(ns);
            let counted: Vec<_> = took.counts().enumerate().filter(|(_, (_, count))| *count > 0).collect();
            let [(place, (below_ns, 1))] = counted[..] else { panic!("{ns}: {counted:?}") };
            assert!(below_ns.is_none_or(|below_ns| ns < below_ns), "{ns} is not below {below_ns:?}");
            let least = if place == 0 { 0 } else { FIRST_NS << (place - 1) };
            assert!(ns >= least, "{ns} is below {least}");
            assert_eq!(took.sum_ns(), ns);
        }
    }
}
