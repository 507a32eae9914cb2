//! What the keeper and recovery ask of a file system, and nothing else: the seam at which a
//! simulated disk can stand in for the kernel.
//!
//! Every call here is a system call in reality. Whoever decides on durability (`durable`,
//! `recovery`) reaches files only through these traits; the one real implementation is [`OsDisk`].
//! The traits decide nothing themselves.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use holdfast_board::{FileTime, Times};
use holdfast_media::Bytes;
use holdfast_pool::{Identity, Mount, Ownership, Parent, Stamp};

mod commit;
mod entries;
mod fsync;
pub mod identity;
pub mod lease;
mod os;
pub mod spill;
mod walk;

pub use os::{OsDisk, OsFile};

/// Locks a mutex; a thread that panicked while it held one left nothing half done that matters
/// here.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What a file system says of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device number.
    pub dev: u64,
    /// Inode number; reused at once when a file is gone.
    pub ino: u64,
    /// Whether it is a regular file.
    pub is_file: bool,
    /// Number of names.
    pub links: u64,
    /// Size, in bytes.
    pub size: u64,
    /// Permission bits, owner and group.
    pub ownership: Ownership,
    /// Last change of contents, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Last change of contents or inode, in nanoseconds since 1970.
    pub changed_ns: i64,
    /// The number of the mount through which it was reached, which no other mount has or gets in
    /// this boot of the machine; 0 where the kernel does not tell.
    pub mount: u64,
    /// Whether it is append-only or immutable, so that nobody may write to it in place.
    pub is_fixed: bool,
    /// When it was made, in nanoseconds since 1970, if the file system tells. It never changes.
    pub born_ns: Option<i64>,
}

impl Stat {
    /// What a slot says of a file of which the file system says this, in the boot `boot`.
    pub fn stamp(&self, boot: [u8; 16], is_on_disk: bool) -> Stamp {
        Stamp {
            is_on_disk,
            size: self.size,
            modified_ns: self.modified_ns,
            changed_ns: self.changed_ns,
            born_ns: self.born_ns,
            mount: Mount { boot, id: self.mount },
            ownership: self.ownership,
        }
    }
}

/// What the clock says, and between which two moments the machine was booted according to it: they
/// move only when the clock is set, not while it is slewed. All in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Now; not below any time that a file was given before.
    pub now_ns: u64,
    /// The machine was not booted before.
    pub booted_ns_min: u64,
    /// The machine was not booted after.
    pub booted_ns_max: u64,
}

/// What a description is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading, syncing and asking who the file is.
    Read,
    /// Writing.
    Write,
    /// Reading and writing of aligned pieces past the page cache, where the file system can.
    Direct,
}

/// A change of names in a watched directory. The kernel queues it before the call that makes it
/// returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The watch; `None` when notices were lost, of whatever directory.
    pub watch: Option<i32>,
    /// What happened.
    pub change: Change,
}

/// What happened in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A file got this name by being created, linked or renamed.
    Created(Vec<u8>),
    /// This name of a file was removed, or given up for another.
    Removed(Vec<u8>),
    /// Anything else by which names change: a directory, lost notices.
    Other,
    /// As `Other`, and the directory is not watched any more.
    Gone,
}

/// A file system, or all of them.
pub trait Disk {
    /// An open description of a file or directory.
    type File: DiskFile;

    /// Opens what `path` leads to for reading; links are followed.
    fn open(&self, path: &Path) -> io::Result<Self::File>;

    /// Holds what `path` leads to without opening it: no fence sees it, and nobody is refused
    /// because of it. The result can be looked at and reopened; links are followed.
    fn hold(&self, path: &Path) -> io::Result<Self::File>;

    /// What the file system says of what stands at `path`: a link at its end is not followed, and
    /// nothing is opened.
    fn look(&self, path: &Path) -> io::Result<Stat> {
        self.hold(path)?.stat()
    }

    /// The directory at `path`, as its file system knows it.
    fn directory(&self, path: &Path) -> io::Result<Parent> {
        let found = self.hold(path)?.identity_on([0; 16])?;
        Ok(Parent { handle_type: found.handle_type, handle: found.handle })
    }

    /// Finds what stands at an absolute path. No symbolic link is followed, neither on the way nor
    /// at the end, and nothing is opened: the result can be looked at and reopened.
    fn find(&self, path: &[u8]) -> io::Result<Self::File>;

    /// Opens the directory at an absolute path; no symbolic link is followed.
    fn find_directory(&self, path: &[u8]) -> io::Result<Self::File>;

    /// Opens the file with this identity, wherever its name is now, with that name. `beside` is any
    /// directory of its file system.
    fn find_by_identity(&self, beside: &Self::File, identity: &Identity)
    -> io::Result<(Self::File, Vec<u8>)>;

    /// The clock that also stamps files.
    fn clock(&self) -> Clock;

    /// The same, in seconds since 1970.
    fn now_unix_s(&self) -> u64 {
        self.clock().now_ns / 1_000_000_000
    }

    /// The monotonic clock, in nanoseconds.
    fn monotonic_ns(&self) -> u64 {
        holdfast_board::monotonic_ns()
    }

    /// Names this boot of the machine.
    fn boot(&self) -> [u8; 16];

    /// Follows the changes of names in a directory from now on; `None` when it cannot be. The same
    /// directory has the same number.
    fn watch(&self, directory: &Path) -> Option<i32>;

    /// Ends a watch.
    fn unwatch(&self, watch: i32);

    /// Takes what happened in watched directories.
    fn take_notices(&self) -> Vec<Notice>;
}

/// A description: it holds the inode, and shows each write-back error once.
pub trait DiskFile: Sized + Send + Sync + 'static {
    /// What the file system says of it.
    fn stat(&self) -> io::Result<Stat>;

    /// Whether files have times; on simulated disks time stands still.
    const HAS_TIMES: bool = false;

    /// The times that a write moves.
    fn times(&self) -> io::Result<Times> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sets the time of modification, and no other; that of change moves.
    fn set_modified(&self, modified: FileTime) -> io::Result<()> {
        let _ = modified;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether it has extended attributes, which no slot holds.
    fn has_attributes(&self) -> bool {
        false
    }

    /// Whether its last name is gone.
    fn is_removed(&self) -> bool {
        self.stat().is_ok_and(|stat| stat.links == 0)
    }

    /// The name by which it was opened, as that is now, if the system can tell.
    fn path_now(&self) -> Option<std::path::PathBuf> {
        None
    }

    /// Who it is; not for what was only found.
    fn identity(&self) -> io::Result<Identity>;

    /// As `identity`, for what was only held or found, given its file system's UUID.
    fn identity_on(&self, file_system: [u8; 16]) -> io::Result<Identity>;

    /// UUID of the file system it lies on; not for what was only found.
    fn file_system(&self) -> io::Result<[u8; 16]>;

    /// Opens the same file anew.
    fn reopen(&self, access: Access) -> io::Result<Self>;

    /// Whether anybody may have it open for writing; when it cannot be told, the answer is yes.
    fn is_open_for_writing(&self) -> bool;

    /// `fsync`: of a file its bytes and size, of a directory the names in it.
    fn sync(&self) -> io::Result<()>;

    /// `fdatasync`: the bytes of a file whose size stays.
    fn sync_data(&self) -> io::Result<()>;

    /// Reads all of `bytes`.
    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// `syncfs`, of which the outcome counts: makes all of its file system durable, names included.
    fn sync_all(&self) -> io::Result<()>;

    /// `syncfs`: has the disk begin with everything of its file system. Errors of files are shown
    /// by their own syncs.
    fn sync_file_system(&self);

    /// Writes all of `bytes`.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Writes all of `ranges`, one behind the other. They may lie in memory that this system cannot
    /// write from: an error does not mean that the disk refuses.
    fn write_lent_at(&self, ranges: &[Bytes<'_>], offset: u64) -> io::Result<()> {
        let _ = (ranges, offset);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Bytes that can still be written to its file system by the file's owner; a disk that never
    /// fills need not tell.
    fn free_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    /// Sets the size.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Makes a range read as zeros; the size stays.
    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()>;

    /// What stands in an open directory, or in one below it that was made a moment ago, is no
    /// directory, and has an inode number of which `wanted` says so; held, not opened.
    fn held_entries(&self, wanted: &dyn Fn(u64) -> bool) -> io::Result<Vec<Self>> {
        let _ = wanted;
        Ok(Vec::new())
    }

    /// Whether its file system makes changes of names, sizes and attributes durable in the order in
    /// which they were made, as the journals of ext4 and xfs do: with a change of a file all
    /// earlier ones of others. When it cannot be told, the answer is no. Not for what was only
    /// found.
    fn orders_names(&self) -> bool;

    /// Whether [`DiskFile::commit`] writes out no files, where names are not in order.
    fn commits_quickly(&self) -> bool {
        false
    }

    /// How often its file system's journal was written, by whomever; `None` where nobody tells. It
    /// has moved when a sync returns that wrote to it, and never moves without one.
    fn journal_count(&self) -> Option<u64> {
        None
    }

    /// Has the file system of an open directory, or of an open file if there is none, commit, so
    /// that every change of a name, a size or an attribute that was made there before is durable.
    fn commit(&self) -> io::Result<()>;

    /// Another handle on the same description.
    fn try_clone(&self) -> io::Result<Self>;

    /// Gives back a lease of ours on it, whoever else still has a hand on it.
    fn give_back(&self) {}

    /// Has the disk begin with a range. Only a hint: it consumes no error.
    fn begin_write_back(&self, range: &Range<u64>);

    /// Gives a file mode and owner. Without the privilege to give files away the owner stays.
    fn set_ownership(&self, ownership: Ownership) -> io::Result<()>;

    /// In a directory: makes a new file, for us alone, open for writing.
    fn create(&self, name: &[u8]) -> io::Result<Self>;

    /// In a directory: makes a directory for us alone.
    fn make_directory(&self, name: &[u8]) -> io::Result<()>;

    /// Gives what has the name `from` in this directory the name `to` in `directory`, which must be
    /// free.
    fn rename(&self, from: &[u8], directory: &Self, to: &[u8]) -> io::Result<()>;

    /// As [`DiskFile::rename`], of a name that another file may have.
    fn replace(&self, from: &[u8], directory: &Self, to: &[u8]) -> io::Result<()>;

    /// In a directory: removes a file's name.
    fn remove(&self, name: &[u8]) -> io::Result<()>;
}
