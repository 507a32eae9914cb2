//! Mode, owner, times and attributes: made by the kernel, and pending in the ledger from then on
//! (invariant 9).
//!
//! The note is taken when the kernel has done it and before the program knows.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_char, c_int, c_uint, c_void};

use holdfast_board::Change;
use holdfast_cache::{Client, FileRef};
use holdfast_canary::{Canary, on};
use libc::{size_t, timespec, timeval, utimbuf};

use super::original::original;
use crate::changing::{amid, changing};
use crate::patch::{self, FCHMODAT};
use crate::raw::{self, call, give_int};
use crate::target::{self, Target};
use crate::{behind, critical, descriptions, fds, memory, process, unsynced};

type Name = *const c_char;

const HERE: c_int = libc::AT_FDCWD;

/// A file that may be executed is read by the kernel and the dynamic linker, without any hook, and
/// one that gives its user's or group's rights away loses that bit with the kernel's first write.
const MAY_RUN: c_uint = 0o6111;
const OWNER_WRITES: c_uint = 0o200;

/// Whether the bytes of a file with this mode belong in the page cache: the keeper, which brings
/// them there in state Behind, opens the file for that, and has no more rights than its user.
fn wants_bytes_shown(mode: c_uint) -> bool {
    mode & MAY_RUN != 0 || mode & OWNER_WRITES == 0
}

fn note_fd(fd: c_int, result: isize) -> c_int {
    if result >= 0 {
        match target::of_other(fd) {
            Target::Managed(handle) => handle.client.note_attributes(handle.file),
            _ => unsynced::note_change(fd),
        }
    }
    give_int(result)
}

/// Mode or owner of a descriptor's file: sqlite3 run by root gives every journal the owner it has
/// anyway, which changes nothing that a sync would have to make durable.
fn change_owner(fd: c_int, kernel: impl Fn() -> isize) -> c_int {
    let Some(client) = process::client() else { return give_int(kernel()) };
    fds::hold(fd, || change_owner_held(client, fd, &kernel))
}

fn change_owner_held(client: &Client, fd: c_int, kernel: &impl Fn() -> isize) -> c_int {
    if let Some(result) = unsynced::as_born(fd, || change_owner_once(client, fd, None, kernel)) {
        return give_int(result);
    }
    match target::of_other(fd) {
        Target::Managed(handle) => {
            // A dead keeper is for whoever syncs to tell of.
            let hear = || critical::section(|| handle.client.hear_all(handle.file).unwrap_or(()));
            hear();
            let result = change_owner_once(client, fd, Some(handle.file), kernel);
            hear();
            handle.client.end_touched(handle.file);
            give_int(result)
        }
        _ => give_int(change_owner_once(client, fd, None, kernel)),
    }
}

fn change_owner_once(
    client: &Client,
    fd: c_int,
    managed: Option<FileRef>,
    kernel: &impl Fn() -> isize,
) -> isize {
    let before = raw::fstat(fd);
    let change = before.map_or(Change::Any, |stat| Change::File(stat.ino));
    changing(client, change, || {
        let result = kernel();
        if result < 0 {
            return result;
        }
        let was = before.map(|stat| stat.ownership);
        let is_changed = was.is_err() || raw::fstat(fd).map(|stat| stat.ownership) != was;
        match managed {
            Some(file) if is_changed => client.note_attributes(file),
            Some(file) => client.note_touched(file),
            // Of a new file its slot is going to have them.
            None if is_changed => unsynced::note_pending(fd),
            None => {}
        }
        result
    })
}

/// The kernel's answer for descriptors of a path alone, whose file musl reaches by its path in
/// `/proc`.
const NO_DESCRIPTOR: isize = -(libc::EBADF as isize);

/// What libc returned, as the kernel would.
fn by_libc(result: c_int) -> isize {
    if result == -1 { -(raw::errno() as isize) } else { result as isize }
}

/// `fchmod`.
pub unsafe extern "C-unwind" fn fchmod(fd: c_int, mode: c_uint) -> c_int {
    if wants_bytes_shown(mode) {
        behind::show(fd);
    }
    // SAFETY: touches no memory.
    change_owner(fd, || match unsafe { call!(libc::SYS_fchmod, fd, mode) } {
        NO_DESCRIPTOR if patch::is_musl() => {
            by_libc(original!(MUSL_FCHMOD(fd => c_int, mode => c_uint) -> c_int, else NO_DESCRIPTOR as c_int))
        }
        result => result,
    })
}

/// `fchown`.
pub unsafe extern "C-unwind" fn fchown(fd: c_int, owner: c_uint, group: c_uint) -> c_int {
    // SAFETY: touches no memory.
    change_owner(fd, || match unsafe { call!(libc::SYS_fchown, fd, owner, group) } {
        NO_DESCRIPTOR if patch::is_musl() => by_libc(original!(
            MUSL_FCHOWN(fd => c_int, owner => c_uint, group => c_uint) -> c_int,
            else NO_DESCRIPTOR as c_int
        )),
        result => result,
    })
}

unsafe fn note_path(dirfd: c_int, path: Name, flags: c_int, result: isize) -> c_int {
    if result >= 0
        && let Some(client) = process::client()
        // SAFETY: the program's path.
        && let Ok(stat) = unsafe { raw::fstatat(dirfd, path, flags) }
    {
        match client.find(stat.dev, stat.ino).filter(|_| stat.regular) {
            Some(seen) => client.note_attributes(seen.file),
            None => {
                client.note_change(stat.dev);
                // Perhaps a file that we created and have not written to yet.
                descriptions::note_path_change();
            }
        }
    }
    give_int(result)
}

/// A system call whose first arguments are a directory and a path, and after which the file is
/// noted.
pub unsafe fn note_at(number: i64, [a, b, c, d, e, f]: [usize; 6], flags: c_int) -> c_int {
    let follows = flags & (libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH);
    // SAFETY: the program's own call; the kernel checks its addresses.
    amid(Change::Any, || unsafe {
        let result = raw::call6(number, a, b, c, d, e, f);
        note_path(a as c_int, b as Name, follows, result)
    })
}

/// Defines hooks that make one system call and note the file behind their first argument, a
/// descriptor or a path.
macro_rules! noted {
    ($(fd $name:ident($($argument:ident: $kind:ty),*) = $number:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, $($argument: $kind),*) -> c_int {
            // SAFETY: the program's own call; the kernel checks its addresses.
            let once = || note_fd(fd, unsafe { call!($number, fd, $($argument),*) });
            fds::hold(fd, || amid(Change::Any, once))
        }
    )*};
    ($(path($flags:expr) $name:ident($($argument:ident: $kind:ty),*) = $number:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub unsafe extern "C-unwind" fn $name(path: Name, $($argument: $kind),*) -> c_int {
            // SAFETY: the program's own call; the kernel checks its addresses.
            amid(Change::Any, || unsafe {
                // Bytes that reach the kernel later would change the times again.
                let result = behind::set_times_of(HERE, path, $flags, || call!($number, path, $($argument),*));
                note_path(HERE, path, $flags, result)
            })
        }
    )*};
}

noted! {
    fd fremovexattr(name: Name) = libc::SYS_fremovexattr;
}

noted! {
    path(0) chown(owner: c_uint, group: c_uint) = libc::SYS_chown;
    path(libc::AT_SYMLINK_NOFOLLOW) lchown(owner: c_uint, group: c_uint) = libc::SYS_lchown;
    path(0) utime(times: *const utimbuf) = libc::SYS_utime;
    path(0) utimes(times: *const timeval) = libc::SYS_utimes;
    path(0) removexattr(name: Name) = libc::SYS_removexattr;
    path(libc::AT_SYMLINK_NOFOLLOW) lremovexattr(name: Name) = libc::SYS_lremovexattr;
}

/// Whether an attribute is one that the kernel's next write takes away, which must not be a write
/// of before.
fn is_lost_by_writes(name: Name) -> bool {
    let lost = c"security.capability".to_bytes_with_nul();
    memory::may_look()
        && memory::is_range_readable(name.addr(), lost.len())
        // SAFETY: readable as probed.
        && unsafe { core::slice::from_raw_parts(name.cast::<u8>(), lost.len()) } == lost
}

/// Defines hooks that set an attribute.
macro_rules! attributes {
    ($($name:ident($subject:ident: $kind:ty) = $number:expr, $note:expr, $show:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        pub unsafe extern "C-unwind" fn $name(
            $subject: $kind,
            name: Name,
            value: *const c_void,
            bytes: size_t,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the program's own call; the kernel checks its addresses.
            amid(Change::Any, || unsafe {
                if is_lost_by_writes(name) {
                    $show($subject);
                }
                let result = call!($number, $subject, name, value, bytes, flags);
                $note($subject, result)
            })
        }
    )*};
}

attributes! {
    setxattr(path: Name) = libc::SYS_setxattr,
        |path, result| note_path(HERE, path, 0, result), |path| behind::show_path(HERE, path, 0);
    lsetxattr(path: Name) = libc::SYS_lsetxattr,
        |path, result| note_path(HERE, path, libc::AT_SYMLINK_NOFOLLOW, result),
        |path| behind::show_path(HERE, path, libc::AT_SYMLINK_NOFOLLOW);
}

/// `fsetxattr`.
pub unsafe extern "C-unwind" fn fsetxattr(
    fd: c_int,
    name: Name,
    value: *const c_void,
    bytes: size_t,
    flags: c_int,
) -> c_int {
    fds::hold(fd, || {
        if is_lost_by_writes(name) {
            behind::show(fd);
        }
        // SAFETY: the program's own call; the kernel checks its addresses.
        note_fd(fd, unsafe { call!(libc::SYS_fsetxattr, fd, name, value, bytes, flags) })
    })
}

/// `chmod`.
pub unsafe extern "C-unwind" fn chmod(path: Name, mode: c_uint) -> c_int {
    // SAFETY: the program's own call.
    unsafe { fchmodat(HERE, path, mode, 0) }
}

/// `lchmod`, which libc makes of its own `fchmodat`.
pub unsafe extern "C-unwind" fn lchmod(path: Name, mode: c_uint) -> c_int {
    // SAFETY: the program's own call.
    unsafe { fchmodat(HERE, path, mode, libc::AT_SYMLINK_NOFOLLOW) }
}

/// `fchmodat`: libc does without the kernel's help what older kernels cannot.
pub unsafe extern "C-unwind" fn fchmodat(dirfd: c_int, path: Name, mode: c_uint, flags: c_int) -> c_int {
    if wants_bytes_shown(mode) {
        // SAFETY: the program's path.
        unsafe { behind::show_path(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW) };
    }
    let address = FCHMODAT.address();
    if flags == 0 || address == 0 {
        // SAFETY: the program's own call; the kernel checks its addresses.
        return amid(Change::Any, || unsafe {
            let result = call!(libc::SYS_fchmodat, dirfd, path, mode);
            note_path(dirfd, path, 0, result)
        });
    }
    type Function = unsafe extern "C" fn(c_int, Name, c_uint, c_int) -> c_int;
    // SAFETY: libc's function of this name has this shape; the program's own call.
    amid(Change::Any, || unsafe {
        let original: Function = core::mem::transmute(address);
        let result = original(dirfd, path, mode, flags);
        if result == 0 {
            note_path(dirfd, path, flags & libc::AT_SYMLINK_NOFOLLOW, 0);
        }
        result
    })
}

/// The system call `fchmodat2`, which has no function in libc.
pub(super) unsafe fn fchmodat2(dirfd: c_int, path: Name, mode: c_uint, flags: c_int) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    amid(Change::Any, || unsafe {
        let follows = flags & (libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH);
        if wants_bytes_shown(mode) {
            behind::show_path(dirfd, path, follows);
        }
        let result = call!(452, dirfd, path, mode, flags);
        note_path(dirfd, path, follows, result)
    })
}

/// `fchownat`.
pub unsafe extern "C-unwind" fn fchownat(
    dirfd: c_int,
    path: Name,
    owner: c_uint,
    group: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    amid(Change::Any, || unsafe {
        let result = call!(libc::SYS_fchownat, dirfd, path, owner, group, flags);
        note_path(dirfd, path, flags, result)
    })
}

/// Before times are set: the kernel stamps that no older than what the log has of the file.
///
/// # Safety
/// `path` is null or the program's, as for any call of the kernel's.
unsafe fn follow_records(dirfd: c_int, path: Name, flags: c_int) {
    let Some(client) = process::client() else { return };
    let Some(ahead_ns) = client.record_ahead_ns() else { return };
    let stat = if path.is_null() {
        raw::fstat(dirfd)
    } else {
        // SAFETY: as our caller says.
        unsafe { raw::fstatat(dirfd, path, flags) }
    };
    let Ok(stat) = stat else { return };
    if let Some(seen) = client.find(stat.dev, stat.ino) {
        client.follow_records(seen.file, ahead_ns, stat.changed_ns);
    }
}

pub(super) unsafe fn set_times(dirfd: c_int, path: Name, times: *const timespec, flags: c_int) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe { follow_records(dirfd, path, flags) };
    // SAFETY: the program's own call; the kernel checks its addresses.
    amid(Change::Any, || unsafe {
        let set = || call!(libc::SYS_utimensat, dirfd, path, times, flags);
        if path.is_null() {
            return fds::hold(dirfd, || {
                let result = if on(Canary::TimesUndrained) { set() } else { behind::set_times(dirfd, set) };
                note_fd(dirfd, result)
            });
        }
        let drains = !on(Canary::TimesUndrained);
        let result = if drains { behind::set_times_of(dirfd, path, flags, set) } else { set() };
        note_path(dirfd, path, flags, result)
    })
}

/// `utimensat`.
pub unsafe extern "C-unwind" fn utimensat(
    dirfd: c_int,
    path: Name,
    times: *const timespec,
    flags: c_int,
) -> c_int {
    if path.is_null() && !patch::is_musl() {
        // Only the system call takes a null path, and musl.
        return give_int(-(libc::EINVAL as isize));
    }
    // SAFETY: the program's own call.
    unsafe { set_times(dirfd, path, times, flags) }
}

/// `futimens`.
pub unsafe extern "C-unwind" fn futimens(fd: c_int, times: *const timespec) -> c_int {
    if fd < 0 {
        return give_int(-(libc::EBADF as isize));
    }
    // SAFETY: the program's own call.
    unsafe { set_times(fd, core::ptr::null(), times, 0) }
}

/// Two times in microseconds as the kernel wants them.
///
/// # Safety
/// `times` is null or points to two values.
unsafe fn in_nanoseconds(times: *const timeval) -> Option<[timespec; 2]> {
    if times.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let both = unsafe { [*times, *times.add(1)] };
    Some(both.map(|time| timespec {
        tv_sec: time.tv_sec,
        // Out of range stays out of range: the kernel refuses it.
        tv_nsec: if (0..1_000_000).contains(&time.tv_usec) { time.tv_usec * 1000 } else { -1 },
    }))
}

fn address(times: &Option<[timespec; 2]>) -> *const timespec {
    times.as_ref().map_or(core::ptr::null(), |times| times.as_ptr())
}

/// `futimes`.
pub unsafe extern "C-unwind" fn futimes(fd: c_int, times: *const timeval) -> c_int {
    // SAFETY: the program passes two times or null.
    let times = unsafe { in_nanoseconds(times) };
    // SAFETY: the program's own call.
    unsafe { set_times(fd, core::ptr::null(), address(&times), 0) }
}

/// `lutimes`.
pub unsafe extern "C-unwind" fn lutimes(path: Name, times: *const timeval) -> c_int {
    // SAFETY: the program passes two times or null.
    let times = unsafe { in_nanoseconds(times) };
    // SAFETY: the program's own call.
    unsafe { set_times(HERE, path, address(&times), libc::AT_SYMLINK_NOFOLLOW) }
}

/// `futimesat`.
pub unsafe extern "C-unwind" fn futimesat(dirfd: c_int, path: Name, times: *const timeval) -> c_int {
    // SAFETY: the program passes two times or null.
    let times = unsafe { in_nanoseconds(times) };
    // SAFETY: the program's own call.
    unsafe { set_times(dirfd, path, address(&times), 0) }
}
