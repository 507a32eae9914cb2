//! The limit of file sizes: a write that goes nowhere near the kernel must heed it, too.
#![allow(unsafe_code)] // C entry points.

use core::ffi::c_int;

use libc::{pid_t, rlimit64};

use crate::raw::{call, give_int};
use crate::{process, size_limit};

type Limit = *const rlimit64;
type Room = *mut rlimit64;

/// `prlimit`.
pub unsafe extern "C-unwind" fn prlimit(pid: pid_t, resource: c_int, new: Limit, old: Room) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    let result = unsafe { call!(libc::SYS_prlimit64, pid, resource, new, old) };
    if resource == libc::RLIMIT_FSIZE as c_int
        && !new.is_null()
        && let Some(client) = process::client()
    {
        size_limit::learn(client);
    }
    give_int(result)
}

/// `setrlimit`.
pub unsafe extern "C-unwind" fn setrlimit(resource: c_int, new: Limit) -> c_int {
    // SAFETY: the program's own call.
    unsafe { prlimit(0, resource, new, core::ptr::null_mut()) }
}
