//! What a child does that musl starts by calls of its own, where no hook is called: done before, in
//! the parent.
#![allow(unsafe_code)] // Arrays of C strings, and structures of musl's.

use core::ffi::{c_char, c_int, c_void};

use holdfast_cache::Reason;

use super::exec::hand_over;
use super::variants::{own_environment, search};
use crate::golang::Arguments;
use crate::inherit::Environment;
use crate::raw;
use crate::{memory, process, streams, target, uncovered, unseen};

/// Which program musl is about to start.
#[derive(Clone, Copy)]
pub(super) enum Program {
    At(*const c_char),
    Found(*const c_char),
    Shell,
}

/// Does in the parent what `execve` and the calls before it do in a child of glibc's: files of
/// descriptors that the program inherits, or that `actions` open for it, are left to the kernel.
/// Returns the environment it shall have.
///
/// # Safety
/// The arguments are those of musl's `posix_spawn`, or null.
pub(super) unsafe fn before_spawn(
    program: Program,
    actions: *const c_void,
    environment: Arguments,
    told: &mut Environment,
) -> Arguments {
    if !streams::active() || process::client().is_none() {
        return environment;
    }
    let own = own_environment();
    // SAFETY: the caller's promise.
    unsafe {
        match program {
            Program::At(path) => unseen::tell(libc::AT_FDCWD, path, 0, environment),
            Program::Found(file) => {
                search(file, |path| {
                    let stat = raw::fstatat(libc::AT_FDCWD, path, 0).ok().filter(|stat| stat.regular)?;
                    unseen::tell(libc::AT_FDCWD, path, 0, environment);
                    Some(stat.size as c_int)
                });
            }
            Program::Shell => unseen::tell(libc::AT_FDCWD, c"/bin/sh".as_ptr(), 0, own),
        }
        follow(actions);
        hand_over(environment, told)
    }
}

/// One of musl's file actions, which lie in a list.
#[repr(C)]
struct Action {
    next: *const Action,
    previous: *const Action,
    what: c_int,
    fd: c_int,
    source: c_int,
    flags: c_int,
    mode: u32,
    path: [c_char; 0],
}

/// Leaves to the kernel what file actions duplicate or open for writing.
///
/// # Safety
/// `actions` is null or musl's `posix_spawn_file_actions_t`.
unsafe fn follow(actions: *const c_void) {
    const CLOSE: c_int = 1;
    const DUP2: c_int = 2;
    const OPEN: c_int = 3;
    const CHDIR: c_int = 4;
    const FCHDIR: c_int = 5;
    let Some(client) = process::client().filter(|_| !actions.is_null()) else { return };
    // SAFETY: the list's head follows two numbers.
    let mut action = unsafe { *actions.byte_add(8).cast::<*const Action>() };
    while !action.is_null() && memory::is_range_readable(action.addr(), size_of::<Action>()) {
        // SAFETY: readable, as probed.
        let Action { next, what, source, flags, .. } = unsafe { action.read() };
        match what {
            DUP2 => {
                let _: target::Target = target::of_other(source);
                target::leave_to_kernel(source, Reason::HandedAway);
            }
            OPEN if target::may_write(flags) || flags & libc::O_TRUNC != 0 => {
                // SAFETY: the path ends the structure.
                let path = unsafe { (&raw const (*action).path).cast::<c_char>() };
                // SAFETY: the kernel checks the address.
                if let Ok(stat) = unsafe { raw::fstatat(libc::AT_FDCWD, path, 0) } {
                    target::leave_file_to_kernel(client, &stat, Reason::HandedAway);
                }
            }
            OPEN | CLOSE | CHDIR | FCHDIR => {}
            // A musl that we do not know.
            _ => uncovered::leave_to_kernel(Reason::Uncovered),
        }
        action = next;
    }
}
