//! The numbers by which the media's parts, their uses and their records are told: no slot is taken
//! for a segment, and no generation for a seq.

/// Makes a type of the numbers, of 32 bits, of places that lie side by side.
#[macro_export]
macro_rules! place {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The one with this number.
            #[inline]
            pub const fn new(number: u32) -> Self {
                Self(number)
            }

            /// The first ones, so many.
            pub fn first(count: u32) -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
                (0..count).map(Self)
            }

            /// The one at this place of a table.
            #[inline]
            pub const fn at(index: usize) -> Self {
                Self(index as u32)
            }

            /// The one with the number that a word of 64 bits says, if there can be such a one.
            pub const fn from_u64(word: u64) -> Option<Self> {
                if word <= u32::MAX as u64 { Some(Self(word as u32)) } else { None }
            }

            /// Its number, as media, board and messages have it.
            #[inline]
            pub const fn number(self) -> u32 {
                self.0
            }

            /// Its word, where a word of 0 says that there is none.
            #[inline]
            pub const fn word(self) -> u32 {
                self.0 + 1
            }

            /// The one that such a word says.
            #[inline]
            pub const fn from_word(word: u32) -> Option<Self> {
                match word.checked_sub(1) {
                    Some(number) => Some(Self(number)),
                    None => None,
                }
            }

            /// Its place in a table.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<$name> for u64 {
            #[inline]
            fn from(place: $name) -> Self {
                Self::from(place.0)
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

place! {
    /// A file slot of the pool, and the row of the board that goes with it.
    Slot
}

place! {
    /// A segment of the pool, and the row of the board that goes with it.
    Segment
}

/// Makes a type of the numbers, of 64 bits, that the pool's one counter gives out, each once.
macro_rules! drawn {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The one with this number, as media, board and messages have it.
            #[inline]
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// Its number.
            #[inline]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The one after it.
            #[inline]
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

drawn! {
    /// A record's number, in the order of the writes. Also a place of the counter that gives them
    /// out: what was drawn from it earlier has a lower one.
    Seq
}

impl Seq {
    /// Below that of every record.
    pub const ZERO: Self = Self(0);
    /// Above that of every record.
    pub const MAX: Self = Self(u64::MAX);

    /// The one before it; [`Seq::ZERO`] has none.
    #[inline]
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The one so many after it.
    #[inline]
    #[must_use]
    pub const fn after(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

drawn! {
    /// Which use of a slot or a segment something belongs to.
    Generation
}

impl Generation {
    /// No use's: that of what is free.
    pub const NONE: Self = Self(0);

    /// Whether it is no use's.
    #[inline]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The one that was drawn at this place of the counter.
    #[inline]
    pub const fn drawn_at(seq: Seq) -> Self {
        Self(seq.0)
    }

    /// Where it was drawn: what was numbered before the use began has lower seqs, and what belongs
    /// to it has higher ones.
    #[inline]
    pub const fn seq(self) -> Seq {
        Seq(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_0_says_that_there_is_none() {
        assert_eq!(Slot::from_word(0), None);
        for number in [0, 1, u32::MAX - 1] {
            assert_eq!(Slot::from_word(Slot::new(number).word()), Some(Slot::new(number)));
        }
    }

    #[test]
    fn numbers_are_shown_bare_and_read_within_their_bits() {
        assert_eq!(format!("{} {:>4}", Segment::new(7), Segment::new(7)), "7    7");
        assert_eq!(Segment::from_u64(u64::from(u32::MAX)), Some(Segment::new(u32::MAX)));
        assert_eq!(Segment::from_u64(1 << 32), None);
        assert_eq!(Slot::first(2).collect::<Vec<_>>(), [Slot::new(0), Slot::new(1)]);
    }

    #[test]
    fn what_belongs_to_a_use_is_numbered_after_it() {
        let generation = Generation::drawn_at(Seq::new(7));
        assert!(generation.seq() < Seq::new(7).next() && generation.seq().before() < generation.seq());
        assert!(Generation::NONE.is_none() && !generation.is_none());
        assert_eq!(Seq::ZERO.before(), Seq::ZERO);
        assert_eq!(format!("{generation:>3} {}", Seq::ZERO.after(9)), "  7 9");
    }
}
