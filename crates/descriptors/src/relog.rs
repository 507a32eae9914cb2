//! Changes of names on btrfs behind a commit that the keeper asked for: the file or directory is
//! synced once more, so that the next sync of anybody finds in the kernel's log what it would
//! natively ([`holdfast_board::TreeLog`]).
#![allow(unsafe_code)] // System calls.

use core::ffi::{CStr, c_char, c_int};

use holdfast_cache::{Client, Inode};

use crate::raw::{self, call};
use crate::{changing, process};

/// A directory of the program, and a path from there.
type Name = (c_int, *const c_char);

/// Calls `work` with the path of the directory that a path leads to, `None` for one that no kernel
/// takes.
pub fn in_directory<R>(path: &CStr, work: impl FnOnce(&CStr) -> R) -> Option<R> {
    let bytes = path.to_bytes();
    let end = bytes.iter().rposition(|&byte| byte != b'/')? + 1;
    let Some(slash) = bytes[..end].iter().rposition(|&byte| byte == b'/') else { return Some(work(c".")) };
    let mut above = [0u8; libc::PATH_MAX as usize];
    above.get_mut(..=slash)?.copy_from_slice(&bytes[..=slash]);
    CStr::from_bytes_until_nul(&above).ok().map(work)
}

/// Names that a call is about to change.
#[derive(Clone, Copy)]
pub struct Names<'a> {
    /// What has them.
    pub files: [Option<Inode>; 2],
    /// All that change.
    pub changed: &'a [Name],
    /// Those at which one of the files stands when the call is over.
    pub kept: &'a [Name],
}

/// Makes a call that changes names, and has that logged where a commit of ours has the kernel leave
/// it out. Within [`changing::changing`].
///
/// # Safety
/// The kernel was able to read the names, or `files` are none.
pub unsafe fn logged(client: &Client, names: Names<'_>, change: impl FnOnce() -> isize) -> isize {
    let Some(device) = names.files.iter().flatten().map(|file| file.device).next() else { return change() };
    // What only loses a name stands nowhere else.
    let moved = names.files.map(|file| file.filter(|_| !names.kept.is_empty()));
    let noted = moved.map(|file| file.and_then(|file| Some((client.note_move(file)?, file))));
    // SAFETY: as our caller says.
    let result = unsafe { logged_on(client, device, names, change) };
    if result == 0 {
        noted.into_iter().flatten().for_each(|(note, file)| client.note_moved(note, file));
    }
    result
}

/// # Safety
/// As [`logged`].
unsafe fn logged_on(client: &Client, device: u64, names: Names<'_>, change: impl FnOnce() -> isize) -> isize {
    if !client.may_miss_names(device) {
        return change();
    }
    // Others see the change before it is in the log.
    changing::note_relogs(client);
    let result = change();
    if result == 0 {
        // SAFETY: as our caller says.
        unsafe { log_again(client, names) };
    }
    result
}

/// What the kernel would natively have logged of a change is synced: a file that had been, by its
/// new name, and the directories where one of them had been, or such a file is gone.
unsafe fn log_again(client: &Client, names: Names<'_>) {
    let moment = client.log_moment();
    let mut is_gone = false;
    for file in names.files.iter().flatten().filter(|file| client.misses_names(moment, **file)) {
        // SAFETY: as our caller says.
        let mut kept = names.kept.iter().map(|&(dirfd, path)| (dirfd, unsafe { raw::path(path) }));
        is_gone |= !kept.any(|place| stands_at(place, *file) && client.log_again(moment, *file, place));
    }
    for &(dirfd, path) in names.changed {
        // SAFETY: as our caller says.
        in_directory(unsafe { raw::path(path) }, |above| {
            // SAFETY: the path is a C string.
            let Ok(stat) = (unsafe { raw::fstatat(dirfd, above.as_ptr(), 0) }) else { return };
            let directory = Inode { device: stat.dev, ino: stat.ino };
            if is_gone && !client.is_logged_again(moment, directory) || client.misses_names(moment, directory)
            {
                client.log_again(moment, directory, (dirfd, above));
            }
        });
    }
}

fn stands_at((dirfd, path): (c_int, &CStr), file: Inode) -> bool {
    // SAFETY: the path is a C string.
    let found = unsafe { raw::fstatat(dirfd, path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) };
    // Nothing else is ever synced.
    let is_synced = |mode: u32| matches!(mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFDIR);
    found.is_ok_and(|stat| (stat.dev, stat.ino) == (file.device, file.ino) && is_synced(stat.ownership.0))
}

/// `fdatasync`, so.
pub fn fdatasync(fd: c_int) -> isize {
    // SAFETY: touches no memory.
    synced(fd, || unsafe { call!(libc::SYS_fdatasync, fd) })
}

/// Has the kernel sync what is behind `fd` by `sync`: all that it would make durable natively is
/// durable then.
pub fn synced(fd: c_int, sync: impl FnOnce() -> isize) -> isize {
    synced_as(fd, sync, |_, _| None)
}

/// As [`synced`], by a whole sync where the program asked for less.
pub fn synced_whole(fd: c_int, sync: impl FnOnce() -> isize) -> isize {
    synced_as(fd, sync, Client::begin_whole_sync)
}

fn synced_as(
    fd: c_int,
    sync: impl FnOnce() -> isize,
    begin: impl FnOnce(&Client, u64) -> Option<u64>,
) -> isize {
    let about = process::client().and_then(|client| {
        let stat = raw::fstat(fd).ok()?;
        client.note_sync(Inode { device: stat.dev, ino: stat.ino });
        Some((client, stat.dev, begin(client, stat.dev)))
    });
    let result = raw::synced(fd, sync());
    let Some((client, device, begun)) = about.filter(|_| result >= 0) else { return result };
    if let Err(errno) = client.follow_whole_sync(device, begun) {
        return -(errno.0 as isize);
    }
    if !client.await_relogs(device) {
        // Somebody is stopped in the midst of a change.
        // SAFETY: touches no memory.
        return client.having_committed(|| raw::synced(fd, unsafe { call!(libc::SYS_syncfs, fd) }));
    }
    result
}
