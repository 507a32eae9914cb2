//! Looking at files: size, blocks and times of a file of which the kernel does not know the newest
//! come from the board.
#![allow(unsafe_code)] // C entry points and the program's structures.

use core::ffi::{c_char, c_int, c_uint};

use holdfast_board::{FileTime, Times};
use holdfast_canary::{Canary, on};

use holdfast_cache::behind::Look;

use crate::behind::{self, Known};
use crate::patch;
use crate::raw::{self, call, give_int};

type Name = *const c_char;

const HERE: c_int = libc::AT_FDCWD;
/// How often the kernel is asked about a file that the keeper goes on changing.
const LOOKS_MAX: u32 = 8;

/// Asks the kernel, and puts right what it does not know. `about` tells what it said of a regular
/// file, `correct` corrects it.
#[inline]
fn ask(
    kernel: impl Fn() -> isize,
    about: impl Fn() -> Option<(u64, u64, Times)>,
    correct: impl FnOnce(Option<u64>, Times, &Look),
) -> c_int {
    let mut before = None;
    for round in 1.. {
        let result = kernel();
        if result != 0 {
            return give_int(result);
        }
        let Some((dev, ino, times)) = about() else { return 0 };
        match behind::look(dev, ino, times, before.as_ref()) {
            Known::Perhaps(look) if round < LOOKS_MAX => before = Some(look),
            Known::Perhaps(look) | Known::More(look) => {
                let better = if on(Canary::TimesUntold) { times } else { look.times(times) };
                correct(look.size().filter(|_| !on(Canary::SizeUntold)), better, &look);
                return 0;
            }
            Known::Nothing => return 0,
        }
    }
    0
}

unsafe fn ask_stat(kernel: impl Fn() -> isize, stat: *mut libc::stat) -> c_int {
    let about = || {
        // SAFETY: the kernel has just filled it.
        let stat = unsafe { &*stat };
        let regular = stat.st_mode & libc::S_IFMT == libc::S_IFREG;
        regular.then(|| (stat.st_dev, stat.st_ino, raw::times(stat)))
    };
    ask(kernel, about, |size, times, look| {
        // SAFETY: as above.
        let stat = unsafe { &mut *stat };
        if let Some(size) = size {
            stat.st_size = size as i64;
            stat.st_blocks = look.blocks(stat.st_blocks as u64) as i64;
        }
        if let Some(parts) = times.modified.parts() {
            (stat.st_mtime, stat.st_mtime_nsec) = parts;
        }
        if let Some(parts) = times.changed.parts() {
            (stat.st_ctime, stat.st_ctime_nsec) = parts;
        }
    })
}

/// `fstat`.
pub unsafe extern "C-unwind" fn fstat(fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe { ask_stat(move || call!(libc::SYS_fstat, fd, stat), stat) }
}

/// `fstatat`.
pub unsafe extern "C-unwind" fn fstatat(
    dirfd: c_int,
    path: Name,
    stat: *mut libc::stat,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe { ask_stat(move || call!(libc::SYS_newfstatat, dirfd, path, stat, flags), stat) }
}

/// `stat`.
pub unsafe extern "C-unwind" fn stat(path: Name, stat: *mut libc::stat) -> c_int {
    // SAFETY: the program's own call.
    unsafe { fstatat(HERE, path, stat, 0) }
}

/// `lstat`.
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
pub unsafe extern "C-unwind" fn __fxstat(version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int {
    if !is_known(version) {
        return give_int(-(libc::EINVAL as isize));
    }
    // SAFETY: the program's own call.
    unsafe { fstat(fd, stat) }
}

/// `__fxstatat`, as `__fxstat`.
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
pub unsafe extern "C-unwind" fn __xstat(version: c_int, path: Name, stat: *mut libc::stat) -> c_int {
    // SAFETY: the program's own call.
    unsafe { __fxstatat(version, HERE, path, stat, 0) }
}

/// `__lxstat`, as `__fxstat`.
pub unsafe extern "C-unwind" fn __lxstat(version: c_int, path: Name, stat: *mut libc::stat) -> c_int {
    // SAFETY: the program's own call.
    unsafe { __fxstatat(version, HERE, path, stat, libc::AT_SYMLINK_NOFOLLOW) }
}

/// `statx`.
pub unsafe extern "C-unwind" fn statx(
    dirfd: c_int,
    path: Name,
    flags: c_int,
    mask: c_uint,
    out: *mut libc::statx,
) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    let kernel = move || unsafe { call!(libc::SYS_statx, dirfd, path, flags, mask, out) };
    let about = || {
        // SAFETY: the kernel has just filled it.
        let stat = unsafe { &*out };
        let regular = u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        let time = |time: &libc::statx_timestamp| FileTime::new(time.tv_sec, i64::from(time.tv_nsec));
        let times = Times { modified: time(&stat.stx_mtime), changed: time(&stat.stx_ctime) };
        regular.then(|| (libc::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino, times))
    };
    ask(kernel, about, |size, times, look| {
        // SAFETY: as above.
        let stat = unsafe { &mut *out };
        if let Some(size) = size {
            stat.stx_size = size;
            stat.stx_blocks = look.blocks(stat.stx_blocks);
        }
        for (time, better) in [(&mut stat.stx_mtime, times.modified), (&mut stat.stx_ctime, times.changed)] {
            if let Some((seconds, ns)) = better.parts() {
                (time.tv_sec, time.tv_nsec) = (seconds, ns as u32);
            }
        }
    })
}
