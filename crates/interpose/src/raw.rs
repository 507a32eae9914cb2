//! System calls, without libc in between, and libc's conventions for their results.
//!
//! Must never call a libc function that has a hook: it would come back to us.
#![allow(unsafe_code)] // System calls are made here.

use core::arch::asm;
use core::ffi::{CStr, c_int};

use holdfast_board::{FileTime, Times, ownership_print};
use holdfast_cache::{Errno, Look};

/// Makes a system call; -errno on failure.
///
/// # Safety
/// The arguments must be valid for the call, as the kernel sees it.
#[inline(always)]
pub unsafe fn call6(number: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let result: isize;
    // SAFETY: the kernel preserves all registers but rax, rcx and r11; memory is clobbered as the
    // caller allows.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// Makes a system call of up to six arguments: `call!(SYS_close, fd)`. Needs `unsafe`, as [`call6`]
/// does.
#[macro_export]
macro_rules! call {
    ($number:expr) => { $crate::raw::call6($number, 0, 0, 0, 0, 0, 0) };
    ($number:expr, $a:expr) => { $crate::raw::call6($number, $a as usize, 0, 0, 0, 0, 0) };
    ($number:expr, $a:expr, $b:expr) => { $crate::raw::call6($number, $a as usize, $b as usize, 0, 0, 0, 0) };
    ($number:expr, $a:expr, $b:expr, $c:expr) => {
        $crate::raw::call6($number, $a as usize, $b as usize, $c as usize, 0, 0, 0)
    };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {
        $crate::raw::call6($number, $a as usize, $b as usize, $c as usize, $d as usize, 0, 0)
    };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $crate::raw::call6($number, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, 0)
    };
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::raw::call6($number, $a as usize, $b as usize, $c as usize, $d as usize, $e as usize, $f as usize)
    };
}
pub use crate::call;

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// Sets the program's `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: libc returns the address of this thread's errno.
    unsafe { *__errno_location() = errno };
}

/// The program's `errno`.
pub fn errno() -> i32 {
    // SAFETY: as in `set_errno`.
    unsafe { *__errno_location() }
}

/// A system call's result as libc returns it: -1 and `errno` on failure, `errno` untouched on
/// success.
#[inline]
pub fn give(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return -1;
    }
    result
}

/// [`give`] for calls that return an `int`.
#[inline]
pub fn give_int(result: isize) -> c_int {
    give(result) as c_int
}

/// A system call's result as a `Result`.
#[inline]
pub fn check(result: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// The other way round: a `Result` as a system call's result.
#[inline]
pub fn encode(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(errno) => -(errno.0 as isize),
    }
}

/// Blocks all signals of this thread and returns the mask before.
#[inline]
pub fn block_signals() -> u64 {
    let all = u64::MAX;
    let mut before = 0u64;
    // SAFETY: both masks are 8 bytes, as the call says. SIG_BLOCK = 0.
    unsafe { call!(libc::SYS_rt_sigprocmask, 0, &raw const all, &raw mut before, 8) };
    before
}

/// Sets this thread's signal mask.
#[inline]
pub fn restore_signals(mask: u64) {
    // SAFETY: the mask is 8 bytes, as the call says. SIG_SETMASK = 2.
    unsafe { call!(libc::SYS_rt_sigprocmask, 2, &raw const mask, 0, 8) };
}

/// Whether valgrind runs this program: it answers where the processor turns a register round and
/// round.
pub fn is_emulated() -> bool {
    const RUNNING_ON_VALGRIND: usize = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let answer: usize;
    // SAFETY: on the processor itself rdi is turned by 128 bits and rbx exchanged with itself, so
    // nothing changes; valgrind reads the request and sets rdx.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            inout("rdi") 0usize => _,
            in("rax") request.as_ptr(),
            inout("rdx") 0usize => answer,
        );
    }
    answer != 0
}

/// The process id, from the kernel.
pub fn getpid() -> i32 {
    // SAFETY: no arguments.
    unsafe { call!(libc::SYS_getpid) as i32 }
}

/// Gives the processor away.
pub fn sched_yield() {
    // SAFETY: no arguments.
    unsafe { call!(libc::SYS_sched_yield) };
}

/// Writes one message to standard error.
pub fn say(parts: &[&[u8]]) {
    let mut line = [0u8; 512];
    let mut used = 0;
    for part in parts {
        for byte in part.iter() {
            if used < line.len() {
                line[used] = *byte;
                used += 1;
            }
        }
    }
    // SAFETY: `used` bytes of `line` are initialized.
    unsafe { call!(libc::SYS_write, 2, line.as_ptr(), used) };
}

/// `fcntl` with an integer argument.
pub fn fcntl(fd: c_int, command: c_int, argument: usize) -> isize {
    // SAFETY: used only with commands whose argument is an integer.
    unsafe { call!(libc::SYS_fcntl, fd, command, argument) }
}

/// Which lease a description has, by `fcntl`.
pub const F_GETLEASE: c_int = 1025;

/// Whether this description has a lease.
pub fn is_leased(fd: c_int) -> bool {
    fcntl(fd, F_GETLEASE, 0) != libc::F_UNLCK as isize
}

/// Waits for less than a second.
pub fn sleep(ns: libc::c_long) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    // SAFETY: the kernel reads the time.
    unsafe { call!(libc::SYS_nanosleep, &raw const time, 0) };
}

/// `close`.
pub fn close(fd: c_int) -> isize {
    // SAFETY: closing touches no memory.
    unsafe { call!(libc::SYS_close, fd) }
}

/// The cursor of a description.
pub fn cursor(fd: c_int) -> Result<u64, Errno> {
    // SAFETY: touches no memory. SEEK_CUR = 1.
    check(unsafe { call!(libc::SYS_lseek, fd, 0, 1) }).map(|offset| offset as u64)
}

/// `fdatasync`.
pub fn fdatasync(fd: c_int) -> isize {
    // SAFETY: touches no memory.
    let result = unsafe { call!(libc::SYS_fdatasync, fd) };
    synced(fd, result)
}

/// Whether the file behind `fd` lies on ext4, xfs or btrfs, where files are managed. True where
/// that cannot be told.
pub fn is_on_managed_file_system(fd: c_int) -> bool {
    let mut facts = core::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure.
    let result = unsafe { call!(libc::SYS_fstatfs, fd, facts.as_mut_ptr()) };
    // SAFETY: filled, as the call succeeded.
    let kind = check(result).map(|_| unsafe { facts.assume_init_ref() }.f_type as u32);
    kind.is_ok_and(|kind| matches!(kind, 0xef53 | 0x5846_5342 | 0x9123_683e)) || kind.is_err()
}

/// Whether files of that device, to which `fd` belongs, may be managed. Of disks they are; those
/// of no device may be btrfs's, or made by a program or the kernel as they are read and written.
pub fn may_be_managed(device: u64, fd: c_int) -> bool {
    libc::major(device) != 0 || is_on_managed_file_system(fd)
}

/// What a sync of `fd` is worth that returned `result`. When the commit of a journal fails, xfs
/// tells whoever waits for it; what others changed is given up with it, and a later sync of theirs
/// finds nothing to wait for and succeeds (of a directory always, of a file in a race). So we look
/// at the file: a file system that was shut down shows none.
pub fn synced(fd: c_int, result: isize) -> isize {
    let failed = result >= 0 && fstat(fd).is_err_and(|errno| errno == Errno::EIO);
    if failed { encode(Err(Errno::EIO)) } else { result }
}

/// The number of this thread.
pub fn gettid() -> u32 {
    // SAFETY: no arguments.
    unsafe { call!(libc::SYS_gettid) as u32 }
}

pub use holdfast_session::Stat;

/// The times of a file as the kernel's structure has them.
#[inline]
pub fn times(stat: &libc::stat) -> Times {
    Times {
        modified: FileTime::new(stat.st_mtime, stat.st_mtime_nsec),
        changed: FileTime::new(stat.st_ctime, stat.st_ctime_nsec),
    }
}

fn stat_from(result: isize, stat: &core::mem::MaybeUninit<libc::stat>) -> Result<Stat, Errno> {
    check(result)?;
    // SAFETY: the kernel filled it, as the call succeeded.
    let stat = unsafe { stat.assume_init_ref() };
    Ok(Stat {
        dev: stat.st_dev,
        ino: stat.st_ino,
        size: stat.st_size as u64,
        regular: stat.st_mode & libc::S_IFMT == libc::S_IFREG,
        ownership: (stat.st_mode, stat.st_uid, stat.st_gid),
        changed_ns: (stat.st_ctime as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(stat.st_ctime_nsec as u64),
        times: times(stat),
    })
}

/// `fstat`.
pub fn fstat(fd: c_int) -> Result<Stat, Errno> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` has room for the kernel's structure, which on x86_64 is libc's.
    let result = unsafe { call!(libc::SYS_fstat, fd, stat.as_mut_ptr()) };
    stat_from(result, &stat)
}

/// What of a file others may have changed, and nothing of its times: once those were asked for, the
/// next write has to note a finer one, which costs as much as the write.
pub fn look(fd: c_int) -> Result<Look, Errno> {
    const WANTED: u32 =
        libc::STATX_SIZE | libc::STATX_NLINK | libc::STATX_MODE | libc::STATX_UID | libc::STATX_GID;
    const HOW: c_int = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mut stat = core::mem::MaybeUninit::<libc::statx>::uninit();
    // SAFETY: `stat` has room for the kernel's structure; the path ends with a zero.
    check(unsafe { call!(libc::SYS_statx, fd, c"".as_ptr(), HOW, WANTED, stat.as_mut_ptr()) })?;
    // SAFETY: the kernel filled it, as the call succeeded.
    let stat = unsafe { stat.assume_init_ref() };
    let ownership = ownership_print(u32::from(stat.stx_mode), stat.stx_uid, stat.stx_gid);
    Ok(Look { size: stat.stx_size, links: u64::from(stat.stx_nlink), ownership })
}

/// `newfstatat`.
///
/// # Safety
/// `path` may be any address (the kernel checks it), but what it points to must not be unmapped
/// meanwhile.
pub unsafe fn fstatat(dirfd: c_int, path: *const libc::c_char, flags: c_int) -> Result<Stat, Errno> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: as for `fstat`; the kernel checks `path`.
    let result = unsafe { call!(libc::SYS_newfstatat, dirfd, path, stat.as_mut_ptr(), flags) };
    stat_from(result, &stat)
}

/// A path of the program as a C string, once the kernel has read it without complaint.
///
/// # Safety
/// `path` must have been accepted by a system call just now.
pub unsafe fn path<'a>(path: *const libc::c_char) -> &'a CStr {
    // SAFETY: the kernel has found the terminating zero.
    unsafe { CStr::from_ptr(path) }
}

/// Ends the process at once.
pub fn exit(status: c_int) -> ! {
    loop {
        // SAFETY: touches no memory and does not return.
        unsafe { call!(libc::SYS_exit_group, status) };
    }
}
