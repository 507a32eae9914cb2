//! Everything that writes bytes at a descriptor.
//!
//! The kernel's answer is the program's answer: short writes, EINTR and limits come from the raw
//! call.
#![allow(unsafe_code)] // C entry points and the program's buffers.

use core::cell::Cell;
use core::ffi::{c_int, c_long, c_void};

use holdfast_cache::{Errno, Stock, WriteCall};
use holdfast_canary::{Canary, on};
use holdfast_media::Bytes;
use holdfast_session::{Ended, Request};
use libc::{iovec, off_t, size_t, ssize_t};

use super::room::with_room_but_for_syncs;
use super::sync::counted;
use super::transfer::{self, Copied, Spot, Transfer};
use crate::descriptions::{APPEND, DSYNC, SYNC, State};
use crate::descriptor::Descriptor;
use crate::fds::{self, Row};
use crate::raw::{self, call, give};
use crate::target::{self, Handle, Target};
use crate::{behind, cancels, critical, memory, process, relog, tls, unsynced};

const RWF_DSYNC: c_int = 0x2;
const RWF_SYNC: c_int = 0x4;
const RWF_APPEND: c_int = 0x10;
const RWF_NOAPPEND: c_int = 0x20;
const RWF_HIPRI: c_int = 0x1;
/// Flags that no kernel refuses, and whose meaning for a file in the page cache is the log's to
/// keep.
const KNOWN_FLAGS: c_int = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND;

const _: () = {
    assert!(size_of::<iovec>() == size_of::<Bytes<'_>>() && align_of::<iovec>() == align_of::<Bytes<'_>>());
    // SAFETY: no byte is read through it; the types have the same size.
    let words: [usize; 2] =
        unsafe { core::mem::transmute(Bytes::from_raw(core::ptr::without_provenance(0x1000), 7)) };
    assert!(words[0] == 0x1000 && words[1] == 7, "Bytes and iovec differ in their fields' order");
};

/// How many write calls of this thread came through the hooks: lets tests see that none goes around
/// them.
#[unsafe(no_mangle)]
pub extern "C" fn holdfast_seen_writes() -> u32 {
    tls::with(|thread| thread.writes.get())
}

/// What a call writes.
#[derive(Clone, Copy)]
enum Parts<'a> {
    One(Bytes<'a>),
    /// The program's vector, at which nobody has looked.
    Vector(*const iovec, c_int),
}

/// One write call of the program.
#[derive(Clone, Copy)]
struct Call<'a> {
    transfer: Transfer,
    spot: Spot,
    /// Set when it was made, and the sync that belongs to it failed.
    sync_failed: &'a Cell<bool>,
}

impl Call<'_> {
    /// The call without the flags whose work the log does.
    fn unsynced(&self) -> isize {
        self.transfer.with_flags(self.transfer.flags & !(RWF_DSYNC | RWF_SYNC)).plain()
    }

    /// The call on a file left to the kernel, whose description the program believes to be
    /// synchronous.
    fn kernel_synced(&self, synced: bool) -> isize {
        self.synced_after(self.as_asked(synced, || self.transfer.waiting()), synced)
    }

    /// Makes such a call. One that asks by its own flags has the kernel sync, which is counted.
    fn as_asked(&self, synced: bool, call: impl FnOnce() -> isize) -> isize {
        let asks = self.transfer.flags & (RWF_DSYNC | RWF_SYNC) != 0;
        if asks && !synced { counted(self.transfer.fd, call) } else { call() }
    }

    /// Syncs what such a call wrote.
    fn synced_after(&self, result: isize, synced: bool) -> isize {
        if result > 0 && synced {
            let whole = matches!(fds::look(self.transfer.fd), Row::Described(row) if row.flags() & SYNC != 0);
            let sync = || if whole { self.fsync() } else { relog::fdatasync(self.transfer.fd) };
            let sync = counted(self.transfer.fd, sync);
            if sync < 0 {
                self.sync_failed.set(true);
                return sync;
            }
        }
        result
    }

    fn fsync(&self) -> isize {
        // SAFETY: touches no memory.
        relog::synced(self.transfer.fd, || unsafe { call!(libc::SYS_fsync, self.transfer.fd) })
    }

    /// Whether the program asked for the call's bytes to be durable when it returns.
    fn is_synchronous(&self, handle: Handle) -> bool {
        handle.flags & DSYNC != 0 || self.transfer.flags & (RWF_DSYNC | RWF_SYNC) != 0
    }

    /// `parts` are the program's buffers, as in `arguments`.
    fn run(&self, parts: Parts<'_>) -> isize {
        if self.transfer.cancel {
            cancels::cancellation_point();
        }
        tls::with(|thread| thread.writes.set(thread.writes.get().wrapping_add(1)));
        let moment = fds::moment(self.transfer.fd);
        let other = || {
            // A pipe, for instance: it may wait, and holds nothing.
            let result = match fds::look(self.transfer.fd) {
                Row::Ignored => self.transfer.kernel(),
                // Of another file system, where the program may have asked for synchronous writes.
                _ => self.run_file(parts),
            };
            let strayed = result > 0 && !moment.lasts(self.transfer.fd);
            if strayed { self.settle_other(result) } else { result }
        };
        target::held(self.transfer.fd, || self.run_file(parts), other)
    }

    /// Without the log, while nobody has asked for the file's durability.
    #[inline]
    fn passed(&self) -> Option<isize> {
        match self.spot {
            Spot::Cursor => unsynced::pass_moving_cursor(self.transfer.fd, || self.unsynced()),
            Spot::At(_) => unsynced::pass(self.transfer.fd, || self.unsynced()),
        }
    }

    fn run_file(&self, parts: Parts<'_>) -> isize {
        if self.transfer.flags & (RWF_DSYNC | RWF_SYNC) == 0
            && let Some(result) = self.passed()
        {
            return result;
        }
        target::retry(
            self.transfer.fd,
            |synced| {
                let result = self.kernel_synced(synced);
                // Managed meanwhile because of another description.
                let is_plain = match fds::look(self.transfer.fd) {
                    Row::Described(description) => description.state() == State::Plain,
                    _ => true,
                };
                if result > 0 && !is_plain { self.settle_other(result) } else { result }
            },
            |errno| -(errno.0 as isize),
            |handle| match parts {
                Parts::One(bytes) => self.managed(handle, &[bytes]),
                // SAFETY: the program's vector.
                Parts::Vector(parts, count) => unsafe { self.managed_vector(handle, parts, count) },
            },
        )
    }

    /// A vector is read once. What is summed, reserved, logged and written by the kernel would
    /// otherwise be different parts, should another thread change them: the record would be longer
    /// than its room in the log, or the file would get bytes that no record has.
    ///
    /// # Safety
    /// The program says that `count` parts lie at `parts`.
    #[inline(never)]
    unsafe fn managed_vector(&self, handle: Handle, parts: *const iovec, count: c_int) -> Option<isize> {
        let Some(length) = transfer::length_of(count) else { return Some(self.transfer.plain()) };
        if on(Canary::VectorInPlace) || on(Canary::RoomUnchecked) {
            // SAFETY: `Bytes` has the layout of `iovec` (asserted above).
            return self.managed(handle, unsafe { core::slice::from_raw_parts(parts.cast(), length) });
        }
        let with_copy = |copied: Copied<'_>| match copied {
            Copied::Unreadable => Some(self.transfer.with_unreadable_parts().plain()),
            // The kernel reads it once, and no record says what it found.
            Copied::NoRoom => self.made(handle, &[], true),
            Copied::Parts(parts) => {
                let call = Self { transfer: self.transfer.with_parts(parts), ..*self };
                if !transfer::are_sound(parts) {
                    return Some(call.transfer.plain());
                }
                // SAFETY: the program says that its parts can be read; `Bytes` has the layout of
                // `iovec` (asserted above).
                let parts = unsafe { core::slice::from_raw_parts(parts.as_ptr().cast(), parts.len()) };
                call.managed(handle, parts)
            }
        };
        // SAFETY: the caller's promise.
        unsafe { transfer::copied(parts, length, with_copy) }
    }

    /// The kernel wrote to a file that no record tells of: another thread put it in the place of
    /// the number meanwhile, or made it managed. It is brought to the disk before the call is
    /// acknowledged (invariant 5).
    #[cold]
    fn settle_other(&self, result: isize) -> isize {
        if let Target::Managed(handle) = target::of_other(self.transfer.fd)
            && let Err(errno) = handle.settle_stray(&Descriptor(self.transfer.fd))
        {
            return -(errno.0 as isize);
        }
        result
    }

    /// A write to a file that is left to the kernel, which may end at any moment: what is under way
    /// then is noted. `None`: it is the log's again.
    fn left_to_kernel(&self, handle: Handle) -> Option<isize> {
        let synced = handle.flags & DSYNC != 0;
        let call = || self.as_asked(synced, || self.transfer.plain());
        let passed = handle.pass_by(&Descriptor(self.transfer.fd), self.spot, call);
        let passed = passed.map(|result| self.synced_after(result, synced));
        match passed {
            None if handle.client.is_bypassed(handle.file) => Some(self.kernel_synced(synced)),
            passed => passed,
        }
    }

    fn managed(&self, handle: Handle, parts: &[Bytes<'_>]) -> Option<isize> {
        // A write of state Behind makes no call that would refuse the flags.
        let is_odd = self.transfer.flags & !KNOWN_FLAGS != 0 && handle.client.writes_behind();
        self.made(handle, parts, is_odd || !parts.iter().all(memory::is_readable))
    }

    #[inline]
    fn made(&self, handle: Handle, parts: &[Bytes<'_>], is_kernels: bool) -> Option<isize> {
        let flags = self.transfer.flags;
        let request = Request {
            parts,
            spot: self.spot,
            appends: handle.flags & APPEND != 0 && flags & RWF_NOAPPEND == 0 || flags & RWF_APPEND != 0,
            is_followed: flags & RWF_APPEND == 0,
            is_synchronous: self.is_synchronous(handle),
            is_kernels,
        };
        match handle.write::<Stock, _>(&Descriptor(self.transfer.fd), &request, &mut Program(self)) {
            Ended::Done(bytes) => Some(bytes as isize),
            Ended::Failed(errno) => Some(-(errno.0 as isize)),
            Ended::SyncFailed(errno) => {
                self.sync_failed.set(true);
                Some(-(errno.0 as isize))
            }
            // Changes nothing, of whichever file.
            Ended::Kernel if parts.iter().all(Bytes::is_empty) => Some(self.transfer.plain()),
            Ended::Kernel => self.left_to_kernel(handle),
            Ended::Stale => None,
        }
    }
}

/// The program's own call, without the flags whose work the log does.
struct Program<'a>(&'a Call<'a>);

impl WriteCall for Program<'_> {
    #[inline]
    fn write(&mut self) -> Result<usize, Errno> {
        raw::check(self.0.unsynced())
    }

    /// A positioned write leaves the cursor alone even when it appends: then the file's end tells
    /// where it went.
    #[inline]
    fn landed(&self) -> Result<u64, Errno> {
        match self.0.spot {
            Spot::At(_) => raw::fstat(self.0.transfer.fd).map(|stat| stat.size),
            Spot::Cursor => raw::cursor(self.0.transfer.fd),
        }
    }

    /// The kernel does not see a write that is made here, so it does not move the cursor either.
    #[inline]
    fn set_cursor(&self, to: u64) -> Result<(), Errno> {
        match self.0.spot {
            Spot::Cursor => {
                // SAFETY: touches no memory. SEEK_SET = 0.
                raw::check(unsafe { call!(libc::SYS_lseek, self.0.transfer.fd, to, 0) }).map(|_| ())
            }
            Spot::At(_) => Ok(()),
        }
    }
}

unsafe fn write_bytes(
    number: i64,
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    offset: Option<off_t>,
    cancel: bool,
) -> ssize_t {
    let transfer = Transfer::new((number, fd), (buffer, bytes), offset, 0, cancel);
    let Some(spot) = transfer::spot_of(number, offset) else { return give(transfer.kernel()) };
    // SAFETY: the program says that `bytes` bytes at `buffer` are readable.
    let bytes = unsafe { Bytes::from_raw(buffer.cast(), bytes) };
    give(with_room_but_for_syncs(|sync_failed| Call { transfer, spot, sync_failed }.run(Parts::One(bytes))))
}

unsafe fn write_parts(
    number: i64,
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: Option<off_t>,
    flags: c_int,
) -> ssize_t {
    let transfer = Transfer::new((number, fd), (parts.cast(), count as usize), offset, flags, true);
    let Some(spot) = transfer::spot_of(number, offset) else { return give(transfer.kernel()) };
    give(with_room_but_for_syncs(|sync_failed| {
        Call { transfer, spot, sync_failed }.run(Parts::Vector(parts, count))
    }))
}

/// `write`.
pub unsafe extern "C-unwind" fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { write_bytes(libc::SYS_write, fd, buffer, bytes, None, true) }
}

/// `write` as parts of libc use it: not a cancellation point.
pub unsafe extern "C-unwind" fn __write_nocancel(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { write_bytes(libc::SYS_write, fd, buffer, bytes, None, false) }
}

/// `pwrite`.
pub unsafe extern "C-unwind" fn pwrite(
    fd: c_int,
    buffer: *const c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { write_bytes(libc::SYS_pwrite64, fd, buffer, bytes, Some(offset), true) }
}

/// `writev`.
pub unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program's buffers.
    unsafe { write_parts(libc::SYS_writev, fd, parts, count, None, 0) }
}

/// `pwritev`.
pub unsafe extern "C-unwind" fn pwritev(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the program's buffers.
    unsafe { write_parts(libc::SYS_pwritev, fd, parts, count, Some(offset), 0) }
}

/// `pwritev2`.
pub unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's buffers.
    unsafe { write_parts(libc::SYS_pwritev2, fd, parts, count, Some(offset), flags) }
}

/// `lseek`: keeps the remembered cursor right.
pub unsafe extern "C-unwind" fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
    // Of a pipe there is no cursor, of a directory nobody remembers it.
    // SAFETY: touches no memory.
    let other = || unsafe { call!(libc::SYS_lseek, fd, offset, whence) };
    give(target::held(fd, || seek(fd, offset, whence), other)) as c_long
}

fn seek(fd: c_int, mut offset: off_t, mut whence: c_int) -> isize {
    if whence == libc::SEEK_END
        && let Some((client, file)) = behind::of_reading(fd)
        && let Some(size) = client.hidden_size(file)
        && let Some(place) = offset.checked_add_unsigned(size)
    {
        (offset, whence) = (place, libc::SEEK_SET);
    } else if !matches!(whence, libc::SEEK_SET | libc::SEEK_CUR | libc::SEEK_END) {
        behind::bring(fd);
    }
    // SAFETY: touches no memory.
    let seek = || unsafe { call!(libc::SYS_lseek, fd, offset, whence) };
    if process::client().is_some()
        && let Row::Described(description) = fds::look(fd)
        && description.remembers_cursor()
    {
        return critical::section(|| {
            description.locked(|| {
                let result = seek();
                description.set_cursor(raw::check(result).ok().map(|cursor| cursor as u64));
                result
            })
        });
    }
    seek()
}
