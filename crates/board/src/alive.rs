//! Whether the keeper lives: its word, which the kernel marks when it dies, and what the word says
//! until then.
//!
//! A store that changes the word by mistake would keep the kernel from marking it, as it marks the
//! words alone in which it finds the number of who has died, and programs would go on without it
//! (history 11). So a word that does not say what it should is that of a dead keeper, until the
//! keeper itself has put it right.

use core::sync::atomic::{AtomicU32 as Plain, Ordering as Plainly};

use crate::sync::{AtomicU32, Ordering};

/// The kernel sets this bit in the keeper's word when the keeper dies, however it dies (a robust
/// futex).
pub const KEEPER_DIED: u32 = 0x4000_0000;

/// The two, apart from each other: one store does not change both alike.
#[repr(C, align(64))]
pub(crate) struct Alive {
    /// The thread id of the keeper, or that with [`KEEPER_DIED`]; 0 in empty memory, where there is
    /// none.
    word: AtomicU32,
    _apart: [u32; 7],
    /// What `word` says while it lives. It never changes while there are clients, so no schedule of
    /// the models hangs on it.
    expected: Plain,
}

/// One that lives, for tests of parts.
impl Default for Alive {
    fn default() -> Self {
        Self { word: AtomicU32::new(1), _apart: [0; 7], expected: Plain::new(1) }
    }
}

impl Alive {
    /// One load and a compare. `SeqCst`: see [`crate::Header::keeper_alive`].
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        word != 0 && word == self.expected.load(Plainly::Relaxed)
    }

    /// It lives, by its thread with this number. Before there are clients.
    pub(crate) fn begin(&self, tid: u32) {
        self.expected.store(tid, Plainly::Relaxed);
        self.word.store(tid, Ordering::SeqCst);
    }

    /// As if it had died.
    pub(crate) fn end(&self) {
        self.word.fetch_or(KEEPER_DIED, Ordering::SeqCst);
    }

    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.word
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn whatever_else_the_word_says_the_keeper_is_dead() {
        let alive = Alive::default();
        alive.begin(4711);
        assert!(alive.is_on());
        for bit in 0..32 {
            alive.word.fetch_xor(1 << bit, Ordering::SeqCst);
            assert!(!alive.is_on(), "bit {bit}");
            alive.begin(4711);
            assert!(alive.is_on());
        }
        alive.word.store(0, Ordering::SeqCst);
        assert!(!alive.is_on());
        alive.begin(0);
        assert!(!alive.is_on(), "empty memory");
        alive.begin(4711);
        alive.end();
        assert!(!alive.is_on());
    }
}
