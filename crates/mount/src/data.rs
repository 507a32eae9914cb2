//! The bytes of open files. The library sees each call: writes go to the log, and a sync is
//! answered from it where it may be.

use std::cell::RefCell;
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::uio::{pread, pwrite};

use crate::nodes::Node;
use crate::raw::{self, Result};

thread_local! {
    /// What was read on the way from the page cache to the kernel's request.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn offset(at: u64) -> Result<i64> {
    i64::try_from(at).map_err(|_| Errno::EINVAL)
}

/// Opens a file that the kernel knows. Its own flags stay with the kernel: `O_APPEND` has the
/// kernel say where the end is, and after a synchronous write it asks for a sync.
pub fn open_again(node: &Node, flags: OFlag) -> Result<OwnedFd> {
    open(&*raw::path_of(node), flags & OFlag::O_ACCMODE | OFlag::O_CLOEXEC, Mode::empty())
}

/// Reads up to `len` bytes and hands them to `reply`.
pub fn read<R>(fd: BorrowedFd<'_>, at: u64, len: usize, reply: impl FnOnce(Result<&[u8]>) -> R) -> R {
    BYTES.with_borrow_mut(|bytes| {
        if bytes.len() < len {
            bytes.resize(len, 0);
        }
        let mut filled = 0;
        while filled < len {
            let from = at.saturating_add(filled as u64);
            match offset(from).and_then(|from| pread(fd, &mut bytes[filled..len], from)) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(Errno::EINTR) => {}
                Err(error) if filled == 0 => return reply(Err(error)),
                // What came before is right; the next request gets the error.
                Err(_) => break,
            }
        }
        reply(Ok(&bytes[..filled]))
    })
}

/// Writes at an offset, or at the end; how much was written.
pub fn write(fd: BorrowedFd<'_>, at: u64, bytes: &[u8], appends: bool) -> Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let wrote = match appends {
            true => raw::append(fd, rest),
            false => pwrite(fd, rest, offset(at.saturating_add(done as u64))?),
        };
        match wrote {
            Ok(0) => return Err(Errno::EIO),
            Ok(more) => done += more,
            Err(Errno::EINTR) => {}
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Appends what a server that is gone may have appended already, in whole or in part, where the
/// file ended at `end`; how much is there now.
pub fn append_rest(fd: BorrowedFd<'_>, end: u64, bytes: &[u8]) -> Result<usize> {
    let mut found = vec![0; bytes.len()];
    let there = match pread(fd, &mut found, offset(end)?) {
        Ok(there) if found[..there] == bytes[..there] => there,
        // Somebody else's bytes; or it is open for writing alone, and nobody can tell.
        _ => 0,
    };
    let rest = &bytes[there..];
    if rest.is_empty() { Ok(there) } else { write(fd, end, rest, true).map(|wrote| there + wrote) }
}
