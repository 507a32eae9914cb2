//! Copies bytes past the cache and sums what it stored.
//!
//! Each source byte must be loaded exactly once: a checksum over a second look at the source would
//! not match the media when the program changes its buffer during the call.
#![allow(unsafe_code)] // Non-temporal stores through raw pointers.

use std::arch::asm;
use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_stream_si128};

use crate::bytes::Bytes;
use crate::cpu::CopyPath;
use crate::stream_avx512::stream_avx512;
use crate::stream_clmul::stream_clmul;

const LINE: usize = 64;
const BOUNCE_BYTES: usize = 1024;

/// Streams `src` to `dst`, fills the last line with zeros, and returns the crc32c of `src`
/// continued from `crc`.
///
/// # Safety
///
/// `dst` must be 64-byte aligned and writable for `src.len()` rounded up to 64 bytes, and the
/// memory must not be reachable through references. `path` must be one that this processor has
/// ([`CopyPath::is_available`]).
#[inline]
pub(crate) unsafe fn stream(path: CopyPath, dst: *mut u8, src: Bytes<'_>, crc: u32) -> u32 {
    match path {
        // SAFETY: passed on from the caller; the path says that the processor has the instructions.
        CopyPath::Avx512 => unsafe { stream_avx512(dst, src.as_ptr(), src.len(), crc) },
        // SAFETY: as above.
        CopyPath::Clmul => unsafe { stream_clmul(dst, src, crc) },
        // SAFETY: passed on from the caller.
        CopyPath::Bounce => unsafe { stream_bounce(dst, src, crc) },
    }
}

#[repr(align(64))]
struct Bounce([u8; BOUNCE_BYTES]);

/// # Safety
///
/// As for [`stream`].
unsafe fn stream_bounce(dst: *mut u8, src: Bytes<'_>, mut crc: u32) -> u32 {
    let mut bounce = Bounce([0; BOUNCE_BYTES]);
    let mut done = 0;
    while done < src.len() {
        let n = (src.len() - done).min(BOUNCE_BYTES);
        let lines = n.next_multiple_of(LINE);
        src.slice(done, n).copy_to(&mut bounce.0[..n]);
        bounce.0[n..lines].fill(0);
        crc = crc32c::crc32c_append(crc, &bounce.0[..n]);
        // SAFETY: `done` is a multiple of 64 here, so that the range lies within the destination's
        // whole lines; the bounce buffer is 64-byte aligned and has `lines` bytes.
        unsafe { stream_lines(dst.add(done), bounce.0.as_ptr(), lines) };
        done += n;
    }
    crc
}

/// Non-temporal stores of `len` bytes (a multiple of 64) between 64-byte aligned addresses.
///
/// # Safety
///
/// `from` must be readable and `to` writable for `len` bytes, both 64-byte aligned.
unsafe fn stream_lines(to: *mut u8, from: *const u8, len: usize) {
    for at in (0..len).step_by(16) {
        // SAFETY: `at` is a multiple of 16 below `len`, within both aligned ranges. SSE2 is part of
        // x86-64.
        unsafe {
            _mm_stream_si128(to.add(at).cast::<__m128i>(), _mm_load_si128(from.add(at).cast::<__m128i>()))
        };
    }
}

/// Waits for non-temporal stores and flushes. As asm, so that the compiler keeps all memory
/// accesses on their side.
#[inline(always)]
pub(crate) fn sfence() {
    // SAFETY: sfence only orders stores; it is part of x86-64.
    unsafe { asm!("sfence", options(nostack, preserves_flags)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Media([u8; 9 * 1024 + 256]);

    const UNTOUCHED: u8 = 0xA5;

    /// A small generator, so that failures repeat (the seed is fixed).
    fn noise(len: usize, mut x: u64) -> Vec<u8> {
        let mut step = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 24) as u8
        };
        (0..len).map(|_| step()).collect()
    }

    fn check(path: CopyPath, media: &mut Media, src: &[u8], seed: u32) {
        let lines = src.len().next_multiple_of(LINE);
        media.0[..lines + LINE].fill(UNTOUCHED);
        // SAFETY: aligned, long enough, exclusive; the path is one of this machine.
        let crc = unsafe { stream(path, media.0.as_mut_ptr(), Bytes::from_slice(src), seed) };
        sfence();
        let case = format!(
            "{path}, {} bytes at alignment {}, seed {seed:#x}",
            src.len(),
            src.as_ptr() as usize % 64
        );
        assert_eq!(crc, crc32c::crc32c_append(seed, src), "{case}");
        assert!(media.0[..src.len()] == *src, "{case}: copied bytes differ");
        assert!(media.0[src.len()..lines].iter().all(|b| *b == 0), "{case}: padding is not zero");
        assert!(
            media.0[lines..lines + LINE].iter().all(|b| *b == UNTOUCHED),
            "{case}: wrote past the last line"
        );
    }

    fn paths() -> impl Iterator<Item = CopyPath> {
        CopyPath::ALL.into_iter().filter(|path| path.is_available())
    }

    #[test]
    fn all_lengths_agree_with_the_reference() {
        let source = noise(9 * 1024 + 64, 0x9E37_79B9_7F4A_7C15);
        let mut media = Box::new(Media([0; _]));
        for path in paths() {
            for len in 0..=9000 {
                let skew = len * 7 % 64;
                let seed = [0, u32::MAX, 0x1234_5678, len as u32][len / 3 % 4];
                check(path, &mut media, &source[skew..skew + len], seed);
            }
        }
    }

    #[test]
    fn all_alignments_agree_with_the_reference() {
        let source = noise(5000, 77);
        let mut media = Box::new(Media([0; _]));
        for path in paths() {
            for skew in 0..64 {
                for len in [0, 1, 15, 63, 64, 65, 127, 255, 256, 257, 511, 1023, 1024, 1025, 4095, 4096, 4100]
                {
                    check(path, &mut media, &source[skew..skew + len], skew as u32);
                }
            }
        }
    }

    #[test]
    fn parts_compose() {
        let source = noise(4096, 5);
        let mut media = Box::new(Media([0; _]));
        for path in paths() {
            let mut crc = crc32c::crc32c(b"header");
            for part in source.chunks(700) {
                // SAFETY: as in `check`.
                crc = unsafe { stream(path, media.0.as_mut_ptr(), Bytes::from_slice(part), crc) };
            }
            assert_eq!(crc, crc32c::crc32c_append(crc32c::crc32c(b"header"), &source), "{path}");
        }
    }

    /// The checksum must be that of the stored bytes, whatever another thread does to the source
    /// meanwhile.
    #[test]
    fn changing_source_matches_what_was_stored() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
        const WORDS: usize = 512;
        let source: Vec<AtomicU64> = (0..WORDS as u64).map(AtomicU64::new).collect();
        let stop = AtomicBool::new(false);
        let mut media = Box::new(Media([0; _]));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut x = 1u64;
                while !stop.load(Relaxed) {
                    for word in &source {
                        x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
                        word.store(x, Relaxed);
                    }
                }
            });
            let mut seen = std::collections::HashSet::new();
            for path in paths() {
                for len in [WORDS * 8, WORDS * 8 - 5] {
                    for _ in 0..2000 {
                        // SAFETY: readable while `source` lives, and allowed to change.
                        let bytes = unsafe { Bytes::from_raw(source.as_ptr().cast(), len) };
                        // SAFETY: as in `check`.
                        let crc = unsafe { stream(path, media.0.as_mut_ptr(), bytes, 0) };
                        sfence();
                        assert_eq!(crc, crc32c::crc32c(&media.0[..len]), "{path}");
                        seen.insert(crc);
                    }
                }
            }
            stop.store(true, Relaxed);
            assert!(seen.len() > 1, "the source never changed, so nothing was shown");
        });
    }
}
