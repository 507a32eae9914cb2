//! Whether the program's memory can be read, or written: a bad address must end as `EFAULT`, as in
//! the kernel, and not as our fault.
//!
//! One load, or one store that changes nothing, per page, or a copy; where it faults,
//! [`crate::signals`] lets it answer no. Must touch nothing else.
#![allow(unsafe_code)] // Accesses to addresses that may be bad.

use core::ffi::c_int;

use holdfast_canary::{Canary, on};
use holdfast_media::Bytes;

use crate::probes::{holdfast_copy, holdfast_probe, holdfast_probe_writing};
use crate::raw::call;
use crate::signals;

/// Whether all of these bytes can be read. Always true where faults do not come to us.
#[inline]
pub fn is_readable(bytes: &Bytes<'_>) -> bool {
    is_range_readable(bytes.as_ptr() as usize, bytes.len())
}

/// [`is_readable`] of a range.
#[inline]
pub fn is_range_readable(first: usize, bytes: usize) -> bool {
    // SAFETY: loads only, and a load that faults ends the probe.
    probe(first, bytes, |first, last| unsafe { holdfast_probe(first, last) }, kernel_reads)
}

/// Whether faults come to us, so that memory of the program may be looked at after a probe.
#[inline]
pub fn may_look() -> bool {
    signals::wait_for_sections()
}

/// Whether all of these bytes, which the program gives to be filled, can be written. Always true
/// where faults do not come to us.
#[inline]
pub fn is_range_writable(first: usize, bytes: usize) -> bool {
    // SAFETY: the stores change no byte, and one that faults ends the probe.
    probe(first, bytes, |first, last| unsafe { holdfast_probe_writing(first, last) }, kernel_writes)
}

/// Copies out of the program's memory, each byte once; `false` where it cannot be read. Where
/// faults do not come to us it must be readable.
///
/// # Safety
/// There is room for `bytes` at `to`.
pub unsafe fn copy_in(to: *mut u8, from: usize, bytes: usize) -> bool {
    if from == 0
        || from.checked_add(bytes).is_none()
        || signals::are_apart() && !is_range_readable(from, bytes)
    {
        return false;
    }
    // SAFETY: the caller has the room; a load that faults ends the copy.
    unsafe { holdfast_copy(to, from, bytes) != 0 }
}

#[inline]
fn probe(
    first: usize,
    bytes: usize,
    probe: impl FnOnce(usize, usize) -> c_int,
    by_kernel: impl Fn(usize) -> bool,
) -> bool {
    if bytes == 0 || !signals::wait_for_sections() {
        return true;
    }
    let Some(last) = first.checked_add(bytes - 1) else { return false };
    if bytes > isize::MAX as usize {
        return false;
    }
    if signals::are_apart() {
        if on(Canary::GoFaultsTrusted) {
            return true;
        }
        return (first / PAGE_BYTES..=last / PAGE_BYTES).all(|page| by_kernel(first.max(page * PAGE_BYTES)));
    }
    probe(first, last) != 0
}

const PAGE_BYTES: usize = 4096;

/// Whether the kernel can read at an address: it reads a set of signals there before it refuses to
/// do with it what nobody knows.
fn kernel_reads(address: usize) -> bool {
    const UNKNOWN: c_int = -1;
    // SAFETY: reads a word within one page, and changes nothing.
    let result = unsafe { call!(libc::SYS_rt_sigprocmask, UNKNOWN, address & !7, 0, 8) };
    result != -(libc::EFAULT as isize)
}

/// Whether the kernel can write at an address: it sets no bit in the word there, and wakes nobody
/// who waits elsewhere.
fn kernel_writes(address: usize) -> bool {
    const SET_BITS_AND_WAKE_IF_LESS: u32 = 2 << 28 | 2 << 24 | 0x800;
    let nobody = 0u32;
    let operation = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word within one page stays as it is.
    let result = unsafe {
        call!(libc::SYS_futex, &raw const nobody, operation, 0, 0, address & !3, SET_BITS_AND_WAKE_IF_LESS)
    };
    result != -(libc::EFAULT as isize)
}
