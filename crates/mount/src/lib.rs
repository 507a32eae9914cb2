//! The server of `holdfast mount`: a FUSE file system that hands each request on to the directory
//! below by calls of libc. It runs with the preloaded library, as any program under Holdfast does,
//! so what is durable, and when, is decided there.
//!
//! It must never answer a sync by itself, nor touch a path above the directory that it serves: the
//! mount lies there, and would wait for this very process.

mod attr;
mod data;
mod directory;
mod names;
mod nodes;
mod raw;
mod server;
mod tree;
mod xattr;

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use fuser::{Config, Session, SessionACL};
use nix::fcntl::{OFlag, open};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, fstat, umask};

use nodes::Nodes;
use tree::Server;

/// What the server says once the directory is open.
pub const OPEN: u8 = b'o';
/// What it says once the kernel's first request is answered.
pub const SERVES: u8 = b's';
/// What it is told once the mount is there.
pub const MOUNTED: u8 = b'm';

/// How many threads take requests: one that waits for a disk stops nobody else.
const THREADS: usize = 8;
/// Open files of a server whose limit may be raised: each inode that the kernel knows is one.
const OPEN_FILES_MAX: u64 = 1 << 20;

/// Serves `directory` by the FUSE device until it is unmounted. The supervisor at the other end of
/// `talk` mounts between the first and the last word.
pub fn serve(
    directory: &Path,
    device: OwnedFd,
    mut talk: impl Read + Write,
    is_alone: bool,
) -> io::Result<()> {
    // When memory is short, none must be sought for this process by writing to a file system that
    // waits for it. Only root may ask; without it memory must not be short.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    raise_limit();
    // Callers' masks are applied for each of them.
    umask(Mode::empty());
    let root = open(directory, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let stat = fstat(&root)?;
    talk.write_all(&[OPEN])?;
    let mut word = [0];
    if talk.read(&mut word)? == 0 {
        // Nothing was mounted.
        return Ok(());
    }
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let server = Server::new(Nodes::new(root, stat.st_dev), is_alone);
    let notifier = Arc::clone(&server.notifier);
    // Whom the kernel lets in was said when it was mounted.
    let session = Session::from_fd(server, device, SessionACL::All, config)?;
    let _ = notifier.set(session.notifier());
    // A supervisor that has died is no reason to stop.
    let _ = talk.write_all(&[SERVES]);
    session.run()
}

fn raise_limit() {
    let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let wanted = most.max(OPEN_FILES_MAX);
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_err() {
        // Only root may have more than it was given.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
