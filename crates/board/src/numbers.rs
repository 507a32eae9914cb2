//! The numbers by which the board's parts are told, and words that hold those of the pool: no frame
//! is taken for a lane, and no generation is stored as a seq.

use crate::sync::{AtomicU64, Ordering};
use holdfast_pool::{Generation, Seq, place};

place! {
    /// A lane.
    LaneIndex
}

place! {
    /// A frame of DRAM for a page row or a loaded page, among those of its kind.
    Frame
}

/// A file or a directory, as the kernel tells it from others while it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Inode {
    /// Its file system.
    pub device: u64,
    /// Its number there.
    pub ino: u64,
}

impl Inode {
    /// Of whatever cannot be told: no file has these numbers.
    pub const NONE: Self = Self { device: 0, ino: 0 };
}

/// Makes a type of a word that others change, too, and that holds one of the pool's numbers.
macro_rules! word_of {
    ($(#[$doc:meta])* $name:ident, $held:ident) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(AtomicU64);

        impl $name {
            /// A word that says this.
            #[cfg(not(shuttle))]
            pub const fn new(held: $held) -> Self {
                Self(AtomicU64::new(held.get()))
            }

            /// What it says now.
            #[inline]
            pub fn load(&self, order: Ordering) -> $held {
                $held::new(self.0.load(order))
            }

            /// Has it say this.
            #[inline]
            pub fn store(&self, held: $held, order: Ordering) {
                self.0.store(held.get(), order);
            }
        }
    };
}

word_of! {
    /// A word for a seq.
    AtomicSeq, Seq
}

word_of! {
    /// A word for a generation.
    AtomicGeneration, Generation
}

impl AtomicSeq {
    /// Has it say this, and tells what it said before.
    #[inline]
    pub fn swap(&self, seq: Seq, order: Ordering) -> Seq {
        Seq::new(self.0.swap(seq.get(), order))
    }

    /// Has it say this unless it says a higher one, and tells what it said before.
    #[inline]
    pub fn fetch_max(&self, seq: Seq, order: Ordering) -> Seq {
        Seq::new(self.0.fetch_max(seq.get(), order))
    }
}
