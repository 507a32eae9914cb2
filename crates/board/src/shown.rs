//! Files that some client has handed to a reader whom no hook sees (a map, say) before they had a
//! row: they may not enter state Behind afterwards.
//!
//! One bit per place, never taken back. Another file with the same place only stays out of that
//! state without need.

use crate::mix::{mix_file, upper};
use crate::sync::{AtomicU64, Ordering};

/// Words of bits.
const SHOWN_WORDS: usize = 64;

/// The bits.
#[repr(C)]
pub struct Shown {
    words: [AtomicU64; SHOWN_WORDS],
}

impl Default for Shown {
    fn default() -> Self {
        Self { words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Shown {
    fn place(&self, dev: u64, ino: u64) -> (&AtomicU64, u64) {
        let place = upper(mix_file(dev, ino)) as usize % (SHOWN_WORDS * 64);
        (&self.words[place / 64], 1 << (place % 64))
    }

    /// Notes a file. Who notes it looks for its row afterwards: the keeper, which looks here with
    /// the row in place, misses the bit only if the row is found then.
    pub fn note(&self, dev: u64, ino: u64) {
        let (word, bit) = self.place(dev, ino);
        word.fetch_or(bit, Ordering::SeqCst);
    }

    /// Whether a file was noted, or another one with its place.
    pub fn has(&self, dev: u64, ino: u64) -> bool {
        let (word, bit) = self.place(dev, ino);
        word.load(Ordering::SeqCst) & bit != 0
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn who_was_noted_is_found_and_few_others_are() {
        let shown = Shown::default();
        for ino in 0..40 {
            shown.note(5, ino * 7);
        }
        assert!((0..40).all(|ino| shown.has(5, ino * 7)));
        let others = (1000..2000).filter(|&ino| shown.has(5, ino)).count();
        assert!(others < 50, "{others} of 1000");
    }
}
