//! The file that a registration is about: what its asker's descriptor stands for.
//!
//! Where the kernel shares the description with us, everything is looked at on it: another thread
//! of the program may put something else in the descriptor's place, and a path below `/proc` is
//! looked up anew each time. Must not outlive the request: a description that we have open is not
//! closed by its program's `close`.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use holdfast_board::Inode;
use holdfast_canary::{Canary, on};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::keeper::Keeper;
use crate::unmanaged;
use holdfast_disk::lease;
use holdfast_disk::locked;
use holdfast_disk::{Disk, DiskFile, OsFile};

/// What is known of a file before it has a slot.
pub(crate) struct Candidate {
    /// The asker's description, where we may share it.
    description: Option<File>,
    /// Leads to the file; without the description, to whatever has the descriptor by now.
    pub via: PathBuf,
    pub path: PathBuf,
    /// The file as it stands at its path, without being open, once that was looked at.
    pub held: Option<OsFile>,
    pub dev: u64,
    pub ino: u64,
    born: i128,
}

impl Candidate {
    pub(crate) fn description(&self) -> Option<BorrowedFd<'_>> {
        self.description.as_ref().map(File::as_fd)
    }

    pub(crate) fn inode(&self) -> Inode {
        Inode { device: self.dev, ino: self.ino }
    }

    /// Device and inode.
    pub(crate) fn key(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// As the list of native writers knows it.
    pub(crate) fn identity(&self) -> unmanaged::File {
        (self.dev, self.ino, self.born)
    }

    pub(crate) fn is(&self, file: &OsFile) -> bool {
        file.stat().is_ok_and(|stat| (stat.dev, stat.ino) == self.key())
    }

    /// Whether its file system is one whose files are managed.
    pub(crate) fn is_on_managed_file_system(&self) -> bool {
        match &self.description {
            Some(description) => {
                rustix::fs::fstatfs(description).is_ok_and(|fs| is_managed(fs.f_type as u32))
            }
            None => is_on_managed_file_system(&self.via),
        }
    }

    /// UUID of its file system, of which its description tells, or the directory that it is in.
    pub(crate) fn file_system(&self, disk: &impl Disk<File = OsFile>) -> io::Result<[u8; 16]> {
        if let Some(description) = &self.description {
            return holdfast_disk::identity::file_system(description).map(|(uuid, _)| uuid);
        }
        let directory = disk.open(self.path.parent().ok_or(io::ErrorKind::NotFound)?)?;
        if directory.stat()?.dev != self.dev {
            return Err(io::ErrorKind::NotFound.into());
        }
        directory.file_system()
    }
}

impl Keeper {
    /// The file behind a descriptor of a client, if it is a regular one that has a name, and the
    /// descriptor one by which the client can write to it: what it says of that counts for nothing.
    pub(crate) fn candidate(&self, client: u32, pid: u32, fd: i32) -> Option<Candidate> {
        let description = self.borrow(client, fd).ok();
        let via = match &description {
            Some(description) => PathBuf::from(format!("/proc/self/fd/{}", description.as_raw_fd())),
            None => PathBuf::from(format!("/proc/{pid}/fd/{}", fd)),
        };
        let meta = match &description {
            Some(description) => description.metadata(),
            None => std::fs::metadata(&via),
        };
        let meta = meta.ok().filter(|meta| meta.file_type().is_file() && meta.nlink() != 0)?;
        let flags = match &description {
            Some(description) => fcntl_getfl(description).ok(),
            None => flags_of(pid, fd),
        };
        if !flags.is_some_and(may_write) && !on(Canary::DescriptorUnchecked) {
            return None;
        }
        let (dev, ino, born) = identity_of(&meta);
        let path = std::fs::read_link(&via).ok()?;
        // A descriptor from `O_TMPFILE` never learns of the name that its file got.
        let is_nameless = path.as_os_str().as_bytes().ends_with(b" (deleted)");
        let named =
            description.as_ref().filter(|_| is_nameless).and_then(|description| name_of(description).ok());
        let path = named.unwrap_or(path);
        Some(Candidate { description, via, path, held: None, dev, ino, born })
    }

    /// A client's description.
    pub(crate) fn borrow(&self, client: u32, fd: i32) -> io::Result<File> {
        let client = locked(&self.clients).get(&client).map(|client| Arc::clone(&client.pidfd));
        lease::borrow(&*client.ok_or(io::ErrorKind::NotFound)?, fd)
    }
}

/// A name of an open file; only who may open files by their handles finds it.
fn name_of(description: &File) -> io::Result<PathBuf> {
    let (identity, _) = holdfast_disk::identity::identify(description)?;
    let opened = holdfast_disk::identity::open_by_identity(description, &identity)?;
    std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

/// Whether flags of an open file say that its descriptor can be written to.
pub(crate) fn may_write(flags: OFlags) -> bool {
    let mode = flags & OFlags::RWMODE;
    !flags.contains(OFlags::PATH) && (mode == OFlags::WRONLY || mode == OFlags::RDWR)
}

/// The flags of a descriptor of another process.
fn flags_of(pid: u32, fd: i32) -> Option<OFlags> {
    let told = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    let flags = told.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(flags.trim(), 8).ok().map(OFlags::from_bits_retain)
}

pub(crate) fn identity_of(meta: &Metadata) -> unmanaged::File {
    let born = meta.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    (meta.dev(), meta.ino(), born.map_or(0, |born| born.as_nanos() as i128))
}

/// The same of whatever has a descriptor, where its files are managed: others never will be,
/// whoever asks.
pub(crate) fn file_behind(pid: u32, fd: i32) -> Option<unmanaged::File> {
    let via = PathBuf::from(format!("/proc/{pid}/fd/{}", fd));
    let meta = std::fs::metadata(&via).ok()?;
    (meta.is_file() && is_on_managed_file_system(&via)).then(|| identity_of(&meta))
}

fn is_on_managed_file_system(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|fs| is_managed(fs.f_type as u32))
}

fn is_managed(kind: u32) -> bool {
    holdfast_watch::FILE_SYSTEMS.contains(&kind) || on(Canary::AnyFileSystem)
}
