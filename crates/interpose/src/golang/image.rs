//! The file of a program, and its segments, mapped as the kernel would. Nothing of the program runs
//! yet, and no other thread is there.
#![allow(unsafe_code)] // Maps memory at addresses of the program's.

use core::ffi::{CStr, c_int};

use holdfast_enter::Segment;

use crate::raw::{self, call};

const PAGE: u64 = 4096;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PF_R: u32 = 4;

/// A file that is mapped as a whole for as long as it is looked at.
pub struct Whole {
    address: usize,
    bytes: usize,
    /// Open for as long.
    pub fd: c_int,
}

impl Whole {
    /// Maps it.
    pub fn open(path: &CStr) -> Option<Self> {
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

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
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

/// Maps a segment of the open file, all of it `base` higher than the file says.
pub fn map_segment(segment: &Segment, base: u64, fd: c_int) -> Option<()> {
    let address = segment.address.checked_add(base)?;
    let inside = address % PAGE;
    let start = address - inside;
    let file_bytes = inside.checked_add(segment.file_bytes)?;
    let file_end = start.checked_add(file_bytes)?;
    let end = address.checked_add(segment.memory_bytes)?.next_multiple_of(PAGE);
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
