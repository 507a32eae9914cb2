//! What a durable write and its checksum cost on this machine's media.
//!
//!     cargo run --release -p holdfast-media --example stream [FILE]
//!
//! Walks sequentially over 64 MiB of media (FILE must not exist; default: a volatile stand-in in
//! /dev/shm) and prints ns per operation, medians of interleaved rounds. Every column but the last
//! two ends each operation with a fence. Columns that store through the cache have their own 64
//! MiB: streaming to lines that are dirty in the cache is slower.
#![allow(unsafe_code)] // The bare loop that the library is measured against needs raw stores.

use std::arch::x86_64::{__m128i, __m512i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
use std::error::Error;
use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use holdfast_media::{Bytes, CopyPath, Mapping, Nvm, OpenMode, allocate};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

const LEN: usize = 64 << 20;
const SIZES: [usize; 11] = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
const ROUNDS: usize = 24;
/// Bytes written per column, size and round.
const ROUND_BYTES_MAX: usize = 16 << 20;
const ROUND_OPS_MAX: usize = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    let path = path.unwrap_or_else(|| format!("/dev/shm/holdfast-stream-{}", std::process::id()).into());
    let start = Instant::now();
    allocate(&path, 2 * LEN as u64, |_, _| ())?;
    println!("allocated {} MiB in {:?}", (2 * LEN) >> 20, start.elapsed());
    let measured = measure(&path);
    std::fs::remove_file(&path)?;
    measured
}

fn measure(path: &PathBuf) -> Result<(), Box<dyn Error>> {
    let (fused, info) = Mapping::open(path, OpenMode::ReadWrite)?;
    let (second, _) = Mapping::open(path, OpenMode::ReadWrite)?;
    let clmul = second.with_copy_path(CopyPath::Clmul).ok_or("this processor has no pclmulqdq")?;
    let (third, _) = Mapping::open(path, OpenMode::ReadWrite)?;
    let bounce = third.with_copy_path(CopyPath::Bounce).ok_or("no bounce path")?;
    let file = File::options().read(true).write(true).open(path)?;
    // The same media through a mapping of its own, for the loops without the library.
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: reserves address space at a place of the kernel's choice and puts the file, which is
    // whole and stays, at a huge page boundary in it.
    let raw = unsafe {
        let (room, align) = (LEN + (2 << 20), 2 << 20);
        let start = mmap_anonymous(std::ptr::null_mut(), room, prot, MapFlags::PRIVATE)?.cast::<u8>();
        let base = start.wrapping_add(start.align_offset(align));
        mmap(base.cast(), LEN, prot, MapFlags::SHARED | MapFlags::FIXED, &file, 0)?.cast::<u8>()
    };
    println!("{info}; copy: {}\n", fused.copy_path());
    let avx512 = fused.copy_path() == CopyPath::Avx512;

    type Column<'a> = (&'a str, Box<dyn Fn(usize, &[u8]) + 'a>);
    let columns: [Column<'_>; 8] = [
        (
            "bare 16",
            Box::new(move |at, src| {
                // SAFETY: operations stay within LEN bytes, at multiples of 64; no references into
                // the memory exist.
                unsafe { bare_16(raw.add(at), src) }
            }),
        ),
        (
            "bare 64",
            Box::new(move |at, src| {
                if avx512 {
                    // SAFETY: as above, and the processor has AVX-512.
                    unsafe { bare_64(raw.add(at), src) }
                }
            }),
        ),
        ("best + crc", Box::new(|at, src| stream(&fused, at, src))),
        ("clmul + crc", Box::new(|at, src| stream(&clmul, at, src))),
        ("bounce + crc", Box::new(|at, src| stream(&bounce, at, src))),
        (
            "memcpy+flush",
            Box::new(|at, src| {
                let at = (LEN + at) as u64;
                fused.write(at, src);
                fused.flush(at, src.len() as u64);
                fused.fence();
            }),
        ),
        ("memcpy only", Box::new(|at, src| fused.write((LEN + at) as u64, src))),
        ("crc32c only", Box::new(|_, src| _ = std::hint::black_box(crc32c::crc32c(src)))),
    ];

    print!("{:>7}", "bytes");
    columns.iter().for_each(|(name, _)| print!("{name:>14}"));
    println!("     best/bare");
    let source: Vec<u8> = (0..(1 << 20) + 65536).map(|i| (i * 31 % 251) as u8).collect();
    for size in SIZES {
        let ops = (ROUND_BYTES_MAX / size).min(ROUND_OPS_MAX);
        let mut at = 0;
        let mut ns = vec![Vec::new(); columns.len()];
        for round in 0..=ROUNDS {
            for turn in 0..columns.len() {
                // Each column gets to follow each other one.
                let column = (turn * (round % 3 * 2 + 1) + round) % columns.len();
                let start = Instant::now();
                for op in 0..ops {
                    columns[column].1(at, &source[op % 16 * 64..][..size]);
                    at = if at + 2 * size > LEN { 0 } else { at + size };
                }
                // The first round touches the pages.
                if round > 0 {
                    ns[column].push(start.elapsed().as_nanos() as f64 / ops as f64);
                }
            }
        }
        let medians: Vec<f64> = ns.into_iter().map(median).collect();
        print!("{size:>7}");
        medians.iter().for_each(|ns| print!("{ns:>14.0}"));
        println!("{:>14.2}", medians[2] / medians[if avx512 { 1 } else { 0 }]);
    }
    Ok(())
}

fn stream(media: &Mapping, at: usize, src: &[u8]) {
    std::hint::black_box(media.write_streaming(at as u64, Bytes::from_slice(src), 1));
    media.fence();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// # Safety
///
/// `to` must be 64-byte aligned and writable for the length of `src`, a multiple of 64.
unsafe fn bare_16(to: *mut u8, src: &[u8]) {
    for at in (0..src.len()).step_by(16) {
        // SAFETY: within both ranges; SSE2 is part of x86-64.
        unsafe {
            let part = _mm_loadu_si128(src.as_ptr().add(at).cast::<__m128i>());
            _mm_stream_si128(to.add(at).cast(), part);
        }
    }
    // SAFETY: part of x86-64.
    unsafe { _mm_sfence() };
}

/// # Safety
///
/// As for [`bare_16`], and the processor must have AVX-512.
#[target_feature(enable = "avx512f")]
unsafe fn bare_64(to: *mut u8, src: &[u8]) {
    for at in (0..src.len()).step_by(64) {
        // SAFETY: within both ranges.
        unsafe {
            let part = _mm512_loadu_si512(src.as_ptr().add(at).cast::<__m512i>());
            _mm512_stream_si512(to.add(at).cast(), part);
        }
    }
    _mm_sfence();
}
