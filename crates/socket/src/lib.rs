//! Where keepers are found: one socket per pool in a directory of the user's own; how they answer
//! there, and what else of the process itself is theirs to set.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_canary::{Canary, on};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

mod peer;

pub use peer::{Peer, Stranger, is_stopped};

/// A keeper that has a processor answers at once. One that has none for so long is stopped, or its
/// machine is beyond help.
pub const ANSWER_MAX: Duration = Duration::from_secs(20);
/// How often it is seen whether whoever is waited for is worth it.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Between its bind and its listening a keeper looks as if it had gone.
const SOCKET_AGE_MIN: Duration = Duration::from_secs(60);
/// Sockets looked at by one keeper that starts.
const SWEPT_MAX: usize = 256;

/// Names the directory of the sockets, where a service and its programs do not see the same
/// temporary directory.
pub const DIRECTORY_VARIABLE: &str = "HOLDFAST_RUNTIME_DIR";

/// Where everybody may make directories.
const SHARED: &str = "/tmp";

/// Descriptors that managed files leave free: for events of the fence and for who connects.
const DESCRIPTORS_KEPT: u64 = 256;
/// A keeper has two dozen of its own, and one for each process that it serves.
const DESCRIPTORS_MIN: u64 = 64;
/// How many this process may have.
static DESCRIPTORS_MAX: AtomicU64 = AtomicU64::new(u64::MAX);

/// The directory of this user's keeper sockets. A place that cannot be ours (`su` keeps the
/// XDG_RUNTIME_DIR of whoever called it; a container's /run is read-only) is passed over, by those
/// who serve and by those who look for them alike.
fn directory() -> PathBuf {
    let uid = rustix::process::geteuid();
    // Where it is said by name nothing is passed over: what is wrong with it is told.
    if let Some(dir) = std::env::var_os(DIRECTORY_VARIABLE).map(PathBuf::from).filter(|dir| dir.is_absolute())
    {
        return dir;
    }
    let usual = if uid.is_root() {
        Some(PathBuf::from("/run"))
    } else {
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute())
    };
    let is_ours = |dir: &PathBuf| {
        std::fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid.as_raw())
            && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
    };
    match usual.filter(is_ours) {
        Some(dir) => dir.join("holdfast"),
        None => Path::new(SHARED).join(format!("holdfast-{}", uid.as_raw())),
    }
}

/// The path of a socket as a keeper said it in its pool.
pub fn told_path(told: Vec<u8>) -> PathBuf {
    OsString::from_vec(told).into()
}

fn name(uuid: &[u8; 16]) -> String {
    let name: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name}.sock")
}

/// Sees that there is a directory for the socket of a keeper, and says which path the socket gets.
/// The usual place may be somebody else's, who made it first: then the directory gets a name that
/// nobody can know beforehand, and the pool says which.
pub fn prepare(uuid: &[u8; 16], told: Option<Vec<u8>>) -> io::Result<PathBuf> {
    if let Some(before) = told {
        forget(&told_path(before));
    }
    let usual = directory();
    let directory = match prepare_directory(&usual) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_shared(&usual) => {
            make_directory().map_err(|_| error)?
        }
        prepared => prepared.map(|()| usual)?,
    };
    let path = directory.join(name(uuid));
    // We own the pool, so nobody listens here any more.
    let _ = std::fs::remove_file(&path);
    sweep(&directory);
    Ok(path)
}

/// Removes the socket of a keeper that has ended, and a directory that was made for it alone.
pub fn forget(path: &Path) {
    let Some(directory) = path.parent().filter(|directory| must_be_ours_alone(directory).is_ok()) else {
        return;
    };
    let _ = std::fs::remove_file(path);
    let is_made = directory.parent() == Some(Path::new(SHARED))
        && directory.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(prefix().as_bytes()));
    if is_made {
        let _ = std::fs::remove_dir(directory);
    }
}

fn mode() -> u32 {
    // Root's can be traversed: programs that give up root are refused by the keeper, which can name
    // them so.
    if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 }
}

/// Makes the socket directory. It must belong to us and be closed to others.
fn prepare_directory(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(mode()).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let why = format!("cannot make {}, where programs find their keeper: {error}", path.display());
            return Err(io::Error::new(error.kind(), why));
        }
        _ => {}
    }
    must_be_ours_alone(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode()))
}

/// Whether the usual place is one where others may have been first. A place that somebody named is
/// that or none.
fn is_shared(usual: &Path) -> bool {
    usual.starts_with(SHARED) && std::env::var_os(DIRECTORY_VARIABLE).is_none()
}

/// What the names of directories begin with that [`make_directory`] makes.
fn prefix() -> String {
    format!("holdfast-{}-", rustix::process::geteuid().as_raw())
}

fn make_directory() -> io::Result<PathBuf> {
    let permissions = std::fs::Permissions::from_mode(mode());
    let made = tempfile::Builder::new().prefix(&prefix()).permissions(permissions).tempdir_in(SHARED)?;
    Ok(made.keep())
}

/// Whether a process has a socket bound at `path`, whether it lets anybody in or not. A keeper that
/// is stopped would have a connection wait, and each would take a place among those who wait to be
/// let in. So a socket of another type asks: the kernel refuses it as the wrong one before it looks
/// at that queue, and says so only of a socket that somebody has.
pub fn is_bound(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let asking = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&asking, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => Ok(false),
        Ok(()) | Err(Errno::PROTOTYPE | Errno::AGAIN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Removes sockets of keepers that were killed and whose pool nobody serves any more. A program
/// that is told of one is refused with it and without it. Not those of a keeper that is just
/// starting, and not too many at once. Must never wait for a keeper, nor be one more whom it has to
/// let in: the pools are not ours.
fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let is_old = |entry: &std::fs::DirEntry| {
        let modified = entry.metadata().and_then(|meta| meta.modified());
        modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > SOCKET_AGE_MIN))
    };
    let named = |entry: &std::fs::DirEntry| entry.path().extension().is_some_and(|end| end == "sock");
    for entry in entries.flatten().filter(|entry| named(entry) && is_old(entry)).take(SWEPT_MAX) {
        if is_bound(&entry.path()).is_ok_and(|is_bound| !is_bound) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Refuses a directory in which somebody else could put a socket.
pub fn must_be_ours_alone(directory: &Path) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(directory)?;
    let is_ours = meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw();
    if is_ours && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    let why = format!(
        "{} is not a directory of this user alone: it belongs to user {} with mode {:o}. Have it removed, or \
         set XDG_RUNTIME_DIR to a directory of your own",
        directory.display(),
        meta.uid(),
        meta.mode() & 0o7777
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// If this connection, which has ended, was our supervisor's: it goes, and perhaps a daemon stays
/// that has let go of its terminal or pipe. Whoever waits for the end of that must not wait for us.
/// What goes wrong from now on is in `status`.
pub fn leave_standard_error_with(supervisor: Option<u32>, connection: &OwnedFd) {
    let is_supervisors = rustix::net::sockopt::socket_peercred(connection)
        .is_ok_and(|peer| Some(peer.pid.as_raw_nonzero().get() as u32) == supervisor);
    if is_supervisors && let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stderr(null);
    }
}

/// Where a request has its number.
const NUMBER: Range<usize> = 1..5;

/// Sends the answer to a request as one message, which begins with the request's number.
pub fn send_answer(
    connection: &OwnedFd,
    request: &[u8],
    value: &impl serde::Serialize,
    flags: SendFlags,
) -> io::Result<()> {
    let mut answer = request.get(NUMBER).unwrap_or(&[0; NUMBER.end - NUMBER.start]).to_vec();
    serde_json::to_writer(&mut answer, value).map_err(io::Error::other)?;
    rustix::net::send(connection, &answer, SendFlags::NOSIGNAL | flags)?;
    Ok(())
}

/// Sends bytes, and descriptors with them.
pub fn send_with_descriptors(
    connection: &OwnedFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    rustix::net::sendmsg(connection, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Connects to a keeper's socket, where a keeper of this user serves it. It waits for room among
/// those who wait to be let in, up to the moment that `gives_up` says so; it is asked again and
/// again.
///
/// # Errors
/// `WouldBlock`: as many wait already to be let in as may, so there is somebody, who lets nobody
/// in.
pub fn connect_unless(socket: &Path, mut gives_up: impl FnMut() -> bool) -> io::Result<OwnedFd> {
    if let Some(directory) = socket.parent()
        && !on(Canary::KeeperBelieved)
    {
        must_be_ours_alone(directory)?;
    }
    let connection =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // It is the wait for room among those who wait to be let in.
    set_socket_timeout(&connection, Timeout::Send, Some(LOOK_AGAIN))?;
    let (address, begun) = (SocketAddrUnix::new(socket)?, Instant::now());
    loop {
        match rustix::net::connect(&connection, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if begun.elapsed() < ANSWER_MAX && !gives_up() => {}
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match Peer::of(&connection)?.has_our_user() {
        Err(Stranger::Other(user)) if !on(Canary::KeeperBelieved) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("a process of user {user} serves {}. Have that removed", socket.display()),
        )),
        _ => Ok(connection),
    }
}

/// Two descriptions for each managed file: as many as the kernel allows, who may exceed the limit
/// that we were started with, and else as many as that.
///
/// # Errors
/// A keeper could not serve with so few.
pub fn raise_descriptor_limit() -> Result<(), TooFewDescriptors> {
    let allowed = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
    let allowed = allowed.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map(|maximum| maximum.max(allowed));
    if setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_err() {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    DESCRIPTORS_MAX.store(now, Ordering::Relaxed);
    if now < DESCRIPTORS_MIN { Err(TooFewDescriptors { limit: now }) } else { Ok(()) }
}

/// Whether a keeper that this process starts could serve. It is seen by trying, since who may raise
/// the limit is the kernel's to say; the limit stays what it was.
pub fn refuse_too_few_descriptors() -> Result<(), TooFewDescriptors> {
    let limit = getrlimit(Resource::Nofile);
    let raised = raise_descriptor_limit();
    // It may be lowered by anybody.
    let _ = setrlimit(Resource::Nofile, limit);
    raised
}

/// A keeper would run out of descriptors before it has let in the first program, or soon after.
#[derive(Clone, Copy, Debug)]
pub struct TooFewDescriptors {
    limit: u64,
}

impl fmt::Display for TooFewDescriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a keeper may have {} open descriptors at most here, and needs {DESCRIPTORS_MIN}: raise the hard limit \
             (`ulimit -Hn`, RLIMIT_NOFILE; LimitNOFILE= of a service)",
            self.limit
        )
    }
}

impl std::error::Error for TooFewDescriptors {}

/// Whether so many descriptors are in use that no file may be managed by one more: the kernel makes
/// one for each event of the fence and refuses whoever waits for it where it cannot. New
/// descriptors get the lowest number that is free.
pub fn is_short_of_descriptors(newest: BorrowedFd<'_>) -> bool {
    newest.as_raw_fd() as u64 > files_max()
}

/// So many files can be managed at a time, as far as descriptors go.
pub fn files_max() -> u64 {
    let most = DESCRIPTORS_MAX.load(Ordering::Relaxed);
    let kept = (most / 4).min(DESCRIPTORS_KEPT);
    // Each file will have a second one when it is first synced.
    (most - kept) / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

    fn bound(path: &Path) -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        socket
    }

    fn make_old(path: &Path) {
        let long_ago = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let times = Timestamps { last_access: long_ago, last_modification: long_ago };
        utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
    }

    /// A keeper that is stopped once had every keeper of another pool wait for 20 s at its start,
    /// and these starts alone filled its queue.
    #[test]
    fn a_sweep_waits_for_nobody_and_joins_no_queue() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(format!("{name}.sock"));
        let [full, idle, starting, gone, young] =
            ["full", "idle", "starting", "gone", "young"].map(|name| bound(&path(name)));
        for listener in [&full, &idle] {
            rustix::net::listen(listener, 1).unwrap();
        }
        let mut waiting = Vec::new();
        loop {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let one =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
            match rustix::net::connect(&one, &SocketAddrUnix::new(path("full")).unwrap()) {
                Ok(()) => waiting.push(one),
                Err(error) => break assert_eq!(error, Errno::AGAIN),
            }
        }
        drop((gone, young));
        for name in ["full", "idle", "starting", "gone"] {
            make_old(&path(name));
        }
        let begun = Instant::now();
        sweep(dir.path());
        assert!(begun.elapsed() < ANSWER_MAX / 4, "{:?}", begun.elapsed());
        let left = ["full", "idle", "starting", "gone", "young"].map(|name| path(name).exists());
        assert_eq!(left, [true, true, true, false, true]);
        assert_eq!(rustix::net::accept(&idle).unwrap_err(), Errno::AGAIN, "the sweep waits to be let in");
        drop(starting);
    }
}
