//! The one way to have a file system commit: every change of a name, a size or an attribute that
//! was made before is durable afterwards (invariant 11).
//!
//! A sync of somebody's file will not do. `fdatasync` of blocks that were overwritten commits
//! nothing, nor does any sync of a file or directory that has not changed since the last commit;
//! and btrfs syncs file by file. So a journal is committed by a change of our own and its `fsync`:
//! a new file without a name, whose inode belongs to the running transaction, or to a later one
//! than the changes before it. btrfs is asked for a commit of its transaction. What is left, ext4
//! without a journal and ext4 with fast commits above all, is synced as a whole, which takes its
//! time.
#![allow(unsafe_code)] // The ioctls of btrfs have no safe wrappers.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, openat};

use super::fsync::fsync;
use crate::identity::{FsKind, kind_of};

// Request numbers as <linux/btrfs.h> defines them.
const BTRFS_IOC_WAIT_SYNC: libc::c_ulong = 0x4008_9416;
const BTRFS_IOC_START_SYNC: libc::c_ulong = 0x8008_9418;

/// Has the file system commit that `fd`, an open file or directory, lies on. `journal`: it has one,
/// in which all changes are in order.
pub(super) fn commit(fd: BorrowedFd<'_>, journal: bool) -> io::Result<()> {
    match kind_of(fd) {
        Ok(FsKind::Btrfs) => commit_transaction(fd).or_else(|_| sync_all(fd)),
        Ok(_) if journal && !commits_fast(fd) => match unnamed(fd) {
            Ok(own) => {
                fsync(own)?;
                // The first one tells.
                if commits_fast(fd) { sync_all(fd) } else { Ok(()) }
            }
            // Not ours to write to, or full, or no directory.
            Err(_) => sync_all(fd),
        },
        _ => sync_all(fd),
    }
}

/// Whether an ext4 has written a fast commit since it was mounted, as the kernel counts them. Some
/// kernels (6.18 was seen to) write those of files without a name so that the journal cannot be
/// replayed, and the file system not be mounted any more.
fn commits_fast(fd: BorrowedFd<'_>) -> bool {
    let counted = || -> Option<bool> {
        let name = device_name(fd)?;
        let info = std::fs::read_to_string(Path::new("/proc/fs/ext4").join(name).join("fc_info")).ok()?;
        let mut counts = info.lines().filter_map(|line| line.strip_suffix(" commits"));
        Some(counts.any(|count| count.trim() != "0"))
    };
    counted().unwrap_or(false)
}

/// The kernel's name of the device that a file lies on.
fn device_name(fd: BorrowedFd<'_>) -> Option<OsString> {
    let device = fstat(fd).ok()?.st_dev;
    let device = format!("/sys/dev/block/{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    Some(std::fs::read_link(device).ok()?.file_name()?.to_owned())
}

/// How often the journal of `fd`'s file system was written since it was mounted: the transactions
/// of ext4, or where the head of the log of xfs is.
pub(super) fn journal_count(fd: BorrowedFd<'_>) -> Option<u64> {
    let name = device_name(fd)?;
    if matches!(kind_of(fd), Ok(FsKind::Xfs)) {
        let head = Path::new("/sys/fs/xfs").join(name).join("log/log_head_lsn");
        let head = std::fs::read_to_string(head).ok()?;
        let (cycle, block) = head.trim().split_once(':')?;
        return Some(cycle.parse::<u64>().ok()? << 32 | block.parse::<u64>().ok()?);
    }
    // An inode of its own; a journal on another device has another name, and is not counted.
    let mut journals = std::fs::read_dir("/proc/fs/jbd2").ok()?.flatten();
    let inside = format!("{}-", name.to_str()?);
    let journal = journals.find(|entry| entry.file_name().to_string_lossy().starts_with(&inside))?;
    let info = std::fs::read_to_string(journal.path().join("info")).ok()?;
    info.split_once(" transactions")?.0.trim().parse().ok()
}

/// A new file without a name. Who watches its directory sees it opened and closed, so it is made
/// where programs seldom look: at the top of the file system, if we may write there.
fn unnamed(directory: BorrowedFd<'_>) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let make = |directory: BorrowedFd<'_>| openat(directory, ".", flags, Mode::RUSR | Mode::WUSR);
    let at_top = top(directory).and_then(|top| make(top.as_fd()));
    Ok(at_top.or_else(|_| make(directory))?.into())
}

/// The highest directory of a file system that can be reached from one of its directories.
fn top(directory: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(directory, ".", flags, Mode::empty())?;
    let mut stat = fstat(&at)?;
    loop {
        let above = openat(&at, "..", flags, Mode::empty())?;
        let found = fstat(&above)?;
        if found.st_dev != stat.st_dev || found.st_ino == stat.st_ino {
            return Ok(at);
        }
        (at, stat) = (above, found);
    }
}

fn commit_transaction(fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut transaction = 0u64;
    for request in [BTRFS_IOC_START_SYNC, BTRFS_IOC_WAIT_SYNC] {
        // SAFETY: both take a number of eight bytes, which outlives the call.
        if unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut transaction) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Everything of the file system, by a description that shows no error of before, where there is a
/// directory for one.
fn sync_all(fd: BorrowedFd<'_>) -> io::Result<()> {
    let own = openat(fd, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    match own {
        Ok(own) => rustix::fs::syncfs(&own)?,
        Err(_) => rustix::fs::syncfs(fd)?,
    }
    // A file system that was shut down shows no attributes.
    fstat(fd)?;
    Ok(())
}
