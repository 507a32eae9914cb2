//! Looks for files of a directory by their inode numbers.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxFlags, openat, statx};
use rustix::time::{ClockId, clock_gettime};

/// After this long a directory is on the disk, with what it was made with.
const YOUNG_S: i64 = 120;
/// Directories below each other that are looked at.
const DEPTH_MAX: u32 = 16;

/// Calls `found` with what stands in an open directory, or in young ones below it, is no directory,
/// and has an inode number of which `wanted` says so; held, not opened.
pub fn held(
    directory: BorrowedFd<'_>,
    wanted: &dyn Fn(u64) -> bool,
    found: &mut dyn FnMut(File),
) -> io::Result<()> {
    held_below(directory, wanted, found, 0)
}

fn held_below(
    directory: BorrowedFd<'_>,
    wanted: &dyn Fn(u64) -> bool,
    found: &mut dyn FnMut(File),
    depth: u32,
) -> io::Result<()> {
    if depth == DEPTH_MAX {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let hold = |name: &CStr, flags| {
        openat(directory, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
    };
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let is_directory = entry.file_type() == FileType::Directory;
        if is_directory && is_young(directory, name) {
            // It may be gone by now, or be kept from us.
            if let Ok(below) = hold(name, OFlags::RDONLY | OFlags::DIRECTORY) {
                held_below(below.as_fd(), wanted, found, depth + 1)?;
            }
        } else if !is_directory && wanted(entry.ino()) {
            match hold(name, OFlags::PATH) {
                Ok(held) => found(File::from(held)),
                Err(rustix::io::Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

fn is_young(directory: BorrowedFd<'_>, name: &CStr) -> bool {
    let now = clock_gettime(ClockId::Realtime).tv_sec;
    let told = statx(directory, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME);
    told.is_ok_and(|told| now.saturating_sub(told.stx_btime.tv_sec) < YOUNG_S)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn files_are_found_by_their_numbers_in_young_directories_too() {
        let home = tempfile::tempdir().expect("a directory");
        let path = |name: &str| home.path().join(name);
        std::fs::create_dir(path("below")).expect("made");
        let ino = |name: &str| {
            std::fs::write(path(name), name).expect("written");
            std::fs::metadata(path(name)).expect("there").ino()
        };
        let inodes = [ino("here"), ino("below/there")];
        ino("other");
        let mut found = Vec::new();
        let open = File::open(home.path()).expect("open");
        let mut note = |file: File| found.push(file.metadata().expect("there").ino());
        held(open.as_fd(), &|ino| inodes.contains(&ino), &mut note).expect("read");
        found.sort_unstable();
        let mut wanted = inodes.to_vec();
        wanted.sort_unstable();
        assert_eq!(found, wanted);
    }
}
