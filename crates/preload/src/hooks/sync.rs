//! Making a file's changes durable: absorbed where the log holds them all. What syncs whole file systems goes to the kernel, with
//! what only the log has: a snapshot may follow that takes no notice of the pool.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_int, c_uint};

use libc::off_t;

use crate::raw::{self, call, check, give_int};
use crate::target::{self, Target};
use crate::{behind, critical, process, unsynced};

/// The device of an open directory. Directories are synced to make names durable, most of which the slots know.
fn directory_device(fd: c_int) -> Option<u64> {
    let stat = raw::fstat(fd).ok().filter(|stat| stat.ownership.0 & libc::S_IFMT == libc::S_IFDIR)?;
    // A descriptor of a path alone cannot be synced.
    let is_open = raw::fcntl(fd, libc::F_GETFL, 0) & libc::O_PATH as isize == 0;
    is_open.then_some(stat.dev)
}

fn sync_file(fd: c_int, number: i64) -> c_int {
    raw::cancellation_point();
    // The first to ask for a file's durability has it logged.
    let logs = process::client().is_some_and(holdfast_cache::Client::logs_on_sync);
    match if logs { target::of_change(fd) } else { target::of_other(fd) } {
        Target::Managed(handle) => {
            // SAFETY: touches no memory.
            let kernel = || check(unsafe { call!(number, fd) }).map(|_| ());
            let result = match unsynced::log_from_now(handle, fd) {
                Ok(true) => Ok(()),
                Ok(false) => handle.client.sync(handle.file, handle.seen_error(), kernel),
                Err(errno) => Err(errno),
            };
            give_int(raw::encode(result.map(|()| 0)))
        }
        Target::Refused(errno) => give_int(-(errno.0 as isize)),
        Target::Kernel
            if let Some(client) = process::client()
                && let Some(device) = directory_device(fd) =>
        {
            // SAFETY: touches no memory.
            let kernel = || check(unsafe { call!(number, fd) }).map(|_| ());
            let result = critical::section(|| client.sync_directory(fd, device, kernel));
            give_int(raw::encode(result.map(|()| 0)))
        }
        Target::Kernel | Target::KernelSynced => {
            // SAFETY: touches no memory.
            give_int(unsafe { raw::cancellable(number, [fd as usize, 0, 0, 0, 0, 0]) })
        }
    }
}

/// `fsync`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fsync(fd: c_int) -> c_int {
    sync_file(fd, libc::SYS_fsync)
}

/// `fdatasync`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdatasync(fd: c_int) -> c_int {
    sync_file(fd, libc::SYS_fdatasync)
}

/// `sync`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sync() {
    // It cannot say that it failed; the next sync of the file does.
    let _ = behind::bring_all();
    // SAFETY: no arguments.
    unsafe { call!(libc::SYS_sync) };
}

/// `syncfs`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    let brought = behind::bring_all();
    // SAFETY: touches no memory.
    let result = check(unsafe { call!(libc::SYS_syncfs, fd) });
    give_int(raw::encode(result.and(brought).map(|()| 0)))
}

/// `sync_file_range`: a hint without a promise; the keeper writes back as it sees fit.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sync_file_range(
    fd: c_int,
    offset: off_t,
    bytes: off_t,
    flags: c_uint,
) -> c_int {
    let sound = offset >= 0 && bytes >= 0 && offset.checked_add(bytes).is_some() && flags & !7 == 0;
    if sound
        && let Target::Managed(handle) = target::of_other(fd)
        && handle.client.keeper_alive()
        && !handle.client.is_unsynced(handle.file)
    {
        return 0;
    }
    // SAFETY: touches no memory.
    give_int(unsafe {
        raw::cancellable(
            libc::SYS_sync_file_range,
            [fd as usize, offset as usize, bytes as usize, flags as usize, 0, 0],
        )
    })
}
