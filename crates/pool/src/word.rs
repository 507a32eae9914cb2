//! Self-checking words: 52 bits of value and 12 of check in eight bytes that one store replaces at
//! once.
//!
//! They hold what must change without a second fence: generations, `expired_seq`, marks, the
//! heartbeat. An all-zero word is never valid, so unwritten media is told from a stored zero.

/// The largest value a checked word can hold: at 1.4 million numbers a second, a century of them.
pub const CHECKED_MAX: u64 = (1 << 52) - 1;

const SALT: u32 = 0x5a5;

fn check(value: u64) -> u64 {
    u64::from((crc32c::crc32c(&value.to_le_bytes()) ^ SALT) & 0xfff)
}

/// Packs `value`, at most [`CHECKED_MAX`], with its check.
pub fn encode(value: u64) -> u64 {
    assert!(value <= CHECKED_MAX, "a checked word holds 52 bits");
    (value << 12) | check(value)
}

/// The value, or `None` when the check does not hold.
pub fn decode(word: u64) -> Option<u64> {
    let value = word >> 12;
    (word & 0xfff == check(value)).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_round_trip_and_notice_every_single_bit() {
        for value in [0, 1, 2, 4095, 1 << 40, CHECKED_MAX] {
            let word = encode(value);
            assert_eq!(decode(word), Some(value));
            for bit in 0..64 {
                assert_eq!(decode(word ^ (1 << bit)), None, "value {value} bit {bit}");
            }
        }
    }

    #[test]
    fn unwritten_media_is_not_a_value() {
        assert_eq!(decode(0), None);
        assert_eq!(decode(u64::MAX), None);
    }
}
