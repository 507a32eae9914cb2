//! The calls that nix has no function for, each by libc's exported one, and what a handle of the
//! kernel's stands for. What glibc 2.17 lacks goes by `syscall`, which the library has to see, too.
//! Every `unsafe` of this crate is here.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::AtomicU64;

use fuser::FileHandle;
use nix::errno::Errno;
use nix::sys::time::TimeSpec;

/// A result of this crate: the error is what the program gets.
pub type Result<T> = std::result::Result<T, Errno>;

/// The path by which an open descriptor is reached again, `O_PATH` ones included.
pub fn path_of(fd: impl AsFd) -> CString {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    CString::new(path).expect("digits have no zero byte")
}

/// What a handle says besides its descriptor: the program's description is synchronous.
const SYNCHRONOUS: u64 = 1 << 32;

/// The handle of a descriptor that the kernel is given, and will release once.
pub fn handle(fd: OwnedFd, is_synchronous: bool) -> FileHandle {
    handle_of(fd.into_raw_fd(), is_synchronous)
}

/// The same of a descriptor that nobody else closes.
pub fn handle_of(fd: RawFd, is_synchronous: bool) -> FileHandle {
    let number = u64::from(fd.unsigned_abs());
    FileHandle(if is_synchronous { number | SYNCHRONOUS } else { number })
}

/// Whether the handle's description was opened with `O_SYNC` or `O_DSYNC`.
pub fn is_synchronous(handle: FileHandle) -> bool {
    handle.0 & SYNCHRONOUS != 0
}

/// The number of the descriptor behind a handle.
pub fn number(handle: FileHandle) -> RawFd {
    // The low half, in which a descriptor's number lies.
    handle.0 as u32 as RawFd
}

/// The descriptor behind a handle that this server gave out.
pub fn descriptor<'a>(handle: FileHandle) -> BorrowedFd<'a> {
    // SAFETY: the kernel sends a handle between the answer of our open and its one release, and the
    // descriptor is closed at the release.
    unsafe { BorrowedFd::borrow_raw(number(handle)) }
}

/// Closes what is behind a handle; the kernel will not send it again.
pub fn close(handle: FileHandle) {
    // Through libc's `close`, which the library has to see. An error leaves it closed all the same.
    let _ = nix::unistd::close(number(handle));
}

/// One name as C has it.
pub fn c_name(name: &OsStr) -> Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| Errno::EINVAL)
}

/// An id that nobody has: asked for, it changes nothing.
pub const NOBODY: u32 = u32::MAX;

/// Who this thread is to file systems from now on; returns who it was.
pub fn set_files_user(uid: u32) -> u32 {
    // SAFETY: it takes an id and touches no memory.
    unsafe { identity(libc::SYS_setfsuid, uid) }
}

/// The same of its group.
pub fn set_files_group(gid: u32) -> u32 {
    // SAFETY: it takes an id and touches no memory.
    unsafe { identity(libc::SYS_setfsgid, gid) }
}

/// A call of the kernel's past libc and the library, which would take it for the program's wish to
/// have no more to do with its keeper: that is right of programs that give up root's rights for
/// good, and of none that takes them back behind the next call.
///
/// # Safety
/// The call takes one number and touches no memory.
unsafe fn identity(call: i64, id: u32) -> u32 {
    let before: i64;
    // SAFETY: as the caller says; the kernel changes these three registers alone.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") call => before,
            in("rdi") u64::from(id),
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    before as u32
}

/// A descriptor as `syscall` takes it.
fn word(fd: BorrowedFd<'_>) -> i64 {
    i64::from(fd.as_raw_fd())
}

/// `pwritev2` with `RWF_APPEND`: at the end of the file, wherever that is by now.
pub fn append(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: the kernel only reads the bytes, which live as long as the call.
    let wrote = unsafe {
        let (fd, flags) = (word(fd), i64::from(libc::RWF_APPEND));
        libc::syscall(libc::SYS_pwritev2, fd, &raw const part, 1_i64, 0_i64, 0_i64, flags)
    };
    Errno::result(wrote).map(|wrote| wrote as usize)
}

/// `utimensat` of what an `O_PATH` descriptor of a symbolic link is open on.
pub fn set_times_of_link(fd: impl AsFd, times: [TimeSpec; 2]) -> Result<()> {
    let times: [libc::timespec; 2] = times.map(|time| *time.as_ref());
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: both times and the empty path live as long as the call.
    let done = unsafe { libc::utimensat(fd, c"".as_ptr(), times.as_ptr(), libc::AT_EMPTY_PATH) };
    Errno::result(done).map(drop)
}

/// `setxattr`.
pub fn set_attribute(path: &CStr, name: &CStr, value: &[u8], flags: i32) -> Result<()> {
    // SAFETY: path, name and value live as long as the call, which gets the value's length.
    let done =
        unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), flags) };
    Errno::result(done).map(drop)
}

/// `getxattr`: the value's length; the value if `into` has room for it.
pub fn attribute(path: &CStr, name: &CStr, into: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most as many bytes as it is told that there are.
    let len = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), into.as_mut_ptr().cast(), into.len()) };
    Errno::result(len).map(isize::unsigned_abs)
}

/// `listxattr`: the length of all names; the names if `into` has room for them.
pub fn attributes(path: &CStr, into: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most as many bytes as it is told that there are.
    let len = unsafe { libc::listxattr(path.as_ptr(), into.as_mut_ptr().cast(), into.len()) };
    Errno::result(len).map(isize::unsigned_abs)
}

/// `removexattr`.
pub fn remove_attribute(path: &CStr, name: &CStr) -> Result<()> {
    // SAFETY: path and name live as long as the call.
    Errno::result(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) }).map(drop)
}

/// `copy_file_range`: how much was copied.
pub fn copy(
    from: BorrowedFd<'_>,
    mut at: i64,
    to: BorrowedFd<'_>,
    mut at_target: i64,
    len: usize,
) -> Result<usize> {
    // SAFETY: both positions live as long as the call.
    let copied = unsafe {
        let (from, to) = (word(from), word(to));
        libc::syscall(libc::SYS_copy_file_range, from, &raw mut at, to, &raw mut at_target, len, 0_i64)
    };
    Errno::result(copied).map(|copied| copied as usize)
}

/// `renameat2`.
pub fn rename(
    from: BorrowedFd<'_>,
    name: &CStr,
    to: BorrowedFd<'_>,
    new_name: &CStr,
    flags: u32,
) -> Result<()> {
    let (from, to, flags) = (word(from), word(to), i64::from(flags));
    // SAFETY: both names live as long as the call.
    let done =
        unsafe { libc::syscall(libc::SYS_renameat2, from, name.as_ptr(), to, new_name.as_ptr(), flags) };
    Errno::result(done).map(drop)
}

/// The memory of a file of `words` words, which stays mapped for good. Whoever else has mapped it
/// uses these atomics, too.
pub fn shared_words(file: BorrowedFd<'_>, words: usize) -> Result<&'static [AtomicU64]> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses a place that nobody else has, and nothing unmaps it.
    let at = unsafe {
        mmap(std::ptr::null_mut(), words * size_of::<u64>(), protection, MapFlags::SHARED, file, 0)
    };
    let at = at.map_err(|error| Errno::from_raw(error.raw_os_error()))?;
    // SAFETY: so many words are mapped there, for good, and every one who shares them goes through
    // atomics.
    Ok(unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), words) })
}

/// Starts a process with the same descriptors as this one: what one of them opens or closes, the
/// other one has or has not, until the last of them is gone. Whether this is the new one. It goes
/// past libc and the library: the new one is no client, and must call neither of them.
pub fn share_descriptors() -> Result<bool> {
    let flags = (libc::CLONE_FILES | libc::SIGCHLD) as usize;
    let pid: isize;
    // SAFETY: without CLONE_VM the new process has a copy of this memory and goes on from here with
    // the same stack. The kernel changes no other registers than those that are named.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_clone as isize => pid,
            in("rdi") flags,
            in("rsi") 0usize,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") 0usize,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    match i32::try_from(pid) {
        Ok(pid) if pid < 0 => Err(Errno::from_raw(-pid)),
        done => Ok(done == Ok(0)),
    }
}

/// What the kernel knows of how a thread is scheduled, as far as `sched_setattr` is told of it.
#[repr(C)]
#[derive(Default)]
struct Scheduling {
    bytes: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Has this thread, and those that it starts, run as soon as they are woken, for at most this long
/// if others wait; they get no larger share than before. Since Linux 6.12; before, nothing changes.
pub fn ask_for_slices(slice_ns: u64) -> Result<()> {
    let bytes = size_of::<Scheduling>() as u32;
    let mut now = Scheduling::default();
    // SAFETY: the kernel writes at most as many bytes as it is told that there are.
    Errno::result(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, bytes, 0) })?;
    if now.policy != libc::SCHED_OTHER as u32 {
        // Somebody has said how it is to run.
        return Ok(());
    }
    let asked = Scheduling { bytes, flags: 0, runtime_ns: slice_ns, ..now };
    // SAFETY: the kernel reads the bytes, which live as long as the call.
    Errno::result(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const asked, 0) }).map(drop)
}

/// Puts a descriptor where the kernel's handles and our tables expect it. The library sees it.
pub fn put(fd: BorrowedFd<'_>, target: RawFd) -> Result<()> {
    // SAFETY: touches no memory; what was open there is nobody's.
    Errno::result(unsafe { libc::dup2(fd.as_raw_fd(), target) }).map(drop)
}

/// The descriptor of that number, which stays open meanwhile.
pub fn borrowed<'a>(number: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the caller has it from the table of what is kept, whose rows are cleared before their
    // descriptors are closed, and nobody is left who would.
    unsafe { BorrowedFd::borrow_raw(number) }
}

/// The descriptor of that number, which nobody else closes.
pub fn owned(number: RawFd) -> OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the caller has it from the table of what is kept, in which each number stands for one
    // owner.
    unsafe { OwnedFd::from_raw_fd(number) }
}
