//! Copy and crc32c in one pass with SSE and `pclmulqdq`, for processors without AVX-512 or its
//! carry-less multiplication: 64 bytes are loaded once into four registers, streamed out, and
//! folded into the checksum from the same registers.
//!
//! It must load each source byte exactly once, as `stream_avx512`.
#![allow(unsafe_code)] // Raw loads, non-temporal stores and instructions beyond the baseline.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::bytes::Bytes;
use crate::crc_fold::{fold_by, sum_lane, sum_tail};

const LANE: usize = 16;
const LINE: usize = 4 * LANE;

const BY_LINE: [u64; 2] = fold_by(8 * LINE as u32);
const BY_LANE: [u64; 2] = fold_by(8 * LANE as u32);

/// Streams `src` to `dst`, fills the last line with zeros, and returns the crc32c of the bytes
/// continued from `crc`.
///
/// # Safety
///
/// `dst` must be 64-byte aligned and writable for `src.len()` rounded up to 64, and must not be
/// reachable through references. The processor must have the target features.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(crate) unsafe fn stream_clmul(dst: *mut u8, src: Bytes<'_>, crc: u32) -> u32 {
    let len = src.len();
    let from = src.as_ptr();
    let mut state = !crc;
    let mut at = 0;
    if len >= LINE {
        let by_line = multipliers(BY_LINE);
        // SAFETY: a whole line is there in front of each step; `at` is a multiple of 64.
        let [mut a, mut b, mut c, mut d] = unsafe { copy_line(dst, from) };
        // The state so far is added to the first four bytes.
        a = _mm_xor_si128(a, _mm_cvtsi32_si128(state as i32));
        at = LINE;
        while len - at >= LINE {
            // SAFETY: as above.
            let [e, f, g, h] = unsafe { copy_line(dst.wrapping_add(at), from.wrapping_add(at)) };
            a = fold(a, by_line, e);
            b = fold(b, by_line, f);
            c = fold(c, by_line, g);
            d = fold(d, by_line, h);
            at += LINE;
        }
        let by_lane = multipliers(BY_LANE);
        let last = fold(fold(fold(a, by_lane, b), by_lane, c), by_lane, d);
        state = sum_lane(_mm_cvtsi128_si64(last) as u64, _mm_extract_epi64::<1>(last) as u64);
    }
    if at < len {
        let mut line = [0u64; 8];
        // SAFETY: the words are 64 initialised bytes for which every value is valid.
        let bytes = unsafe { std::slice::from_raw_parts_mut(line.as_mut_ptr().cast::<u8>(), len - at) };
        src.slice(at, len - at).copy_to(bytes);
        // SAFETY: the line on the stack has 64 bytes; the destination's last line is whole.
        unsafe { copy_line(dst.wrapping_add(at), line.as_ptr().cast()) };
        state = sum_tail(state, &line, len - at);
    }
    !state
}

#[inline]
#[target_feature(enable = "sse2")]
fn multipliers(k: [u64; 2]) -> __m128i {
    _mm_set_epi64x(k[1] as i64, k[0] as i64)
}

/// Moves `sum` by the distance of `k` and adds `next`.
#[inline]
#[target_feature(enable = "sse2,pclmulqdq")]
fn fold(sum: __m128i, k: __m128i, next: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(sum, k);
    let high = _mm_clmulepi64_si128::<0x11>(sum, k);
    _mm_xor_si128(_mm_xor_si128(low, high), next)
}

/// # Safety
///
/// 64 readable bytes at `src`, 64 writable ones at `dst`, which is 64-byte aligned.
#[inline]
#[target_feature(enable = "sse2")]
unsafe fn copy_line(dst: *mut u8, src: *const u8) -> [__m128i; 4] {
    let (a, b, c, d);
    // SAFETY: reads the caller's 64 bytes. Not `pure`, so it is executed once and never repeated.
    // The stores stay in the caller's line.
    unsafe {
        asm!(
            "movdqu {0}, [{4}]",
            "movdqu {1}, [{4} + 16]",
            "movdqu {2}, [{4} + 32]",
            "movdqu {3}, [{4} + 48]",
            out(xmm_reg) a, out(xmm_reg) b, out(xmm_reg) c, out(xmm_reg) d, in(reg) src,
            options(nostack, preserves_flags, readonly)
        );
        _mm_stream_si128(dst.cast(), a);
        _mm_stream_si128(dst.wrapping_add(LANE).cast(), b);
        _mm_stream_si128(dst.wrapping_add(2 * LANE).cast(), c);
        _mm_stream_si128(dst.wrapping_add(3 * LANE).cast(), d);
    }
    [a, b, c, d]
}
