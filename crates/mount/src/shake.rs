//! The first request of a mount, by which kernel and server agree on what both of them know. The
//! kernel makes it once. So it is read here, kept, and handed to fuser by a socket, and that for
//! each server anew; then the device takes the socket's place.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use fuser::{Config, Session, SessionACL};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use crate::kept::Kept;
use crate::raw;
use crate::tree::Server;

/// Where the request says what the kernel can do, the second half of it.
const FLAGS: usize = 40 + 12;
/// There is a second half.
const EXTENDED: u32 = 1 << 30;
/// `FUSE_HAS_RESEND`, in the second half.
const CAN_RESEND: u32 = 1 << 7;
/// The notification by which requests that are not answered are sent again.
const RESEND: i32 = 7;
const REQUEST_BYTES_MAX: usize = 64 << 10;

/// A session by the device, with the kernel's first request, or with the one that was kept.
pub fn session(
    server: Server,
    device: BorrowedFd<'_>,
    kept: &Kept,
    config: Config,
) -> io::Result<Session<Server>> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let known = kept.first_request();
    let is_first = known.is_none();
    let request = match known {
        Some(request) => request,
        None => first_request(device, kept)?,
    };
    send(&ours, &request, SendFlags::NOSIGNAL)?;
    let session = Session::from_fd(server, theirs, SessionACL::All, config)?;
    let mut answer = vec![0; REQUEST_BYTES_MAX];
    let (len, _) = recv(&ours, &mut answer[..], RecvFlags::DONTWAIT)?;
    if is_first {
        rustix::io::write(device, &answer[..len])?;
    }
    raw::put(device, session.as_fd().as_raw_fd())?;
    Ok(session)
}

fn first_request(device: BorrowedFd<'_>, kept: &Kept) -> io::Result<Vec<u8>> {
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let len = loop {
        match rustix::io::read(device, &mut request[..]) {
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN | rustix::io::Errno::NOENT) => {}
            done => break done?,
        }
    };
    request.truncate(len);
    kept.set_first_request(&request);
    Ok(request)
}

/// Whether the kernel sends requests again, so that another server can go on.
pub fn can_resend(kept: &Kept) -> bool {
    let Some(request) = kept.first_request() else { return false };
    let word = |at: usize| {
        let bytes = request.get(at..at + size_of::<u32>());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
    };
    word(FLAGS) & EXTENDED != 0 && word(FLAGS + size_of::<u32>()) & CAN_RESEND != 0
}

/// Has the kernel send again what the server before was sent and did not answer.
pub fn resend(device: BorrowedFd<'_>) -> io::Result<()> {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16u32.to_ne_bytes());
    message[4..8].copy_from_slice(&RESEND.to_ne_bytes());
    rustix::io::write(device, &message)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_server_can_go_on_where_the_kernel_sends_again() {
        let request = |flags: u32, more: u32| {
            let mut bytes = vec![0; FLAGS];
            bytes.extend(flags.to_ne_bytes());
            bytes.extend(more.to_ne_bytes());
            let kept = Kept::new().expect("memory");
            assert!(kept.set_first_request(&bytes));
            can_resend(&kept)
        };
        assert!(request(EXTENDED | 1, CAN_RESEND | 1));
        // Linux before 6.9, and one that knows no second half.
        assert!(!request(EXTENDED, CAN_RESEND - 1));
        assert!(!request(1, CAN_RESEND));
        assert!(!can_resend(&Kept::new().expect("memory")));
    }
}
