//! The limit of file sizes, as the cache has to know it.
#![allow(unsafe_code)] // System calls.

use holdfast_cache::Client;
use libc::rlimit64;

use crate::raw::call;
use crate::signals;

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
