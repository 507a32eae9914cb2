//! Holes of a file that is to be mapped, such as a copy of a pool has that leaves zeros out.
//!
//! A store to a hole, and on tmpfs a load from one, ends the program with SIGBUS when the file
//! system is full: nothing may be mapped before every byte has its place. What a file holds stays
//! as it is.

use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fstat, fstatfs, fsync, seek};
use rustix::io::Errno;

use crate::error::MediaError;
use crate::kind::{HUGE_PAGE_BYTES, MediaInfo, MediaKind};
use crate::probe::{file_system_of, memory_available};

const SECTOR_BYTES: u64 = 512;

/// Gives every byte of a file its place. The file is open for writing.
pub(crate) fn fill(fd: BorrowedFd<'_>, path: &Path, info: &MediaInfo) -> Result<(), MediaError> {
    let missing = missing(fd, info);
    if missing == 0 {
        return Ok(());
    }
    refuse_without_room(fd, path, info, missing)?;
    let filled = fallocate(fd, FallocateFlags::empty(), 0, info.len).and_then(|()| {
        if info.kind != MediaKind::Volatile {
            // Blocks that are "unwritten" are turned by a journal transaction at their first store,
            // with a chance to fail.
            let file = fs::File::from(fd.try_clone_to_owned().map_err(errno)?);
            let zeros = vec![0; HUGE_PAGE_BYTES as usize];
            for (hole, end) in Holes::of(fd, info.len) {
                for at in (hole..end).step_by(zeros.len()) {
                    let bytes = (end - at).min(HUGE_PAGE_BYTES) as usize;
                    file.write_all_at(&zeros[..bytes], at).map_err(errno)?;
                }
            }
        }
        fsync(fd)
    });
    filled.map_err(|error| match error {
        Errno::NOSPC | Errno::DQUOT => no_room(fd, path, info, missing),
        _ => MediaError::Allocate { path: path.to_owned(), len: info.len, source: error.into() },
    })
}

/// Refuses a file of which pages cannot even be looked at.
pub(crate) fn refuse_unreadable(
    fd: BorrowedFd<'_>,
    path: &Path,
    info: &MediaInfo,
) -> Result<bool, MediaError> {
    // Elsewhere a hole reads as zeros, and gets no place by that.
    let missing = if info.kind == MediaKind::Volatile { missing(fd, info) } else { 0 };
    if missing > 0 {
        refuse_without_room(fd, path, info, missing)?;
    }
    Ok(missing > 0)
}

/// What is to be said when pages of holes could not be had.
pub(crate) fn no_room(fd: BorrowedFd<'_>, path: &Path, info: &MediaInfo, missing: u64) -> MediaError {
    let file_system = file_system_of(fd);
    MediaError::Holes { path: path.to_owned(), missing, file_system, free: free(fd, info) }
}

/// Bytes that have no place yet.
pub(crate) fn missing(fd: BorrowedFd<'_>, info: &MediaInfo) -> u64 {
    match info.kind {
        MediaKind::DaxDevice => 0,
        // It tells what was allocated and never written for a hole.
        MediaKind::Volatile => {
            let has = fstat(fd).map_or(0, |stat| stat.st_blocks as u64 * SECTOR_BYTES);
            info.len.saturating_sub(has)
        }
        _ => Holes::of(fd, info.len).map(|(hole, end)| end - hole).sum(),
    }
}

fn free(fd: BorrowedFd<'_>, info: &MediaInfo) -> u64 {
    let free = fstatfs(fd).map_or(0, |s| s.f_bavail * s.f_bsize as u64);
    // tmpfs promises more than the machine has.
    let memory = memory_available().filter(|_| info.kind == MediaKind::Volatile);
    memory.map_or(free, |memory| memory.min(free))
}

fn refuse_without_room(
    fd: BorrowedFd<'_>,
    path: &Path,
    info: &MediaInfo,
    missing: u64,
) -> Result<(), MediaError> {
    if missing > free(fd, info) { Err(no_room(fd, path, info, missing)) } else { Ok(()) }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The holes of a file, as beginnings and ends.
struct Holes<'a> {
    fd: BorrowedFd<'a>,
    at: u64,
    len: u64,
}

impl<'a> Holes<'a> {
    fn of(fd: BorrowedFd<'a>, len: u64) -> Self {
        Self { fd, at: 0, len }
    }
}

impl Iterator for Holes<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if self.at >= self.len {
            return None;
        }
        let hole = seek(self.fd, SeekFrom::Hole(self.at)).ok().filter(|hole| *hole < self.len)?;
        // None: there is no data behind it.
        let end = seek(self.fd, SeekFrom::Data(hole)).map_or(self.len, |data| data.min(self.len));
        self.at = end.max(hole + 1);
        Some((hole, end))
    }
}
