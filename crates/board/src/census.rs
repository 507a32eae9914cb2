//! How many of something there are, and how many there were: one word.
//!
//! Two equal looks that find none say that there was none in between either. So whoever does
//! something that is right only while there are none looks before and after, and holds nothing
//! meanwhile.

use crate::sync::{AtomicU64, Ordering};

/// One that has gone.
const GONE: u64 = 1 << 32;

/// What was seen at a census.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

/// The word: those that are there in its lower half, those that have gone in its upper one.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Census(AtomicU64);

impl Census {
    /// How many there are; never too low.
    #[inline]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::SeqCst) as u32
    }

    /// As [`Census::get`], for who looks more closely later.
    #[inline]
    pub fn hint(&self) -> u32 {
        self.0.load(Ordering::Relaxed) as u32
    }

    /// What there is now, if there is none.
    #[inline]
    pub fn none(&self) -> Option<Seen> {
        let seen = self.0.load(Ordering::SeqCst);
        (seen as u32 == 0).then_some(Seen(seen))
    }

    /// Whether there was none from that look on until now.
    #[inline]
    pub fn still_none(&self, seen: Seen) -> bool {
        self.0.load(Ordering::SeqCst) == seen.0
    }

    /// One more, from before it is there.
    #[inline]
    pub fn enter(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// One less, which has gone.
    #[inline]
    pub fn leave(&self) {
        self.0.fetch_add(GONE - 1, Ordering::SeqCst);
    }

    /// There is none, whatever was counted; the caller keeps those out who could change that.
    pub fn clear(&self) {
        let seen = self.0.load(Ordering::SeqCst);
        if seen as u32 != 0 {
            self.0.store((seen | (GONE - 1)).wrapping_add(1), Ordering::SeqCst);
        }
    }
}

/// A census alone in its cache line.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Roll {
    pub(crate) census: Census,
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn whoever_came_and_went_is_noticed() {
        let census = Census::default();
        let seen = census.none().unwrap();
        assert!(census.still_none(seen));
        census.enter();
        assert!(census.get() == 1 && census.none().is_none() && !census.still_none(seen));
        census.leave();
        assert!(census.get() == 0 && !census.still_none(seen));
        let seen = census.none().unwrap();
        census.enter();
        census.enter();
        census.clear();
        assert!(census.get() == 0 && !census.still_none(seen));
        let seen = census.none().unwrap();
        census.clear();
        assert!(census.still_none(seen), "there was none");
    }
}
