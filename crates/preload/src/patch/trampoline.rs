//! Overwriting the first bytes of a function with a jump to a hook.
//!
//! Hooks never return into the function they replace, so nothing of it has to be kept.
#![allow(unsafe_code)] // Writes code.

use crate::raw::{self, call};

const PAGE_BYTES: usize = 4096;
/// `jmp rel32`
const NEAR_BYTES: usize = 5;
/// `jmp [rip+0]` and the address
const FAR_BYTES: usize = 14;

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

/// Text of libc, made writable.
pub struct Text {
    first_page: usize,
    end: usize,
}

impl Text {
    /// Makes the pages from `first` to `last` (addresses of functions) writable. `None` when the system refuses.
    ///
    /// # Safety
    /// The range is code of one object, mapped readable and executable.
    pub unsafe fn open(first: usize, last: usize) -> Option<Self> {
        let text = Self {
            first_page: first & !(PAGE_BYTES - 1),
            end: (last + FAR_BYTES).next_multiple_of(PAGE_BYTES),
        };
        // One step, which stays executable: a system that forbids this must not leave libc half closed.
        text.protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC).then_some(text)
    }

    fn protect(&self, protection: i32) -> bool {
        // SAFETY: changes only the protection of libc's own text, which stays readable and executable.
        let result =
            unsafe { call!(libc::SYS_mprotect, self.first_page, self.end - self.first_page, protection) };
        raw::check(result).is_ok()
    }

    /// Whether `address` lies inside and has room for a jump to `hook`.
    pub fn fits(&self, address: usize, hook: usize, room: usize) -> bool {
        address >= self.first_page && address + room <= self.end && jump(address, hook, room).is_some()
    }

    /// Replaces the function at `address` of `room` bytes by a jump to `hook`.
    ///
    /// # Safety
    /// The function is not running, and `hook` takes its arguments and returns its result.
    pub unsafe fn replace(&self, address: usize, hook: usize, room: usize) {
        if let Some((code, bytes)) = jump(address, hook, room) {
            // SAFETY: `bytes` bytes of writable text that belong to this function alone.
            unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), address as *mut u8, bytes) };
        }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        // If this fails the text stays writable, as it worked a moment ago; nothing depends on it.
        self.protect(libc::PROT_READ | libc::PROT_EXEC);
    }
}
