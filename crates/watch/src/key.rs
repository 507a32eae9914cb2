//! Which file: by device and inode number.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

/// An inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Device.
    pub dev: u64,
    /// Its number there.
    pub ino: u64,
}

impl Key {
    /// The inode a path leads to, links followed.
    pub fn of(path: &Path) -> io::Result<Key> {
        let stat = statx(CWD, path, AtFlags::empty(), StatxFlags::INO)?;
        Ok(Key { dev: makedev(stat.stx_dev_major, stat.stx_dev_minor), ino: stat.stx_ino })
    }

    /// The inode of an open file.
    pub fn of_fd(fd: impl AsFd) -> io::Result<Key> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(Key { dev: stat.st_dev, ino: stat.st_ino })
    }
}
