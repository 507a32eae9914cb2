//! Which of Go's calls go to the hooks, and how they are answered.
#![allow(unsafe_code)] // The program's own calls.

use core::ffi::{CStr, c_int, c_long};
use core::sync::atomic::{AtomicBool, Ordering};

use holdfast_enter::GO_CALLS;

use super::hooks::hooks;
use super::name;
use super::thread::Area;
use crate::{raw, tls};

/// Calls with higher numbers go to the kernel.
pub const NUMBERS: usize = 512;

/// An answer to Go.
#[repr(C)]
pub struct Answer {
    /// What the kernel would say.
    result: isize,
    /// Not 0: the call is still to be made, by Go's own thread on its own stack.
    direct: usize,
}

/// For each number, whether a hook may have something to do with it. The way there looks at it.
pub static HOOKED: [AtomicBool; NUMBERS] = {
    let mut table = [const { AtomicBool::new(false) }; NUMBERS];
    let mut at = 0;
    while at < GO_CALLS.len() {
        table[GO_CALLS[at] as usize] = AtomicBool::new(true);
        at += 1;
    }
    table
};

/// The library leaves the process: calls go to the kernel at once, as it may allow no other. Those
/// that start programs come here still, and lose what the library put into their environment.
pub fn release() {
    for (number, is_hooked) in HOOKED.iter().enumerate() {
        if !matches!(number as c_long, libc::SYS_execve | libc::SYS_execveat) {
            is_hooked.store(false, Ordering::Relaxed);
        }
    }
}

/// Makes the call of an area's thread.
pub unsafe extern "C" fn enter(area: &Area) -> Answer {
    let (number, mut arguments) = area.call();
    let direct = Answer { result: 0, direct: 1 };
    let Some(hooks) = hooks() else { return direct };
    match number {
        libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => {
            // Its child begins on the caller's stack, or on one of its own.
            (hooks.forks)(number == libc::SYS_clone && arguments[0] as c_int & libc::CLONE_FILES != 0);
            return direct;
        }
        libc::SYS_readlink | libc::SYS_readlinkat => {
            let at = usize::from(number == libc::SYS_readlinkat);
            let Some(path) = own_link(arguments[at]) else { return direct };
            let bytes = path.to_bytes();
            let count = bytes.len().min(arguments[at + 2]);
            // SAFETY: the program's room for the answer.
            unsafe {
                let room = core::ptr::with_exposed_provenance_mut(arguments[at + 1]);
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), room, count);
            }
            return Answer { result: count as isize, direct: 0 };
        }
        libc::SYS_execve => {
            if let Some(path) = own_link(arguments[0]) {
                arguments[0] = path.as_ptr().addr();
            }
        }
        _ => {}
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the program's own call.
    let result = unsafe { (hooks.syscall)(number, a, b, c, d, e, f) };
    Answer { result: if result == -1 { -(raw::errno() as isize) } else { result as isize }, direct: 0 }
}

/// Makes the call of an area's thread, which has libc's storage: Go's calls change no `errno`, and
/// no cancel acts in them.
pub unsafe extern "C" fn enter_for_libc(area: &Area) -> Answer {
    let errno = raw::errno();
    tls::with(|thread| thread.of_go.set(1));
    // SAFETY: the program's own call.
    let answer = unsafe { enter(area) };
    tls::with(|thread| thread.of_go.set(0));
    raw::set_errno(errno);
    answer
}

/// The link that should say where the program lies, with the zero at its end.
const OWN_LINK: &[u8] = b"/proc/self/exe\0";

/// Where the program lies, if `path` is the link that should say so and does not.
pub fn own_link(path: usize) -> Option<&'static CStr> {
    let full = name::untold()?;
    let path: *const u8 = core::ptr::with_exposed_provenance(path);
    if path.is_null() || !crate::memory::is_range_readable(path.addr(), OWN_LINK.len()) {
        return None;
    }
    // SAFETY: the kernel could read so many bytes there; the program leaves its argument alone.
    let is_own = unsafe { core::slice::from_raw_parts(path, OWN_LINK.len()) } == OWN_LINK;
    is_own.then_some(full)
}
