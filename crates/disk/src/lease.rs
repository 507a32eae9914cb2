//! Leases: asking the kernel whether a file is open for writing anywhere, and being told before
//! others open it.
//!
//! A write lease is granted on the only description of a file. Until it is given back or broken by
//! force (`/proc/sys/fs/lease-break-time`), every other open of the file and every `truncate` by
//! its path waits. It belongs to the description, not to who took it: it outlives a keeper that is
//! killed for as long as the program has the description, so recovery gives back what such a keeper
//! left ([`release_orphans`]).
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;
const F_SETOWN_EX: libc::c_int = 15;
const F_GETOWN_EX: libc::c_int = 16;
const F_OWNER_TID: libc::c_int = 0;

/// `struct f_owner_ex`.
#[repr(C)]
#[derive(Default)]
struct Owner {
    kind: libc::c_int,
    id: libc::c_int,
}

/// What a lease says now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// Nobody else has the file or wants it.
    Whole,
    /// Somebody waits to open it for reading.
    Reader,
    /// Somebody waits to open it for writing, or to cut it.
    Writer,
}

/// Signal by which the kernel tells that somebody waits; queued, with the number of the descriptor.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

fn set(fd: BorrowedFd<'_>, lease: libc::c_int) -> io::Result<()> {
    // SAFETY: F_SETLEASE takes an integer and touches no memory of ours.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, lease) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes and drops a read lease; fails when some description is open for writing, or when leases on
/// the file are not ours to take.
pub fn try_read_lease(description: BorrowedFd<'_>) -> io::Result<()> {
    set(description, libc::F_RDLCK)?;
    set(description, libc::F_UNLCK)
}

/// Takes the write lease on a description that must be its file's only one; thread `tid` is told
/// when somebody waits.
pub fn take(description: BorrowedFd<'_>, tid: i32) -> io::Result<()> {
    let fd = description.as_raw_fd();
    let tell = |owner: Owner, number: libc::c_int| {
        // SAFETY: F_SETOWN_EX reads the structure, F_SETSIG takes an integer.
        unsafe {
            libc::fcntl(fd, F_SETOWN_EX, &raw const owner) == 0 && libc::fcntl(fd, F_SETSIG, number) == 0
        }
    };
    if !tell(Owner { kind: F_OWNER_TID, id: tid }, signal()) {
        return Err(io::Error::last_os_error());
    }
    let taken = set(description, libc::F_WRLCK);
    if taken.is_err() {
        tell(Owner::default(), 0);
    }
    taken
}

/// Who opens a file in the very moment in which it is asked for its lease has the kernel tell this
/// thread, which has no use for it.
fn ignore_signal() {
    static IGNORED: Once = Once::new();
    // SAFETY: a disposition without a handler; the thread that reads the signal has it blocked, and
    // gets it all the same.
    IGNORED.call_once(|| unsafe {
        libc::signal(signal(), libc::SIG_IGN);
    });
}

/// Whether somebody else has the file open of which this is the only description of ours.
///
/// # Errors
/// When leases on the file are not ours to take: then nobody can tell.
pub fn is_shared(description: BorrowedFd<'_>) -> io::Result<bool> {
    ignore_signal();
    match take(description, rustix::thread::gettid().as_raw_nonzero().get()) {
        Ok(()) => give_back(description),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
        Err(error) => return Err(error),
    }
    Ok(false)
}

/// Whether a description of a program's is its file's only one. It is touched only where the
/// program has set nothing of what a lease needs: else nobody can tell.
pub fn is_only(description: BorrowedFd<'_>) -> bool {
    ignore_signal();
    let fd = description.as_raw_fd();
    let mut owner = Owner::default();
    // SAFETY: they take nothing, but for F_GETOWN_EX, which fills the structure.
    let is_untouched = unsafe {
        libc::fcntl(fd, libc::F_GETLEASE) == libc::F_UNLCK
            && libc::fcntl(fd, libc::F_GETFL) & libc::O_ASYNC == 0
            && libc::fcntl(fd, F_GETSIG) == 0
            && libc::fcntl(fd, F_GETOWN_EX, &raw mut owner) == 0
            && owner.id == 0
    };
    let is_only = is_untouched && take(description, rustix::thread::gettid().as_raw_nonzero().get()).is_ok();
    if is_only {
        give_back(description);
    }
    is_only
}

/// Gives a lease back: who waits goes on. The description's owner and signal go with it.
pub fn give_back(description: BorrowedFd<'_>) {
    // It can only be gone already, broken by force.
    let _ = set(description, libc::F_UNLCK);
}

/// What a lease on the description says.
pub fn state(description: BorrowedFd<'_>) -> Lease {
    // SAFETY: F_GETLEASE takes nothing.
    match unsafe { libc::fcntl(description.as_raw_fd(), libc::F_GETLEASE) } {
        libc::F_WRLCK => Lease::Whole,
        libc::F_RDLCK => Lease::Reader,
        _ => Lease::Writer,
    }
}

/// Blocks the signal for this thread, and returns a descriptor on which it alone reads what
/// [`take`] has it told.
pub fn signals() -> io::Result<OwnedFd> {
    // SAFETY: the set lives on this stack; the calls only read or fill it.
    let fd = unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal());
        // What is told when the queue of signals is full.
        libc::sigaddset(&mut set, libc::SIGIO);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The next lease that somebody waits for, by the number of its descriptor; `Some(None)`: any of
/// them. For the thread that called [`signals`].
pub fn next(signals: &OwnedFd) -> Option<Option<RawFd>> {
    const INFO_BYTES: usize = size_of::<libc::signalfd_siginfo>();
    let mut bytes = [0u8; INFO_BYTES];
    match rustix::io::read(signals, &mut bytes) {
        Ok(INFO_BYTES) => {
            // SAFETY: as many bytes of plain numbers as the structure has.
            let info: libc::signalfd_siginfo = unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) };
            Some((info.ssi_signo == signal() as u32).then_some(info.ssi_fd))
        }
        _ => None,
    }
}

/// How long an open waits before the kernel breaks a lease by force.
pub fn break_time() -> Duration {
    let told = fs::read_to_string("/proc/sys/fs/lease-break-time").unwrap_or_default();
    Duration::from_secs(told.trim().parse().unwrap_or(0))
}

/// Whether bytes can be written at an offset of a description that appends (Linux 6.9).
pub fn writes_in_place() -> bool {
    let tried =
        rustix::fs::memfd_create("holdfast-lease-probe", rustix::fs::MemfdFlags::CLOEXEC).and_then(|file| {
            rustix::fs::fcntl_setfl(&file, rustix::fs::OFlags::APPEND)?;
            write_in_place(file.as_fd(), b"x", 0)
        });
    tried.is_ok()
}

/// Writes at an offset, whether the description appends or not.
pub fn write_in_place(fd: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> rustix::io::Result<usize> {
    const RWF_NOAPPEND: u32 = 0x20;
    let flags = rustix::io::ReadWriteFlags::from_bits_retain(RWF_NOAPPEND);
    rustix::io::pwritev2(fd, &[io::IoSlice::new(bytes)], offset, flags)
}

/// The description behind a descriptor of another process.
pub fn borrow(pidfd: &OwnedFd, fd: RawFd) -> io::Result<File> {
    Ok(File::from(pidfd_getfd(pidfd, fd, PidfdGetfdFlags::empty())?))
}

/// Gives back the leases that a keeper which was killed left on descriptions of these processes:
/// recovery would wait for them. What cannot be looked into keeps its own until the kernel breaks
/// them by force.
pub fn release_orphans(processes: &[u32]) {
    for &pid in processes {
        let Some(pidfd) = Pid::from_raw(pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())
        else {
            continue;
        };
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(number) = number
                && fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file())
                && let Ok(file) = borrow(&pidfd, number)
                && is_orphaned(file.as_fd())
            {
                give_back(file.as_fd());
            }
        }
    }
}

/// Whether a lease on the description is one of a keeper's whose thread is gone.
fn is_orphaned(description: BorrowedFd<'_>) -> bool {
    let fd = description.as_raw_fd();
    let mut owner = Owner::default();
    // SAFETY: F_GETSIG takes nothing, F_GETOWN_EX fills the structure.
    let told =
        unsafe { libc::fcntl(fd, F_GETSIG) == signal() && libc::fcntl(fd, F_GETOWN_EX, &raw mut owner) == 0 };
    told && owner.kind == F_OWNER_TID
        && (owner.id == 0 || !fs::exists(format!("/proc/{}", owner.id)).unwrap_or(true))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_description_that_appends_is_written_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = File::options().append(true).create(true).open(&path).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        assert!(writes_in_place(), "Linux 6.9 or newer is needed");
        assert_eq!(write_in_place(file.as_fd(), b"F", 0), Ok(1));
        assert_eq!(fs::read(&path).unwrap(), b"First");
    }

    #[test]
    fn an_open_is_told_to_the_thread_and_waits_until_the_lease_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let signals = signals().unwrap();
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        take(file.as_fd(), tid).unwrap();
        assert_eq!((state(file.as_fd()), next(&signals)), (Lease::Whole, None));
        std::thread::scope(|scope| {
            let opener = scope.spawn(|| fs::read(&path).unwrap());
            let mut fds = [rustix::event::PollFd::new(&signals, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, None).unwrap();
            assert_eq!(next(&signals), Some(Some(file.as_raw_fd())));
            assert_eq!(state(file.as_fd()), Lease::Reader);
            file.write_all_at(b"newest", 0).unwrap();
            assert!(!opener.is_finished());
            give_back(file.as_fd());
            assert_eq!(opener.join().unwrap(), b"newest");
        });
        assert!(!is_orphaned(file.as_fd()) && is_only(file.as_fd()));
        assert!(next(&signals).is_none());
        let other = File::open(&path).unwrap();
        assert!(take(file.as_fd(), tid).is_err() && !is_only(file.as_fd()), "it is not the only description");
        drop(other);
        take(file.as_fd(), tid).unwrap();
        assert!(!is_orphaned(file.as_fd()), "its thread lives");
    }
}
