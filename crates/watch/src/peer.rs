//! Who stands at the other end of a connection, by the word of the kernel alone.
#![allow(unsafe_code)] // An option of sockets in which rustix believes too much.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// The number of the process that connected, or that listened (0: it is not to be seen from here),
/// and its effective user at that time.
pub fn peer(connection: impl AsFd) -> io::Result<(u32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is as long as said.
    let got = unsafe {
        libc::getsockopt(
            connection.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut bytes,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((u32::try_from(credentials.pid).unwrap_or(0), credentials.uid))
}
