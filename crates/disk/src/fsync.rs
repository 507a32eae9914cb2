//! The one way to `fsync`: one that is not taken in by a file system that has given up.
//!
//! When a journal's commit fails, the kernel tells whoever waits for that commit, and nobody else.
//! A later `fsync` of another file or directory whose change was part of it finds nothing left to
//! wait for and succeeds: on xfs until somebody looks (attributes of a file system that was shut
//! down cannot be read), on ext4 until somebody tries to change something. So we look, and after an
//! error we change something first. It must never turn an error into success.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_OMIT, fstat, futimens};

/// File systems on which a sync of this process failed. They stay here: an error is news only once.
static DOUBTED: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

/// Makes a file or directory durable.
pub(super) fn fsync(fd: impl AsFd) -> io::Result<()> {
    sync(fd.as_fd(), |fd| rustix::fs::fsync(fd))
}

/// Makes the bytes of a file durable whose size and place on the disk stay.
pub(super) fn fdatasync(fd: impl AsFd) -> io::Result<()> {
    sync(fd.as_fd(), |fd| rustix::fs::fdatasync(fd))
}

fn sync(fd: BorrowedFd<'_>, call: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<()>) -> io::Result<()> {
    let stat = fstat(fd)?;
    let doubted = || DOUBTED.lock().unwrap_or_else(PoisonError::into_inner);
    let nudged = if doubted().contains(&stat.st_dev) { nudge(fd, &stat) } else { Ok(()) };
    let synced = nudged.and_then(|()| call(fd)).and_then(|()| fstat(fd));
    if synced.is_err() {
        doubted().insert(stat.st_dev);
    }
    synced.map(drop).map_err(io::Error::from)
}

/// Changes nothing, by a call that needs the journal: the first one makes a file system notice that
/// it has none any more, the second one is told.
fn nudge(fd: BorrowedFd<'_>, stat: &Stat) -> rustix::io::Result<()> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime as _, tv_nsec: stat.st_atime_nsec as _ },
        last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
    };
    for _ in 0..2 {
        futimens(fd, &times)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_doubted_file_system_that_works_is_synced_and_nothing_changes() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "bytes").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let before = file.metadata().unwrap();
        DOUBTED.lock().unwrap().insert(before.dev());
        fsync(&file).unwrap();
        fsync(std::fs::File::open(directory.path()).unwrap()).unwrap();
        let after = file.metadata().unwrap();
        assert_eq!((before.atime(), before.atime_nsec()), (after.atime(), after.atime_nsec()));
        assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
    }
}
