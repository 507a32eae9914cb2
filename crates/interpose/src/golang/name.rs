//! The name of the program that was entered: what the kernel tells others, and what the program is
//! told of itself where the kernel does not let it be changed.
#![allow(unsafe_code)] // Tells the kernel, and exchanges mappings.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::raw::{self, call};

const PAGE: u64 = 4096;
const PF_X: u32 = 1;
const NAME_BYTES: usize = 16;
const PATH_BYTES: usize = 4096;

/// Whether the kernel names the program as this process's.
static IS_NAMED: AtomicBool = AtomicBool::new(false);

struct Path(core::cell::UnsafeCell<[u8; PATH_BYTES]>);
// SAFETY: written by the constructor alone, before there are threads.
unsafe impl Sync for Path {}
static FULL_PATH: Path = Path(core::cell::UnsafeCell::new([0; PATH_BYTES]));

/// Where the program lies, if the kernel does not tell.
pub fn untold() -> Option<&'static CStr> {
    if IS_NAMED.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: written before there were threads.
    CStr::from_bytes_until_nul(unsafe { &*FULL_PATH.0.get() }).ok().filter(|path| !path.is_empty())
}

/// Has the kernel tell others of the program at `path`, open as `fd`, and not of `holdfast-enter`,
/// as far as it lets us.
pub fn take(fd: c_int, path: &CStr) {
    let mut name = [0u8; NAME_BYTES];
    let short = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let bytes = short.len().min(NAME_BYTES - 1);
    name[..bytes].copy_from_slice(&short[..bytes]);
    // SAFETY: the name ends with a zero.
    unsafe { call!(libc::SYS_prctl, libc::PR_SET_NAME, name.as_ptr()) };
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let digits = fd.unsigned_abs().checked_ilog10().unwrap_or(0);
    for at in 0..=digits {
        link[14 + (digits - at) as usize] = b'0' + (fd as u32 / 10u32.pow(at) % 10) as u8;
    }
    // SAFETY: a string, and room for as many bytes as said; there are no threads.
    unsafe {
        let room = FULL_PATH.0.get().cast::<u8>();
        call!(libc::SYS_readlink, link.as_ptr(), room, PATH_BYTES - 1);
    }
    IS_NAMED.store(unname_agent().and_then(|()| set_program(fd)).is_some(), Ordering::Relaxed);
}

/// What the kernel knows of a program's place in memory.
#[repr(C)]
struct Places {
    start_code: u64,
    end_code: u64,
    start_data: u64,
    end_data: u64,
    start_brk: u64,
    brk: u64,
    start_stack: u64,
    arguments: [u64; 4],
    auxiliary: u64,
    auxiliary_bytes: u32,
    program: u32,
}

/// Tells the kernel which file the program is, with all else as it is. Takes `CAP_SYS_ADMIN` or
/// `CAP_CHECKPOINT_RESTORE`.
fn set_program(fd: c_int) -> Option<()> {
    const PR_SET_MM: c_int = 35;
    const PR_SET_MM_MAP: c_int = 14;
    let mut text = [0u8; 1024];
    // SAFETY: a string, and room for as many bytes as said.
    let bytes = unsafe {
        let path = c"/proc/self/stat";
        let opened = call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let stat = raw::check(opened).ok()? as c_int;
        let bytes = raw::check(call!(libc::SYS_read, stat, text.as_mut_ptr(), text.len()));
        raw::close(stat);
        bytes.ok()?
    };
    let text = text.get(..bytes)?;
    // The name may hold anything; the third field follows it.
    let end = text.iter().rposition(|byte| *byte == b')')? + 2;
    let rest = core::str::from_utf8(text.get(end..)?).ok()?;
    let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3)?.parse::<u64>().ok();
    let places = Places {
        start_code: field(26)?,
        end_code: field(27)?,
        start_data: field(45)?,
        end_data: field(46)?,
        start_brk: field(47)?,
        // SAFETY: asks where the heap ends.
        brk: unsafe { call!(libc::SYS_brk, 0) } as u64,
        start_stack: field(28)?,
        arguments: [field(48)?, field(49)?, field(50)?, field(51)?],
        auxiliary: 0,
        auxiliary_bytes: 0,
        program: fd as u32,
    };
    // SAFETY: of the kernel's shape.
    let set = unsafe {
        call!(libc::SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, &raw const places, size_of::<Places>(), 0)
    };
    (set == 0).then_some(())
}

/// Puts copies in the places of all that is mapped of `holdfast-enter`'s file: the kernel lets no
/// program have another name whose file is mapped still.
fn unname_agent() -> Option<()> {
    // SAFETY: asks the loader for numbers; the headers are the program's, mapped.
    let headers = unsafe {
        let first: *const libc::Elf64_Phdr =
            core::ptr::with_exposed_provenance(libc::getauxval(libc::AT_PHDR) as usize);
        core::slice::from_raw_parts(first, libc::getauxval(libc::AT_PHNUM) as usize)
    };
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR)?;
    let base = (headers.as_ptr().addr() as u64).wrapping_sub(own.p_vaddr);
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = (base + header.p_vaddr) / PAGE * PAGE;
        let bytes = (base + header.p_vaddr + header.p_memsz).next_multiple_of(PAGE) - start;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let is_code = header.p_flags & PF_X != 0;
        let protection = if is_code { libc::PROT_READ | libc::PROT_EXEC } else { writable };
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the copy has the same bytes, and replaces them in one step; nothing of that
        // program runs meanwhile.
        unsafe {
            let copy = raw::check(call!(libc::SYS_mmap, 0, bytes, writable, private, -1isize, 0)).ok()?;
            core::ptr::copy_nonoverlapping(
                core::ptr::with_exposed_provenance::<u8>(start as usize),
                core::ptr::with_exposed_provenance_mut::<u8>(copy),
                bytes as usize,
            );
            raw::check(call!(libc::SYS_mprotect, copy, bytes, protection)).ok()?;
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            raw::check(call!(libc::SYS_mremap, copy, bytes, bytes, flags, start)).ok()?;
        }
    }
    Some(())
}
