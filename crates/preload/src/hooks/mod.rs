//! The functions that stand in front of libc's, and the table of libc entries that lead to them.
//!
//! Hooks are exported by [`exports`].
#![allow(unsafe_code)] // The table is shared.

mod aio;
mod checked;
mod copy;
mod exec;
pub mod exports;
mod handlers;
pub mod limits;
mod map;
mod meta;
mod names;
mod numbers;
mod onlookers;
mod open;
mod original;
mod outcome;
mod read;
mod rights;
mod room;
mod spawn;
mod spawned;
mod stat;
mod streams;
mod sync;
mod syscall;
mod transfer;
mod truncate;
mod variants;
mod write;

use crate::patch::Entry;

pub use exec::execve;
pub use spawn::fork_by;
pub use syscall::syscall;
pub use write::holdfast_seen_writes;

/// Where a patched entry leads: through the gate, or to a hook that goes there by itself.
macro_rules! way {
    (exec execve) => {
        exec::execve
    };
    (exec execveat) => {
        exec::execveat
    };
    (exec fexecve) => {
        exec::fexecve
    };
    (spawn unshare) => {
        spawn::unshare
    };
    (syscall syscall) => {
        syscall::syscall
    };
    ($module:ident $hook:ident) => {
        exports::ways::$hook
    };
}

macro_rules! entries {
    ($($module:ident::$hook:ident: $($name:literal)+;)*) => {
        &[$($(Entry::new($name, way!($module $hook) as *const ()),)+)*]
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
    onlookers::umount2: c"umount2";
    onlookers::umount: c"umount";
    onlookers::inotify_add_watch: c"inotify_add_watch";
    onlookers::fanotify_mark: c"fanotify_mark";
    signals::sigaction: c"sigaction" c"__sigaction";
    spawn::unshare: c"unshare";
    syscall::syscall: c"syscall";
    exec::execve: c"execve";
    exec::execveat: c"execveat";
    exec::fexecve: c"fexecve";
};
