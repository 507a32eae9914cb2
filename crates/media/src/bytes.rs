//! A borrowed range of memory that others may change while it is read.
//!
//! It must never be turned into a `&[u8]`: the source of a write belongs to the program, and
//! another of its threads (or a process that shares the memory) may store to it at any time. Bytes
//! are only ever copied out.
#![allow(unsafe_code)] // Copies out of memory that Rust's references cannot describe.

use std::arch::asm;
use std::marker::PhantomData;

/// A borrowed range of memory that other threads or processes may change while it is read. Never a
/// `&[u8]`.
///
/// Laid out like the kernel's `struct iovec`, so that a program's vector of buffers can be viewed
/// as `[Bytes]`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Bytes<'a> {
    ptr: *const u8,
    len: usize,
    life: PhantomData<&'a ()>,
}

// SAFETY: the type only allows copying out of memory that stays readable for 'a; a racing change is
// part of its contract, so it makes no difference which thread does the copying.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as for Send: shared access only ever reads.
unsafe impl Sync for Bytes<'_> {}

impl<'a> Bytes<'a> {
    /// The bytes of an ordinary slice.
    pub const fn from_slice(bytes: &'a [u8]) -> Self {
        Bytes { ptr: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }

    /// The `len` bytes at `ptr`.
    ///
    /// # Safety
    ///
    /// The range must stay mapped and readable for `'a`. Its contents may change at any time.
    pub const unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Bytes { ptr, len, life: PhantomData }
    }

    /// Number of bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    pub const fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// The `len` bytes from `from` on. Asking for bytes outside the range is a programmer error.
    #[inline]
    pub fn slice(&self, from: usize, len: usize) -> Bytes<'a> {
        if from > self.len || len > self.len - from {
            out_of_range();
        }
        Bytes { ptr: self.ptr.wrapping_add(from), len, life: PhantomData }
    }

    /// Copies all bytes to `to`, which must have the same length. Each source byte is loaded once:
    /// what is in `to` afterwards stays what it is, whatever happens to the source.
    #[inline]
    pub fn copy_to(&self, to: &mut [u8]) {
        if to.len() != self.len {
            out_of_range();
        }
        // SAFETY: the source is readable for 'a by the contract of the constructors, `to` is
        // exclusive and has the same length. The source may change meanwhile; a byte copy then
        // yields some mix of old and new bytes.
        unsafe { std::ptr::copy(self.ptr, to.as_mut_ptr(), self.len) };
        // SAFETY: an empty asm block. It claims to read and write memory, so that the compiler can
        // neither look at the source a second time in place of the copy nor drop the copy.
        unsafe { asm!("/* {0} */", in(reg) to.as_mut_ptr(), options(nostack, preserves_flags)) };
    }
}

/// Ends the process on an access outside the media. Never returns to the caller: there is no right
/// way to go on, and no formatting machinery is drawn into the hot path (which also runs inside
/// foreign programs).
#[cold]
#[inline(never)]
pub(crate) fn out_of_range() -> ! {
    #[cfg(debug_assertions)]
    panic!("access outside the media, or misaligned");
    #[cfg(not(debug_assertions))]
    std::process::abort();
}
