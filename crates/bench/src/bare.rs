//! The bare stream-and-fence loop: what the processor takes to make bytes durable, with nothing
//! around it.
//!
//! It must never write outside the range it was given at construction.

// It maps a file of the benchmark and stores to it past the cache: nothing leaner could.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m512i, _mm_loadu_si128, _mm_stream_si128, _mm512_loadu_si512, _mm512_stream_si512,
};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes per durable store.
pub const BLOCK_BYTES: usize = 4096;

/// What is written; aligned, so that no side pays for split loads.
#[repr(align(64))]
pub struct Block(pub [u8; BLOCK_BYTES]);

/// A range of a file, mapped shared.
pub struct Bare {
    base: *mut u8,
    len: usize,
    wide: bool,
}

impl Bare {
    /// Maps `len` bytes at `offset`, both multiples of 4096.
    pub fn open(path: &Path, offset: u64, len: usize) -> Result<Self> {
        ensure!(
            offset.is_multiple_of(4096) && len.is_multiple_of(BLOCK_BYTES),
            "the range must be of whole pages"
        );
        let file = std::fs::File::options().read(true).write(true).open(path)?;
        ensure!(offset + len as u64 <= file.metadata()?.len(), "{} is too short", path.display());
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &file, offset) }
            .context("could not map the pool")?;
        Ok(Self { base: base.cast(), len, wide: is_x86_feature_detected!("avx512f") })
    }

    /// Streams the first `bytes` of `source` (a multiple of 64) to consecutive places, with a fence
    /// after each, `count` times.
    pub fn run(&self, source: &Block, bytes: usize, count: usize) {
        assert!(bytes <= BLOCK_BYTES && bytes.is_multiple_of(64), "whole lines of a block");
        assert!(count * bytes <= self.len, "more than was mapped");
        for number in 0..count {
            // SAFETY: the assertion above keeps the bytes within the mapping.
            let to = unsafe { self.base.add(number * bytes) };
            if self.wide {
                // SAFETY: `to` is aligned to lines, with room for `bytes`; the processor has
                // AVX-512, as `wide` says.
                unsafe { stream_wide(to, source, bytes) };
            } else {
                // SAFETY: `to` is aligned to lines, with room for `bytes`.
                unsafe { stream_narrow(to, source, bytes) };
            }
            // SAFETY: sfence only orders stores; it is part of x86-64.
            unsafe { asm!("sfence", options(nostack, preserves_flags)) };
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `open` with this length, and nothing refers to it any
        // more.
        unsafe { munmap(self.base.cast(), self.len) }.ok();
    }
}

/// # Safety
///
/// `to` must be 64-byte aligned and writable for `bytes`, a multiple of 64 and at most a block.
#[target_feature(enable = "avx512f")]
unsafe fn stream_wide(to: *mut u8, from: &Block, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        // SAFETY: `at` is a multiple of 64 within both ranges.
        unsafe {
            _mm512_stream_si512(
                to.add(at).cast::<__m512i>(),
                _mm512_loadu_si512(from.0.as_ptr().add(at).cast()),
            );
        }
    }
}

/// # Safety
///
/// `to` must be 16-byte aligned and writable for `bytes`, a multiple of 64 and at most a block.
unsafe fn stream_narrow(to: *mut u8, from: &Block, bytes: usize) {
    for at in (0..bytes).step_by(16) {
        // SAFETY: `at` is a multiple of 16 within both ranges. SSE2 is part of x86-64.
        unsafe {
            _mm_stream_si128(to.add(at).cast::<__m128i>(), _mm_loadu_si128(from.0.as_ptr().add(at).cast()));
        }
    }
}
