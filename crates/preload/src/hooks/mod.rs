//! The functions that stand in front of libc's, and the table of libc entries that lead to them.
//!
//! Each hook is exported under its own name and every other name libc has for it.
#![allow(unsafe_code)] // C entry points.

mod aio;
mod copy;
mod exec;
mod handlers;
pub mod limits;
mod map;
mod meta;
mod names;
mod numbers;
mod onlookers;
mod open;
mod read;
mod room;
mod spawn;
mod stat;
mod streams;
mod sync;
mod syscall;
mod transfer;
mod truncate;
mod write;

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libc::{iovec, off_t, size_t, ssize_t};

use crate::signals;

pub use write::holdfast_seen_writes;

/// A libc function whose entry leads to a hook.
pub struct Entry {
    /// libc's name, private ones included.
    pub name: &'static CStr,
    hook: *const (),
}

// SAFETY: the pointer is a function's address, which is only ever compared and copied.
unsafe impl Sync for Entry {}

impl Entry {
    /// The hook's address.
    pub fn address(&self) -> usize {
        self.hook.addr()
    }
}

/// Exports a hook under libc's other names for it.
macro_rules! aliases {
    ($($module:ident::$hook:ident($($argument:ident: $kind:ty),*) -> $result:ty = $($alias:ident),+;)*) => {$(
        aliases!(@one $module::$hook ($($argument: $kind),*) -> $result; $($alias),+);
    )*};
    (@one $module:ident::$hook:ident $arguments:tt -> $result:ty; $($alias:ident),+) => {$(
        aliases!(@export $module::$hook $arguments -> $result; $alias);
    )+};
    (@export $module:ident::$hook:ident ($($argument:ident: $kind:ty),*) -> $result:ty; $alias:ident) => {
        #[doc = concat!("`", stringify!($alias), "`, which is `", stringify!($hook), "`.")]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $alias($($argument: $kind),*) -> $result {
            // SAFETY: the program's own call.
            unsafe { $module::$hook($($argument),*) }
        }
    };
}

type Name = *const c_char;

aliases! {
    open::open(path: Name, flags: c_int, mode: c_uint) -> c_int = open64, __open, __open64, __libc_open64;
    open::__open_nocancel(path: Name, flags: c_int, mode: c_uint) -> c_int = __open64_nocancel;
    open::openat(dirfd: c_int, path: Name, flags: c_int, mode: c_uint) -> c_int = openat64;
    open::creat(path: Name, mode: c_uint) -> c_int = creat64;
    numbers::close(fd: c_int) -> c_int = __close;
    numbers::dup2(old: c_int, new: c_int) -> c_int = __dup2;
    numbers::fcntl(fd: c_int, command: c_int, argument: usize) -> c_int = fcntl64, __fcntl, __libc_fcntl64;
    read::read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t = __read;
    read::pread(fd: c_int, buffer: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t =
        pread64, __pread64, __libc_pread;
    read::preadv(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t = preadv64;
    read::preadv2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        preadv64v2;
    stat::fstat(fd: c_int, stat: *mut libc::stat) -> c_int = fstat64;
    stat::stat(path: Name, stat: *mut libc::stat) -> c_int = stat64;
    stat::lstat(path: Name, stat: *mut libc::stat) -> c_int = lstat64;
    stat::fstatat(dirfd: c_int, path: Name, stat: *mut libc::stat, flags: c_int) -> c_int = fstatat64;
    stat::__fxstat(version: c_int, fd: c_int, stat: *mut libc::stat) -> c_int = __fxstat64;
    stat::__xstat(version: c_int, path: Name, stat: *mut libc::stat) -> c_int = __xstat64;
    stat::__lxstat(version: c_int, path: Name, stat: *mut libc::stat) -> c_int = __lxstat64;
    stat::__fxstatat(version: c_int, dirfd: c_int, path: Name, stat: *mut libc::stat, flags: c_int) -> c_int =
        __fxstatat64;
    limits::setrlimit(resource: c_int, new: *const libc::rlimit64) -> c_int = setrlimit64;
    limits::prlimit(pid: libc::pid_t, resource: c_int, new: *const libc::rlimit64, old: *mut libc::rlimit64)
        -> c_int = prlimit64;
    write::write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t = __write;
    write::pwrite(fd: c_int, buffer: *const c_void, bytes: size_t, offset: off_t) -> ssize_t =
        pwrite64, __pwrite64, __libc_pwrite;
    write::pwritev(fd: c_int, parts: *const iovec, count: c_int, offset: off_t) -> ssize_t = pwritev64;
    write::pwritev2(fd: c_int, parts: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        pwritev64v2;
    write::lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t = lseek64, __lseek;
    truncate::ftruncate(fd: c_int, size: off_t) -> c_int = ftruncate64;
    truncate::truncate(path: Name, size: off_t) -> c_int = truncate64;
    truncate::fallocate(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int = fallocate64;
    truncate::posix_fallocate(fd: c_int, offset: off_t, bytes: off_t) -> c_int = posix_fallocate64;
    copy::sendfile(to: c_int, from: c_int, offset: *mut off_t, bytes: size_t) -> ssize_t = sendfile64;
    copy::sendmmsg(socket: c_int, messages: *mut libc::mmsghdr, count: c_uint, flags: c_int) -> c_int =
        __sendmmsg;
    streams::fopen(path: Name, mode: Name) -> *mut c_void = fopen64;
    streams::freopen(path: Name, mode: Name, stream: *mut c_void) -> *mut c_void = freopen64;
    streams::tmpfile() -> *mut c_void = tmpfile64;
    streams::mkstemp(template: *mut c_char) -> c_int = mkstemp64;
    streams::mkostemp(template: *mut c_char, flags: c_int) -> c_int = mkostemp64;
    streams::mkstemps(template: *mut c_char, suffix: c_int) -> c_int = mkstemps64;
    streams::mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int = mkostemps64;
    streams::aio_write(control: *mut c_void) -> c_int = aio_write64;
    streams::lio_listio(mode: c_int, list: *const *mut c_void, count: c_int, event: *mut c_void) -> c_int =
        lio_listio64;
    map::mmap(address: *mut c_void, bytes: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void = mmap64;
    signals::sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int = __sigaction;
    spawn::popen(command: Name, mode: Name) -> *mut c_void = _IO_popen;
    spawn::fork() -> libc::pid_t = __fork, __libc_fork;
    spawn::clone(function: *const c_void, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent_tid: *mut c_void, thread_area: *mut c_void, child_tid: *mut c_void) -> c_int = __clone;
}

/// `__vfork`, which is `vfork`: a jump, as its child must find the stack as it was.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C-unwind" fn __vfork() -> libc::pid_t {
    core::arch::naked_asm!("jmp {vfork}", vfork = sym spawn::vfork)
}

/// Exports the checked forms of `open`, which take no mode.
macro_rules! without_mode {
    ($($alias:ident($($dirfd:ident)?) = $hook:ident;)*) => {$(
        #[doc = concat!("`", stringify!($alias), "`: `", stringify!($hook), "` without a mode.")]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $alias($($dirfd: c_int,)? path: Name, flags: c_int) -> c_int {
            // SAFETY: the program's own call.
            unsafe { open::$hook($($dirfd,)? path, flags, 0) }
        }
    )*};
}

without_mode! {
    __open_2() = open;
    __open64_2() = open;
    __openat_2(dirfd) = openat;
    __openat64_2(dirfd) = openat;
}

macro_rules! entries {
    ($($module:ident::$hook:ident: $($name:literal)+;)*) => {
        &[$($(Entry { name: $name, hook: $module::$hook as *const () },)+)*]
    };
}

/// Every entry that is patched. Functions of which a hook needs the original are not among them.
pub static ENTRIES: &[Entry] = entries! {
    open::open: c"open" c"open64" c"__open" c"__open64";
    open::__open_nocancel: c"__open_nocancel" c"__open64_nocancel";
    open::openat: c"openat" c"openat64";
    open::creat: c"creat" c"creat64";
    numbers::close: c"close" c"__close";
    numbers::__close_nocancel: c"__close_nocancel";
    numbers::close_range: c"close_range";
    numbers::closefrom: c"closefrom";
    open::open_by_handle_at: c"open_by_handle_at";
    numbers::dup: c"dup";
    numbers::dup2: c"dup2" c"__dup2";
    numbers::dup3: c"dup3";
    numbers::fcntl: c"fcntl" c"fcntl64" c"__fcntl" c"__libc_fcntl64";
    read::read: c"read" c"__read";
    read::__read_nocancel: c"__read_nocancel";
    read::pread: c"pread" c"pread64" c"__pread64" c"__libc_pread";
    read::__pread64_nocancel: c"__pread64_nocancel";
    read::readv: c"readv";
    read::preadv: c"preadv" c"preadv64";
    read::preadv2: c"preadv2" c"preadv64v2";
    stat::fstat: c"fstat" c"fstat64";
    stat::stat: c"stat" c"stat64";
    stat::lstat: c"lstat" c"lstat64";
    stat::fstatat: c"fstatat" c"fstatat64";
    stat::__fxstat: c"__fxstat" c"__fxstat64";
    stat::__xstat: c"__xstat" c"__xstat64";
    stat::__lxstat: c"__lxstat" c"__lxstat64";
    stat::__fxstatat: c"__fxstatat" c"__fxstatat64";
    stat::statx: c"statx";
    limits::setrlimit: c"setrlimit" c"setrlimit64";
    limits::prlimit: c"prlimit" c"prlimit64";
    write::write: c"write" c"__write";
    write::__write_nocancel: c"__write_nocancel";
    write::pwrite: c"pwrite" c"pwrite64" c"__pwrite64" c"__libc_pwrite";
    write::writev: c"writev";
    write::pwritev: c"pwritev" c"pwritev64";
    write::pwritev2: c"pwritev2" c"pwritev64v2";
    write::lseek: c"lseek" c"lseek64" c"__lseek";
    truncate::ftruncate: c"ftruncate" c"ftruncate64";
    truncate::truncate: c"truncate" c"truncate64";
    truncate::fallocate: c"fallocate" c"fallocate64";
    sync::fsync: c"fsync";
    sync::fdatasync: c"fdatasync";
    sync::sync: c"sync";
    sync::syncfs: c"syncfs";
    sync::sync_file_range: c"sync_file_range";
    names::unlink: c"unlink";
    names::unlinkat: c"unlinkat";
    names::remove: c"remove";
    names::rename: c"rename";
    names::renameat: c"renameat";
    names::renameat2: c"renameat2";
    names::rmdir: c"rmdir";
    names::mkdir: c"mkdir";
    names::mkdirat: c"mkdirat";
    names::mknod: c"mknod";
    names::mknodat: c"mknodat";
    names::__xmknod: c"__xmknod";
    names::__xmknodat: c"__xmknodat";
    names::mkfifo: c"mkfifo";
    names::mkfifoat: c"mkfifoat";
    names::symlink: c"symlink";
    names::symlinkat: c"symlinkat";
    names::link: c"link";
    names::linkat: c"linkat";
    meta::chmod: c"chmod";
    meta::fchmod: c"fchmod";
    meta::chown: c"chown";
    meta::lchown: c"lchown";
    meta::fchown: c"fchown";
    meta::fchownat: c"fchownat";
    meta::utime: c"utime";
    meta::utimes: c"utimes";
    meta::utimensat: c"utimensat";
    meta::futimens: c"futimens";
    meta::futimes: c"futimes";
    meta::lutimes: c"lutimes";
    meta::futimesat: c"futimesat";
    meta::setxattr: c"setxattr";
    meta::lsetxattr: c"lsetxattr";
    meta::fsetxattr: c"fsetxattr";
    meta::removexattr: c"removexattr";
    meta::lremovexattr: c"lremovexattr";
    meta::fremovexattr: c"fremovexattr";
    copy::sendfile: c"sendfile" c"sendfile64";
    copy::copy_file_range: c"copy_file_range";
    copy::splice: c"splice";
    copy::ioctl: c"ioctl";
    copy::sendmsg: c"sendmsg";
    copy::sendmmsg: c"sendmmsg" c"__sendmmsg";
    map::mmap: c"mmap" c"mmap64" c"__mmap";
    map::mprotect: c"mprotect" c"__mprotect";
    map::pkey_mprotect: c"pkey_mprotect";
    map::mremap: c"mremap";
    onlookers::acct: c"acct";
    onlookers::swapon: c"swapon";
    onlookers::inotify_add_watch: c"inotify_add_watch";
    onlookers::fanotify_mark: c"fanotify_mark";
    signals::sigaction: c"sigaction" c"__sigaction";
    spawn::unshare: c"unshare";
    syscall::syscall: c"syscall";
    spawn::execve: c"execve";
    spawn::execveat: c"execveat";
    spawn::fexecve: c"fexecve";
};
