//! The fanotify system calls, for which no safe wrapper exists. Knows nothing of files, slots or
//! policy.
#![allow(unsafe_code)] // Two libc calls and the descriptors the kernel hands out inside events.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Opens wait for an answer.
const OPENS: u64 = libc::FAN_OPEN_PERM;
/// Closes are told.
const CLOSES: u64 = libc::FAN_CLOSE_WRITE | libc::FAN_CLOSE_NOWRITE;

/// Length of `struct fanotify_event_metadata`.
const METADATA_BYTES: usize = 24;

/// What is asked of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Opens, from now on.
    Opens,
    /// Closes besides: most files are closed by nobody of whom that is to be known, and each would
    /// wake the reader.
    Closes,
    /// Neither any more.
    Nothing,
}

impl Mark {
    fn flags_and_mask(self) -> (libc::c_uint, u64) {
        match self {
            Mark::Opens => (libc::FAN_MARK_ADD, OPENS),
            Mark::Closes => (libc::FAN_MARK_ADD, CLOSES),
            Mark::Nothing => (libc::FAN_MARK_REMOVE, OPENS | CLOSES),
        }
    }
}

/// One event. The descriptor was opened by the kernel for us; opening and closing it raises no
/// events.
#[derive(Debug)]
pub(crate) struct Event {
    pub mask: u64,
    pub file: Option<OwnedFd>,
    /// Thread id of the one who acts; 0 when it is not visible in our pid namespace.
    pub tid: u32,
}

/// A new group for permission events. The queue is unlimited because the kernel *allows* opens that
/// do not fit into a full queue without asking anyone. Thread ids are asked for, because only the
/// very thread that waits can tell what it is opening the file for.
pub(crate) fn fanotify_init() -> io::Result<OwnedFd> {
    let flags = libc::FAN_CLASS_CONTENT
        | libc::FAN_CLOEXEC
        | libc::FAN_NONBLOCK
        | libc::FAN_UNLIMITED_QUEUE
        | libc::FAN_UNLIMITED_MARKS
        | libc::FAN_REPORT_TID;
    let event_flags = (libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC) as u32;
    // SAFETY: no pointers are passed; the result is checked before use.
    let fd = unsafe { libc::fanotify_init(flags, event_flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Changes our mark on the inode `path` leads to; links, magic ones too, are followed, and the file
/// is not opened.
pub(crate) fn fanotify_mark(group: BorrowedFd<'_>, mark: Mark, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let (flags, mask) = mark.flags_and_mask();
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    let done = unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, mask, libc::AT_FDCWD, path.as_ptr()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// As [`fanotify_mark`], on the inode of an open file.
pub(crate) fn fanotify_mark_open(group: BorrowedFd<'_>, mark: Mark, file: BorrowedFd<'_>) -> io::Result<()> {
    let (flags, mask) = mark.flags_and_mask();
    let nowhere = std::ptr::null();
    // SAFETY: without a path the descriptor alone says which file it is.
    let done = unsafe { libc::fanotify_mark(group.as_raw_fd(), flags, mask, file.as_raw_fd(), nowhere) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes what is queued; an error of kind `WouldBlock` when nothing is.
pub(crate) fn read_events(group: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Vec<Event>> {
    let len = rustix::io::read(group, &mut *buffer)?;
    let mut events = Vec::new();
    let mut rest = &buffer[..len];
    while let Some((head, _)) = rest.split_at_checked(METADATA_BYTES) {
        let word32 = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let event_len = word32(0) as usize;
        let mask = u64::from(word32(8)) | u64::from(word32(12)) << 32;
        let fd = word32(16) as i32;
        let tid = word32(20);
        // SAFETY: the kernel put a descriptor it opened for this very event there, and each event
        // is read once.
        let file = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
        events.push(Event { mask, file, tid });
        match rest.split_at_checked(event_len.max(METADATA_BYTES)) {
            Some((_, next)) => rest = next,
            None => break,
        }
    }
    Ok(events)
}

/// Lets the open that waits with this event descriptor go on.
pub(crate) fn allow(group: BorrowedFd<'_>, file: BorrowedFd<'_>) {
    let mut answer = [0; 8];
    answer[..4].copy_from_slice(&file.as_raw_fd().to_ne_bytes());
    answer[4..].copy_from_slice(&libc::FAN_ALLOW.to_ne_bytes());
    // Failure means that nobody waits any more (the opener was killed): nothing to do about it.
    while let Err(rustix::io::Errno::INTR) = rustix::io::write(group, &answer) {}
}
