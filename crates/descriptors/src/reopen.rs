//! Opening what a descriptor stands for once more, and seeing whether it is open but once.
//!
//! A description of our own is closed again at once; one that takes the program's place has its
//! cursor.
#![allow(unsafe_code)] // System calls.

use core::ffi::c_int;

use holdfast_cache::Errno;

use crate::process;
use crate::raw::{self, call, check};

/// Whether no other description of the file exists: the kernel grants a write lease only then.
/// Called with signals blocked.
pub fn is_sole(fd: c_int) -> bool {
    const F_SETLEASE: c_int = 1024;
    const F_SETSIG: c_int = 10;
    const F_GETSIG: c_int = 11;
    const F_GETOWN: c_int = 9;
    if raw::is_leased(fd) {
        return false;
    }
    // Giving a lease back takes the description's owner, signal and `O_ASYNC` with it: the
    // program's own stay.
    let is_async = raw::fcntl(fd, libc::F_GETFL, 0) & libc::O_ASYNC as isize != 0;
    if is_async || raw::fcntl(fd, F_GETSIG, 0) != 0 || raw::fcntl(fd, F_GETOWN, 0) != 0 {
        return false;
    }
    // Somebody may open the file in the moment the lease stands. The signal for that would be
    // SIGIO, which ends a program that does not expect it; this one is ignored by default.
    if check(raw::fcntl(fd, F_SETSIG, libc::SIGURG as usize)).is_err() {
        return false;
    }
    let granted = check(raw::fcntl(fd, F_SETLEASE, libc::F_WRLCK as usize)).is_ok();
    if granted {
        raw::fcntl(fd, F_SETLEASE, libc::F_UNLCK as usize);
    }
    raw::fcntl(fd, F_SETSIG, 0);
    granted
}

/// The name of a descriptor of this process, as a path.
fn path_of(fd: c_int) -> [u8; 25] {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    let mut digits = 1;
    let mut rest = fd / 10;
    while rest > 0 {
        digits += 1;
        rest /= 10;
    }
    rest = fd;
    for place in path.iter_mut().skip(14).take(digits).rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path
}

/// Opens the file behind `fd` again with other flags, and puts it in its place. False when that
/// failed.
fn reopen(fd: c_int, change: impl FnOnce(c_int) -> c_int) -> bool {
    let (Ok(flags), Ok(close_on_exec)) =
        (check(raw::fcntl(fd, libc::F_GETFL, 0)), check(raw::fcntl(fd, libc::F_GETFD, 0)))
    else {
        return false;
    };
    let close_on_exec = if close_on_exec != 0 { libc::O_CLOEXEC } else { 0 };
    let cursor = raw::cursor(fd);
    put(&path_of(fd), change(flags as c_int), cursor.ok(), fd, close_on_exec).is_ok()
}

/// Opens the file behind `fd` again with the sync flags that were left out, and puts it in its
/// place: for a descriptor whose writes we shall not see. False when that failed.
pub fn restore_sync(fd: c_int, sync_flags: c_int) -> bool {
    reopen(fd, |flags| flags | sync_flags)
}

/// Has nobody write by `fd` any more.
pub fn close_to_writes(fd: c_int) {
    reopen(fd, |flags| flags & !libc::O_ACCMODE | libc::O_RDONLY);
}

/// Puts a new description of the file at `path` in the place of `fd`, with the given cursor.
fn put(path: &[u8], flags: c_int, cursor: Option<u64>, fd: c_int, close_on_exec: c_int) -> Result<(), Errno> {
    if path.last() != Some(&0) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the path ends with a zero; the rest touches no memory.
    unsafe {
        let open = || call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags | libc::O_CLOEXEC);
        let new = check(process::announced(open))?;
        call!(libc::SYS_lseek, new, cursor.unwrap_or(0), 0);
        let placed = check(call!(libc::SYS_dup3, new, fd, close_on_exec));
        call!(libc::SYS_close, new);
        placed.map(|_| ())
    }
}
