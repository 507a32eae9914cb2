//! Leaving all files of this process to the kernel, from now on: it does, or may do, what no hook
//! sees.
//!
//! Hooks come here, and so does who takes the library out ([`crate::parting`]). Nothing here takes
//! a promise back that was given before.

use core::ffi::c_int;

use holdfast_cache::{Reason, Unseen};

use crate::{critical, fds, process, target};

/// Leaves every file that this process may change to the kernel, from now on, unless that is done.
#[cold]
pub fn leave_to_kernel(reason: Reason) {
    if !process::bypasses_all() {
        leave_all_to_kernel(reason, Unseen::AsyncIo);
    }
}

/// Leaves every file that this process may change to the kernel, from now on, and says why.
#[cold]
pub fn leave_all_to_kernel(reason: Reason, why: Unseen) {
    let Some(client) = process::client() else { return };
    process::bypass_all();
    for (fd, _) in fds::described(0, c_int::MAX) {
        target::leave_to_kernel(fd, reason);
    }
    critical::section(|| {
        // It may open files unseen, too.
        client.note_unseen(why, None);
        // It may read files that others write.
        client.forbid_behind();
    });
}

/// A thread is about to have descriptors of its own: numbers mean one thing in it and another
/// elsewhere.
#[cold]
pub fn unsharing() {
    leave_to_kernel(Reason::Uncovered);
}
