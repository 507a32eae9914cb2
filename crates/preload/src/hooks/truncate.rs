//! Changing a file's size and its holes.
//!
//! What a record can express is logged; what shifts data goes around the log; what only allocates
//! makes the next sync real.
#![allow(unsafe_code)] // C entry points.

use core::cell::Cell;
use core::ffi::{c_char, c_int};

use holdfast_board::Change;
use holdfast_cache::{Errno, Outcome, Reason};
use libc::off_t;

use super::outcome::plain_outcome;
use super::room::{with_room, with_room_but_for_syncs};
use super::sync::synced_as_opened;
use crate::changing::amid;
use crate::patch::POSIX_FALLOCATE;
use crate::raw::{self, call, check, give_int};
use crate::target::{self, Target};
use crate::{cancels, critical, fds, process, relog, unsynced};

/// A size or an allocation that no record holds is pending.
fn unlogged(fd: c_int, result: isize) -> isize {
    if result >= 0 {
        unsynced::note_pending(fd);
    }
    result
}

/// As [`unlogged`], of a file that has a slot and no record.
fn passed(outcome: &Result<Outcome, Errno>, fd: c_int) {
    if matches!(outcome, Ok(Outcome::Passed { .. })) {
        unsynced::note_pending(fd);
    }
}

/// `ftruncate` with the kernel's convention for errors.
pub(super) fn resize(fd: c_int, size: off_t) -> isize {
    let once = |sync_failed: &Cell<bool>| amid(Change::Any, || resize_once(fd, size, sync_failed));
    with_room_but_for_syncs(|sync_failed| fds::hold(fd, || once(sync_failed)))
}

fn resize_once(fd: c_int, size: off_t, sync_failed: &Cell<bool>) -> isize {
    // SAFETY: touches no memory.
    let kernel = || unsafe { call!(libc::SYS_ftruncate, fd, size) };
    let Ok(bytes) = u64::try_from(size) else { return kernel() };
    let synced_kernel = |synced: bool| {
        let result = kernel();
        if result != 0 || !synced {
            return result;
        }
        let sync = relog::fdatasync(fd);
        sync_failed.set(sync < 0);
        sync
    };
    if let Some(result) = unsynced::pass(fd, kernel) {
        return unlogged(fd, result);
    }
    target::retry(
        fd,
        |synced| unlogged(fd, synced_kernel(synced)),
        |errno| -(errno.0 as isize),
        |handle| {
            let outcome = critical::section(|| {
                handle.client.truncate(handle.file, bytes, || check(kernel()).map(|_| ()))
            });
            passed(&outcome, fd);
            plain_outcome(outcome, || {
                unlogged(fd, synced_kernel(handle.flags & crate::descriptions::DSYNC != 0))
            })
        },
    )
}

/// `ftruncate`.
pub unsafe extern "C-unwind" fn ftruncate(fd: c_int, size: off_t) -> c_int {
    give_int(resize(fd, size))
}

/// `truncate`.
pub unsafe extern "C-unwind" fn truncate(path: *const c_char, size: off_t) -> c_int {
    // SAFETY: the program's path.
    give_int(with_room(|| amid(Change::Any, || unsafe { truncate_once(path, size) })))
}

unsafe fn truncate_once(path: *const c_char, size: off_t) -> isize {
    // SAFETY: the kernel checks the path's address.
    let kernel = || unsafe { call!(libc::SYS_truncate, path, size) };
    let (Some(client), Ok(bytes)) = (process::client(), u64::try_from(size)) else {
        return kernel();
    };
    for _ in 0..holdfast_session::TRIES {
        // SAFETY: the program's path.
        let Ok(stat) = (unsafe { raw::fstatat(libc::AT_FDCWD, path, 0) }) else { break };
        let Some(seen) = client.find(stat.dev, stat.ino) else { break };
        if client.announces_opens() && client.writes_behind() {
            // A lease is broken by this call, which must not wait for the keeper while it has the
            // file.
            let _ = critical::section(|| client.leave_behind(seen.file, true));
        }
        let outcome = critical::section(|| client.truncate(seen.file, bytes, || check(kernel()).map(|_| ())));
        let is_logged = matches!(outcome, Ok(Outcome::Absorbed { .. }));
        if let Some(result) = plain_outcome(outcome, kernel) {
            if result >= 0 && !is_logged {
                client.note_change(stat.dev);
            }
            return result;
        }
    }
    let result = kernel();
    if result >= 0
        // SAFETY: the program's path.
        && let Ok(stat) = unsafe { raw::fstatat(libc::AT_FDCWD, path, 0) }
    {
        client.note_change(stat.dev);
    }
    result
}

fn allocate(fd: c_int, mode: c_int, offset: off_t, bytes: off_t, cancel: bool) -> isize {
    if cancel {
        cancels::cancellation_point();
    }
    let once = || amid(Change::Any, || allocate_once(fd, mode, offset, bytes));
    synced_as_opened(fd, with_room(|| fds::hold(fd, once)))
}

fn allocate_once(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> isize {
    // SAFETY: touches no memory.
    let kernel = || unsafe { call!(libc::SYS_fallocate, fd, mode, offset, bytes) };
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (Ok(start), Ok(length)) = (u64::try_from(offset), u64::try_from(bytes)) else { return kernel() };
    if mode == hole {
        if let Some(result) = unsynced::pass(fd, kernel) {
            return unlogged(fd, result);
        }
        return target::retry(
            fd,
            |_| unlogged(fd, kernel()),
            |errno| -(errno.0 as isize),
            |handle| {
                let outcome = critical::section(|| {
                    handle.client.punch(handle.file, start, length, || check(kernel()).map(|_| ()))
                });
                passed(&outcome, fd);
                plain_outcome(outcome, || unlogged(fd, kernel()))
            },
        );
    }
    if let Some(result) = unsynced::pass(fd, kernel) {
        return unlogged(fd, result);
    }
    match target::of_other(fd) {
        Target::Managed(handle) if allocates_only(fd, mode, start, length) => {
            let result = kernel();
            handle.client.note_attributes(handle.file);
            result
        }
        // The file may be left to the kernel.
        Target::Managed(handle) => unlogged(
            fd,
            raw::encode(critical::section(|| {
                handle.client.around(handle.file, || check(kernel())).and_then(|result| result)
            })),
        ),
        Target::Refused(errno) => -(errno.0 as isize),
        Target::Kernel | Target::KernelSynced => unlogged(fd, kernel()),
    }
}

/// Whether `fallocate` leaves content and size as they are. A size that grows without a record must
/// not stay behind a live truncation, which would cut it again in recovery.
fn allocates_only(fd: c_int, mode: c_int, start: u64, length: u64) -> bool {
    match mode {
        libc::FALLOC_FL_KEEP_SIZE => true,
        0 => raw::fstat(fd).is_ok_and(|stat| start.saturating_add(length) <= stat.size),
        _ => false,
    }
}

/// `fallocate`.
pub unsafe extern "C-unwind" fn fallocate(fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int {
    give_int(allocate(fd, mode, offset, bytes, true))
}

/// `posix_fallocate`: returns the errno. Where the file system cannot, libc writes zeros through
/// its own `pwrite`.
pub unsafe extern "C-unwind" fn posix_fallocate(fd: c_int, offset: off_t, bytes: off_t) -> c_int {
    if let Target::Managed(_) | Target::Refused(_) = target::of_other(fd)
        && bytes > 0
    {
        let result = allocate(fd, 0, offset, bytes, false);
        if result != -(libc::EOPNOTSUPP as isize) {
            return -result as c_int;
        }
        // libc would write zeros only where a read finds nothing, which a racing writer could fill
        // meanwhile.
        target::leave_to_kernel(fd, Reason::Uncovered);
    }
    match POSIX_FALLOCATE.address() {
        0 => -allocate(fd, 0, offset, bytes, false) as c_int,
        address => {
            type Function = unsafe extern "C" fn(c_int, off_t, off_t) -> c_int;
            // SAFETY: libc's function of this name has this shape.
            let original: Function = unsafe { core::mem::transmute(address) };
            // SAFETY: the program's own call.
            let result = with_room(|| unsafe { -(original(fd, offset, bytes) as isize) });
            -synced_as_opened(fd, result) as c_int
        }
    }
}
