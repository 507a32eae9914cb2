//! Copy and crc32c in one pass with AVX-512: 64 bytes are loaded once, streamed out, and folded
//! into the checksum from the same register, four lanes at a time.
//!
//! It must load each source byte exactly once; loads are asm for that reason, and because the
//! source may be changing, which Rust's own loads do not allow.
#![allow(unsafe_code)] // Raw loads, non-temporal stores and instructions beyond the baseline.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::crc_fold::{fold_by, sum_lane, sum_tail};

const LINE: usize = 64;
const BLOCK: usize = 4 * LINE;

/// The multipliers for four lanes that move by different distances.
const fn lanes(a: [u64; 2], b: [u64; 2], c: [u64; 2], d: [u64; 2]) -> [u64; 8] {
    [a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]]
}

/// All four lanes move by `bits`.
const fn all_by(bits: u32) -> [u64; 8] {
    let k = fold_by(bits);
    lanes(k, k, k, k)
}

const BY_BLOCK: [u64; 8] = all_by(8 * BLOCK as u32);
const BY_LINE: [u64; 8] = all_by(8 * LINE as u32);
/// The first three lanes move onto the last one, which stays (it is multiplied by nothing and added
/// afterwards).
const ONTO_LAST: [u64; 8] = lanes(fold_by(384), fold_by(256), fold_by(128), [0, 0]);

/// Streams `len` bytes from `src` to `dst`, fills the last line with zeros, and returns the crc32c
/// of the bytes continued from `crc`.
///
/// # Safety
///
/// `src` must be readable for `len` bytes (they may change meanwhile); `dst` must be 64-byte
/// aligned and writable for `len` rounded up to 64, and must not be reachable through references.
/// The processor must have the target features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,vpclmulqdq,pclmulqdq,sse4.2")]
pub(crate) unsafe fn stream_avx512(dst: *mut u8, src: *const u8, len: usize, crc: u32) -> u32 {
    let mut state = !crc;
    let mut at = 0;
    if len >= LINE {
        // The state so far is added to the first four bytes.
        let seed = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state as i32));
        let mut sum;
        if len >= BLOCK {
            let by_block = multipliers(&BY_BLOCK);
            // SAFETY: `at + BLOCK <= len` in front of each block; `at` is a multiple of 64.
            unsafe {
                let [a, b, c, d] = copy_block(dst, src);
                let (mut a, mut b, mut c, mut d) = (_mm512_xor_si512(a, seed), b, c, d);
                at = BLOCK;
                while len - at >= BLOCK {
                    let [e, f, g, h] = copy_block(dst.wrapping_add(at), src.wrapping_add(at));
                    a = fold(a, by_block, e);
                    b = fold(b, by_block, f);
                    c = fold(c, by_block, g);
                    d = fold(d, by_block, h);
                    at += BLOCK;
                }
                let by_line = multipliers(&BY_LINE);
                sum = fold(fold(fold(a, by_line, b), by_line, c), by_line, d);
            }
        } else {
            // SAFETY: len is at least one line.
            sum = _mm512_xor_si512(unsafe { copy_line(dst, src) }, seed);
            at = LINE;
        }
        let by_line = multipliers(&BY_LINE);
        while len - at >= LINE {
            // SAFETY: a whole line is left; `at` is a multiple of 64.
            let line = unsafe { copy_line(dst.wrapping_add(at), src.wrapping_add(at)) };
            sum = fold(sum, by_line, line);
            at += LINE;
        }
        state = reduce(sum);
    }
    if at < len {
        // SAFETY: `len - at` is 1..64 bytes; the destination's last line is whole.
        let tail = unsafe { copy_tail(dst.wrapping_add(at), src.wrapping_add(at), len - at) };
        let mut words = [0u64; 8];
        // SAFETY: 64 writable bytes, no alignment needed.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), tail) };
        state = sum_tail(state, &words, len - at);
    }
    !state
}

#[target_feature(enable = "avx512f")]
fn multipliers(k: &[u64; 8]) -> __m512i {
    // SAFETY: 64 readable bytes, no alignment needed.
    unsafe { _mm512_loadu_si512(k.as_ptr().cast()) }
}

/// Moves `sum` by the distance of `k` and adds `next`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(sum: __m512i, k: __m512i, next: __m512i) -> __m512i {
    let low = _mm512_clmulepi64_epi128::<0x00>(sum, k);
    let high = _mm512_clmulepi64_epi128::<0x11>(sum, k);
    // 0x96: exclusive or of all three.
    _mm512_ternarylogic_epi64::<0x96>(low, high, next)
}

/// The checksum state that 64 folded bytes stand for.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,vpclmulqdq,sse4.2")]
fn reduce(sum: __m512i) -> u32 {
    // Only the last lane is added unmoved.
    let last = _mm512_maskz_mov_epi64(0b1100_0000, sum);
    let moved = fold(sum, multipliers(&ONTO_LAST), last);
    let halves = _mm256_xor_si256(_mm512_castsi512_si256(moved), _mm512_extracti64x4_epi64::<1>(moved));
    let lane = _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
    sum_lane(_mm_cvtsi128_si64(lane) as u64, _mm_extract_epi64::<1>(lane) as u64)
}

/// # Safety
///
/// 256 readable bytes at `src`, 256 writable ones at `dst`, which is 64-byte aligned.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn copy_block(dst: *mut u8, src: *const u8) -> [__m512i; 4] {
    // SAFETY: four lines within the caller's ranges.
    unsafe {
        [
            copy_line(dst, src),
            copy_line(dst.wrapping_add(LINE), src.wrapping_add(LINE)),
            copy_line(dst.wrapping_add(2 * LINE), src.wrapping_add(2 * LINE)),
            copy_line(dst.wrapping_add(3 * LINE), src.wrapping_add(3 * LINE)),
        ]
    }
}

/// # Safety
///
/// 64 readable bytes at `src`, 64 writable ones at `dst`, which is 64-byte aligned.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn copy_line(dst: *mut u8, src: *const u8) -> __m512i {
    let line;
    // SAFETY: reads the caller's 64 bytes. Not `pure`, so it is executed once and never repeated.
    unsafe {
        asm!("vmovdqu64 {0}, [{1}]", out(zmm_reg) line, in(reg) src, options(nostack, preserves_flags, readonly));
        _mm512_stream_si512(dst.cast(), line);
    }
    line
}

/// Streams a line of `len` bytes followed by zeros.
///
/// # Safety
///
/// `len` (1 to 63) readable bytes at `src`, 64 writable ones at `dst`, which is 64-byte aligned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_tail(dst: *mut u8, src: *const u8, len: usize) -> __m512i {
    let mask = u64::MAX >> (LINE - len);
    let line;
    // SAFETY: reads only the bytes under the mask, the caller's; others do not fault. Executed
    // once, as above.
    unsafe {
        asm!(
            "vmovdqu8 {0}{{{2}}}{{z}}, [{1}]",
            out(zmm_reg) line, in(reg) src, in(kreg) mask,
            options(nostack, preserves_flags, readonly)
        );
        _mm512_stream_si512(dst.cast(), line);
    }
    line
}
