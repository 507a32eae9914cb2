//! Mapping a Go program as the kernel would, with its calls led to the hooks, and standing in its
//! name. Nothing of the program runs yet, and no other thread is there.
#![allow(unsafe_code)] // Maps memory at addresses of the program's and writes to it.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering};

use holdfast_enter::{JUMP_BYTES, Program, Refusal, Segment, judge, segments};

use super::thread;
use crate::raw::{self, call};

const PAGE: u64 = 4096;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;
const PR_SET_MM: c_int = 35;
const PR_SET_MM_EXE_FILE: c_int = 13;
const NAME_BYTES: usize = 16;
const PATH_BYTES: usize = 4096;

/// Whether the kernel names the program as ours.
static IS_NAMED: AtomicBool = AtomicBool::new(false);

struct Path(core::cell::UnsafeCell<[u8; PATH_BYTES]>);
// SAFETY: written by the constructor alone, before there are threads.
unsafe impl Sync for Path {}
static FULL_PATH: Path = Path(core::cell::UnsafeCell::new([0; PATH_BYTES]));

/// Where the program lies, if the kernel does not tell.
pub fn unnamed_path() -> Option<&'static CStr> {
    if IS_NAMED.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: written before there were threads.
    CStr::from_bytes_until_nul(unsafe { &*FULL_PATH.0.get() }).ok().filter(|path| !path.is_empty())
}

/// A file that is mapped as a whole for as long as it is looked at.
struct Whole {
    address: usize,
    bytes: usize,
    fd: c_int,
}

impl Whole {
    fn open(path: &CStr) -> Option<Self> {
        // SAFETY: the path is a string; what is mapped lies where nothing was.
        unsafe {
            let opened = call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            let fd = raw::check(opened).ok()? as c_int;
            let mut stat: libc::stat = core::mem::zeroed();
            let known = raw::check(call!(libc::SYS_fstat, fd, &raw mut stat)).is_ok();
            let bytes = if known { stat.st_size as usize } else { 0 };
            let mapped = raw::check(call!(libc::SYS_mmap, 0, bytes, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0));
            match mapped {
                Ok(address) => Some(Self { address, bytes, fd }),
                Err(_) => {
                    raw::close(fd);
                    None
                }
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped readable until this is dropped. Who cuts the file meanwhile ends us, as
        // would be with any program.
        unsafe { core::slice::from_raw_parts(core::ptr::with_exposed_provenance(self.address), self.bytes) }
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: mapped in `open`, and not looked at any more.
        unsafe { call!(libc::SYS_munmap, self.address, self.bytes) };
        raw::close(self.fd);
    }
}

/// Maps the program at `path`.
///
/// # Errors
/// Why it cannot be entered. It can still be executed.
pub fn map(path: &CStr) -> Result<Program, Refusal> {
    let file = Whole::open(path).ok_or(Refusal::Forbidden)?;
    let program = judge(file.bytes())?;
    for segment in segments(file.bytes()) {
        map_segment(&segment, file.fd).ok_or(Refusal::Forbidden)?;
    }
    lead(program.call, thread::CALL_WAY).ok_or(Refusal::Forbidden)?;
    if let Some(vfork) = program.vfork {
        // The byte after the jump's place holds how far the program goes when the call succeeds.
        let next = vfork + JUMP_BYTES as u64;
        // SAFETY: mapped above: text of the program.
        let distance = unsafe { *core::ptr::with_exposed_provenance::<i8>(next as usize - 1) };
        thread::set_vfork_ways(next as usize, next.wrapping_add_signed(distance.into()) as usize);
        lead(vfork, thread::VFORK_WAY).ok_or(Refusal::Forbidden)?;
    }
    take_name(&file, path);
    Ok(program)
}

fn map_segment(segment: &Segment, fd: c_int) -> Option<()> {
    let inside = segment.address % PAGE;
    let start = segment.address - inside;
    let file_bytes = inside.checked_add(segment.file_bytes)?;
    let file_end = start.checked_add(file_bytes)?;
    let end = segment.address.checked_add(segment.memory_bytes)?.next_multiple_of(PAGE);
    let mapped_end = file_end.next_multiple_of(PAGE);
    let protection = [(PF_R, libc::PROT_READ), (PF_W, libc::PROT_WRITE), (PF_X, libc::PROT_EXEC)]
        .iter()
        .filter(|(flag, _)| segment.flags & flag != 0)
        .fold(0, |all, (_, bit)| all | bit);
    let fixed = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
    let offset = segment.offset.checked_sub(inside)?;
    // SAFETY: the kernel refuses addresses at which something is; the bytes that are zeroed have
    // just been mapped, writable.
    unsafe {
        if segment.file_bytes > 0 {
            let mapped = raw::check(call!(libc::SYS_mmap, start, file_bytes, protection, fixed, fd, offset));
            if mapped.ok()? as u64 != start {
                return None;
            }
            if segment.memory_bytes > segment.file_bytes && segment.flags & PF_W != 0 {
                let rest = core::ptr::with_exposed_provenance_mut::<u8>(file_end as usize);
                core::ptr::write_bytes(rest, 0, (mapped_end - file_end) as usize);
            }
        }
        if end > mapped_end {
            let fixed = fixed | libc::MAP_ANONYMOUS;
            let mapped = call!(libc::SYS_mmap, mapped_end, end - mapped_end, protection, fixed, -1isize, 0);
            if raw::check(mapped).ok()? as u64 != mapped_end {
                return None;
            }
        }
    }
    Some(())
}

/// Replaces the instructions at `place` by a jump.
fn lead(place: u64, to: unsafe extern "C" fn()) -> Option<()> {
    let page = place - place % PAGE;
    let bytes = place + JUMP_BYTES as u64 - page;
    let mut jump = [0u8; JUMP_BYTES];
    // To the address that follows.
    jump[..6].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
    jump[6..].copy_from_slice(&(to as *const () as u64).to_le_bytes());
    // SAFETY: the program's text, which nobody runs yet.
    unsafe {
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        raw::check(call!(libc::SYS_mprotect, page, bytes, writable)).ok()?;
        let at = core::ptr::with_exposed_provenance_mut::<u8>(place as usize);
        core::ptr::copy_nonoverlapping(jump.as_ptr(), at, JUMP_BYTES);
        raw::check(call!(libc::SYS_mprotect, page, bytes, libc::PROT_READ | libc::PROT_EXEC)).ok()?;
    }
    Some(())
}

/// Has the kernel tell others of the program and not of `holdfast-enter`, as far as it lets us.
fn take_name(file: &Whole, path: &CStr) {
    let mut name = [0u8; NAME_BYTES];
    let short = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let bytes = short.len().min(NAME_BYTES - 1);
    name[..bytes].copy_from_slice(&short[..bytes]);
    // SAFETY: the name ends with a zero.
    unsafe { call!(libc::SYS_prctl, libc::PR_SET_NAME, name.as_ptr()) };
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let digits = file.fd.unsigned_abs().checked_ilog10().unwrap_or(0);
    for at in 0..=digits {
        link[14 + (digits - at) as usize] = b'0' + (file.fd as u32 / 10u32.pow(at) % 10) as u8;
    }
    // SAFETY: a string, and room for as many bytes as said; there are no threads.
    unsafe {
        let room = FULL_PATH.0.get().cast::<u8>();
        call!(libc::SYS_readlink, link.as_ptr(), room, PATH_BYTES - 1);
    }
    if let Some(()) = unname_agent() {
        // SAFETY: touches no memory.
        let named = unsafe { call!(libc::SYS_prctl, PR_SET_MM, PR_SET_MM_EXE_FILE, file.fd, 0, 0) };
        IS_NAMED.store(named == 0, Ordering::Relaxed);
    }
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
