//! The holder: a process that shares its server's descriptors and does nothing, so that they stay
//! open when the server is killed: the device, without which the mount would end, and the files
//! that are open, names or not. It hands them over to the next server, and ends.
//!
//! It is no client of the library's and must call nothing of libc's that the library stands in
//! front of; nor may it open or close a descriptor while its server lives.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, sendmsg,
};

use crate::kept::{FIRST, Kept, Row};
use crate::raw::{self, Result};

/// Descriptors in one message. Those on the way have numbers below the first one that is kept.
const AT_ONCE: usize = 32;
/// A message is the asker's process and numbers, of which this one stands for none.
const NONE: i32 = -1;
const WORD: usize = size_of::<i32>();
const MESSAGE_BYTES: usize = (1 + AT_ONCE) * WORD;

/// Starts a holder. `talk` is the server's way to the supervisor, who keeps the other end until the
/// next server serves.
pub fn start(talk: &UnixStream, device: BorrowedFd<'_>, kept: &Kept) -> Result<()> {
    if raw::share_descriptors()? {
        hold(talk, device, kept);
        loop {
            // Nothing is left to be done, and nothing of libc's may be called.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
        }
    }
    Ok(())
}

/// Waits until it is asked, as often as servers die before they serve, or until nobody is left who
/// could ask.
fn hold(talk: &UnixStream, device: BorrowedFd<'_>, kept: &Kept) {
    let mut asker = [0; WORD];
    loop {
        match recv(talk, &mut asker, RecvFlags::WAITALL) {
            // Who asks is told by our end that not all of it can be had.
            Ok((WORD, _)) if kept.has_all() => hand_over(talk, asker, device, kept),
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

fn hand_over(talk: &UnixStream, asker: [u8; WORD], device: BorrowedFd<'_>, kept: &Kept) {
    send(talk, asker, &[(NONE, kept.file()), (NONE, device)]);
    let mut batch = Vec::with_capacity(AT_ONCE);
    for (fd, _) in kept.rows() {
        batch.push((fd, raw::borrowed(fd)));
        if batch.len() == AT_ONCE {
            send(talk, asker, &batch);
            batch.clear();
        }
    }
    send(talk, asker, &batch);
    if !batch.is_empty() {
        // One without descriptors is the last.
        send(talk, asker, &[]);
    }
}

/// Sends descriptors with their numbers. An asker that dies meanwhile is no reason to end.
fn send(talk: &UnixStream, asker: [u8; WORD], batch: &[(RawFd, BorrowedFd<'_>)]) {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[..WORD].copy_from_slice(&asker);
    let numbers = batch.iter().map(|(number, _)| *number).chain(std::iter::repeat(NONE));
    for (place, number) in bytes[WORD..].chunks_exact_mut(WORD).zip(numbers) {
        place.copy_from_slice(&number.to_ne_bytes());
    }
    let fds: Vec<BorrowedFd<'_>> = batch.iter().map(|(_, fd)| *fd).collect();
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            rights.push(SendAncillaryMessage::ScmRights(&fds));
        }
        match sendmsg(talk, &[IoSlice::new(&bytes)], &mut rights, SendFlags::NOSIGNAL) {
            // Too many are on the way: they go once they are received.
            Err(rustix::io::Errno::TOOMANYREFS) => std::thread::sleep(Duration::from_millis(1)),
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

/// What the holder had: the device and the memory. All other descriptors are where they were.
pub fn take_over(holder: &UnixStream) -> Result<(OwnedFd, Arc<Kept>)> {
    let asker = std::process::id().to_ne_bytes();
    std::io::Write::write_all(&mut &*holder, &asker).map_err(|_| Errno::EPIPE)?;
    let mut first = receive(holder, asker)?.into_iter().map(|(_, fd)| fd);
    let (Some(memory), Some(device)) = (first.next(), first.next()) else { return Err(Errno::EPROTO) };
    let kept = Kept::of(memory)?;
    loop {
        let batch = receive(holder, asker)?;
        if batch.is_empty() {
            return Ok((device, Arc::new(kept)));
        }
        for (number, fd) in batch {
            if number < FIRST || fd.as_raw_fd() >= FIRST {
                return Err(Errno::EPROTO);
            }
            match kept.what(number) {
                Some(Row::Handle) => raw::put(opened_anew(&fd).unwrap_or(fd).as_fd(), number)?,
                Some(Row::Node { .. }) => raw::put(fd.as_fd(), number)?,
                None => return Err(Errno::EPROTO),
            }
        }
    }
}

/// A description of our own of what is open: the library sees who opens it, and how. Who may not
/// open it any more goes on with the one there is.
fn opened_anew(fd: &OwnedFd) -> Option<OwnedFd> {
    let flags = rustix::fs::fcntl_getfl(fd).ok()?;
    let flags = OFlag::from_bits_retain(flags.bits().cast_signed()) & OFlag::O_ACCMODE;
    open(&*raw::path_of(fd), flags, Mode::empty()).ok()
}

/// One message for this asker; the numbers with their descriptors.
fn receive(holder: &UnixStream, asker: [u8; WORD]) -> Result<Vec<(RawFd, OwnedFd)>> {
    loop {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(AT_ONCE))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let told = recvmsg(holder, &mut [IoSliceMut::new(&mut bytes)], &mut rights, RecvFlags::WAITALL)
            .map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        if told.bytes != MESSAGE_BYTES {
            return Err(Errno::EPIPE);
        }
        let fds = rights.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        // What an asker left that died is closed.
        let fds: Vec<OwnedFd> = fds.flatten().collect();
        if bytes[..WORD] == asker {
            let numbers = bytes[WORD..].chunks_exact(WORD);
            let numbers =
                numbers.map(|number| RawFd::from_ne_bytes(number.try_into().expect("so many bytes")));
            return Ok(numbers.zip(fds).collect());
        }
    }
}

/// Has no descriptor below the first one that is kept free any more: what is opened from here on
/// can be handed over.
pub fn fill() -> Result<()> {
    loop {
        let fd = open("/dev/null", OFlag::O_PATH, Mode::empty())?;
        if fd.as_raw_fd() >= FIRST {
            return Ok(());
        }
        // It stays open.
        let _ = std::os::fd::IntoRawFd::into_raw_fd(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FcntlArg, fcntl};
    use std::io::Write;

    fn kept_file(kept: &Kept, path: &std::path::Path, row: impl Fn(RawFd)) -> OwnedFd {
        let file = open(path, OFlag::O_RDWR, Mode::empty()).expect("opened");
        let number = fcntl(&file, FcntlArg::F_DUPFD(4 * FIRST)).expect("copied");
        row(number);
        assert!(kept.what(number).is_some());
        raw::owned(number)
    }

    #[test]
    fn who_asks_after_somebody_who_died_gets_everything() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("file");
        std::fs::write(&path, "kept").expect("written");
        let device = open("/dev/null", OFlag::O_RDWR, Mode::empty()).expect("opened");
        let kept = Arc::new(Kept::new().expect("memory"));
        // More than go in one message, and a file that has no name any more.
        let handles: Vec<OwnedFd> =
            (0..AT_ONCE).map(|_| kept_file(&kept, &path, |fd| kept.set_handle(fd))).collect();
        let node = kept_file(&kept, &path, |fd| kept.set_node(fd, 12, 3));
        std::fs::remove_file(&path).expect("removed");
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        let held = Arc::clone(&kept);
        let holder = std::thread::spawn(move || hold(&theirs, device.as_fd(), &held));
        (&ours).write_all(&[7; WORD]).expect("asked by who died then");
        let (_, found) = take_over(&ours).expect("handed over");
        assert_eq!(found.rows().count(), AT_ONCE + 1);
        for fd in handles.iter().chain([&node]) {
            let mut bytes = [0; 8];
            assert_eq!(nix::sys::uio::pread(fd, &mut bytes, 0), Ok(4));
            assert_eq!(&bytes[..4], b"kept");
        }
        drop(ours);
        holder.join().expect("it ends with the last who could ask");
    }
}
