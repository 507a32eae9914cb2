//! Overwriting the first bytes of a function with a jump to a hook.
//!
//! Hooks never return into the function they replace, so nothing of it has to be kept.
#![allow(unsafe_code)] // Writes code.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::raw::{self, call};

const PAGE_BYTES: usize = 4096;
/// `jmp rel32`
const NEAR_BYTES: usize = 5;
/// `jmp [rip+0]` and the address
const FAR_BYTES: usize = 14;
/// What is kept of a function, so that it can be restored.
pub const SAVED_BYTES: usize = 16;

/// The jump to `hook` at `address`, if it fits into `room` bytes.
fn jump(address: usize, hook: usize, room: usize) -> Option<([u8; FAR_BYTES], usize)> {
    let mut code = [0u8; FAR_BYTES];
    let distance = (hook as i64).wrapping_sub(address as i64 + NEAR_BYTES as i64);
    if let Ok(distance) = i32::try_from(distance)
        && room >= NEAR_BYTES
    {
        code[0] = 0xe9;
        code[1..5].copy_from_slice(&distance.to_le_bytes());
        return Some((code, NEAR_BYTES));
    }
    if room >= FAR_BYTES {
        code[..6].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
        code[6..].copy_from_slice(&(hook as u64).to_le_bytes());
        return Some((code, FAR_BYTES));
    }
    None
}

/// Whether a function of `room` bytes at `address` can be replaced by a jump to `hook`.
pub fn has_room(address: usize, hook: usize, room: usize) -> bool {
    jump(address, hook, room).is_some()
}

/// Text of libc, about to be changed.
pub struct Text {
    first_page: usize,
    end: usize,
    /// Where the bytes are changed: in place, or in a copy that takes the text's place at the end.
    work: Work,
}

enum Work {
    InPlace,
    /// A file in memory, mapped here.
    Copy {
        fd: c_int,
        address: usize,
    },
}

impl Text {
    /// Opens the pages from `first` to `last` (addresses of functions) for changes. `None` when the
    /// system refuses.
    ///
    /// # Safety
    /// The range is code of one object, mapped readable and executable.
    pub unsafe fn open(first: usize, last: usize) -> Option<Self> {
        let mut text = Self {
            first_page: first & !(PAGE_BYTES - 1),
            end: (last + FAR_BYTES).next_multiple_of(PAGE_BYTES),
            work: Work::InPlace,
        };
        // One step, which stays executable: a system that forbids this must not leave libc half
        // closed.
        if !text.protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
            // Where no memory may be written and executed (systemd's MemoryDenyWriteExecute), a
            // file may still be written first and mapped to be executed then.
            text.work = text.copy()?;
        }
        Some(text)
    }

    fn bytes(&self) -> usize {
        self.end - self.first_page
    }

    fn copy(&self) -> Option<Work> {
        const MFD_EXEC: usize = 0x10;
        let make = |flags: usize| {
            // SAFETY: the name is a C string.
            raw::check(unsafe { call!(libc::SYS_memfd_create, c"holdfast".as_ptr(), flags) })
        };
        let cloexec = libc::MFD_CLOEXEC as usize;
        // Linux before 6.3 does not know the flag, later ones warn without it.
        let fd = make(cloexec | MFD_EXEC).or_else(|_| make(cloexec)).ok()? as c_int;
        // SAFETY: touches no memory.
        let sized = raw::check(unsafe { call!(libc::SYS_ftruncate, fd, self.bytes()) });
        let mapped = sized.and_then(|_| {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice touches no existing
            // memory.
            raw::check(unsafe { call!(libc::SYS_mmap, 0, self.bytes(), protection, libc::MAP_SHARED, fd, 0) })
        });
        let Ok(address) = mapped else {
            raw::close(fd);
            return None;
        };
        // SAFETY: libc's text is readable, the copy was just mapped with as many bytes.
        unsafe {
            core::ptr::copy_nonoverlapping(self.first_page as *const u8, address as *mut u8, self.bytes());
        }
        Some(Work::Copy { fd, address })
    }

    fn protect(&self, protection: i32) -> bool {
        // SAFETY: changes only the protection of libc's own text, which stays readable and
        // executable.
        let result = unsafe { call!(libc::SYS_mprotect, self.first_page, self.bytes(), protection) };
        raw::check(result).is_ok()
    }

    /// Whether `address` lies inside and has room for a jump to `hook`.
    pub fn fits(&self, address: usize, hook: usize, room: usize) -> bool {
        // The rest of a function may lie behind the last page that was opened.
        let needed = room.min(FAR_BYTES);
        address >= self.first_page && address + needed <= self.end && jump(address, hook, room).is_some()
    }

    /// Replaces the function at `address` of `room` bytes by a jump to `hook`, as from
    /// [`Text::finish`] on.
    ///
    /// # Safety
    /// The function is not running, and `hook` takes its arguments and returns its result.
    pub unsafe fn replace(&self, address: usize, hook: usize, room: usize) {
        let place = match self.work {
            Work::InPlace => address,
            Work::Copy { address: copy, .. } => copy + (address - self.first_page),
        };
        if let Some((code, bytes)) = jump(address, hook, room) {
            // SAFETY: `bytes` bytes of writable text, or of its copy, that belong to this function
            // alone.
            unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), place as *mut u8, bytes) };
        }
    }

    /// Puts back what stood at `address`, as from [`Text::finish`] on at the latest. Threads may
    /// come there meanwhile: a jump that lies within one word ends in one store.
    ///
    /// # Safety
    /// These are the bytes that [`Text::replace`] wrote over.
    pub unsafe fn restore(&self, address: usize, bytes: [u64; SAVED_BYTES / 8]) {
        let (place, is_in_use) = match self.work {
            Work::InPlace => (address, true),
            Work::Copy { address: copy, .. } => (copy + (address - self.first_page), false),
        };
        let place = core::ptr::with_exposed_provenance_mut::<u8>(place);
        // SAFETY: writable text, or its copy, with a jump at its start.
        unsafe {
            let jump = if *place == 0xe9 { NEAR_BYTES } else { FAR_BYTES };
            let mut whole = [0u8; SAVED_BYTES];
            core::ptr::copy_nonoverlapping(place, whole.as_mut_ptr(), SAVED_BYTES);
            for (word, part) in bytes.iter().zip(whole.chunks_exact_mut(8)) {
                part.copy_from_slice(&word.to_le_bytes());
            }
            if is_in_use && jump <= 8 && place.addr().is_multiple_of(8) {
                AtomicU64::from_ptr(place.cast()).store(bytes[0], Ordering::SeqCst);
            } else {
                core::ptr::copy_nonoverlapping(whole.as_ptr(), place, jump);
            }
        }
    }

    /// Lets the changes take effect, all at once where a copy holds them. False, with nothing
    /// changed, when the system refuses.
    pub fn finish(self) -> bool {
        let Work::Copy { fd, .. } = self.work else { return true };
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        // SAFETY: what is mapped over the text are the same bytes, but for the functions replaced.
        let result =
            unsafe { call!(libc::SYS_mmap, self.first_page, self.bytes(), protection, flags, fd, 0) };
        raw::check(result).is_ok()
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        match self.work {
            // If this fails the text stays writable, as it worked a moment ago; nothing depends on
            // it.
            Work::InPlace => {
                self.protect(libc::PROT_READ | libc::PROT_EXEC);
            }
            Work::Copy { fd, address } => {
                // SAFETY: our own mapping, which nobody uses any more.
                unsafe { call!(libc::SYS_munmap, address, self.bytes()) };
                raw::close(fd);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// glibc 2.35 of Ubuntu has such a one, and nothing was replaced there.
    #[test]
    fn the_last_function_may_go_on_behind_the_pages_that_are_opened() {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { call!(libc::SYS_mmap, 0, 2 * PAGE_BYTES, protection, flags, -1_i64, 0) };
        let code = raw::check(mapped).expect("memory");
        let last = code + PAGE_BYTES - FAR_BYTES;
        // SAFETY: nobody runs these bytes.
        let text = unsafe { Text::open(code, last) }.expect("opened");
        assert_eq!(text.bytes(), PAGE_BYTES);
        assert!(text.fits(last, code, 100));
        assert!(!text.fits(last + 1, code, FAR_BYTES), "not even the jump is within");
        drop(text);
        // SAFETY: the mapping of above, which nobody uses any more.
        unsafe { call!(libc::SYS_munmap, code, 2 * PAGE_BYTES) };
    }
}
