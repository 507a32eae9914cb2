//! Counters that many threads count by, alone in their cache lines, and the one that the pool's
//! numbers are drawn from. What they count is others' matter.

use holdfast_pool::{Seq, Slot};

use crate::sync::{AtomicU64, Ordering};

/// A counter alone in its cache line.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Counter {
    value: AtomicU64,
}

impl Counter {
    /// The value now.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// Adds `n` and returns the value before.
    pub fn add(&self, n: u64) -> u64 {
        self.value.fetch_add(n, Ordering::SeqCst)
    }

    /// Sets the value; only where there is one writer.
    pub fn set(&self, n: u64) {
        self.value.store(n, Ordering::SeqCst);
    }
}

/// What all numbers of a pool are drawn from, each once: seqs, generations of segments and those of
/// slots. By [`crate::Board`] alone, which sees what a stray store leaves here.
#[repr(transparent)]
#[derive(Default)]
pub struct Draws(Counter);

impl Draws {
    /// Begins with this number; only while nobody draws.
    pub fn begin(&self, next: Seq) {
        self.0.set(next.get());
    }

    /// Gives out no number below this one any more.
    pub fn raise(&self, next: Seq) {
        self.0.value.fetch_max(next.get(), Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }

    #[inline]
    pub(crate) fn add(&self) -> u64 {
        self.0.add(1)
    }

    pub(crate) fn replace(&self, now: u64, next: u64) -> bool {
        self.0.value.compare_exchange(now, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// Cache lines over which a [`Tally`] is spread.
const TALLY_LINES: usize = 8;

/// A counter spread over cache lines, so that those who count at once do not wait for each other.
#[repr(C)]
#[derive(Default)]
pub struct Tally {
    parts: [Counter; TALLY_LINES],
}

impl Tally {
    /// The value now.
    pub fn get(&self) -> u64 {
        // Whoever shares the board may have written anything here.
        self.parts.iter().map(Counter::get).fold(0, u64::saturating_add)
    }

    /// Adds 1 in the line of `slot`.
    pub fn count(&self, slot: Slot) {
        self.parts[slot.index() % TALLY_LINES].add(1);
    }
}
