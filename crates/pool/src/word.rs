//! Self-checking words: 52 bits of value and 12 of check in eight bytes that one store replaces at
//! once.
//!
//! They hold what must change without a second fence: generations, `expired_seq`, marks, the
//! heartbeat. The check covers where in the pool the word stands, so that one which was moved or
//! copied elsewhere is told from one that was written there. An all-zero word is never valid, so
//! unwritten media is told from a stored zero.

use holdfast_canary::{Canary, on};

/// The largest value a checked word can hold: at 1.4 million numbers a second, a century of them.
pub const CHECKED_MAX: u64 = (1 << 52) - 1;

const SALT: u32 = 0x5a5;
/// A stored zero where its own check would be zero, too.
const ZERO: u64 = 0xfff;

fn check(value: u64, at: u64) -> u64 {
    u64::from((sum_at(at, &value.to_le_bytes()) ^ SALT) & 0xfff)
}

/// As `check`, and never such that a stored zero looks like unwritten media.
fn whole_check(value: u64, at: u64) -> u64 {
    match check(value, at) {
        0 if value == 0 => ZERO,
        check => check,
    }
}

/// The checksum of bytes that belong to what begins at byte `at` of the pool, and nowhere else.
pub(crate) fn sum_at(at: u64, bytes: &[u8]) -> u32 {
    let at = if on(Canary::PlaceUnchecked) { 0 } else { at };
    crc32c::crc32c_append(crc32c::crc32c(&at.to_le_bytes()), bytes)
}

/// Packs `value`, at most [`CHECKED_MAX`], with its check, for byte `at` of the pool.
pub fn encode(value: u64, at: u64) -> u64 {
    assert!(value <= CHECKED_MAX, "a checked word holds 52 bits");
    (value << 12) | whole_check(value, at)
}

/// The value of a word that was read at byte `at` of the pool, or `None` when the check does not
/// hold.
pub fn decode(word: u64, at: u64) -> Option<u64> {
    let value = word >> 12;
    (word & 0xfff == whole_check(value, at)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_notice_every_single_bit() {
        for value in [0, 1, 2, 4095, 1 << 40, CHECKED_MAX] {
            let word = encode(value, 4096);
            assert_eq!(decode(word, 4096), Some(value));
            for bit in 0..64 {
                assert_eq!(decode(word ^ (1 << bit), 4096), None, "value {value} bit {bit}");
            }
        }
    }

    #[test]
    fn unwritten_media_is_not_a_value() {
        for at in (0..1 << 20).step_by(8) {
            assert_eq!(decode(0, at), None);
            assert_eq!(decode(u64::MAX, 0), None);
        }
    }

    #[test]
    fn a_word_that_was_moved_is_none() {
        let places: Vec<u64> = (2..258).map(|slot| slot * 4096 + 320).collect();
        for value in [1, 1000, 1 << 40] {
            let passes = |&(from, to): &(u64, u64)| decode(encode(value, from), to).is_some();
            let pairs = places.iter().flat_map(|&from| places.iter().map(move |&to| (from, to)));
            let found = pairs.filter(|(from, to)| from != to).filter(passes).count();
            // Twelve bits.
            assert!(found <= places.len() * places.len() / 1000, "{found}");
        }
    }
}
