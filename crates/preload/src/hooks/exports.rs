//! The names that are exported, and where their calls go: through a slot each, by the gate to the
//! hook, and to libc's own function once the library is out of the process.
//!
//! A name's slot changes once for all, in one store, so that any thread may call at that moment.
#![allow(unsafe_code)] // Symbols for the linker, jumps.

use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

use super::{
    aio, checked, copy, exec, handlers, limits, map, meta, names, numbers, onlookers, open, read, rights,
    spawn, stat, streams, sync, syscall, truncate, variants, write,
};
use crate::gate::Slot;
use crate::signals;

/// When calls of a name go to libc.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// When the library is out.
    Gated,
    /// Never: the hook calls it.
    Stays,
    /// Always, unless libc is musl; with musl, when the library is out.
    Musl,
}

/// An exported name.
pub struct Export {
    /// The name.
    pub name: &'static CStr,
    /// Its slot.
    pub slot: &'static Slot,
    /// Its kind.
    pub kind: Kind,
}

/// libc's own functions of these names, or 0.
static ORIGINALS: [AtomicUsize; EXPORTS.len()] = [const { AtomicUsize::new(0) }; EXPORTS.len()];

/// Looks up libc's own functions.
pub fn find_originals(find: &dyn Fn(&CStr) -> Option<usize>) {
    for (export, original) in EXPORTS.iter().zip(&ORIGINALS) {
        if original.load(Ordering::Relaxed) == 0 {
            original.store(find(export.name).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

fn release_those(are: impl Fn(Kind) -> bool) {
    for (export, original) in EXPORTS.iter().zip(&ORIGINALS) {
        let original = original.load(Ordering::Relaxed);
        if original != 0 && are(export.kind) {
            export.slot.release(original);
        }
    }
}

/// With glibc there is nothing to do for names that are hooked for musl's sake.
pub fn release_musls() {
    release_those(|kind| kind == Kind::Musl);
}

/// All calls are libc's from now on. Where its functions lead to the hooks still they stay there,
/// and pass everything on.
pub fn release(is_libc_whole: bool) {
    if is_libc_whole {
        release_those(|kind| kind != Kind::Stays);
    }
}

macro_rules! exports {
    (gated { $($module:ident::$hook:ident: $($name:ident)+;)* }
     plain { $($plain_module:ident::$plain:ident: $($plain_name:ident)+;)* }
     stays { $($staying_module:ident::$staying:ident: $($staying_name:ident)+;)* }
     musl { $($musl_module:ident::$musl:ident: $($musl_name:ident)+;)* }
     musl_plain { $($bare_module:ident::$bare:ident: $($bare_name:ident)+;)* }) => {
        /// Where calls of each name go.
        #[allow(non_upper_case_globals)] // They are called as libc's functions are.
        pub mod slots {
            use super::*;
            $($(pub static $name: Slot = Slot::new(ways::$hook as *const ());)+)*
            $($(pub static $plain_name: Slot = Slot::new($plain_module::$plain as *const ());)+)*
            $($(pub static $staying_name: Slot = Slot::new($staying_module::$staying as *const ());)+)*
            $($(pub static $musl_name: Slot = Slot::new(ways::$musl as *const ());)+)*
            $($(pub static $bare_name: Slot = Slot::new($bare_module::$bare as *const ());)+)*
        }

        /// The ways through the gate, one for each hook.
        #[allow(non_snake_case)] // As above.
        pub mod ways {
            use super::*;
            $(exports!(@way $module::$hook);)*
            $(exports!(@way $musl_module::$musl);)*
        }

        mod symbols {
            use super::slots;
            $($(exports!(@symbol $name);)+)*
            $($(exports!(@symbol $plain_name);)+)*
            $($(exports!(@symbol $staying_name);)+)*
            $($(exports!(@symbol $musl_name);)+)*
            $($(exports!(@symbol $bare_name);)+)*
        }

        /// All of them.
        pub static EXPORTS: &[Export] = &[
            $($(exports!(@export $name Gated),)+)*
            $($(exports!(@export $plain_name Gated),)+)*
            $($(exports!(@export $staying_name Stays),)+)*
            $($(exports!(@export $musl_name Musl),)+)*
            $($(exports!(@export $bare_name Musl),)+)*
        ];
    };
    (@way $module:ident::$hook:ident) => {
        #[unsafe(naked)]
        pub unsafe extern "C-unwind" fn $hook() {
            core::arch::naked_asm!(
                "lea r10, [rip + {slot}]",
                "lea r11, [rip + {hook}]",
                "jmp {gate}",
                slot = sym slots::$hook,
                hook = sym $module::$hook,
                gate = sym crate::gate::holdfast_gate,
            )
        }
    };
    (@symbol $name:ident) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C-unwind" fn $name() {
            core::arch::naked_asm!("jmp qword ptr [rip + {slot}]", slot = sym slots::$name)
        }
    };
    (@export $name:ident $kind:ident) => {
        Export {
            // SAFETY: the text ends with its only zero.
            name: unsafe { CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) },
            slot: &slots::$name,
            kind: Kind::$kind,
        }
    };
}

exports! {
    gated {
        aio::io_queue_init: io_queue_init;
        aio::io_setup: io_setup;
        aio::io_uring_queue_init: io_uring_queue_init;
        aio::io_uring_queue_init_mem: io_uring_queue_init_mem;
        aio::io_uring_queue_init_params: io_uring_queue_init_params;
        aio::io_uring_setup: io_uring_setup;
        checked::__open64_2: __open64_2;
        checked::__open_2: __open_2;
        checked::__openat64_2: __openat64_2;
        checked::__openat_2: __openat_2;
        copy::copy_file_range: copy_file_range;
        copy::ioctl: ioctl;
        copy::sendfile: sendfile sendfile64;
        copy::sendmmsg: sendmmsg __sendmmsg;
        copy::sendmsg: sendmsg;
        copy::splice: splice;
        handlers::bsd_signal: bsd_signal;
        handlers::pthread_setcanceltype: pthread_setcanceltype;
        handlers::sigignore: sigignore;
        handlers::siginterrupt: siginterrupt;
        handlers::signal: signal;
        handlers::sigset: sigset;
        handlers::__sysv_signal: __sysv_signal;
        limits::prlimit: prlimit prlimit64;
        limits::setrlimit: setrlimit setrlimit64;
        map::mmap: mmap mmap64;
        map::mprotect: mprotect;
        map::mremap: mremap;
        map::pkey_mprotect: pkey_mprotect;
        meta::chmod: chmod;
        meta::chown: chown;
        meta::fchmod: fchmod;
        meta::fchmodat: fchmodat;
        meta::fchown: fchown;
        meta::fchownat: fchownat;
        meta::fremovexattr: fremovexattr;
        meta::fsetxattr: fsetxattr;
        meta::futimens: futimens;
        meta::futimes: futimes;
        meta::futimesat: futimesat;
        meta::lchmod: lchmod;
        meta::lchown: lchown;
        meta::lremovexattr: lremovexattr;
        meta::lsetxattr: lsetxattr;
        meta::lutimes: lutimes;
        meta::removexattr: removexattr;
        meta::setxattr: setxattr;
        meta::utime: utime;
        meta::utimensat: utimensat;
        meta::utimes: utimes;
        names::link: link;
        names::linkat: linkat;
        names::mkdir: mkdir;
        names::mkdirat: mkdirat;
        names::mkfifo: mkfifo;
        names::mkfifoat: mkfifoat;
        names::mknod: mknod;
        names::mknodat: mknodat;
        names::remove: remove;
        names::rename: rename;
        names::renameat: renameat;
        names::renameat2: renameat2;
        names::rmdir: rmdir;
        names::symlink: symlink;
        names::symlinkat: symlinkat;
        names::unlink: unlink;
        names::unlinkat: unlinkat;
        names::__xmknod: __xmknod;
        names::__xmknodat: __xmknodat;
        numbers::close: close __close;
        numbers::__close_nocancel: __close_nocancel;
        numbers::close_range: close_range;
        numbers::closefrom: closefrom;
        numbers::dup: dup;
        numbers::dup2: dup2 __dup2;
        numbers::dup3: dup3;
        numbers::fcntl: fcntl fcntl64 __fcntl __libc_fcntl64;
        numbers::posix_close: posix_close;
        onlookers::acct: acct;
        onlookers::fanotify_mark: fanotify_mark;
        onlookers::inotify_add_watch: inotify_add_watch;
        onlookers::swapon: swapon;
        onlookers::umount: umount;
        onlookers::umount2: umount2;
        open::creat: creat creat64;
        open::open: open open64 __open __open64 __libc_open64;
        open::open_by_handle_at: open_by_handle_at;
        open::__open_nocancel: __open_nocancel __open64_nocancel;
        open::openat: openat openat64;
        read::pread: pread pread64 __pread64 __libc_pread;
        read::__pread64_chk: __pread64_chk;
        read::__pread64_nocancel: __pread64_nocancel;
        read::__pread_chk: __pread_chk;
        read::preadv: preadv preadv64;
        read::preadv2: preadv2 preadv64v2;
        read::read: read __read;
        read::__read_chk: __read_chk;
        read::__read_nocancel: __read_nocancel;
        read::readv: readv;
        signals::sigaction: sigaction __sigaction;
        spawn::_Fork: _Fork;
        spawn::_IO_proc_open: _IO_proc_open;
        spawn::clone: clone __clone;
        spawn::daemon: daemon;
        spawn::fork: fork __fork __libc_fork;
        spawn::forkpty: forkpty;
        spawn::popen: popen _IO_popen;
        spawn::system: system;
        spawn::wordexp: wordexp;
        stat::fstat: fstat fstat64;
        stat::fstatat: fstatat fstatat64;
        stat::__fxstat: __fxstat __fxstat64;
        stat::__fxstatat: __fxstatat __fxstatat64;
        stat::lstat: lstat lstat64;
        stat::__lxstat: __lxstat __lxstat64;
        stat::stat: stat stat64;
        stat::statx: statx;
        stat::__xstat: __xstat __xstat64;
        sync::fdatasync: fdatasync;
        sync::fsync: fsync;
        sync::sync: sync;
        sync::sync_file_range: sync_file_range;
        sync::syncfs: syncfs;
        truncate::fallocate: fallocate fallocate64;
        truncate::ftruncate: ftruncate ftruncate64;
        truncate::posix_fallocate: posix_fallocate posix_fallocate64;
        truncate::truncate: truncate truncate64;
        write::lseek: lseek lseek64 __lseek;
        write::pwrite: pwrite pwrite64 __pwrite64 __libc_pwrite;
        write::pwritev: pwritev pwritev64;
        write::pwritev2: pwritev2 pwritev64v2;
        write::write: write __write;
        write::__write_nocancel: __write_nocancel;
        write::writev: writev;
    }
    plain {
        variants::execl: execl;
        variants::execlp: execlp;
        variants::execv: execv;
        variants::execvp: execvp;
        onlookers::dlmopen: dlmopen;
        onlookers::dlopen: dlopen;
        spawn::vfork: vfork __vfork;
    }
    stays {
        variants::execle: execle;
        variants::execvpe: execvpe;
        exec::execve: execve;
        exec::execveat: execveat;
        exec::fexecve: fexecve;
        spawn::posix_spawn: posix_spawn;
        spawn::posix_spawnp: posix_spawnp;
        spawn::unshare: unshare;
        syscall::syscall: syscall;
        rights::setuid: setuid;
        rights::seteuid: seteuid;
        rights::setreuid: setreuid;
        rights::setresuid: setresuid;
        rights::setgid: setgid;
        rights::setegid: setegid;
        rights::setregid: setregid;
        rights::setresgid: setresgid;
        rights::setgroups: setgroups;
        rights::initgroups: initgroups;
        rights::setfsuid: setfsuid;
        rights::setfsgid: setfsgid;
        rights::capset: capset;
        rights::chroot: chroot;
        rights::pivot_root: pivot_root;
        rights::setns: setns;
        rights::prctl: prctl;
    }
    musl {
        streams::aio_write: aio_write aio_write64;
        streams::closedir: closedir;
        streams::endmntent: endmntent;
        streams::fclose: fclose;
        streams::fdopen: fdopen;
        streams::fopen: fopen fopen64;
        streams::freopen: freopen freopen64;
        streams::lio_listio: lio_listio lio_listio64;
        streams::login_tty: login_tty;
        streams::mkdtemp: mkdtemp;
        streams::mkostemp: mkostemp mkostemp64;
        streams::mkostemps: mkostemps mkostemps64;
        streams::mkstemp: mkstemp mkstemp64;
        streams::mkstemps: mkstemps mkstemps64;
        streams::pclose: pclose;
        streams::setmntent: setmntent;
        streams::tmpfile: tmpfile tmpfile64;
        streams::vdprintf: vdprintf;
    }
    musl_plain {
        streams::dprintf: dprintf;
    }
}
