//! The server of `holdfast mount`: a FUSE file system that hands each request on to the directory
//! below by calls of libc. It runs with the preloaded library, as any program under Holdfast does,
//! so what is durable, and when, is decided there.
//!
//! It must never answer a sync by itself, nor touch a path above the directory that it serves: the
//! mount lies there, and would wait for this very process.
//!
//! When it is killed, another server goes on, and programs wait meanwhile: a holder keeps the
//! device and all that is open (`holder`), memory says what each of it is and what was under way
//! (`kept`, `once`), and the kernel sends again what was not answered (`shake`).

mod attr;
mod caller;
mod data;
mod directory;
mod holder;
mod kept;
mod names;
mod nodes;
mod once;
mod prune;
mod raw;
mod server;
mod shake;
mod tree;
mod xattr;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use fuser::Config;
use nix::fcntl::{OFlag, open};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, fstat, umask};

use kept::Kept;
use nodes::Nodes;
use once::Once;
use tree::Server;

/// What the server says once the directory is open.
pub const OPEN: u8 = b'o';
/// What it says once it serves.
pub const SERVES: u8 = b's';
/// The same of a server after which no other can go on.
pub const SERVES_LAST: u8 = b'l';
/// What it is told once the mount is there.
pub const MOUNTED: u8 = b'm';

/// How many threads take requests: one that waits for a disk stops nobody else.
const THREADS: usize = 8;
/// For so long a thread runs before others do that wait: the shortest time that the kernel grants.
const SLICE_NS: u64 = 100_000;
/// Open files of a server whose limit may be raised: each inode that the kernel knows is one.
const OPEN_FILES_MAX: u64 = 1 << 20;

/// Serves `directory` by the FUSE device until it is unmounted. The supervisor at the other end of
/// `talk` mounts between the first and the last word.
pub fn serve(directory: &Path, device: OwnedFd, talk: UnixStream, is_alone: bool) -> io::Result<()> {
    prepare();
    holder::fill()?;
    let root = open(directory, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let device_below = fstat(&root)?.st_dev;
    let kept = Arc::new(Kept::new()?);
    let nodes = Nodes::new(root, device_below, Arc::clone(&kept));
    run(nodes, device, talk, is_alone, kept)
}

/// Goes on where a server was killed, with what its holder has.
pub fn succeed(before: UnixStream, talk: UnixStream, is_alone: bool) -> io::Result<()> {
    prepare();
    let (device, kept) = holder::take_over(&before)?;
    holder::fill()?;
    let nodes = Nodes::known(Arc::clone(&kept))?;
    run(nodes, device, talk, is_alone, kept)
}

fn prepare() {
    // When memory is short, none must be sought for this process by writing to a file system that
    // waits for it. Only root may ask; without it memory must not be short.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    raise_limit();
    // A program waits for each request, which takes less than this. A machine whose processors are
    // busy let it wait for milliseconds. Where that cannot be asked for, it is as it was.
    let _ = raw::ask_for_slices(SLICE_NS);
    // Callers' masks are applied for each of them.
    umask(Mode::empty());
}

fn run(
    nodes: Nodes,
    device: OwnedFd,
    mut talk: UnixStream,
    is_alone: bool,
    kept: Arc<Kept>,
) -> io::Result<()> {
    talk.write_all(&[OPEN])?;
    let mut word = [0];
    if talk.read(&mut word)? == 0 {
        // Nothing was mounted.
        return Ok(());
    }
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let is_successor = kept.first_request().is_some();
    let once = Once::new(Arc::clone(&kept), THREADS);
    let device = Arc::new(device);
    let server = Server::new(nodes, is_alone, Arc::clone(&kept), once, Arc::clone(&device));
    let notifier = Arc::clone(&server.notifier);
    // Whom the kernel lets in was said when it was mounted.
    let session = shake::session(server, device.as_fd(), &kept, config)?;
    let _ = notifier.set(session.notifier());
    // Nothing is under way in this process yet, and nobody else is there to be copied.
    let has_holder = shake::can_resend(&kept) && holder::start(&talk, device.as_fd(), &kept).is_ok();
    if is_successor {
        // Before anything is taken: what this server works at must not come again.
        shake::resend(device.as_fd())?;
    }
    // A supervisor that has died is no reason to stop.
    let _ = talk.write_all(&[if has_holder { SERVES } else { SERVES_LAST }]);
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
