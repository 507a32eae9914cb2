//! What a process knows by itself of the numbers that it drew from the pool's counter.
//!
//! Must lie in memory of the process' own: no other one can store into it.

use core::sync::atomic::{AtomicU64, Ordering};

use holdfast_pool::CHECKED_MAX;

/// From here on a number is taken for a stray store's: half of those that the pool can hold.
pub(crate) const NUMBER_MAX: u64 = CHECKED_MAX / 2;

/// The newest number that this process drew; 0: none so far.
#[derive(Default)]
pub(crate) struct Own(AtomicU64);

impl Clone for Own {
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.get()))
    }
}

impl Own {
    #[inline]
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// It drew this one. Another thread's newer one may get lost: then an older one is remembered.
    #[inline]
    pub(crate) fn note(&self, number: u64) {
        self.0.store(number, Ordering::Relaxed);
    }
}

/// Whether a number may be the next one behind `before`.
#[inline]
pub(crate) fn follows(number: u64, before: u64) -> bool {
    (number > before || before == 0) && (number < NUMBER_MAX || before >= NUMBER_MAX)
}
