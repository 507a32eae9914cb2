//! Calls after which somebody looks at a file or changes it where no hook sees it: the kernel
//! itself, the dynamic linker, or the program by notices of changes.
//!
//! The file is left to the kernel, or only kept out of state Behind, before the call is made. The
//! call's result is the kernel's in any case.
#![allow(unsafe_code)] // C entry points.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_uint, c_void};

use holdfast_cache::Reason;

use crate::patch::{DLMOPEN, DLOPEN, Original};
use crate::raw::{self, call, give_int};
use crate::{behind, critical, gate, process, target};

type Name = *const c_char;

const HERE: c_int = libc::AT_FDCWD;

/// The kernel writes to the file of a name by itself from now on.
unsafe fn leave_to_kernel(path: Name) {
    if let Some(client) = process::client()
        // SAFETY: the kernel checks the address.
        && let Ok(stat) = unsafe { raw::fstatat(HERE, path, 0) }
    {
        target::leave_file_to_kernel(client, &stat, Reason::Uncovered);
    }
}

/// `acct`: the kernel appends to the file whenever a process ends.
pub unsafe extern "C-unwind" fn acct(path: Name) -> c_int {
    // SAFETY: the program's own call; the kernel checks the address.
    unsafe {
        leave_to_kernel(path);
        give_int(call!(libc::SYS_acct, path))
    }
}

/// `swapon`: the kernel uses the file's blocks.
pub unsafe extern "C-unwind" fn swapon(path: Name, flags: c_int) -> c_int {
    // SAFETY: the program's own call; the kernel checks the address.
    unsafe {
        leave_to_kernel(path);
        give_int(call!(libc::SYS_swapon, path, flags))
    }
}

/// How often the keeper is asked to let go of what a file system is busy with, and how long is
/// waited after the first time; twice as long after each: 30 ms in all.
const LET_GO_ROUNDS: u32 = 4;
const LET_GO_PAUSE_NS: libc::c_long = 2_000_000;

/// `umount2`: a file system is busy while the keeper has files open there, which no program has.
pub unsafe extern "C-unwind" fn umount2(path: Name, flags: c_int) -> c_int {
    // SAFETY: the program's own call; the kernel checks the address.
    let unmount = || unsafe { call!(libc::SYS_umount2, path, flags) };
    let mut result = unmount();
    if let Some(client) = process::client() {
        // A thread of the keeper's may be at work on a file, and is done with it a moment later.
        for round in 0..LET_GO_ROUNDS {
            if result != -(libc::EBUSY as isize) {
                break;
            }
            critical::section(|| client.let_go_unused());
            result = unmount();
            if result == -(libc::EBUSY as isize) {
                raw::sleep(LET_GO_PAUSE_NS << round);
            }
        }
    }
    give_int(result)
}

/// `umount`, as `umount2`.
pub unsafe extern "C-unwind" fn umount(path: Name) -> c_int {
    // SAFETY: the program's own call.
    unsafe { umount2(path, 0) }
}

/// The program wants to be told of changes to a file, or to any file of a directory. Those of files
/// in state Behind reach the kernel only when the keeper brings them there.
pub fn watching(find: impl FnOnce() -> Result<raw::Stat, holdfast_cache::Errno>) {
    let Some(client) = process::client().filter(|client| client.writes_behind()) else { return };
    let Ok(stat) = find() else { return };
    critical::section(|| match client.find(stat.dev, stat.ino) {
        Some(seen) if stat.regular => {
            // Fails only when the keeper is dead or the disk refuses; then writes to the file fail,
            // too.
            let _ = client.leave_behind(seen.file, true);
        }
        _ => client.forbid_behind(),
    });
}

/// `inotify_add_watch`.
pub unsafe extern "C-unwind" fn inotify_add_watch(fd: c_int, path: Name, mask: u32) -> c_int {
    if mask & (libc::IN_MODIFY | libc::IN_ACCESS) != 0 {
        let flags = if mask & libc::IN_DONT_FOLLOW != 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
        // SAFETY: the kernel checks the address.
        watching(|| unsafe { raw::fstatat(HERE, path, flags) });
    }
    // SAFETY: the program's own call; the kernel checks the address.
    give_int(unsafe { call!(libc::SYS_inotify_add_watch, fd, path, mask) })
}

/// What fanotify tells of, or asks permission for, when content is read or changed.
const OF_CONTENT: u64 = libc::FAN_MODIFY | libc::FAN_ACCESS | libc::FAN_ACCESS_PERM | FAN_PRE_ACCESS;
/// From Linux 6.14 on.
const FAN_PRE_ACCESS: u64 = 0x0010_0000;

/// `fanotify_mark`.
pub unsafe extern "C-unwind" fn fanotify_mark(
    fd: c_int,
    flags: c_uint,
    mask: u64,
    dirfd: c_int,
    path: Name,
) -> c_int {
    if flags & libc::FAN_MARK_ADD != 0 && mask & OF_CONTENT != 0 {
        let whole = flags & (libc::FAN_MARK_MOUNT | libc::FAN_MARK_FILESYSTEM) != 0;
        let root = c"/".as_ptr();
        // SAFETY: the kernel checks the address.
        watching(|| unsafe {
            match (whole, path.is_null()) {
                // A directory stands for all that is below.
                (true, _) => raw::fstatat(HERE, root, 0),
                (_, true) => raw::fstat(dirfd),
                _ => raw::fstatat(dirfd, path, 0),
            }
        });
    }
    // SAFETY: the program's own call; the kernel checks the address.
    give_int(unsafe { call!(libc::SYS_fanotify_mark, fd, flags, mask, dirfd, path) })
}

/// The linker is about to read and map the file of a name. Returns libc's function.
unsafe extern "C" fn loading(path: Name, original: &Original) -> usize {
    if !path.is_null() {
        // SAFETY: the program's path.
        gate::within(|| unsafe { behind::show_path(HERE, path, 0) });
    }
    original.address()
}

unsafe extern "C" fn before_dlopen(path: Name) -> usize {
    // SAFETY: the program's path.
    unsafe { loading(path, &DLOPEN) }
}

unsafe extern "C" fn before_dlmopen(path: Name) -> usize {
    // SAFETY: the program's path.
    unsafe { loading(path, &DLMOPEN) }
}

/// `dlopen`: ends in a jump, as libc's function searches where its caller was linked to search.
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn dlopen(path: Name, mode: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        before = sym before_dlopen,
    )
}

/// `dlmopen`, as `dlopen`.
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn dlmopen(namespace: usize, path: Name, mode: c_int) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rdi, rsi",
        "call {before}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "ret",
        before = sym before_dlmopen,
    )
}
