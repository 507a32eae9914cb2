//! The limit of file sizes: a write that goes nowhere near the kernel must heed it, too.
#![allow(unsafe_code)] // C entry points.

use core::ffi::c_int;

use holdfast_cache::Client;
use libc::{pid_t, rlimit64};

use crate::raw::{call, give_int};
use crate::{process, signals};

type Limit = *const rlimit64;
type Room = *mut rlimit64;

/// Tells the cache what the kernel's limit is now.
pub fn learn(client: &Client) {
    let mut limit = rlimit64 { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` has room for the kernel's answer.
    let result =
        unsafe { call!(libc::SYS_prlimit64, 0, libc::RLIMIT_FSIZE, core::ptr::null::<u8>(), &raw mut limit) };
    if result == 0 {
        client.set_size_limit(limit.rlim_cur);
        signals::note_size_limit(limit.rlim_cur != libc::RLIM64_INFINITY);
    }
}

/// `prlimit`.
pub unsafe extern "C-unwind" fn prlimit(pid: pid_t, resource: c_int, new: Limit, old: Room) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    let result = unsafe { call!(libc::SYS_prlimit64, pid, resource, new, old) };
    if resource == libc::RLIMIT_FSIZE as c_int
        && !new.is_null()
        && let Some(client) = process::client()
    {
        learn(client);
    }
    give_int(result)
}

/// `setrlimit`.
pub unsafe extern "C-unwind" fn setrlimit(resource: c_int, new: Limit) -> c_int {
    // SAFETY: the program's own call.
    unsafe { prlimit(0, resource, new, core::ptr::null_mut()) }
}
