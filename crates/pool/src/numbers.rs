//! The numbers by which the media's parts are told: no slot is taken for a segment.

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
}
