//! Files of which the kernel does not have the newest bytes (state Behind), as calls that read or
//! look find them.
//!
//! While no file is in that state, a call pays for one load. It registers nothing, and never turns
//! a call away.
#![allow(unsafe_code)] // Paths of the program.

use core::ffi::{c_char, c_int};

use holdfast_board::{Seen, Times};
use holdfast_cache::behind::Look;
use holdfast_cache::{Client, Errno, FileRef};

use crate::descriptions::State;
use crate::fds::{self, Row};
use crate::{critical, process, raw};

/// The file behind `fd`, if the page cache may lack bytes of it.
#[inline]
pub fn of_reading(fd: c_int) -> Option<(&'static Client, FileRef)> {
    let client = process::client().filter(|client| client.may_hide_bytes())?;
    let file = absorbed(client, fd)?;
    client.hides_bytes(file).then_some((client, file))
}

/// Who knows how a file is to be read.
pub enum Reader {
    /// The kernel alone: no file was in state Behind, as seen then, or this one is not known.
    Kernels(Option<Seen>),
    /// The client, for this file.
    Of(&'static Client, FileRef),
}

/// That no file is in state Behind now, if that is so.
#[inline]
pub fn none_behind() -> Option<Seen> {
    process::client()?.board().header().behind_files().none()
}

/// Who knows how to read the file behind `fd`.
#[inline]
pub fn reader(fd: c_int) -> Reader {
    let Some(client) = process::client() else { return Reader::Kernels(None) };
    let seen = client.board().header().behind_files().none();
    match seen {
        Some(_) => Reader::Kernels(seen),
        None => absorbed(client, fd).map_or(Reader::Kernels(None), |file| Reader::Of(client, file)),
    }
}

/// Whether no file was in state Behind from that look on until now.
#[inline]
pub fn none_entered(seen: Seen) -> bool {
    process::client().is_none_or(|client| client.board().header().behind_files().still_none(seen))
}

/// The absorbed file behind `fd`, if one of its process' files may ever be in state Behind.
fn absorbed(client: &Client, fd: c_int) -> Option<FileRef> {
    match fds::look(fd) {
        Row::Ignored => None,
        Row::Described(description)
            if let State::Managed(file) = description.state()
                && client.is_current(file) =>
        {
            Some(file)
        }
        Row::Described(_) | Row::Readable | Row::Unknown => {
            let moment = fds::moment(fd);
            let stat = raw::fstat(fd).ok()?;
            if !stat.regular {
                if let Row::Unknown = moment.row() {
                    // Looked at once.
                    fds::ignore_at(fd, moment);
                }
                return None;
            }
            client.find(stat.dev, stat.ino).map(|seen| seen.file)
        }
    }
}

/// Brings the newest bytes of the file behind `fd` to the page cache, for a call of the kernel's
/// that reads it once.
#[inline]
pub fn bring(fd: c_int) {
    if let Some((client, file)) = of_reading(fd) {
        // Fails only when the keeper is dead or the disk refuses; then writes to the file fail,
        // too.
        let _ = critical::section(|| client.bring_to_kernel(file));
    }
}

/// Brings the newest bytes of all files to the page cache; fails with `EIO`.
pub fn bring_all() -> Result<(), Errno> {
    process::client()
        .filter(|client| client.may_hide_bytes())
        .map_or(Ok(()), |client| critical::section(|| client.bring_all_to_kernel()))
}

/// As `bring`, and keeps the file out of state Behind for good: somebody goes on reading it where
/// we do not see it.
pub fn show(fd: c_int) {
    // What was leased for the state stays so when no file may enter it any more.
    if let Some(client) = process::client().filter(|client| client.writes_behind() || client.leases_files())
        && let Some(file) = absorbed(client, fd).or_else(|| shown(client, raw::fstat(fd).ok()?))
    {
        let _ = critical::section(|| client.leave_behind(file, true));
    }
}

/// Keeps a file that has no row yet out of state Behind. It may have got its row meanwhile.
fn shown(client: &Client, stat: raw::Stat) -> Option<FileRef> {
    if !stat.regular {
        return None;
    }
    client.board().header().shown.note(stat.dev, stat.ino);
    client.find(stat.dev, stat.ino).map(|seen| seen.file)
}

/// [`show`] for the file of a name.
///
/// # Safety
/// `path` is the program's, as for any call of the kernel's.
pub unsafe fn show_path(dirfd: c_int, path: *const c_char, flags: c_int) {
    if let Some(client) = process::client().filter(|client| client.writes_behind())
        // SAFETY: the program's path.
        && let Ok(stat) = unsafe { raw::fstatat(dirfd, path, flags) }
        && let Some(file) = shown(client, stat)
    {
        let _ = critical::section(|| client.leave_behind(file, true));
    }
}

/// Whether some file's newest bytes may be hidden from the kernel: to be asked before the kernel
/// is.
#[inline]
pub fn may_hide() -> bool {
    process::client().is_some_and(Client::may_hide_bytes)
}

/// What is known of a file that the kernel has just been asked about.
pub enum Known {
    /// No more than the kernel knows.
    Nothing,
    /// It is to be asked again: it may have answered before or after what was found here.
    Perhaps(Look),
    /// More, for a file of which it says this.
    More(Look),
}

/// What is known of a file of which the kernel has just said `times`; `before`: what was found here
/// before it was asked.
#[inline]
pub fn look(dev: u64, ino: u64, times: Times, before: Option<&Look>) -> Known {
    let Some(client) = process::client().filter(|client| client.knows_better()) else {
        return Known::Nothing;
    };
    match client.find(dev, ino).and_then(|seen| client.look(seen.file)) {
        None => Known::Nothing,
        Some(look) if look.is_doubtful(times, before) => Known::Perhaps(look),
        Some(look) => Known::More(look),
    }
}

/// Makes a call that sets times of the file behind `fd`.
pub fn set_times(fd: c_int, call: impl FnOnce() -> isize) -> isize {
    let file = process::client()
        .filter(|client| client.writes_behind())
        .and_then(|client| absorbed(client, fd).map(|file| (client, file)));
    match file {
        Some((client, file)) => {
            critical::section(|| client.set_times(file, call, || raw::fstat(fd).ok().map(|stat| stat.times)))
        }
        None => call(),
    }
}

/// As [`set_times`], for the file of a name.
///
/// # Safety
/// `path` is the program's, as for any call of the kernel's.
pub unsafe fn set_times_of(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl FnOnce() -> isize,
) -> isize {
    // SAFETY: the program's path.
    let ask = || unsafe { raw::fstatat(dirfd, path, flags) }.ok().filter(|stat| stat.regular);
    let file = process::client()
        .filter(|client| client.writes_behind())
        .and_then(|client| Some((client, ask()?)))
        .and_then(|(client, stat)| client.find(stat.dev, stat.ino).map(|seen| (client, seen.file)));
    match file {
        Some((client, file)) => {
            critical::section(|| client.set_times(file, call, || ask().map(|stat| stat.times)))
        }
        None => call(),
    }
}
