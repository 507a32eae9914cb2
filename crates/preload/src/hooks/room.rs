//! Calls that found no space on the disk: before the program hears of it, the keeper lets go of the
//! removed files that it alone still holds, and the call is made once more.
//!
//! Only for calls that did nothing when they fail so. Never for a sync: the kernel tells once that
//! it could not write what it had, and a second sync would say that it could.

use core::cell::Cell;
use core::ffi::c_int;

use crate::{critical, process};

/// What a program removes may have so many bytes before it waits until they are free, as natively:
/// below, that takes a moment longer, and who needs them has them then.
const SMALL_BYTES: u64 = 256 << 10;

/// Makes a call that returns an errno below zero, and once more if there may be space by now.
#[inline]
pub fn with_room(mut call: impl FnMut() -> isize) -> isize {
    let result = call();
    if is_no_space(result) && make_room(false) { call() } else { result }
}

/// As [`with_room`], for a call that may end with a sync: it says so when that failed.
#[inline]
pub fn with_room_but_for_syncs(mut call: impl FnMut(&Cell<bool>) -> isize) -> isize {
    let sync_failed = Cell::new(false);
    let result = call(&sync_failed);
    let is_short = is_no_space(result) && !sync_failed.get();
    if is_short && make_room(false) { call(&sync_failed) } else { result }
}

fn is_no_space(result: isize) -> bool {
    [libc::ENOSPC, libc::EDQUOT].map(|errno: c_int| -(errno as isize)).contains(&result)
}

/// A file of that size was removed for good, and the slot holds it.
#[inline]
pub fn note_removed(bytes: u64) {
    if bytes >= SMALL_BYTES {
        make_room(true);
    }
}

#[cold]
fn make_room(is_own: bool) -> bool {
    process::client().is_some_and(|client| critical::section(|| client.make_room(is_own)))
}
