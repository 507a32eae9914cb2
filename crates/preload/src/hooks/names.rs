//! Names coming and going: the intent is durable before the kernel's call (history 16).
//!
//! Only names of files that the cache holds cost anything; directories are the kernel's business.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_char, c_int, c_uint};

use holdfast_cache::{Client, Errno, FileRef};

use crate::raw::{self, call, give_int};
use crate::{critical, process};

type Name = *const c_char;

const HERE: c_int = libc::AT_FDCWD;

/// The cache's file under a name, and the name.
struct Found<'a> {
    file: FileRef,
    dirfd: c_int,
    path: &'a core::ffi::CStr,
}

unsafe fn find<'a>(client: &Client, dirfd: c_int, path: Name, flags: c_int) -> Option<Found<'a>> {
    // SAFETY: the kernel checks the address.
    let stat = unsafe { raw::fstatat(dirfd, path, flags) }.ok()?;
    if !stat.regular {
        return None;
    }
    let seen = client.find(stat.dev, stat.ino)?;
    // SAFETY: the kernel has just read the path.
    Some(Found { file: seen.file, dirfd, path: unsafe { raw::path(path) } })
}

fn refuse(errno: Errno) -> isize {
    -(errno.0 as isize)
}

unsafe fn unlink_at(dirfd: c_int, path: Name, flags: c_int) -> isize {
    // SAFETY: the kernel checks the address.
    let kernel = || unsafe { call!(libc::SYS_unlinkat, dirfd, path, flags) };
    let Some(client) = process::client() else { return kernel() };
    if flags & libc::AT_REMOVEDIR != 0 {
        return kernel();
    }
    // SAFETY: the program's path.
    let Some(found) = (unsafe { find(client, dirfd, path, libc::AT_SYMLINK_NOFOLLOW) }) else {
        return kernel();
    };
    if let Err(errno) = critical::section(|| client.unlinking(found.file, found.dirfd, found.path)) {
        return refuse(errno);
    }
    let result = kernel();
    critical::section(|| client.named(found.file, result == 0));
    result
}

/// `unlink`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn unlink(path: Name) -> c_int {
    // SAFETY: the program's path.
    give_int(unsafe { unlink_at(HERE, path, 0) })
}

/// `unlinkat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn unlinkat(dirfd: c_int, path: Name, flags: c_int) -> c_int {
    // SAFETY: the program's path.
    give_int(unsafe { unlink_at(dirfd, path, flags) })
}

/// `remove`: a file or an empty directory.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn remove(path: Name) -> c_int {
    // SAFETY: the program's path.
    let mut result = unsafe { unlink_at(HERE, path, 0) };
    if result == -(libc::EISDIR as isize) {
        // SAFETY: the program's path.
        result = unsafe { call!(libc::SYS_rmdir, path) };
    }
    give_int(result)
}

unsafe fn rename_at(old_dirfd: c_int, old: Name, new_dirfd: c_int, new: Name, flags: c_uint) -> isize {
    // SAFETY: the kernel checks the addresses.
    let kernel = || unsafe {
        match flags {
            0 => call!(libc::SYS_renameat, old_dirfd, old, new_dirfd, new),
            _ => call!(libc::SYS_renameat2, old_dirfd, old, new_dirfd, new, flags),
        }
    };
    let Some(client) = process::client() else { return kernel() };
    // SAFETY: the program's paths.
    let (moved, target) = unsafe {
        (
            find(client, old_dirfd, old, libc::AT_SYMLINK_NOFOLLOW),
            find(client, new_dirfd, new, libc::AT_SYMLINK_NOFOLLOW),
        )
    };
    let swaps = flags & libc::RENAME_EXCHANGE != 0;
    let same = matches!((&moved, &target), (Some(moved), Some(target)) if moved.file == target.file);
    // Two names of one file: the kernel does nothing.
    let target = target.filter(|_| !same && flags & libc::RENAME_NOREPLACE == 0);

    // SAFETY: `fstatat` has read a path that was found; only then is the name used below.
    let announced = critical::section(|| {
        if let Some(moved) = &moved {
            // SAFETY: the kernel checked `new` if it exists; otherwise the program must pass a path all the same.
            client.naming(moved.file, new_dirfd, unsafe { raw::path(new) })?;
        }
        let Some(target) = &target else { return Ok(()) };
        let result = if swaps {
            // SAFETY: as above.
            client.naming(target.file, old_dirfd, unsafe { raw::path(old) })
        } else {
            client.unlinking(target.file, target.dirfd, target.path)
        };
        if result.is_err()
            && let Some(moved) = &moved
        {
            client.named(moved.file, false);
        }
        result
    });
    if let Err(errno) = announced {
        return refuse(errno);
    }
    let result = kernel();
    critical::section(|| {
        if let Some(target) = &target {
            client.named(target.file, result == 0);
        }
        if let Some(moved) = &moved {
            client.named(moved.file, result == 0);
        }
    });
    result
}

/// `rename`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rename(old: Name, new: Name) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { rename_at(HERE, old, HERE, new, 0) })
}

/// `renameat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn renameat(old_dirfd: c_int, old: Name, new_dirfd: c_int, new: Name) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { rename_at(old_dirfd, old, new_dirfd, new, 0) })
}

/// `renameat2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn renameat2(
    old_dirfd: c_int,
    old: Name,
    new_dirfd: c_int,
    new: Name,
    flags: c_uint,
) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { rename_at(old_dirfd, old, new_dirfd, new, flags) })
}

unsafe fn link_at(old_dirfd: c_int, old: Name, new_dirfd: c_int, new: Name, flags: c_int) -> isize {
    // SAFETY: the kernel checks the addresses.
    let kernel = || unsafe { call!(libc::SYS_linkat, old_dirfd, old, new_dirfd, new, flags) };
    let Some(client) = process::client() else { return kernel() };
    let follow = if flags & libc::AT_SYMLINK_FOLLOW != 0 { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    let stat_flags = follow | flags & libc::AT_EMPTY_PATH;
    // SAFETY: the program's path.
    let Some(found) = (unsafe { find(client, old_dirfd, old, stat_flags) }) else { return kernel() };
    // SAFETY: the program's path.
    let announced = critical::section(|| client.naming(found.file, new_dirfd, unsafe { raw::path(new) }));
    if let Err(errno) = announced {
        return refuse(errno);
    }
    let result = kernel();
    critical::section(|| client.named(found.file, result == 0));
    result
}

/// `link`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn link(old: Name, new: Name) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { link_at(HERE, old, HERE, new, 0) })
}

/// `linkat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn linkat(
    old_dirfd: c_int,
    old: Name,
    new_dirfd: c_int,
    new: Name,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's paths.
    give_int(unsafe { link_at(old_dirfd, old, new_dirfd, new, flags) })
}
