//! Making a file's changes durable: absorbed where the log holds them all. What syncs whole file
//! systems goes to the kernel, with what only the log has: a snapshot may follow that takes no
//! notice of the pool.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_int, c_uint};

use holdfast_cache::{Asked, Client, Inode, Stock};
use holdfast_canary::{Canary, on};
use libc::off_t;

use crate::descriptions::DSYNC;
use crate::descriptor::Descriptor;
use crate::fds::{self, Row};
use crate::raw::{self, call, check, give_int};
use crate::target::{self, Handle, Target};
use crate::{behind, cancels, critical, process, relog, unsynced};

/// An open directory. Directories are synced to make names durable, most of which the
/// slots know.
fn open_directory(fd: c_int) -> Option<Inode> {
    let stat = raw::fstat(fd).ok().filter(|stat| stat.ownership.0 & libc::S_IFMT == libc::S_IFDIR)?;
    // A descriptor of a path alone cannot be synced.
    let is_open = raw::fcntl(fd, libc::F_GETFL, 0) & libc::O_PATH as isize == 0;
    is_open.then_some(Inode { device: stat.dev, ino: stat.ino })
}

/// Counts a sync that the kernel is about to answer. What has nothing to be synced (pipes, sockets,
/// terminals) is refused by it, and nobody is told that such a sync was not absorbed.
fn note_kernels_sync(fd: c_int) -> Option<(&'static Client, u64)> {
    let client = process::client()?;
    let stat = raw::fstat(fd).ok()?;
    let is_synced = stat.regular || stat.ownership.0 & libc::S_IFMT == libc::S_IFBLK;
    is_synced.then(|| (client, client.note_kernels_sync(Inode { device: stat.dev, ino: stat.ino })))
}

/// Has the kernel make a sync that belongs to a call on a file which is left to it, and counts it.
pub(super) fn counted(fd: c_int, sync: impl FnOnce() -> isize) -> isize {
    let begun = note_kernels_sync(fd);
    let result = sync();
    if let Some((client, begun_ns)) = begun {
        client.note_kernels_sync_took(begun_ns);
    }
    result
}

/// What a sync through `fd` is about: as [`target::of_other`], and a file that is only read through
/// it, too. The kernel tells of lost pages once, and whoever is told must be counted (invariant 4).
fn of_sync(fd: c_int) -> Target {
    let target = target::of_other(fd);
    if !matches!((target, fds::look(fd)), (Target::Kernel, Row::Readable)) {
        return target;
    }
    let seen = process::client().zip(raw::fstat(fd).ok());
    let seen = seen.and_then(|(client, stat)| Some((client, client.find(stat.dev, stat.ino)?)));
    match seen.filter(|(_, seen)| seen.state.is_absorbed()) {
        Some((client, seen)) => {
            Target::Managed(Handle { client, file: seen.file, description: None, flags: 0 })
        }
        None => target,
    }
}

fn sync_file(fd: c_int, number: i64) -> c_int {
    cancels::cancellation_point();
    let once = || sync_once(fd, number);
    // For tracers: an instruction that does nothing, and a note of where it stands.
    probe::probe!(holdfast, sync_begin, fd);
    let result = target::held(fd, once, once);
    probe::probe!(holdfast, sync_end, fd, result);
    give_int(result)
}

fn sync_once(fd: c_int, number: i64) -> isize {
    // SAFETY: touches no memory.
    let kernel = || check(relog::synced(fd, || unsafe { call!(number, fd) })).map(|_| ());
    // The first to ask for a file's durability has it logged.
    let logging = process::client().filter(|client| client.logs_on_sync());
    let writes = || !matches!(fds::look(fd), Row::Readable);
    let target = match logging {
        Some(client) if unsynced::leaves_sync(client, fd) => Target::Kernel,
        Some(_) if writes() => target::of_change(fd),
        _ => of_sync(fd),
    };
    match target {
        Target::Managed(handle) => {
            // A whole sync, whatever was asked for: it is to count for attributes, too.
            let asked = if number == libc::SYS_fdatasync { Asked::Data } else { Asked::Whole };
            raw::encode(handle.sync::<Stock, _>(&Descriptor(fd), writes(), asked).map(|()| 0))
        }
        Target::Refused(errno) => -(errno.0 as isize),
        Target::Kernel
            if let Some(client) = process::client()
                && let Some(directory) = open_directory(fd) =>
        {
            let result = if client.leaves_directory(directory.device) {
                client.note_crowded_sync();
                let begun_ns = client.note_kernels_sync(Inode::NONE);
                let result = hearing_all(kernel);
                client.note_kernels_sync_took(begun_ns);
                result
            } else {
                client.note_sync(directory);
                critical::section(|| client.sync_directory(fd, directory.device, kernel))
            };
            raw::encode(result.map(|()| 0))
        }
        Target::Kernel | Target::KernelSynced => {
            let begun = note_kernels_sync(fd);
            // SAFETY: touches no memory.
            let sync = || unsafe { cancels::cancellable(number, [fd as usize, 0, 0, 0, 0, 0]) };
            let result = hearing_all(|| relog::synced(fd, sync));
            if let Some((client, begun_ns)) = begun {
                client.note_kernels_sync_took(begun_ns);
                if result >= 0 && writes() {
                    commit_behind(client, fd);
                }
            }
            result
        }
    }
}

/// Behind a change that is no write, through a description that the program opened with `O_SYNC` or
/// `O_DSYNC`: where the kernel knows of that it makes such changes durable before it returns, so
/// what comes behind it is the program's sync (invariant 9).
pub fn synced_as_opened(fd: c_int, result: isize) -> isize {
    let is_synchronous = matches!(fds::look(fd), Row::Described(row) if row.flags() & DSYNC != 0);
    if result < 0 || !is_synchronous || on(Canary::SynchronousUnsynced) {
        return result;
    }
    let once = || sync_once(fd, libc::SYS_fsync);
    match target::held(fd, once, once) {
        failed if failed < 0 => failed,
        _ => result,
    }
}

/// Behind a sync of a file that is left to the kernel: what else is pending is committed, once a
/// second, where nothing else does that. For this the file gets a row.
fn commit_behind(client: &'static Client, fd: c_int) {
    let Ok(stat) = raw::fstat(fd) else { return };
    if !stat.regular || !client.is_commit_due(stat.dev) {
        return;
    }
    if let Target::Managed(handle) = target::of_change(fd) {
        critical::section(|| client.commit_behind_sync(handle.file));
    }
}

/// `fsync`.
pub unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    sync_file(fd, libc::SYS_fsync)
}

/// `fdatasync`.
pub unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    sync_file(fd, libc::SYS_fdatasync)
}

/// Makes a call by which the disk has what others did to any file.
fn hearing_all<R>(call: impl FnOnce() -> R) -> R {
    match process::client() {
        Some(client) => client.hearing_all(call),
        None => call(),
    }
}

/// `sync`.
pub unsafe extern "C-unwind" fn sync() {
    // It cannot say that it failed; the next sync of the file does.
    let _ = behind::bring_all();
    // SAFETY: no arguments.
    hearing_all(|| unsafe { call!(libc::SYS_sync) });
}

/// `syncfs`.
pub unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    let brought = behind::bring_all();
    let counted = process::client().map(|client| (client, client.note_kernels_sync(Inode::NONE)));
    // SAFETY: touches no memory.
    let result = check(raw::synced(fd, hearing_all(|| unsafe { call!(libc::SYS_syncfs, fd) })));
    if let Some((client, begun_ns)) = counted {
        client.note_kernels_sync_took(begun_ns);
    }
    give_int(raw::encode(result.and(brought).map(|()| 0)))
}

/// `sync_file_range`: a hint without a promise; the keeper writes back as it sees fit.
pub unsafe extern "C-unwind" fn sync_file_range(
    fd: c_int,
    offset: off_t,
    bytes: off_t,
    flags: c_uint,
) -> c_int {
    let sync = || sync_range(fd, offset, bytes, flags);
    cancels::cancellation_point();
    give_int(target::held(fd, sync, sync))
}

fn sync_range(fd: c_int, offset: off_t, bytes: off_t, flags: c_uint) -> isize {
    let sound = offset >= 0 && bytes >= 0 && offset.checked_add(bytes).is_some() && flags & !7 == 0;
    if sound
        && let Target::Managed(handle) = of_sync(fd)
        && handle.client.keeper_alive()
        && handle.client.is_managed(handle.file)
        && !handle.client.is_unsynced(handle.file)
    {
        return 0;
    }
    // SAFETY: touches no memory.
    let result = unsafe {
        cancels::cancellable(
            libc::SYS_sync_file_range,
            [fd as usize, offset as usize, bytes as usize, flags as usize, 0, 0],
        )
    };
    if result >= 0 {
        // Bytes of a mapping, perhaps, of which nobody has noted anything: where they lie is the
        // journal's from now on, ahead of what is synced next.
        unsynced::note_pending(fd);
    }
    result
}
