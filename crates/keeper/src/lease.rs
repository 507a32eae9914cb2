//! Asking the kernel by lease whether a file is open for writing anywhere: the cheapest reliable answer.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Takes and drops a read lease; fails when some description is open for writing, or when leases on the file
/// are not ours to take.
pub(crate) fn try_read_lease(description: BorrowedFd<'_>) -> io::Result<()> {
    for lease in [libc::F_RDLCK, libc::F_UNLCK] {
        // SAFETY: F_SETLEASE takes an integer and touches no memory of ours.
        if unsafe { libc::fcntl(description.as_raw_fd(), libc::F_SETLEASE, lease) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
