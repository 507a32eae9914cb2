//! Looking at files: size and time of a file of which the kernel does not know the newest come from the board.
#![allow(unsafe_code)] // C entry points and the program's structures.

use core::ffi::{c_char, c_int, c_uint};

use holdfast_canary::{Canary, on};

use crate::behind::{self, Known};
use crate::patch;
use crate::raw::{call, give_int};

type Name = *const c_char;

const HERE: c_int = libc::AT_FDCWD;
const SECOND_NS: u64 = 1_000_000_000;

/// Asks the kernel, and puts right what it does not know. `written_ns` is later than the kernel's time or of no account.
unsafe fn ask(kernel: impl Fn() -> isize, stat: *mut libc::stat) -> c_int {
    let might = behind::may_hide();
    let result = kernel();
    if result != 0 {
        return give_int(result);
    }
    // SAFETY: the kernel has just filled it.
    let stat = unsafe { &mut *stat };
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return 0;
    }
    match behind::look(might, stat.st_dev, stat.st_ino) {
        Known::Nothing => 0,
        Known::More(..) if on(Canary::SizeUntold) => 0,
        Known::Less => give_int(kernel()),
        Known::More(size, written_ns) => {
            stat.st_size = size as i64;
            let (seconds, ns) = ((written_ns / SECOND_NS) as i64, (written_ns % SECOND_NS) as i64);
            if (seconds, ns) > (stat.st_mtime, stat.st_mtime_nsec) {
                (stat.st_mtime, stat.st_mtime_nsec) = (seconds, ns);
            }
            if (seconds, ns) > (stat.st_ctime, stat.st_ctime_nsec) {
                (stat.st_ctime, stat.st_ctime_nsec) = (seconds, ns);
            }
            0
        }
    }
}

/// `fstat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fstat(fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe { ask(move || call!(libc::SYS_fstat, fd, stat), stat) }
}

/// `fstatat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fstatat(
    dirfd: c_int,
    path: Name,
    stat: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe { ask(move || call!(libc::SYS_newfstatat, dirfd, path, stat, flags), stat) }
}

/// `stat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn stat(path: Name, stat: *mut libc::stat) -> c_int {
    // SAFETY: the program's own call.
    unsafe { fstatat(HERE, path, stat, 0) }
}

/// `lstat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn lstat(path: Name, stat: *mut libc::stat) -> c_int {
    // SAFETY: the program's own call.
    unsafe { fstatat(HERE, path, stat, libc::AT_SYMLINK_NOFOLLOW) }
}

/// Whether an old program means the structure that we know.
fn is_known(version: c_int) -> bool {
    // musl has one structure, and does not look at the number.
    matches!(version, 0 | 1) || patch::is_musl()
}

/// `__fxstat`: `fstat` of programs built against older libcs.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __fxstat(version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int {
    if !is_known(version) {
        return give_int(-(libc::EINVAL as isize));
    }
    // SAFETY: the program's own call.
    unsafe { fstat(fd, stat) }
}

/// `__fxstatat`, as `__fxstat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __fxstatat(
    version: c_int,
    dirfd: c_int,
    path: Name,
    stat: *mut libc::stat,
    flags: c_int,
) -> c_int {
    if !is_known(version) {
        return give_int(-(libc::EINVAL as isize));
    }
    // SAFETY: the program's own call.
    unsafe { fstatat(dirfd, path, stat, flags) }
}

/// `__xstat`, as `__fxstat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __xstat(version: c_int, path: Name, stat: *mut libc::stat) -> c_int {
    // SAFETY: the program's own call.
    unsafe { __fxstatat(version, HERE, path, stat, 0) }
}

/// `__lxstat`, as `__fxstat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __lxstat(version: c_int, path: Name, stat: *mut libc::stat) -> c_int {
    // SAFETY: the program's own call.
    unsafe { __fxstatat(version, HERE, path, stat, libc::AT_SYMLINK_NOFOLLOW) }
}

/// `statx`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn statx(
    dirfd: c_int,
    path: Name,
    flags: c_int,
    mask: c_uint,
    out: *mut libc::statx,
) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    let kernel = move || unsafe { call!(libc::SYS_statx, dirfd, path, flags, mask, out) };
    let might = behind::may_hide();
    let result = kernel();
    if result != 0 {
        return give_int(result);
    }
    // SAFETY: the kernel has just filled it.
    let stat = unsafe { &mut *out };
    let dev = libc::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    if u32::from(stat.stx_mode) & libc::S_IFMT != libc::S_IFREG {
        return 0;
    }
    match behind::look(might, dev, stat.stx_ino) {
        Known::Nothing => 0,
        Known::Less => give_int(kernel()),
        Known::More(size, written_ns) => {
            stat.stx_size = size;
            let later = ((written_ns / SECOND_NS) as i64, (written_ns % SECOND_NS) as u32);
            for time in [&mut stat.stx_mtime, &mut stat.stx_ctime] {
                if later > (time.tv_sec, time.tv_nsec) {
                    (time.tv_sec, time.tv_nsec) = later;
                }
            }
            0
        }
    }
}
