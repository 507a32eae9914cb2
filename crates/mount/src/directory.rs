//! Listing a directory. The position is the file system's own, so a listing goes on where it was,
//! whatever was added or removed meanwhile.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use fuser::FileType;
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use rustix::fs::{FileType as Kind, RawDir};

use crate::raw::Result;

/// What is asked of the kernel at once.
const BYTES: usize = 32 << 10;

/// One name.
pub struct Name<'a> {
    /// The name.
    pub name: &'a OsStr,
    /// The inode's number below.
    pub inode: u64,
    /// Its kind.
    pub kind: FileType,
    /// Where the listing goes on after it.
    pub next: u64,
}

fn kind(kind: Kind) -> FileType {
    match kind {
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

/// Hands over name after name from `position` on, until `add` says that no more fit. An error
/// counts only if it comes first: what was added before it is right.
pub fn list(fd: BorrowedFd<'_>, position: u64, mut add: impl FnMut(&Name<'_>) -> Result<bool>) -> Result<()> {
    // The answer that the kernel did not take whole is read again.
    lseek(fd, position.cast_signed(), Whence::SeekSet)?;
    let mut buffer = [const { MaybeUninit::uninit() }; BYTES];
    let mut names = RawDir::new(fd, &mut buffer);
    let mut is_first = true;
    while let Some(entry) = names.next() {
        let entry = entry.map_err(|error| Errno::from_raw(error.raw_os_error()))?;
        let name = Name {
            name: OsStr::from_bytes(entry.file_name().to_bytes()),
            inode: entry.ino(),
            kind: kind(entry.file_type()),
            next: entry.next_entry_cookie(),
        };
        match add(&name) {
            Ok(false) => is_first = false,
            Err(error) if is_first => return Err(error),
            _ => break,
        }
    }
    Ok(())
}
