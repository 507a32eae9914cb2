//! Descriptor numbers: closing them, duplicating them, and their flags.
//!
//! The table hears of a number's end before the kernel does. Nothing here looks at what files hold.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_int, c_uint};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering};

use holdfast_cache::Reason;

use crate::descriptions::{DSYNC, KERNEL_FLAGS, SYNC, State};
use crate::fds;
use crate::patch::{self, MUSL_CLOSE};
use crate::raw::{self, call, give_int};
use crate::{behind, cancels, critical, gate, locks, memory, process, streams, target, uncovered};

const F_SETLEASE: c_int = 1024;
/// How often, and how long apart, a lease is asked for again of a file that the keeper lets go of.
const LEASE_TRIES: u32 = 20;
const LEASE_PAUSE_NS: libc::c_long = 500_000;

/// libc may have POSIX AIO under way, which only its own `close` ends.
static USES_AIO: AtomicBool = AtomicBool::new(false);

/// POSIX AIO is about to be under way.
pub(super) fn expect_aio() {
    USES_AIO.store(true, Ordering::SeqCst);
}

/// Makes a call that closes a number.
fn closing(fd: c_int, close: impl Fn() -> isize) -> isize {
    if process::client().is_none() {
        return close();
    }
    streams::closing(fd);
    fds::closing(fd, close)
}

/// `close`.
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    cancels::cancellation_point();
    give_int(closing(
        fd,
        || if USES_AIO.load(Ordering::Relaxed) { close_after_aio(fd) } else { raw::close(fd) },
    ))
}

/// musl's own `close` ends what POSIX AIO has under way for the number.
#[cold]
fn close_after_aio(fd: c_int) -> isize {
    let address = MUSL_CLOSE.address();
    if address == 0 {
        return raw::close(fd);
    }
    // SAFETY: musl's function of this name has this shape; closing touches no memory of ours.
    let result = unsafe {
        let original: unsafe extern "C" fn(c_int) -> c_int = core::mem::transmute(address);
        original(fd)
    };
    if result < 0 { -(raw::errno() as isize) } else { 0 }
}

/// `posix_close`, which musl alone has.
pub unsafe extern "C-unwind" fn posix_close(fd: c_int, _flags: c_int) -> c_int {
    // SAFETY: the program's own call.
    unsafe { close(fd) }
}

/// `close` as stdio uses it: not a cancellation point.
pub unsafe extern "C-unwind" fn __close_nocancel(fd: c_int) -> c_int {
    give_int(closing(fd, || raw::close(fd)))
}

/// Closes a range of numbers, known ones one by one: each waits for the calls that use it, and none
/// is taken that was opened anew meanwhile. `kernel` closes a range.
fn closing_range(first: c_uint, last: c_uint, kernel: impl Fn(c_uint, c_uint) -> isize) -> isize {
    let known_end = fds::known_end().min(last.saturating_add(1));
    for fd in first..known_end {
        closing(fd as c_int, || raw::close(fd as c_int));
    }
    if known_end > last {
        return 0;
    }
    let first = first.max(known_end);
    let result = kernel(first, last);
    // Those that were opened meanwhile, and closed by this.
    for fd in first..fds::known_end().min(last.saturating_add(1)) {
        if raw::fcntl(fd as c_int, libc::F_GETFD, 0) < 0 {
            fds::retire(fd as c_int);
        }
    }
    result
}

/// `close_range`.
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOSE_RANGE_UNSHARE: c_int = 2;
    // SAFETY: closing touches no memory.
    let kernel = |first, last| unsafe { call!(libc::SYS_close_range, first, last, flags) };
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        uncovered::unsharing();
    }
    let closes = flags == 0 && first <= last && process::client().is_some();
    give_int(if closes { closing_range(first, last, kernel) } else { kernel(first, last) })
}

/// `closefrom`.
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = first.max(0) as c_uint;
    // SAFETY: closing touches no memory. The kernels we run on (5.9 and later) know the call.
    let kernel = |first, last| unsafe { call!(libc::SYS_close_range, first, last, 0) };
    if process::client().is_some() {
        closing_range(first, c_uint::MAX, kernel);
    } else {
        kernel(first, c_uint::MAX);
    }
}

/// `dup`.
pub unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    // SAFETY: touches no memory.
    give_int(copying(old, None, || unsafe { call!(libc::SYS_dup, old) }))
}

/// Makes a call that duplicates `old`: to `new`, another number, or to one of the kernel's choice.
fn copying(old: c_int, new: Option<c_int>, call: impl Fn() -> isize) -> isize {
    if process::client().is_none() {
        let result = call();
        if result >= 0 && process::parents_client().is_some() {
            // Duplicated for the program that this child becomes: it will outlive close-on-exec.
            target::leave_to_kernel(old, Reason::HandedAway);
        }
        return result;
    }
    let result = match new {
        Some(new) => fds::duplicating(old, new, call),
        None => fds::copying(old, call),
    };
    if result >= 0 && streams::has(result as c_int) {
        streams::give(result as c_int);
    }
    result
}

unsafe fn dup_to(old: c_int, new: c_int, flags: Option<c_int>) -> isize {
    // SAFETY: touches no memory.
    let kernel = || unsafe {
        match flags {
            Some(flags) => call!(libc::SYS_dup3, old, new, flags),
            None => call!(libc::SYS_dup2, old, new),
        }
    };
    if old == new { kernel() } else { copying(old, Some(new), kernel) }
}

/// `dup2`.
pub unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    // SAFETY: touches no memory.
    give_int(unsafe { dup_to(old, new, None) })
}

/// `dup3`.
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: touches no memory.
    give_int(unsafe {
        match flags & libc::O_CLOEXEC {
            // musl looks at no other flag.
            0 if patch::is_musl() && old != new => dup_to(old, new, None),
            _ => dup_to(old, new, Some(flags)),
        }
    })
}

/// Who gets the signals of a descriptor: a process, or a group below zero.
fn owner(fd: c_int) -> c_int {
    const F_GETOWN_EX: c_int = 16;
    const F_OWNER_PGRP: c_int = 2;
    let mut kind_and_number = [0 as c_int; 2];
    // SAFETY: the kernel fills two numbers.
    let result = unsafe { call!(libc::SYS_fcntl, fd, F_GETOWN_EX, kind_and_number.as_mut_ptr()) };
    match kind_and_number {
        _ if result < 0 => give_int(result),
        [F_OWNER_PGRP, group] => -group,
        [_, number] => number,
    }
}

/// Whether a command is about what the lease fence sets on a description: the lease, and whom the
/// kernel tells of it. Nor does the keeper write by a description that goes around the page cache.
/// The file leaves the state for which it is leased first.
fn looks_at_lease(command: c_int, argument: usize) -> bool {
    const F_SETOWN: c_int = 8;
    const F_GETSIG: c_int = 11;
    const F_SETOWN_EX: c_int = 15;
    const F_GETOWN_EX: c_int = 16;
    match command {
        F_SETLEASE | raw::F_GETLEASE | F_SETOWN..=F_GETSIG | F_SETOWN_EX..=F_GETOWN_EX => true,
        libc::F_SETFL => argument & libc::O_DIRECT as usize != 0,
        _ => false,
    }
}

/// Whether a command is about a record lock of a range that begins at the end of the file.
fn is_lock_at_end(command: c_int, argument: usize) -> bool {
    use libc::{F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_SETLK, F_SETLKW};
    if !matches!(command, F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW) {
        return false;
    }
    let mut lock = MaybeUninit::<libc::flock>::uninit();
    // Where nobody may look it may be one.
    // SAFETY: as many bytes as the structure has, copied into it; whoever may look is told of a bad
    // address, as is the kernel.
    !memory::may_look()
        || unsafe {
            memory::copy_in(lock.as_mut_ptr().cast(), argument, size_of::<libc::flock>())
                && c_int::from(lock.assume_init().l_whence) == libc::SEEK_END
        }
}

/// `fcntl`: duplicates, and flags that the kernel does not know of.
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    let waits = matches!(command, libc::F_SETLKW | libc::F_OFD_SETLKW);
    let mut was_let_go = false;
    if command == F_SETLEASE && argument != libc::F_UNLCK as usize {
        // A lease is about every other open of the file, the keeper's too: it must have none of its
        // own to make, and for a lease that excludes readers it must have none at all.
        if argument == libc::F_WRLCK as usize {
            was_let_go = target::let_go(fd);
        } else {
            target::leave_to_kernel(fd, Reason::Uncovered);
        }
    }
    if looks_at_lease(command, argument) && process::client().is_some_and(|client| client.leases_files()) {
        behind::show(fd);
    }
    // The kernel counts from the end that it knows.
    if behind::may_hide() && is_lock_at_end(command, argument) {
        behind::bring(fd);
    }
    if command == libc::F_NOTIFY {
        super::onlookers::watching(|| raw::fstat(fd));
    }
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        return give_int(copying(fd, None, || raw::fcntl(fd, command, argument)));
    }
    if matches!(command, libc::F_GETFL | libc::F_SETFL) {
        return fds::hold(fd, || flags_of(fd, command, argument));
    }
    // SAFETY: the kernel checks the argument if it is an address.
    let mut result = locks::taking(command, || unsafe {
        if waits {
            let arguments = [fd as usize, command as usize, argument, 0, 0, 0];
            gate::outside(|| cancels::cancellable(libc::SYS_fcntl, arguments))
        } else {
            call!(libc::SYS_fcntl, fd, command, argument)
        }
    });
    for _ in 0..LEASE_TRIES {
        if !was_let_go || result != -(libc::EAGAIN as isize) {
            break;
        }
        raw::sleep(LEASE_PAUSE_NS);
        // SAFETY: a number is all that this command takes.
        result = unsafe { call!(libc::SYS_fcntl, fd, command, argument) };
    }
    if command == libc::F_GETOWN && (-4095..0).contains(&result) {
        // A process group, which this call returns below zero: the other form tells it from an
        // error, as libc does.
        return owner(fd);
    }
    give_int(result)
}

/// `F_GETFL` and `F_SETFL`.
fn flags_of(fd: c_int, command: c_int, argument: usize) -> c_int {
    let result = raw::fcntl(fd, command, argument);
    if result < 0 || process::client().is_none() {
        return give_int(result);
    }
    let fds::Row::Described(description) = fds::look(fd) else { return give_int(result) };
    if command == libc::F_SETFL {
        description.remove_flags(KERNEL_FLAGS);
        description.add_flags(target::kernel_flags(argument as c_int));
        critical::section(|| description.locked(|| description.set_cursor(None)));
        return give_int(result);
    }
    let mut flags = result as c_int;
    if flags & libc::O_ASYNC != 0
        && let State::Managed(file) = description.state()
        && process::client().is_some_and(|client| client.leases_files() && client.is_managed(file))
        && raw::is_leased(fd)
    {
        // Set by the keeper's lease, which is not given where the program has set it.
        flags &= !libc::O_ASYNC;
    }
    if description.flags() & DSYNC != 0 {
        flags |= libc::O_DSYNC;
    }
    if description.flags() & SYNC != 0 {
        flags |= libc::O_SYNC;
    }
    flags
}
