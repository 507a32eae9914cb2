//! Files whose durability nobody has asked for yet (durability = sync): the first to ask has them
//! logged from then on.
//!
//! What a new file holds is read back for that, by a description of its own where the program's
//! cannot be read.
#![allow(unsafe_code)] // System calls, and memory for what they read.

use core::cell::Cell;
use core::ffi::c_int;

use holdfast_cache::{Client, Content, Errno, Origin};
use holdfast_media::Bytes;

use crate::descriptions::{DSYNC, State};
use crate::fds::{self, Row};
use crate::raw::{self, call, check};
use crate::target::{self, Handle};
use crate::{critical, locks, process, streams};

/// The file behind a descriptor, as the page cache has it.
struct Descriptor(c_int);

/// Has the file behind `fd` logged from now on, if it is not yet. True when a sync of it is
/// answered by that.
#[inline]
pub fn log_from_now(handle: Handle, fd: c_int) -> Result<bool, Errno> {
    if !handle.client.is_unsynced(handle.file) || handle.client.is_among_others(handle.file) {
        return Ok(false);
    }
    critical::section(|| handle.client.log_from_now(handle.file, &Descriptor(fd)))
}

/// Whether a sync through `fd` is better left to the kernel, of a file of whose durability nobody
/// has asked before. Of a new one whose like is renamed over another file when it is written: the
/// log would have to be settled for that. And of any that would need a commit besides.
pub fn leaves_sync(client: &Client, fd: c_int) -> bool {
    let Row::Described(description) = fds::look(fd) else { return false };
    let State::Pending(origin @ (Origin::Created | Origin::Opened)) = description.state() else {
        return false;
    };
    let Some((device, ino)) = description.file() else { return false };
    if description.flags() & DSYNC != 0 || client.find(device, ino).is_some() || process::bypasses_all() {
        return false;
    }
    // Without a keeper nothing is acknowledged.
    if !client.keeper_alive() {
        return false;
    }
    let kind = if origin == Origin::Created { description.take_kind() } else { None };
    kind.is_some_and(|kind| client.board().header().habits.expects_rename_over(kind))
        || client.is_crowded(device, description.noted())
}

/// Makes a call that changes the content behind `fd` without the log, if nobody has asked for the
/// file's durability yet and it has no row. `None`: it must be made otherwise.
#[inline]
pub fn pass(fd: c_int, raw: impl FnOnce() -> isize) -> Option<isize> {
    let client = process::client().filter(|client| client.logs_on_sync())?;
    let Row::Described(description) = fds::look(fd) else { return None };
    let is_theirs = matches!(description.state(), State::Pending(Origin::Created | Origin::Opened));
    if !is_theirs || description.flags() & DSYNC != 0 || process::bypasses_all() || streams::active() {
        return None;
    }
    let (device, ino) = description.file()?;
    let result = critical::section(|| client.pass(device, ino, raw));
    description.set_cursor(None);
    result
}

/// Something was done to the file behind `fd` that no slot will hold, a new file's creation
/// neither: it is pending.
pub fn note_change(fd: c_int) {
    if let Row::Described(description) = fds::look(fd)
        && description.state() == State::Pending(Origin::Created)
    {
        description.set_state(State::Pending(Origin::Opened));
        description.take_noted();
    }
    note_pending(fd);
}

/// Makes a call that may set the attributes of the file behind `fd`, if that is new and nothing but
/// that is done to it: then it stays as new as it was, and its slot is going to have what it is
/// when its first change is logged. `None`: it is not new.
pub fn as_born(fd: c_int, call: impl FnOnce() -> isize) -> Option<isize> {
    let client = process::client().filter(|client| !client.logs_on_sync())?;
    let Row::Described(description) = fds::look(fd) else { return None };
    let before = raw::fstat(fd).ok()?;
    let is_new = description.state() == State::Pending(Origin::Created) && description.is_as_born(&before);
    if !is_new || client.find(before.dev, before.ino).is_some() {
        return None;
    }
    let result = call();
    if let Ok(after) = raw::fstat(fd)
        && (after.size, after.times.modified) == (before.size, before.times.modified)
    {
        description.renew_birth(&after);
    }
    Some(result)
}

/// The journal has something of the file behind `fd` that no record holds.
pub fn note_pending(fd: c_int) {
    if let Some(client) = process::client()
        && let Ok(stat) = raw::fstat(fd)
    {
        client.note_change(stat.dev);
    }
}

impl Content for Descriptor {
    fn size(&self) -> Result<u64, Errno> {
        raw::fstat(self.0).map(|stat| stat.size)
    }

    fn read(&self, bytes: u64, log: &mut dyn FnMut(&[Bytes<'_>])) -> bool {
        let flags = raw::fcntl(self.0, libc::F_GETFL, 0);
        if flags < 0 {
            return false;
        }
        if target::may_read(flags as c_int) && flags as c_int & libc::O_DIRECT == 0 {
            return read_all(self.0, bytes, log);
        }
        // A description of our own would break the lease, and whoever breaks it waits for the lock
        // that we hold: the sync is the kernel's then. None is granted while we hold it.
        if raw::is_leased(self.0) {
            return false;
        }
        let read = locks::reopening(self.0, || {
            // The fence takes the open for ours.
            if let (Some(client), Ok(stat)) = (process::client(), raw::fstat(self.0)) {
                target::note_open(client, &stat);
            }
            let Ok(own) = reopen(self.0) else { return false };
            let is_logged = read_all(own, bytes, log);
            raw::close(own);
            is_logged
        });
        read.unwrap_or(false)
    }

    fn check(&self) -> Result<(), Errno> {
        // Nothing is there that it would have to wait for; what it looks at besides is whether this
        // description has something to tell of the whole file (`file_check_and_advance_wb_err`).
        const NOWHERE: i64 = i64::MAX - 1;
        // SAFETY: touches no memory.
        let told = check(unsafe {
            call!(libc::SYS_sync_file_range, self.0, NOWHERE, 1, libc::SYNC_FILE_RANGE_WAIT_BEFORE)
        });
        let told = match told {
            // Forbidden, perhaps: then by a sync, which takes its time.
            Err(Errno(libc::EPERM | libc::ENOSYS | libc::EINVAL)) => check(raw::fdatasync(self.0)),
            told => told,
        };
        told.map(drop)
    }
}

/// A description of the same file that can be read.
fn reopen(fd: c_int) -> Result<c_int, Errno> {
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let (digits, mut rest) = (fd.max(1).ilog10() as usize + 1, fd);
    for place in (14..14 + digits).rev() {
        path[place] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // SAFETY: the path ends with a zero.
    let open = || unsafe {
        call!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOATIME
        )
    };
    check(target::announced(open)).map(|fd| fd as c_int)
}

/// Reads the first `bytes` bytes into memory of its own, for the while.
fn read_all(fd: c_int, bytes: u64, log: &mut dyn FnMut(&[Bytes<'_>])) -> bool {
    const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    // SAFETY: new memory, at no address of the program's.
    let mapped = unsafe {
        call!(libc::SYS_mmap, 0, bytes, libc::PROT_READ | libc::PROT_WRITE, ANONYMOUS, usize::MAX, 0)
    };
    let Ok(memory) = check(mapped) else { return false };
    let read = Cell::new(0);
    while read.get() < bytes {
        let (to, left) = (memory + read.get() as usize, bytes - read.get());
        // SAFETY: `left` bytes from `to` on lie in the memory mapped above.
        match check(unsafe { call!(libc::SYS_pread64, fd, to, left, read.get()) }) {
            Ok(0) | Err(_) => break,
            Ok(got) => read.set(read.get() + got as u64),
        }
    }
    let is_whole = read.get() == bytes;
    if is_whole {
        // SAFETY: mapped above, written by the kernel, and unmapped only below.
        log(&[unsafe { Bytes::from_raw(core::ptr::with_exposed_provenance(memory), bytes as usize) }]);
    }
    // SAFETY: mapped above, and nobody has its address any more.
    unsafe { call!(libc::SYS_munmap, memory, bytes) };
    is_whole
}
