//! libc's `syscall`: known numbers go to their hooks, all others to the kernel.
#![allow(unsafe_code)] // A C entry point that turns words into arguments.

use core::ffi::{c_int, c_long, c_uint};

use super::{
    aio, copy, exec, limits, map, meta, names, numbers, onlookers, open, read, rights, spawn, stat, sync,
    truncate, write,
};
use crate::raw::{self, call};
use crate::{descriptions, gate, process, signals, uncovered};

/// Linux 6.6.
const SYS_FCHMODAT2: c_long = 452;
/// Linux 6.13.
const SYS_SETXATTRAT: c_long = 463;
/// Linux 6.13.
const SYS_REMOVEXATTRAT: c_long = 466;
/// Linux 6.17.
const SYS_FILE_SETATTR: c_long = 469;

/// `syscall`.
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    rights::before(number, [a, b, c, d, e, f]);
    // SAFETY: the program's own call.
    gate::within(|| unsafe { hooked(number, [a, b, c, d, e, f]) })
        .unwrap_or_else(|| raw::give(unsafe { raw::call6(number, a, b, c, d, e, f) }) as c_long)
}

/// A system call as its hook makes it, if it has one.
unsafe fn hooked(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let int = |word: usize| word as c_int;
    let unsigned = |word: usize| word as c_uint;
    if process::client().is_none() && process::parents_client().is_none() {
        // SAFETY: the program's own call.
        return raw::give(unsafe { raw::call6(number, a, b, c, d, e, f) }) as c_long;
    }
    // SAFETY: the program's own call; each hook takes the words as the kernel would.
    unsafe {
        let result: c_int = match number {
            libc::SYS_read => return read::read(int(a), b as _, c) as c_long,
            libc::SYS_pread64 => return read::pread(int(a), b as _, c, d as _) as c_long,
            libc::SYS_readv => return read::readv(int(a), b as _, int(c)) as c_long,
            libc::SYS_preadv => return read::preadv(int(a), b as _, int(c), d as _) as c_long,
            libc::SYS_preadv2 => return read::preadv2(int(a), b as _, int(c), d as _, int(f)) as c_long,
            libc::SYS_fstat => stat::fstat(int(a), b as _),
            libc::SYS_stat => stat::stat(a as _, b as _),
            libc::SYS_lstat => stat::lstat(a as _, b as _),
            libc::SYS_newfstatat => stat::fstatat(int(a), b as _, c as _, int(d)),
            libc::SYS_statx => stat::statx(int(a), b as _, int(c), unsigned(d), e as _),
            libc::SYS_write => return write::write(int(a), b as _, c) as c_long,
            libc::SYS_pwrite64 => return write::pwrite(int(a), b as _, c, d as _) as c_long,
            libc::SYS_writev => return write::writev(int(a), b as _, int(c)) as c_long,
            libc::SYS_pwritev => return write::pwritev(int(a), b as _, int(c), d as _) as c_long,
            libc::SYS_pwritev2 => return write::pwritev2(int(a), b as _, int(c), d as _, int(f)) as c_long,
            libc::SYS_lseek => return write::lseek(int(a), b as _, int(c)) as c_long,
            libc::SYS_sendfile => return copy::sendfile(int(a), int(b), c as _, d) as c_long,
            libc::SYS_splice => {
                return copy::splice(int(a), b as _, int(c), d as _, e, unsigned(f)) as c_long;
            }
            libc::SYS_copy_file_range => {
                return copy::copy_file_range(int(a), b as _, int(c), d as _, e, unsigned(f)) as c_long;
            }
            libc::SYS_sendmsg => return copy::sendmsg(int(a), b as _, int(c)) as c_long,
            libc::SYS_mmap => return map::mmap(a as _, b, int(c), int(d), int(e), f as _) as c_long,
            libc::SYS_mremap => return map::mremap(a as _, b, c, int(d), e as _) as c_long,
            libc::SYS_openat2 => return open::openat2(int(a), b as _, c, d),
            libc::SYS_mprotect => map::mprotect(a as _, b, int(c)),
            libc::SYS_open => open::open(a as _, int(b), unsigned(c)),
            libc::SYS_openat => open::openat(int(a), b as _, int(c), unsigned(d)),
            libc::SYS_creat => open::creat(a as _, unsigned(b)),
            libc::SYS_close => numbers::close(int(a)),
            libc::SYS_close_range => numbers::close_range(unsigned(a), unsigned(b), int(c)),
            libc::SYS_dup => numbers::dup(int(a)),
            libc::SYS_dup2 => numbers::dup2(int(a), int(b)),
            libc::SYS_dup3 => numbers::dup3(int(a), int(b), int(c)),
            libc::SYS_fcntl => numbers::fcntl(int(a), int(b), c),
            libc::SYS_ftruncate => truncate::ftruncate(int(a), b as _),
            libc::SYS_truncate => truncate::truncate(a as _, b as _),
            libc::SYS_fallocate => truncate::fallocate(int(a), int(b), c as _, d as _),
            libc::SYS_fsync => sync::fsync(int(a)),
            libc::SYS_fdatasync => sync::fdatasync(int(a)),
            libc::SYS_sync => {
                sync::sync();
                0
            }
            libc::SYS_sendmmsg => copy::sendmmsg(int(a), b as _, unsigned(c), int(d)),
            libc::SYS_ioctl => copy::ioctl(int(a), b as _, c),
            libc::SYS_execve => exec::execve(a as _, b as _, c as _),
            libc::SYS_execveat => exec::execveat(int(a), b as _, c as _, d as _, int(e)),
            libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => {
                // The child notices by itself what it is, but its parent must stop to remember
                // cursors now.
                descriptions::share_all();
                if number == libc::SYS_clone && int(a) & libc::CLONE_FILES != 0 {
                    uncovered::leave_to_kernel(holdfast_cache::Reason::Uncovered);
                }
                return raw::give(call!(number, a, b, c, d, e, f)) as c_long;
            }
            _ if let Some(result) = rare(number, [a, b, c, d, e, f]) => result,
            // It may wait for ever.
            _ => return raw::give(gate::outside(|| call!(number, a, b, c, d, e, f))) as c_long,
        };
        c_long::from(result)
    }
}

/// A call that is made rarely, or changes names or attributes, as its hook makes it. Another one is
/// not made.
///
/// # Safety
/// The program's own call; each hook takes the words as the kernel would.
unsafe fn rare(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_int> {
    let int = |word: usize| word as c_int;
    let unsigned = |word: usize| word as c_uint;
    // SAFETY: the caller's promise.
    let result = unsafe {
        match number {
            SYS_SETXATTRAT | SYS_REMOVEXATTRAT => meta::note_at(number, [a, b, c, d, e, f], int(c)),
            SYS_FILE_SETATTR => meta::note_at(number, [a, b, c, d, e, f], int(e)),
            libc::SYS_prlimit64 => limits::prlimit(int(a), int(b), c as _, d as _),
            libc::SYS_setrlimit => limits::setrlimit(int(a), b as _),
            libc::SYS_rt_sigaction => signals::rt_sigaction(int(a), b as _, c as _, d),
            libc::SYS_pkey_mprotect => map::pkey_mprotect(a as _, b, int(c), int(d)),
            libc::SYS_open_by_handle_at => open::open_by_handle_at(int(a), b as _, int(c)),
            libc::SYS_acct => onlookers::acct(a as _),
            libc::SYS_swapon => onlookers::swapon(a as _, int(b)),
            libc::SYS_umount2 => onlookers::umount2(a as _, int(b)),
            libc::SYS_inotify_add_watch => onlookers::inotify_add_watch(int(a), b as _, unsigned(c)),
            libc::SYS_fanotify_mark => {
                onlookers::fanotify_mark(int(a), unsigned(b), c as u64, int(d), e as _)
            }
            libc::SYS_syncfs => sync::syncfs(int(a)),
            libc::SYS_sync_file_range => sync::sync_file_range(int(a), b as _, c as _, unsigned(d)),
            libc::SYS_unshare => spawn::unshare(int(a)),
            libc::SYS_io_setup => aio::io_setup_call(a, b),
            libc::SYS_io_uring_setup => aio::io_uring_setup_call(a, b),
            libc::SYS_unlink => names::unlink(a as _),
            libc::SYS_unlinkat => names::unlinkat(int(a), b as _, int(c)),
            libc::SYS_rmdir => names::rmdir(a as _),
            libc::SYS_mkdir => names::mkdir(a as _, unsigned(b)),
            libc::SYS_mkdirat => names::mkdirat(int(a), b as _, unsigned(c)),
            libc::SYS_symlink => names::symlink(a as _, b as _),
            libc::SYS_symlinkat => names::symlinkat(a as _, int(b), c as _),
            libc::SYS_rename => names::rename(a as _, b as _),
            libc::SYS_renameat => names::renameat(int(a), b as _, int(c), d as _),
            libc::SYS_renameat2 => names::renameat2(int(a), b as _, int(c), d as _, unsigned(e)),
            libc::SYS_link => names::link(a as _, b as _),
            libc::SYS_linkat => names::linkat(int(a), b as _, int(c), d as _, int(e)),
            libc::SYS_chmod => meta::chmod(a as _, unsigned(b)),
            libc::SYS_fchmod => meta::fchmod(int(a), unsigned(b)),
            libc::SYS_fchmodat => meta::fchmodat(int(a), b as _, unsigned(c), 0),
            libc::SYS_chown => meta::chown(a as _, unsigned(b), unsigned(c)),
            libc::SYS_lchown => meta::lchown(a as _, unsigned(b), unsigned(c)),
            libc::SYS_fchown => meta::fchown(int(a), unsigned(b), unsigned(c)),
            libc::SYS_fchownat => meta::fchownat(int(a), b as _, unsigned(c), unsigned(d), int(e)),
            libc::SYS_utimensat => meta::set_times(int(a), b as _, c as _, int(d)),
            libc::SYS_utime => meta::utime(a as _, b as _),
            libc::SYS_utimes => meta::utimes(a as _, b as _),
            libc::SYS_futimesat => meta::futimesat(int(a), b as _, c as _),
            SYS_FCHMODAT2 => meta::fchmodat2(int(a), b as _, unsigned(c), int(d)),
            libc::SYS_setxattr => meta::setxattr(a as _, b as _, c as _, d, int(e)),
            libc::SYS_lsetxattr => meta::lsetxattr(a as _, b as _, c as _, d, int(e)),
            libc::SYS_fsetxattr => meta::fsetxattr(int(a), b as _, c as _, d, int(e)),
            libc::SYS_removexattr => meta::removexattr(a as _, b as _),
            libc::SYS_lremovexattr => meta::lremovexattr(a as _, b as _),
            libc::SYS_fremovexattr => meta::fremovexattr(int(a), b as _),
            libc::SYS_mknod => names::mknodat(libc::AT_FDCWD, a as _, unsigned(b), c as _),
            libc::SYS_mknodat => names::mknodat(int(a), b as _, unsigned(c), d as _),
            _ => return None,
        }
    };
    Some(result)
}
