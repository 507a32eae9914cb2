//! Another program takes over: what it inherits is left to the kernel first, and one of Go's that
//! has no loader is executed by way of `holdfast-enter`.
//!
//! In a child that runs in its parent's memory no hook may change a table or take a lock; it may
//! ask the keeper.
#![allow(unsafe_code)] // C entry points and arrays of C strings.

use core::ffi::{c_char, c_int};

use holdfast_cache::Reason;

use crate::descriptions::{APPEND, DSYNC, SYNC, WRITE_ONLY};
use crate::golang::Arguments;
use crate::inherit::{self, Environment};
use crate::raw::{self, give_int};
use crate::{behind, fds, gate, golang, parting, reopen, target, unseen, waits};

/// Before another program takes over: the files of descriptors that it will inherit are left to the
/// kernel. Returns the environment it shall have, for which `told` must be kept.
///
/// # Safety
/// `environment` is the one that the program passes on.
pub(super) unsafe fn hand_over(environment: Arguments, told: &mut Environment) -> Arguments {
    // Read only when there is something to tell: the kernel checks its address, we do not.
    // SAFETY: our caller's promise.
    let stays = || unsafe { inherit::will_be_client(environment) };
    for fd in fds::readable() {
        let flags = raw::fcntl(fd, libc::F_GETFD, 0);
        if flags >= 0 && flags & libc::FD_CLOEXEC as isize == 0 {
            behind::show(fd);
        }
    }
    for (fd, description) in fds::described(0, c_int::MAX) {
        let flags = raw::fcntl(fd, libc::F_GETFD, 0);
        if flags < 0 || flags & libc::FD_CLOEXEC as isize != 0 {
            continue;
        }
        target::leave_to_kernel(fd, Reason::HandedAway);
        let flags = description.flags();
        if flags & DSYNC != 0 && stays() {
            told.tell(fd, flags);
        } else if flags & (DSYNC | APPEND | WRITE_ONLY) == DSYNC | APPEND | WRITE_ONLY {
            // Only where nobody minds that the cursor is not shared any more.
            reopen::restore_sync(fd, if flags & SYNC != 0 { libc::O_SYNC } else { libc::O_DSYNC });
        }
    }
    // SAFETY: our caller's promise.
    unsafe { told.extend(environment) }.unwrap_or(environment)
}

/// Runs the call by which another program takes over, by an `execveat` with these arguments: `exec`
/// is given the environment that it shall have.
///
/// # Safety
/// The program's own arguments.
unsafe fn taking_over(
    (dirfd, path, flags): (c_int, *const c_char, c_int),
    environment: Arguments,
    exec: impl FnOnce(Arguments) -> isize,
) -> c_int {
    if parting::strips() {
        // SAFETY: the caller's promise.
        return give_int(unsafe { parting::without_library(environment, exec) });
    }
    let mut told = Environment::new();
    // SAFETY: the caller's promise.
    let extended = gate::within(|| unsafe {
        unseen::tell(dirfd, path, flags, environment);
        hand_over(environment, &mut told)
    });
    give_int(gate::outside(|| exec(extended.unwrap_or(environment))))
}

/// Has a Go program that has no loader executed by way of ours. Returns where that is not to be, or
/// not possible: then the program is executed as it is.
///
/// # Safety
/// The program's own arguments.
unsafe fn entering(path: *const c_char, arguments: Arguments, environment: Arguments) {
    if parting::strips() {
        return;
    }
    // SAFETY: the caller's promise.
    let agent = gate::within(|| unsafe { unseen::agent_for(path, environment) }).flatten();
    if let Some(agent) = agent {
        // SAFETY: as above; what it takes to look at them was found readable.
        unsafe { enter_by(&agent, path, arguments, environment) };
    }
}

/// The rest of [`entering`], which has a large frame.
#[cold]
#[inline(never)]
unsafe fn enter_by(agent: &golang::Agent, path: *const c_char, arguments: Arguments, environment: Arguments) {
    let mut told = Environment::new();
    // SAFETY: the caller's promise.
    unsafe {
        let extended = gate::within(|| hand_over(environment, &mut told));
        let extended = extended.unwrap_or(environment);
        gate::outside(|| agent.execute(raw::path(path), arguments, extended));
    }
}

/// `execve`.
pub unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    arguments: Arguments,
    environment: Arguments,
) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe {
        entering(path, arguments, environment);
        taking_over((libc::AT_FDCWD, path, 0), environment, |environment| {
            waits::call(libc::SYS_execve, [path.addr(), arguments.addr(), environment.addr(), 0, 0, 0])
        })
    }
}

/// `execveat`.
pub unsafe extern "C-unwind" fn execveat(
    dirfd: c_int,
    path: *const c_char,
    arguments: Arguments,
    environment: Arguments,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe {
        taking_over((dirfd, path, flags), environment, |environment| {
            let words =
                [dirfd as usize, path.addr(), arguments.addr(), environment.addr(), flags as usize, 0];
            waits::call(libc::SYS_execveat, words)
        })
    }
}

/// `fexecve`.
pub unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: Arguments, environment: Arguments) -> c_int {
    const HERE: c_int = libc::AT_EMPTY_PATH;
    if fd < 0 || arguments.is_null() || environment.is_null() {
        return give_int(-(libc::EINVAL as isize));
    }
    let path = c"".as_ptr();
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe {
        taking_over((fd, path, HERE), environment, |environment| {
            let words = [fd as usize, path.addr(), arguments.addr(), environment.addr(), HERE as usize, 0];
            waits::call(libc::SYS_execveat, words)
        })
    }
}
