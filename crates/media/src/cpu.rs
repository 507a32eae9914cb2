//! Which instructions this machine has for making stores durable and for copying with a checksum.
//!
//! Chosen once, when media is opened or first written to; nothing asks the processor again on the
//! hot path.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// The instruction that writes a cache line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushPath {
    /// `clwb`: writes back, may keep the line cached.
    Clwb,
    /// `clflushopt`: writes back and evicts, not serialised.
    ClflushOpt,
    /// `clflush`: writes back and evicts, one line after another.
    Clflush,
    /// Nothing: the platform flushes the caches on power loss (eADR).
    None,
}

impl FlushPath {
    /// The best instruction the processor has, whatever the platform does about its caches.
    pub fn of_cpu() -> FlushPath {
        let max_leaf = __cpuid(0).eax;
        let ebx = if max_leaf >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        if ebx & (1 << 24) != 0 {
            FlushPath::Clwb
        } else if ebx & (1 << 23) != 0 {
            FlushPath::ClflushOpt
        } else {
            // Part of every x86-64 processor.
            FlushPath::Clflush
        }
    }
}

impl fmt::Display for FlushPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FlushPath::Clwb => "clwb",
            FlushPath::ClflushOpt => "clflushopt",
            FlushPath::Clflush => "clflush",
            FlushPath::None => "none (eADR)",
        })
    }
}

/// How bytes are streamed and summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyPath {
    /// 256 bytes per step, checksum folded with `vpclmulqdq` from the registers that are stored.
    Avx512,
    /// 64 bytes per step, checksum folded with `pclmulqdq` from the registers that are stored.
    Clmul,
    /// Through a small buffer on the stack, summed there.
    Bounce,
}

impl CopyPath {
    /// All paths, the fastest first.
    pub const ALL: [CopyPath; 3] = [CopyPath::Avx512, CopyPath::Clmul, CopyPath::Bounce];

    /// The fastest path of this machine.
    pub fn of_cpu() -> CopyPath {
        CopyPath::ALL.into_iter().find(|path| path.is_available()).unwrap_or(CopyPath::Bounce)
    }

    /// True if the processor has the instructions.
    pub fn is_available(self) -> bool {
        let clmul = || is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.2");
        match self {
            CopyPath::Avx512 => {
                clmul()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("vpclmulqdq")
            }
            CopyPath::Clmul => clmul(),
            CopyPath::Bounce => true,
        }
    }
}

/// A path that is chosen when it is first needed: a program that writes nothing never asks the
/// processor, which takes a virtual machine many microseconds.
#[derive(Debug, Default)]
pub(crate) struct Choice(AtomicU8);

impl Choice {
    /// `path`, from the beginning.
    pub(crate) fn made(path: CopyPath) -> Self {
        Self(AtomicU8::new(1 + path as u8))
    }

    #[inline]
    pub(crate) fn get(&self) -> CopyPath {
        match self.0.load(Ordering::Relaxed) {
            0 => self.choose(),
            made => CopyPath::ALL[usize::from(made - 1)],
        }
    }

    #[cold]
    fn choose(&self) -> CopyPath {
        let path = CopyPath::of_cpu();
        self.0.store(1 + path as u8, Ordering::Relaxed);
        path
    }
}

impl fmt::Display for CopyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CopyPath::Avx512 => "avx512 + vpclmulqdq, fused",
            CopyPath::Clmul => "sse + pclmulqdq, fused",
            CopyPath::Bounce => "bounce buffer",
        })
    }
}
