//! The program's record locks (`fcntl`, `lockf`), which end as soon as its process closes any
//! description of their file, one of ours too. Where a file has a lock we open it no second time.
//! Nothing here takes a lock, or waits for one.
#![allow(unsafe_code)] // System calls.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use crate::own_process;
use crate::raw::{self, call, check};

/// Pauses of a thread that wants a lock, until the others have read. Not without end: a child that
/// ran in our memory may have been killed meanwhile.
const PAUSES_MAX: u32 = 2000;
const PAUSE_NS: libc::c_long = 500_000;

/// Makes a call that may take a record lock.
pub fn taking<R>(command: c_int, call: impl FnOnce() -> R) -> R {
    let words = match command {
        libc::F_SETLK | libc::F_SETLKW => own_process::own_words(),
        _ => None,
    };
    let Some(words) = words else { return call() };
    words.locking.fetch_add(1, Ordering::SeqCst);
    for _ in 0..PAUSES_MAX {
        if words.reading.load(Ordering::SeqCst) == 0 {
            break;
        }
        // Not counted while we wait: those who begin to read meanwhile would give up for us.
        words.locking.fetch_sub(1, Ordering::SeqCst);
        raw::sleep(PAUSE_NS);
        words.locking.fetch_add(1, Ordering::SeqCst);
    }
    let result = call();
    words.locking.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Does what opens and closes the file behind `fd` again. `None` where that would end a lock: the
/// file has one, or a thread is about to take one.
pub fn reopening<R>(fd: c_int, work: impl FnOnce() -> R) -> Option<R> {
    let words = own_process::own_words()?;
    words.reading.fetch_add(1, Ordering::SeqCst);
    let is_free = words.locking.load(Ordering::SeqCst) == 0 && !is_locked(fd);
    let result = is_free.then(work);
    words.reading.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Whether anybody has a record lock on the file. The kernel tells a process nothing of its own
/// locks, but it does tell a description, which would be another owner.
fn is_locked(fd: c_int) -> bool {
    // SAFETY: zeros are a whole file's lock, of nobody.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    // SAFETY: the kernel reads and fills the structure.
    let asked = check(unsafe { call!(libc::SYS_fcntl, fd, libc::F_OFD_GETLK, &raw mut lock) });
    asked.is_err() || lock.l_type != libc::F_UNLCK as libc::c_short
}
