//! The signals that stop a keeper, as a descriptor for its event loop.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// What the kernel says of one signal.
const INFO_BYTES: usize = size_of::<libc::signalfd_siginfo>();

/// Blocks SIGTERM and SIGINT for this thread and those it starts, and returns a descriptor that
/// becomes readable when one arrives. SIGHUP and SIGPIPE are ignored: a keeper outlives terminals
/// and clients.
pub(crate) fn stop_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set lives on this stack; the calls only read or fill it. Ignoring signals runs no
    // code of ours.
    let fd = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signal(libc::SIGHUP, libc::SIG_IGN);
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes what has arrived, so that the descriptor says when there is more.
pub(crate) fn take(signals: &OwnedFd) {
    let mut info = [0u8; INFO_BYTES];
    while rustix::io::read(signals, &mut info).is_ok_and(|bytes| bytes > 0) {}
}
