//! Counters that many threads count by, alone in their cache lines. What they count is others'
//! matter.

use holdfast_pool::Slot;

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

    /// Raises the value to at least `n`.
    pub fn raise(&self, n: u64) {
        self.value.fetch_max(n, Ordering::SeqCst);
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
        self.parts.iter().map(Counter::get).sum()
    }

    /// Adds 1 in the line of `slot`.
    pub fn count(&self, slot: Slot) {
        self.parts[slot.index() % TALLY_LINES].add(1);
    }
}
