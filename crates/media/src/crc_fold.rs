//! Folding crc32c: the multipliers, and what is left when there is nothing more to fold.
//!
//! The method is the one for reflected polynomials of Gopal et al., "Fast CRC Computation for
//! Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009). A 128-bit lane that stands `d`
//! bits before its place is moved there by multiplying its low half with x^(d+32) and its high half
//! with x^(d-32) modulo the polynomial; the last lane is summed by the `crc32` instruction. The
//! multipliers are computed here at compile time.

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64};

/// The Castagnoli polynomial without its leading term, highest power first.
const POLYNOMIAL: u32 = 0x1EDC_6F41;

/// x^`power` modulo the polynomial, bit-reflected and placed as the carry-less multiplication of
/// reflected numbers needs it (one bit up).
const fn x_power(power: u32) -> u64 {
    let mut remainder: u32 = 1;
    let mut i = 0;
    while i < power {
        let carry = remainder >> 31;
        remainder = (remainder << 1) ^ (carry * POLYNOMIAL);
        i += 1;
    }
    (remainder.reverse_bits() as u64) << 1
}

/// The multipliers (for the low half, for the high half) that move a lane by `bits`.
pub(crate) const fn fold_by(bits: u32) -> [u64; 2] {
    [x_power(bits + 32), x_power(bits - 32)]
}

/// The state after the 16 bytes of the last lane, starting from zero: what was there before has
/// been folded in.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(crate) fn sum_lane(low: u64, high: u64) -> u32 {
    _mm_crc32_u64(_mm_crc32_u64(0, low), high) as u32
}

/// The state after the first `len` (less than 64) bytes of `line`, which are stored in memory
/// order.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(crate) fn sum_tail(state: u32, line: &[u64; 8], len: usize) -> u32 {
    let mut state = u64::from(state);
    // The bound is known already; saying it again keeps the panic of indexing out of the code.
    let whole = (len / 8).min(line.len() - 1);
    for word in &line[..whole] {
        state = _mm_crc32_u64(state, *word);
    }
    let (mut state, mut rest) = (state as u32, line[whole]);
    if len & 4 != 0 {
        state = _mm_crc32_u32(state, rest as u32);
        rest >>= 32;
    }
    if len & 2 != 0 {
        state = _mm_crc32_u16(state, rest as u16);
        rest >>= 16;
    }
    if len & 1 != 0 {
        state = _mm_crc32_u8(state, rest as u8);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pins values of the tables; that folding with them gives the checksum is shown by the tests
    /// of `stream`.
    #[test]
    fn multipliers_are_powers_of_x() {
        // x^32 modulo the polynomial is the polynomial without its leading term.
        assert_eq!(x_power(32), (POLYNOMIAL.reverse_bits() as u64) << 1);
        assert_eq!(x_power(0), 1 << 32);
        // The constants others publish for this polynomial and 4 x 128 bits.
        assert_eq!(fold_by(512), [0x740e_ef02, 0x9e4a_ddf8]);
    }
}
