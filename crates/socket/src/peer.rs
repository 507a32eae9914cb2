//! Who stands at the other end of a connection, by the word of the kernel alone: nothing that was
//! sent over it is believed.
//!
//! A keeper serves one user, and so do its clients and its supervisors serve one: both ends refuse
//! whoever is not wholly the user that they are themselves. Must never go by a process id that may
//! be another process's by now.
#![allow(unsafe_code)] // Options of sockets that rustix has no name for, or believes in too much.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

/// From Linux 6.5 on.
const SO_PEERPIDFD: libc::c_int = 77;
/// From Linux 6.13 on.
const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
const PIDFD_INFO_CREDS: u64 = 2;

/// `struct pidfd_info`, as it was first.
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    /// Itself, its group and its parent.
    numbers: [u32; 3],
    /// Real, effective, saved and of the file system; of each the user, then the group.
    users: [[u32; 2]; 4],
    exit_code: i32,
}

const _: () = assert!(size_of::<Info>() == 64);

/// Who is refused, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stranger {
    /// Another user.
    Other(u32),
    /// Its ids are not all one user's, or are not to be seen.
    Mixed,
}

/// The process that connected, or that listens.
#[derive(Debug)]
pub struct Peer {
    /// Its number as we see it.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
}

impl Peer {
    /// Who is at the other end of `connection`.
    pub fn of(connection: impl AsFd) -> io::Result<Self> {
        let (pid, uid) = holdfast_watch::peer(connection)?;
        // 0: a process that is not to be seen from here.
        let pid = Some(pid).filter(|&pid| pid != 0);
        Ok(Self { pid: pid.ok_or(io::ErrorKind::NotFound)?, uid })
    }

    /// The process itself: not another one that has its number by now, where the kernel can tell
    /// (Linux 6.5).
    pub fn process(&self, connection: impl AsFd) -> io::Result<OwnedFd> {
        let mut process: libc::c_int = -1;
        let mut bytes = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the buffer is as long as said.
        let got = unsafe {
            libc::getsockopt(
                connection.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERPIDFD,
                (&raw mut process).cast(),
                &raw mut bytes,
            )
        };
        if got == 0 {
            // SAFETY: the kernel has just made it for us.
            return Ok(unsafe { OwnedFd::from_raw_fd(process) });
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ENOPROTOOPT) {
            return Err(error);
        }
        let pid = Pid::from_raw(self.pid as i32).ok_or(io::ErrorKind::NotFound)?;
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }

    /// Whether its effective user is ours, which is all that can be told of who listens.
    pub fn has_our_user(&self) -> Result<(), Stranger> {
        if self.uid == geteuid().as_raw() { Ok(()) } else { Err(Stranger::Other(self.uid)) }
    }

    /// Whether it is wholly our user: what it connected as, and its real, effective, saved and file
    /// system user now. One that may become another user is that other one, too.
    pub fn is_our_user(&self, process: impl AsFd) -> Result<(), Stranger> {
        self.has_our_user()?;
        let users = users_behind(&process).or_else(|| {
            let users = users_of(self.pid)?;
            // Of it, and not of another process that got its number meanwhile.
            (!has_ended(process)).then_some(users)
        });
        let users = users.ok_or(Stranger::Mixed)?;
        if users.iter().all(|&user| user == self.uid) { Ok(()) } else { Err(Stranger::Mixed) }
    }
}

/// Real, effective, saved and file system user of the process behind a pidfd, where the kernel
/// tells them of that: a look into `/proc` takes many times as long.
fn users_behind(process: impl AsFd) -> Option<[u32; 4]> {
    let mut info = Info { mask: PIDFD_INFO_CREDS, ..Info::default() };
    // SAFETY: the kernel fills a structure of the size that its request's number says.
    let told = unsafe { libc::ioctl(process.as_fd().as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (told == 0 && info.mask & PIDFD_INFO_CREDS != 0).then(|| info.users.map(|[user, _]| user))
}

/// The same of the process that has this number now.
fn users_of(pid: u32) -> Option<[u32; 4]> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    users_in(&status)
}

fn users_in(status: &[u8]) -> Option<[u32; 4]> {
    // The name comes first, and the kernel writes no newline of it as one.
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    let mut users = std::str::from_utf8(line).ok()?.split_ascii_whitespace().map(str::parse);
    let mut next = || users.next()?.ok();
    Some([next()?, next()?, next()?, next()?])
}

fn has_ended(process: impl AsFd) -> bool {
    const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    let process = process.as_fd();
    !matches!(poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&AT_ONCE)), Ok(0))
}

/// Whether a process is stopped: by a signal, by job control or by a debugger.
pub fn is_stopped(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // Its name stands before that, in brackets, and may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn we_are_our_user() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        let process = peer.process(&one).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.is_our_user(&process), Ok(()));
        let other = Peer { uid: peer.uid + 1, ..peer };
        assert_eq!(other.is_our_user(&process), Err(Stranger::Other(peer.uid + 1)));
    }

    #[test]
    fn all_four_users_count() {
        let status =
            |users: &str| format!("Name:\tUid:\\n7\nUmask:\t0022\nUid:\t{users}\nGid:\t1\t1\t1\t1\n");
        assert_eq!(users_in(status("0\t1\t2\t3").as_bytes()), Some([0, 1, 2, 3]));
        assert_eq!(users_in(status("0\t1\t2").as_bytes()), None);
        assert_eq!(users_in(b"Name:\tx\n"), None);
    }

    #[test]
    fn both_ways_tell_the_same() {
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        // A kernel before 6.13 knows one of them.
        assert!(users_behind(&own).is_none_or(|users| Some(users) == users_of(std::process::id())));
    }

    #[test]
    fn a_process_that_has_ended_is_nobody() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        assert!(has_ended(&process));
        let peer = Peer { pid: std::process::id(), uid: geteuid().as_raw() };
        assert_eq!(peer.is_our_user(&process), Err(Stranger::Mixed));
    }
}
