//! What can go wrong with media, said so that the reader knows what to do next.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;

/// An error of opening, mapping or allocating media.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The file or device cannot be opened.
    #[error("cannot open {path}: {source}", path = .path.display())]
    Open {
        /// The media.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Neither a file nor a DAX device.
    #[error(
        "{path} is neither a regular file nor a DAX character device: name a DAX device (/dev/daxX.Y) or a file on \
         a DAX mount, or use --volatile with a file on tmpfs",
        path = .path.display()
    )]
    NotMedia {
        /// What was named.
        path: PathBuf,
    },
    /// A file on a file system that is neither DAX nor tmpfs.
    #[error(
        "{path} is an ordinary file: stores to it do not survive a power cut. Use a file on a file system mounted \
         with `-o dax`, or a DAX device (/dev/daxX.Y); or, to go without durability across power cuts, --volatile \
         with a file on tmpfs such as /dev/shm",
        path = .path.display()
    )]
    NotPersistent {
        /// The file.
        path: PathBuf,
    },
    /// A DAX file for which the kernel does not grant MAP_SYNC.
    #[error(
        "{path} is a DAX file, but the kernel refuses to map it synchronously (MAP_SYNC: {source}): stores could be \
         lost with the file system's metadata. Use ext4 or xfs with `-o dax` on a persistent-memory device, or a \
         DAX device (/dev/daxX.Y)",
        path = .path.display()
    )]
    SyncRefused {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A DAX device that can only be mapped in units larger than ours.
    #[error(
        "{path} is aligned to {align} bytes, of which a pool cannot be made: recreate its namespace with \
         `ndctl create-namespace -f -e NAMESPACE -m devdax --align=2M`",
        path = .path.display()
    )]
    Alignment {
        /// The device.
        path: PathBuf,
        /// Bytes of its unit.
        align: u64,
    },
    /// The media has no bytes.
    #[error("{path} is empty: format it first", path = .path.display())]
    Empty {
        /// The media.
        path: PathBuf,
    },
    /// A question about the media could not be answered.
    #[error("cannot examine {path}: {what}: {source}", path = .path.display())]
    Examine {
        /// The media.
        path: PathBuf,
        /// What was asked.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The media cannot be mapped.
    #[error("cannot map {path}: {source}", path = .path.display())]
    Map {
        /// The media.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A passed descriptor cannot be mapped. Allocates nothing, since it is made inside foreign
    /// programs.
    #[error("cannot map {len} bytes of pool media: {errno}")]
    MapDescriptor {
        /// Bytes asked for.
        len: u64,
        /// What the kernel said.
        errno: Errno,
    },
    /// The file exists and was not to be overwritten.
    #[error("{path} exists already: name another file, or overwrite it with --force", path = .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file system cannot hold the pool.
    #[error(
        "no room for {len} bytes in {path}: its file system ({file_system}) has {free} bytes free. Choose a smaller \
         --size or another place",
        path = .path.display()
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        len: u64,
        /// Kind and mount point of the file system.
        file_system: String,
        /// Bytes that an unprivileged user could still allocate.
        free: u64,
    },
    /// This process may not make a file that is so large.
    #[error(
        "no room for {len} bytes in {path}: files of this process may have {limit} bytes at most. Raise the hard limit \
         (`ulimit -Hf`, RLIMIT_FSIZE; LimitFSIZE= of a service), or choose a smaller --size",
        path = .path.display()
    )]
    SizeLimit {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        len: u64,
        /// Bytes that a file may have.
        limit: u64,
    },
    /// A file has holes, and what is missing cannot be had.
    #[error(
        "{path} has holes, as a copy has that leaves zeros out: {missing} bytes of it are missing, and where it lies \
         ({file_system}) {free} bytes are free. Make room there, or copy it to another place",
        path = .path.display()
    )]
    Holes {
        /// The file.
        path: PathBuf,
        /// Bytes that have no place yet.
        missing: u64,
        /// Kind and mount point of the file system.
        file_system: String,
        /// Bytes that could still be allocated.
        free: u64,
    },
    /// The machine has too little memory for a pool in it.
    #[error(
        "no room for {len} bytes in {path}: it lives in memory, of which {available} bytes are free. Choose a \
         smaller --size",
        path = .path.display()
    )]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        len: u64,
        /// Bytes of memory the kernel could still give.
        available: u64,
    },
    /// The device is smaller than asked.
    #[error("{path} has {have} bytes, {len} were asked for: choose a smaller --size", path = .path.display())]
    TooSmall {
        /// The device.
        path: PathBuf,
        /// Bytes asked for.
        len: u64,
        /// Bytes there are.
        have: u64,
    },
    /// The file cannot be created.
    #[error("cannot create {path}: {source}", path = .path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file cannot be filled.
    #[error("cannot allocate {len} bytes in {path}: {source}", path = .path.display())]
    Allocate {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        len: u64,
        /// What the kernel said.
        source: io::Error,
    },
}
