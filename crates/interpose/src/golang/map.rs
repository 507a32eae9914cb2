//! Mapping a Go program as the kernel would, with its calls led to the hooks. Nothing of the
//! program runs yet, and no other thread is there.
#![allow(unsafe_code)] // Maps memory at addresses of the program's and writes to it.

use core::ffi::{CStr, c_int};

use holdfast_enter::{JUMP_BYTES, Program, Refusal, Segment, judge, segments};

use super::ways::{self, Way};
use super::{name, thread};
use crate::raw::{self, call};

const PAGE: u64 = 4096;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

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
            let opened =
                call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            let fd = raw::check(opened).ok()? as c_int;
            let mut stat: libc::stat = core::mem::zeroed();
            let known = raw::check(call!(libc::SYS_fstat, fd, &raw mut stat)).is_ok();
            let bytes = if known { stat.st_size as usize } else { 0 };
            let mapped =
                raw::check(call!(libc::SYS_mmap, 0, bytes, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0));
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
    lead(program.call, ways::CALL).ok_or(Refusal::Forbidden)?;
    if let Some(vfork) = program.vfork {
        // The byte after the jump's place holds how far the program goes when the call succeeds.
        let next = vfork + JUMP_BYTES as u64;
        // SAFETY: mapped above: text of the program.
        let distance = unsafe { *core::ptr::with_exposed_provenance::<i8>(next as usize - 1) };
        thread::set_vfork_ways(next as usize, next.wrapping_add_signed(distance.into()) as usize);
        lead(vfork, ways::VFORK).ok_or(Refusal::Forbidden)?;
    }
    name::take(file.fd, path);
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
fn lead(place: u64, to: Way) -> Option<()> {
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
