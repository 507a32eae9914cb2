//! Opening a pool: every check of what was handed to us, and the lock that makes one process its
//! owner.
//!
//! Nothing is read from a pool that another process owns except the owner's process id, for the
//! message.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdfast_canary::{Canary, on};
use holdfast_media::{Mapping, MediaError, OpenMode};
use holdfast_pool::{FormatError, Remains, Segment, Seq, Slot, Superblock, VERSION, Words};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::run;
use super::source::Source;
use super::{PoolError, RecoverOptions, Report};
use holdfast_disk::OsDisk;

/// How long to wait for an owner that was killed, or is just ending or starting, to let go of the
/// pool.
const ENDING_OWNER_MAX: Duration = Duration::from_secs(5);
/// How often it is seen whether it did.
const POLL: Duration = Duration::from_millis(5);
/// Whoever looks at who has a pool open has it for itself meanwhile.
const LOOKED_AT_MAX: Duration = Duration::from_secs(1);
/// SIGKILL in a mask of pending signals.
const KILL_BIT: u64 = 1 << 8;

/// A pool that this process owns and that may still hold what a crash left: it cannot be served
/// from.
pub struct OpenPool {
    pub(super) pool: Pool,
    /// Whether the superblock or its copy had to be written anew.
    is_mended: bool,
}

/// What both kinds of open pool consist of.
pub(super) struct Pool {
    pub(super) path: PathBuf,
    pub(super) mapping: Mapping,
    pub(super) superblock: Superblock,
    pub(super) lock: OwnedFd,
}

impl Pool {
    pub(super) fn source(&self) -> Source<'_, Mapping> {
        Source::new(&self.mapping, &self.superblock, &self.path)
    }
}

/// A pool that was recovered: only set-aside slots are in use, and every segment that is not pinned
/// may be reused.
pub struct RecoveredPool {
    /// Where the pool is.
    pub path: PathBuf,
    /// Its media.
    pub mapping: Mapping,
    /// Its superblock.
    pub superblock: Superblock,
    /// Holds the exclusive lock. Never pass this description on: a copy in a client would keep the
    /// pool locked.
    pub lock: OwnedFd,
    /// The counter's first free number: above every generation, seq and `expired_seq` in the pool.
    pub counter_start: Seq,
    /// Segments with live records of set-aside files; they must not be reused.
    pub pinned_segments: Vec<Segment>,
    /// Frames of the spill file with such records.
    pub pinned_frames: Vec<u32>,
    /// Slots that stay in use for set-aside files.
    pub set_aside_slots: Vec<Slot>,
}

impl RecoveredPool {
    /// Marks the pool as closed cleanly, unless something is set aside: that needs the next scan.
    pub(super) fn close_clean(&self) {
        if self.set_aside_slots.is_empty() && self.pinned_segments.is_empty() && self.pinned_frames.is_empty()
        {
            let words = Words { nvm: &self.mapping, layout: &self.superblock.layout };
            words.set_counter_clean(self.counter_start);
        }
    }
}

impl OpenPool {
    /// Opens the pool at `path` and becomes its owner. Media that a power cut would empty needs
    /// `allow_volatile`.
    pub fn open(path: &Path, allow_volatile: bool) -> Result<Self, PoolError> {
        let file = open_locked(path, OpenMode::ReadWrite, FlockOperation::NonBlockingLockExclusive)?;
        must_have_its_name(path, &file)?;
        let (mapping, info) =
            Mapping::open_fd(file.as_fd(), path, OpenMode::ReadWrite).map_err(PoolError::Media)?;
        if !info.kind.is_persistent() && !allow_volatile {
            return Err(PoolError::Volatile { pool: path.to_owned(), kind: info.kind });
        }
        let superblock = superblock(path, &mapping)?;
        let is_mended = holdfast_pool::mend(&mapping, &superblock);
        let words = Words { nvm: &mapping, layout: &superblock.layout };
        words.set_owner_pid(u64::from(std::process::id()));
        Ok(Self { pool: Pool { path: path.to_owned(), mapping, superblock, lock: file.into() }, is_mended })
    }

    /// Opens the pool for looking only: nothing can be stored in it, and others may look at the
    /// same time.
    pub(super) fn open_read_only(path: &Path) -> Result<Self, PoolError> {
        let file = open_locked(path, OpenMode::ReadOnly, FlockOperation::NonBlockingLockShared)?;
        let (mapping, _) =
            Mapping::open_fd(file.as_fd(), path, OpenMode::ReadOnly).map_err(PoolError::Media)?;
        let superblock = superblock(path, &mapping)?;
        let pool = Pool { path: path.to_owned(), mapping, superblock, lock: file.into() };
        Ok(Self { pool, is_mended: false })
    }

    /// The pool's superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.pool.superblock
    }

    /// The pool's media.
    pub fn mapping(&self) -> &Mapping {
        &self.pool.mapping
    }

    /// Whether the last owner closed the pool cleanly, so that nothing in it is live.
    pub fn is_clean(&self) -> bool {
        let words = Words { nvm: &self.pool.mapping, layout: &self.pool.superblock.layout };
        words.counter_clean().is_some()
    }

    /// Removes a pool that nothing was written to since it was made or closed. False if there is
    /// something in it.
    pub fn remove_clean(self) -> bool {
        self.is_clean() && std::fs::remove_file(&self.pool.path).is_ok()
    }

    /// Brings what is live in the pool to the files. Files that cannot be judged or written are set
    /// aside; an error means that the pool itself is unusable and nothing was changed.
    ///
    /// `options.dry_run` must be off: a pool that was only looked at is not a recovered one.
    pub fn recover(
        self,
        options: &RecoverOptions,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<(RecoveredPool, Report), PoolError> {
        assert!(!options.dry_run, "a dry run does not make a recovered pool");
        holdfast_disk::lease::release_orphans(&super::mapped_by(&self.pool.path));
        let (done, mut report) = run::recover(&self.pool.source(), &OsDisk::new(), options, progress)?;
        report.is_superblock_mended = self.is_mended;
        let Pool { path, mapping, superblock, lock } = self.pool;
        let recovered = RecoveredPool {
            path,
            mapping,
            superblock,
            lock,
            counter_start: done.counter_start,
            pinned_segments: done.pinned_segments,
            pinned_frames: done.pinned_frames,
            set_aside_slots: done.set_aside_slots,
        };
        Ok((recovered, report))
    }

    /// What [`OpenPool::recover`] would find and do, without doing it.
    pub(super) fn examine(
        self,
        options: &RecoverOptions,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> Result<Report, PoolError> {
        run::examine(&self.pool.source(), &OsDisk::new(), options, progress)
    }
}

/// Whether the file at `path` is a pool that could be opened by its owner, who is to be this user.
/// Nothing is changed, and its keeper may serve it meanwhile.
pub fn refuse_unusable(path: &Path, owner: u32) -> Result<(), PoolError> {
    let file = open_file_of(path, OpenMode::ReadOnly, owner)?;
    let (mapping, _) = Mapping::open_fd(file.as_fd(), path, OpenMode::ReadOnly).map_err(PoolError::Media)?;
    superblock(path, &mapping).map(drop)
}

/// Opens the file or device of a pool, if it is ours.
pub fn open_file(path: &Path, mode: OpenMode) -> Result<File, PoolError> {
    open_file_of(path, mode, rustix::process::geteuid().as_raw())
}

fn open_file_of(path: &Path, mode: OpenMode, me: u32) -> Result<File, PoolError> {
    let mut options = File::options();
    options.read(true).write(mode == OpenMode::ReadWrite).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let (begun, mut opened) = (Instant::now(), options.open(path));
    while matches!(&opened, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
        && begun.elapsed() < LOOKED_AT_MAX
    {
        std::thread::sleep(Duration::from_millis(1));
        opened = options.open(path);
    }
    let file = opened.map_err(|error| {
        let pool = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => PoolError::Absent(pool),
            io::ErrorKind::PermissionDenied => PoolError::NotPermitted(pool),
            io::ErrorKind::IsADirectory => PoolError::Directory(pool),
            _ => PoolError::Open { pool, error },
        }
    })?;
    let metadata = file.metadata().map_err(|error| PoolError::Look { pool: path.to_owned(), error })?;
    if metadata.is_dir() {
        return Err(PoolError::Directory(path.to_owned()));
    }
    if !metadata.is_file() && !holdfast_media::is_dax_device(&metadata) {
        return Err(PoolError::Media(MediaError::NotMedia { path: path.to_owned() }));
    }
    // Recovery writes to the files a pool names with the rights of who runs it: never on another
    // user's word.
    if metadata.uid() != me && !on(Canary::RootStaysRoot) {
        return Err(PoolError::NotOurs { pool: path.to_owned(), owner: metadata.uid(), me });
    }
    if metadata.mode() & 0o022 != 0 && !on(Canary::PoolShared) {
        return Err(PoolError::OpenToOthers { pool: path.to_owned(), mode: metadata.mode() & 0o7777 });
    }
    Ok(file)
}

/// Opens a pool with the lock that its owner holds, or names who holds it. Who waits has the pool
/// open for moments only: its owner sees whether anybody else has it.
pub(super) fn open_locked(path: &Path, mode: OpenMode, operation: FlockOperation) -> Result<File, PoolError> {
    let begun = Instant::now();
    loop {
        let file = open_file(path, mode).map_err(|error| match begun.elapsed() < POLL {
            false if !path.exists() => PoolError::Gone(path.to_owned()),
            _ => error,
        })?;
        match flock(&file, operation) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(PoolError::Lock { pool: path.to_owned(), error }),
        }
        let waited = begun.elapsed();
        // A keeper that was killed holds its lock until the last of its threads is gone; one that
        // is ending, until everything is on the disk. Whoever serves nobody is soon done with the
        // pool.
        if waited >= ENDING_OWNER_MAX
            || !owner_pid(path, &file).is_some_and(is_dying) && is_served(path, &file)
        {
            let owner = match owner_pid(path, &file) {
                Some(pid) if u32::try_from(pid).is_ok_and(holdfast_socket::is_stopped) => {
                    let program = program_of(pid);
                    format!("process {pid}{program}, which is stopped (`kill -CONT {pid}` has it go on)")
                }
                Some(pid) => format!("process {pid}{}", program_of(pid)),
                None => "another process".to_owned(),
            };
            let waited =
                if waited >= ENDING_OWNER_MAX { ", which takes long to end or to start" } else { "" };
            let other = other_format(path, &file).unwrap_or_default();
            let owner = format!("{owner}{other}");
            return Err(PoolError::InUse { pool: path.to_owned(), owner, waited });
        }
        drop(file);
        std::thread::sleep(POLL);
    }
}

/// Refuses a pool that its last owner removed while we waited for it.
fn must_have_its_name(path: &Path, file: &File) -> Result<(), PoolError> {
    let which = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    let named = std::fs::metadata(path).map(which).ok();
    if named.is_some() && named == file.metadata().map(which).ok() {
        return Ok(());
    }
    Err(PoolError::Gone(path.to_owned()))
}

/// Whether a keeper of the pool takes connections. One that is ending does not, nor does one that
/// is still recovering, nor any other owner.
fn is_served(path: &Path, file: &File) -> bool {
    let Ok((mapping, _)) = Mapping::open_fd(file.as_fd(), path, OpenMode::ReadOnly) else { return false };
    holdfast_pool::owner(&mapping).1.is_some_and(|told| {
        // Who lets nobody in, as one that is stopped, serves it all the same.
        holdfast_socket::is_bound(&holdfast_socket::told_path(told)).unwrap_or(false)
    })
}

fn owner_pid(path: &Path, file: &File) -> Option<u64> {
    let (mapping, _) = Mapping::open_fd(file.as_fd(), path, OpenMode::ReadOnly).ok()?;
    holdfast_pool::owner(&mapping).0
}

/// What to know of a pool of another format version, which a program of that version has.
fn other_format(path: &Path, file: &File) -> Option<String> {
    let (mapping, _) = Mapping::open_fd(file.as_fd(), path, OpenMode::ReadOnly).ok()?;
    let Err(FormatError::Version { found }) = holdfast_pool::open(&mapping) else { return None };
    Some(format!(
        " of another version of Holdfast (the pool has format version {found}, and this program knows version \
         {VERSION})"
    ))
}

/// Whether a process is gone or on its way out.
fn is_dying(pid: u64) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/status")) {
        Err(_) => true,
        Ok(status) => {
            let field = |name: &str| {
                status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default()
            };
            let killed = |mask: &str| u64::from_str_radix(mask, 16).is_ok_and(|mask| mask & KILL_BIT != 0);
            // Without memory, it is on its way out and still has its files.
            field("State:").starts_with(['Z', 'X'])
                || field("VmSize:").is_empty()
                || killed(field("SigPnd:"))
                || killed(field("ShdPnd:"))
        }
    }
}

pub(super) fn program_of(pid: u64) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map_or_else(|_| String::new(), |name| format!(" ({})", name.trim_end()))
}

fn superblock(path: &Path, mapping: &Mapping) -> Result<Superblock, PoolError> {
    holdfast_pool::open(mapping).map_err(|error| {
        let todo = match error {
            FormatError::NotAPool => match holdfast_pool::remains(mapping) {
                Remains::Pool => {
                    "both its superblocks read as zeros, as errors of the media that were cleared leave them, and what \
                     stands behind them is a pool's: it may hold what is in no file, so keep it as it is, and restore it \
                     from a backup"
                }
                Remains::Blank => {
                    "both its superblocks read as zeros: if there ever was a pool here, keep it as it is, and restore it \
                     from a backup; if there was none, name a pool"
                }
                Remains::Other => "name a pool",
            },
            FormatError::Version { .. } => {
                "look at it, or at the keeper that serves it, with the version of Holdfast that made it; to go on with \
                 this one, recover it with that one (`holdfast recover`) and make it anew"
            }
            FormatError::Truncated { .. } => {
                "restore the file to its full length from a backup; as it is, nothing in it was changed"
            }
            FormatError::Damaged(_) => "restore the pool from a backup; as it is, nothing in it was changed",
        };
        PoolError::Unusable { pool: path.to_owned(), error, todo }
    })
}
