//! Shared writable mappings: their stores cannot be seen, so the file is left to the kernel before
//! one exists.
//!
//! A readable shared mapping may become writable later, and shows what the page cache has: such
//! ranges are remembered (`descriptors/src/mapped.rs`).
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_int, c_void};

use holdfast_cache::{Client, Reason};
use libc::{off_t, size_t};

use crate::raw::{self, call, give};
use crate::target::{self, Target};
use crate::{behind, critical, fds, mapped, process};

/// `mmap`.
pub unsafe extern "C-unwind" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if fd < 0 || flags & libc::MAP_ANONYMOUS != 0 {
        // SAFETY: the program's own call.
        return give(unsafe { call!(libc::SYS_mmap, address, bytes, protection, flags, fd, offset) })
            as *mut c_void;
    }
    fds::hold(fd, || map(address, bytes, protection, flags, fd, offset))
}

fn map(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let shared = matches!(flags & 0xf, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE);
    let watched = shared && process::client().is_some();
    let writes = watched && protection & libc::PROT_WRITE != 0;
    let is_possible = writes && is_possible(bytes, protection, flags, fd, offset);
    if is_possible {
        // Gives descriptors whose opening was not seen a row, so that the next line knows them.
        let _: Target = target::of_other(fd);
        target::leave_to_kernel(fd, Reason::MappedShared);
    }
    // Registers it before it is mapped, or it could enter state Behind afterwards. A mapping
    // outlives its descriptor.
    let target =
        if watched && protection & libc::PROT_WRITE == 0 { target::of_change(fd) } else { Target::Kernel };
    // What is mapped is the page cache, for as long as the mapping lasts.
    behind::show(fd);
    // SAFETY: the program's own call.
    let result = unsafe { call!(libc::SYS_mmap, address, bytes, protection, flags, fd, offset) };
    // One that is not managed yet may be after its first sync: it must not enter state Behind then
    // (invariant 6), nor be logged once it is written to by its mapping (invariant 5).
    let is_ours = matches!(target, Target::Managed(_)) || matches!(fds::look(fd), fds::Row::Described(_));
    let is_readable = watched && protection & libc::PROT_WRITE == 0 && is_ours && result > 0;
    let is_unknown = is_readable
        && raw::fstat(fd).is_ok_and(|stat| {
            stat.regular && !mapped::remember(result as usize, bytes, (stat.dev, stat.ino))
        });
    // A mapping that came about after all is left now: nobody knows its address yet.
    if is_unknown || writes && !is_possible && result > 0 {
        target::leave_to_kernel(fd, Reason::MappedShared);
    }
    give(result) as *mut c_void
}

/// Whether the kernel makes such a mapping, where it may choose the place: programs ask for one to
/// find out (MAP_SYNC), and a file of which none exists stays in the log.
fn is_possible(bytes: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> bool {
    const PLACES: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE | libc::MAP_LOCKED;
    let flags = flags & !PLACES;
    // SAFETY: nobody is told the address of the mapping, which is gone again before the next line.
    unsafe {
        let probed = call!(libc::SYS_mmap, 0usize, bytes, protection, flags, fd, offset);
        if probed > 0 {
            call!(libc::SYS_munmap, probed, bytes);
        }
        probed > 0
    }
}

/// Leaves a file to the kernel, if it is managed yet.
fn leave(client: &Client, (device, ino): (u64, u64)) {
    if let Some(seen) = client.find(device, ino) {
        // Fails only when every write to the file fails too.
        let _ = critical::section(|| client.bypass(seen.file, Reason::MappedShared));
    }
}

/// A range's protection is about to change.
fn protecting(address: *mut c_void, bytes: size_t, protection: c_int) {
    if protection & libc::PROT_WRITE != 0
        && let Some(client) = process::client()
    {
        for range in mapped::overlapping(address as usize, bytes) {
            range.make_writable();
            leave(client, range.file());
        }
    }
}

/// `mprotect`.
pub unsafe extern "C-unwind" fn mprotect(address: *mut c_void, bytes: size_t, protection: c_int) -> c_int {
    protecting(address, bytes, protection);
    // SAFETY: the program's own call.
    give(unsafe { call!(libc::SYS_mprotect, address, bytes, protection) }) as c_int
}

/// `pkey_mprotect`. libc takes the key -1 for `mprotect`, and so does the kernel.
pub unsafe extern "C-unwind" fn pkey_mprotect(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    key: c_int,
) -> c_int {
    protecting(address, bytes, protection);
    // SAFETY: the program's own call.
    give(unsafe { call!(libc::SYS_pkey_mprotect, address, bytes, protection, key) }) as c_int
}

/// `mremap`: a remembered range may move.
pub unsafe extern "C-unwind" fn mremap(
    address: *mut c_void,
    bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    // SAFETY: the program's own call.
    let result = unsafe { call!(libc::SYS_mremap, address, bytes, new_bytes, flags, new_address) };
    if result > 0
        && let Some(client) = process::client()
    {
        for range in mapped::overlapping(address as usize, bytes.max(1)) {
            if !mapped::remember(result as usize, new_bytes, range.file()) {
                range.make_writable();
                leave(client, range.file());
            }
        }
    }
    give(result) as *mut c_void
}
