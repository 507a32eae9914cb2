//! Opening files.
//!
//! An open for writing leaves `O_SYNC` and `O_TRUNC` out of the kernel's call and does their work
//! through the cache; it tries `O_EXCL` first, to learn whether the file is new. Never fails where
//! the kernel would not.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use holdfast_board::{Epoch, kind_of};
use holdfast_cache::{Client, Errno, Origin, Reason, Seen};

use super::room::with_room;
use crate::changing::making;
use crate::descriptions::{self, DSYNC, NAMELESS, SYNC, State, WRITE_ONLY};
use crate::raw::{self, call, give_int};
use crate::target::{self, Target};
use crate::{behind, cancels, fds, memory, patch, process, streams, unsynced};

/// `O_TMPFILE` without the directory bit.
const TMPFILE_BIT: c_int = 0o20_000_000;

type Name = *const c_char;

/// The kernel's `openat`; `cancel`: the thread may be cancelled in it.
unsafe fn kernel_open(dirfd: c_int, path: Name, flags: c_int, mode: c_uint, cancel: bool) -> isize {
    let mode = if flags & (libc::O_CREAT | TMPFILE_BIT) != 0 { mode } else { 0 };
    // SAFETY: the kernel checks the path's address.
    target::announced(|| unsafe {
        if cancel {
            let arguments = [dirfd as usize, path as usize, flags as usize, mode as usize, 0, 0];
            cancels::cancellable(libc::SYS_openat, arguments)
        } else {
            call!(libc::SYS_openat, dirfd, path, flags, mode)
        }
    })
}

/// Announces the open that is about to be made, where the fence needs it.
unsafe fn announce(
    client: &Client,
    dirfd: c_int,
    path: Name,
    flags: c_int,
) -> Option<holdfast_session::Announced> {
    if !client.announces_opens() || flags & (libc::O_PATH | libc::O_DIRECTORY) != 0 {
        return None;
    }
    let follow = if flags & libc::O_NOFOLLOW != 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    // SAFETY: the kernel checks the path's address.
    let stat = unsafe { raw::fstatat(dirfd, path, follow) }.ok()?;
    announce_of(client, &stat, flags)
}

/// As [`announce`], of what `stat` describes.
fn announce_of(client: &Client, stat: &raw::Stat, flags: c_int) -> Option<holdfast_session::Announced> {
    if client.leases_files() {
        // The kernel would refuse an open that does not wait, and let signals interrupt one that
        // does.
        target::end_lease(client, stat);
    }
    holdfast_session::announce_open(client, stat, target::may_write(flags))
}

unsafe fn open_file(dirfd: c_int, path: Name, flags: c_int, mode: c_uint, cancel: bool) -> isize {
    if cancel {
        cancels::cancellation_point();
    }
    // SAFETY: our caller's path.
    with_room(|| unsafe { open_once(dirfd, path, flags, mode, cancel) })
}

/// An open that made a file.
#[derive(Clone, Copy)]
struct Made {
    /// What the kernel says of it.
    stat: Option<raw::Stat>,
    /// When its creation was noted.
    noted: Option<Epoch>,
}

/// Has the kernel make a file, which nobody else made before, by an open. Such a call waits for
/// nobody, as that of a pipe would that is there.
unsafe fn make(
    client: &Client,
    dirfd: c_int,
    path: Name,
    flags: c_int,
    mode: c_uint,
) -> (isize, Option<Made>) {
    let ((fd, stat), noted) = making(client, || {
        // SAFETY: the kernel checks the path's address.
        let fd = unsafe { kernel_open(dirfd, path, flags | libc::O_EXCL, mode, false) };
        let stat = if fd >= 0 { raw::fstat(fd as c_int).ok() } else { None };
        ((fd, stat), stat.map(|stat| stat.dev))
    });
    (fd, (fd >= 0).then_some(Made { stat, noted }))
}

unsafe fn open_once(dirfd: c_int, path: Name, flags: c_int, mode: c_uint, cancel: bool) -> isize {
    let Some(client) = process::client() else {
        // SAFETY: our caller's path.
        return unsafe { open_without_client(dirfd, path, flags, mode, cancel) };
    };
    let truncates = flags & libc::O_TRUNC != 0;
    if !target::may_write(flags) || flags & TMPFILE_BIT != 0 {
        // SAFETY: our caller's path.
        return unsafe { open_not_to_write(client, dirfd, path, flags, mode, cancel) };
    }

    let synced = flags & libc::O_SYNC;
    // SAFETY: our caller's path.
    if synced != 0 && matches!(unsafe { raw::fstatat(dirfd, path, 0) }, Ok(stat) if !stat.regular) {
        // A device may mean something else by these flags.
        // SAFETY: our caller's path.
        let fd = unsafe { kernel_open(dirfd, path, flags, mode, cancel) };
        if fd >= 0 {
            fds::retire(fd as c_int);
        }
        return fd;
    }
    let asked = flags & !(libc::O_SYNC | libc::O_TRUNC);
    // SAFETY: our caller's path.
    let announced = unsafe { announce(client, dirfd, path, flags) };
    let (mut fd, mut made) = (-1, None);
    if asked & libc::O_CREAT != 0 {
        if cancel {
            cancels::cancellation_point();
        }
        // SAFETY: our caller's path.
        (fd, made) = unsafe { make(client, dirfd, path, asked, mode) };
    }
    if fd < 0 && asked & (libc::O_CREAT | libc::O_EXCL) != libc::O_CREAT | libc::O_EXCL {
        // SAFETY: our caller's path.
        fd = unsafe { kernel_open(dirfd, path, asked, mode, cancel) };
    }
    if fd < 0 {
        holdfast_session::opened(client, announced, None);
        return fd;
    }
    let number = fd as c_int;
    let stat = made.map_or_else(|| raw::fstat(number).ok(), |made| made.stat);
    if let (None, Some(stat)) = (made, stat.filter(|stat| asked & libc::O_CREAT != 0 && stat.size == 0)) {
        client.note_perhaps_made(stat.dev, stat.changed_ns);
    }
    let seen = holdfast_session::opened(client, announced, stat.as_ref());
    // SAFETY: the kernel has just read the path.
    let kind = if made.is_some() { kind_of(unsafe { raw::path(path) }.to_bytes()) } else { 0 };
    match adopt(client, number, (stat, seen), flags, (made, kind), truncates && made.is_none()) {
        Ok(()) => fd,
        Err(errno) => {
            fds::retire(number);
            raw::close(number);
            -(errno.0 as isize)
        }
    }
}

/// Opens what is not written to by that, or has no name.
unsafe fn open_not_to_write(
    client: &'static Client,
    dirfd: c_int,
    path: Name,
    flags: c_int,
    mode: c_uint,
    cancel: bool,
) -> isize {
    if flags & libc::O_TRUNC != 0 {
        // Truncated through a descriptor that cannot write: outside of what the log holds.
        // SAFETY: our caller's path.
        if let Ok(stat) = unsafe { raw::fstatat(dirfd, path, 0) } {
            target::leave_file_to_kernel(client, &stat, Reason::Uncovered);
        }
    }
    // SAFETY: our caller's path.
    let announced = unsafe { announce(client, dirfd, path, flags) };
    // SAFETY: our caller's path.
    let (fd, is_made) = unsafe { open_to_read(client, dirfd, path, flags, mode, cancel) };
    let opened = if fd >= 0 { note_unwritten(client, fd as c_int, flags, is_made) } else { None };
    holdfast_session::opened(client, announced, opened.as_ref());
    fd
}

/// Notes what such an open has opened, and looks at it where it matters which file that is.
fn note_unwritten(client: &Client, number: c_int, flags: c_int, is_made: bool) -> Option<raw::Stat> {
    if flags & libc::O_TRUNC != 0 && !is_made {
        // It may have emptied it.
        unsynced::note_pending(number);
    }
    let reads = !target::may_write(flags) && target::may_read(flags);
    let may_be_file = flags & (libc::O_PATH | libc::O_DIRECTORY) == 0;
    // Neither a fence that counts opens nor state Behind: nobody asks which file it is that
    // is read.
    let is_of_no_matter = reads && !client.announces_opens() && !client.writes_behind();
    if target::may_write(flags) {
        fds::retire(number);
        if flags & TMPFILE_BIT != 0 {
            describe_nameless(number, flags);
        }
    } else if may_be_file && is_of_no_matter {
        fds::note_readable(number);
    } else {
        fds::ignore(number)
    }
    if !may_be_file || is_of_no_matter {
        return None;
    }
    let opened = raw::fstat(number).ok();
    if opened.is_some_and(|stat| stat.regular) && !target::may_write(flags) {
        if reads {
            fds::note_readable(number);
        }
        if flags & libc::O_DIRECT != 0 {
            behind::show(number);
        }
    }
    opened
}

/// Opens what is not written to by that; whether it made a file, which is noted.
unsafe fn open_to_read(
    client: &Client,
    dirfd: c_int,
    path: Name,
    flags: c_int,
    mode: c_uint,
    cancel: bool,
) -> (isize, bool) {
    if flags & libc::O_CREAT != 0 && flags & TMPFILE_BIT == 0 {
        // SAFETY: our caller's path.
        let (fd, made) = unsafe { make(client, dirfd, path, flags, mode) };
        if fd >= 0 || flags & libc::O_EXCL != 0 {
            return (fd, made.is_some());
        }
    }
    // SAFETY: our caller's path.
    (unsafe { kernel_open(dirfd, path, flags, mode, cancel) }, false)
}

/// Gives a descriptor of a file without a name a row: the file may get a name.
fn describe_nameless(fd: c_int, flags: c_int) {
    let Ok(stat) = raw::fstat(fd) else { return };
    if !stat.regular {
        return;
    }
    if let Some((index, description)) = descriptions::allocate(target::kernel_flags(flags), Origin::Opened) {
        description.remember_birth(&stat);
        description.add_flags(NAMELESS);
        description.set_state(State::Plain);
        if !fds::describe(fd, index, description) {
            description.release();
        }
    }
}

/// Gives a newly opened descriptor its row, and does what was left out of the kernel's call.
fn adopt(
    client: &Client,
    fd: c_int,
    (stat, seen): (Option<raw::Stat>, Option<Seen>),
    flags: c_int,
    (made, kind): (Option<Made>, u64),
    truncate: bool,
) -> Result<(), Errno> {
    fds::retire(fd);
    let Some(stat) = stat else { return Ok(()) };
    if !stat.regular {
        fds::ignore(fd);
        return Ok(());
    }
    let mut described_as = target::kernel_flags(flags);
    if flags & libc::O_ACCMODE == libc::O_WRONLY {
        described_as |= WRITE_ONLY;
    }
    if flags & libc::O_DSYNC != 0 {
        described_as |= DSYNC;
    }
    if flags & libc::O_SYNC == libc::O_SYNC {
        described_as |= SYNC;
    }
    let origin = if made.is_some() { Origin::Created } else { Origin::Opened };
    let has_row = descriptions::allocate(described_as, origin).is_some_and(|(index, description)| {
        description.remember_birth(&stat);
        if let Some(made) = made {
            description.remember_noted(made.noted);
            description.remember_kind(kind);
        }
        let described = fds::describe(fd, index, description);
        match seen {
            _ if !described => description.release(),
            // Of one that is left to the kernel the keeper is asked anew at the first change.
            Some(seen) if !seen.state.is_bypassed() && !process::bypasses_all() => {
                holdfast_session::adopt(client, description, seen.file);
            }
            _ => {}
        }
        described
    });
    if !has_row && described_as & DSYNC != 0 {
        // Nobody would remember that its writes are to be synced.
        crate::reopen::restore_sync(fd, flags & libc::O_SYNC);
    }
    if truncate {
        raw::check(super::truncate::resize(fd, 0))?;
    }
    if streams::has(fd) {
        // The number of a stream that the program did not close.
        streams::give(fd);
    }
    if process::bypasses_all() && !truncate {
        // At once: its writes will not be seen. A keeper that cannot answer now does not make the
        // open fail.
        let _: Target = target::of_change(fd);
    }
    Ok(())
}

#[cold]
unsafe fn open_without_client(dirfd: c_int, path: Name, flags: c_int, mode: c_uint, cancel: bool) -> isize {
    if let Some(client) = process::parents_client()
        && (target::may_write(flags) || flags & libc::O_TRUNC != 0)
        // SAFETY: our caller's path.
        && let Ok(stat) = unsafe { raw::fstatat(dirfd, path, 0) }
    {
        // The program that this child becomes will write to it from nowhere.
        target::leave_file_to_kernel(client, &stat, Reason::HandedAway);
    }
    // SAFETY: our caller's path.
    unsafe { kernel_open(dirfd, path, flags, mode, cancel) }
}

/// `openat`. The mode is only looked at when the flags ask for it, as the caller may not have
/// passed one.
pub unsafe extern "C-unwind" fn openat(dirfd: c_int, path: Name, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program's path.
    give_int(unsafe { open_file(dirfd, path, flags, mode, true) })
}

/// `open`.
pub unsafe extern "C-unwind" fn open(path: Name, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program's path.
    give_int(unsafe { open_file(libc::AT_FDCWD, path, flags, mode, true) })
}

/// `open` as stdio uses it: not a cancellation point.
pub unsafe extern "C-unwind" fn __open_nocancel(path: Name, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the program's path.
    give_int(unsafe { open_file(libc::AT_FDCWD, path, flags, mode, false) })
}

/// `creat`.
pub unsafe extern "C-unwind" fn creat(path: Name, mode: c_uint) -> c_int {
    let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
    // SAFETY: the program's path.
    give_int(unsafe { open_file(libc::AT_FDCWD, path, flags, mode, true) })
}

/// An open that the kernel makes as asked, synchronous or not: the number is looked at when it is
/// written to. Only a truncation is taken out, as the log must hear of it. `open` makes the call
/// with the flags that it gets.
fn open_as_asked(flags: c_int, open: impl Fn(c_int) -> isize) -> isize {
    if process::client().or_else(process::parents_client).is_none() {
        return open(flags);
    }
    let fd = open(flags & !libc::O_TRUNC);
    if fd >= 0 && process::client().is_some() {
        fds::retire(fd as c_int);
        if flags & libc::O_CREAT != 0 {
            unsynced::note_pending(fd as c_int);
        }
    }
    let is_new = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    if fd < 0 || flags & libc::O_TRUNC == 0 || is_new { fd } else { truncated(fd, flags, &open) }
}

/// Does the truncation that was left out.
#[cold]
fn truncated(fd: isize, flags: c_int, open: &impl Fn(c_int) -> isize) -> isize {
    let number = fd as c_int;
    let Ok(stat) = raw::fstat(number) else { return fd };
    if !stat.regular {
        return fd;
    }
    if target::may_write(flags) && process::client().is_some() {
        let result = super::truncate::resize(number, 0);
        if result < 0 {
            fds::retire(number);
            raw::close(number);
            return result;
        }
        return fd;
    }
    if let Some(client) = process::client().or_else(process::parents_client) {
        target::leave_file_to_kernel(client, &stat, Reason::Uncovered);
    }
    raw::close(number);
    open(flags)
}

/// Makes an open whose flags are not ours to change, and tells a fence that counts opens whose it
/// is: `look` says what is about to be opened. Where that is something else by then, the fence
/// hears of it afterwards.
fn told(flags: c_int, look: impl FnOnce() -> Option<raw::Stat>, open: impl FnOnce() -> isize) -> isize {
    let counts = flags & (libc::O_PATH | libc::O_DIRECTORY) == 0;
    let Some(client) = process::client().filter(|client| counts && client.announces_opens()) else {
        return target::announced(open);
    };
    let announced = look().and_then(|stat| announce_of(client, &stat, flags));
    let fd = target::announced(open);
    let stat = if fd >= 0 { raw::fstat(fd as c_int).ok() } else { None };
    holdfast_session::opened(client, announced, stat.as_ref());
    fd
}

/// What a handle leads to, by a description that no fence hears of.
unsafe fn behind_handle(mount: c_int, handle: *const c_void) -> Option<raw::Stat> {
    // SAFETY: the kernel checks the address.
    let fd = unsafe { call!(libc::SYS_open_by_handle_at, mount, handle, libc::O_PATH | libc::O_CLOEXEC) };
    let stat = if fd >= 0 { raw::fstat(fd as c_int).ok() } else { None };
    if fd >= 0 {
        raw::close(fd as c_int);
    }
    stat
}

/// The system call `openat2`, which has no function in libc.
pub unsafe fn openat2(dirfd: c_int, path: Name, how: usize, bytes: usize) -> c_long {
    /// The kernel takes no more than a page.
    const HOW_BYTES_MAX: usize = 4096;
    let fits = memory::may_look()
        && (size_of::<u64>()..=HOW_BYTES_MAX).contains(&bytes)
        && memory::is_range_readable(how, bytes);
    // SAFETY: readable as probed; the structure begins with the flags.
    let flags = if fits { unsafe { (how as *const u64).read_unaligned() } } else { 0 };
    let creates = !fits || flags & libc::O_CREAT as u64 != 0;
    let flags = c_int::try_from(flags).unwrap_or(0);
    let follow = if flags & libc::O_NOFOLLOW != 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    // SAFETY: the kernel checks the path's address.
    let look = || unsafe { raw::fstatat(dirfd, path, follow) }.ok();
    if flags & libc::O_TRUNC == 0 {
        // SAFETY: the kernel checks the addresses.
        let fd =
            with_room(|| unsafe { told(flags, look, || call!(libc::SYS_openat2, dirfd, path, how, bytes)) });
        if fd >= 0 && process::client().is_some() {
            fds::retire(fd as c_int);
            if creates {
                unsynced::note_pending(fd as c_int);
            }
        }
        return raw::give(fd) as c_long;
    }
    let open = |flags: c_int| {
        let mut copy = [0u8; HOW_BYTES_MAX];
        // SAFETY: the program's structure, readable as probed, fits into the copy; the kernel
        // checks the path.
        unsafe {
            core::ptr::copy_nonoverlapping(how as *const u8, copy.as_mut_ptr(), bytes);
            copy[..size_of::<u64>()].copy_from_slice(&(flags as u64).to_ne_bytes());
            told(flags, look, || call!(libc::SYS_openat2, dirfd, path, copy.as_ptr(), bytes))
        }
    };
    raw::give(with_room(|| open_as_asked(flags, open))) as c_long
}

/// `open_by_handle_at`.
pub unsafe extern "C-unwind" fn open_by_handle_at(
    mount: c_int,
    handle: *const c_void,
    flags: c_int,
) -> c_int {
    if !patch::is_musl() {
        cancels::cancellation_point();
    }
    give_int(open_as_asked(flags, |flags| {
        // SAFETY: the kernel checks the address.
        let look = || unsafe { behind_handle(mount, handle) };
        // SAFETY: as above.
        told(flags, look, || unsafe { call!(libc::SYS_open_by_handle_at, mount, handle, flags) })
    }))
}
