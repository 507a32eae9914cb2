//! Words alone in their cache lines by which keeper and clients tell one another something: what is
//! so for now, and that something happened.

use core::time::Duration;

use crate::sync::{AtomicU32, Ordering, wait, wake};

/// What is so until further notice. Set seldom, and looked at often.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Switch {
    pub(crate) word: AtomicU32,
}

impl Switch {
    /// Its value, 0 when it is off. `SeqCst`: who looks after it did something, and who did
    /// something after it was set, cannot both miss the other.
    pub fn level(&self) -> u32 {
        self.word.load(Ordering::SeqCst)
    }

    /// As [`Switch::level`], for who may go by what was so a moment ago (relaxed): it is set before
    /// programs are let in, or whoever set it looks after those that did not see it.
    #[inline]
    pub fn level_hint(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    /// Whether it is on, as [`Switch::level`].
    #[inline]
    pub fn is_on(&self) -> bool {
        self.level() != 0
    }

    /// Whether it is on, as [`Switch::level_hint`].
    #[inline]
    pub fn seems_on(&self) -> bool {
        self.level_hint() != 0
    }

    /// Sets its value: before everything that its setter does next (`SeqCst`).
    pub fn set_level(&self, level: u32) {
        self.word.store(level, Ordering::SeqCst);
    }

    /// Sets it on or off.
    pub fn set(&self, is_on: bool) {
        self.set_level(u32::from(is_on));
    }

    /// Sets it off; false when it was off. One of those who do so at once does what is to be done.
    pub fn put_out(&self) -> bool {
        self.word.swap(0, Ordering::SeqCst) != 0
    }
}

/// A bell: whoever waits for something notes how often it was rung, looks, and sleeps unless it was
/// rung since. All of it is `SeqCst`: what made somebody ring comes before the ring, the note
/// before the look, so a sleeper misses nothing.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Bell {
    rings: AtomicU32,
}

impl Bell {
    /// How often it was rung: to be noted before the look.
    pub fn rung(&self) -> u32 {
        self.rings.load(Ordering::SeqCst)
    }

    /// Whether it was rung since, for who looks again and again (relaxed) before it sleeps.
    pub fn is_rung_since(&self, rung: u32) -> bool {
        self.rings.load(Ordering::Relaxed) != rung
    }

    /// Wakes one sleeper.
    pub fn ring(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        wake(&self.rings, 1);
    }

    /// Wakes all of them.
    pub fn ring_all(&self) {
        self.rings.fetch_add(1, Ordering::SeqCst);
        wake(&self.rings, u32::MAX);
    }

    /// Sleeps unless it was rung since; may return early.
    pub fn sleep(&self, rung: u32, limit: Duration) {
        wait(&self.rings, rung, limit);
    }
}
