//! Everything that reads bytes at a descriptor. Only files of which the page cache may lack bytes are read here; all
//! others are the kernel's, after one load.
#![allow(unsafe_code)] // C entry points and the program's buffers.

use core::cell::Cell;
use core::ffi::{c_int, c_void};

use holdfast_cache::{Errno, GLANCE_BYTES_MAX, Place, Reading};
use libc::{iovec, off_t, size_t, ssize_t};

use super::transfer::{self, Spot, Transfer};
use crate::descriptions::WRITE_ONLY;
use crate::fds::{self, Row};
use crate::raw::{self, call, check, give};
use crate::{behind, critical, memory, target};

/// What the kernel reads at most in one call.
const READ_BYTES_MAX: usize = 0x7fff_f000;

/// Whether a description can read; the kernel says why one cannot.
fn may_read(fd: c_int) -> bool {
    match fds::look(fd) {
        Row::Described(description) => description.flags() & WRITE_ONLY == 0,
        Row::Readable => true,
        _ => check(raw::fcntl(fd, libc::F_GETFL, 0)).is_ok_and(|flags| target::may_read(flags as c_int)),
    }
}

/// Reads at `place` from a file that the kernel does not have in full, or of which pages are loaded; `None`: the kernel's
/// business.
///
/// # Safety
/// The program says that `bytes` bytes at `buffer` are its to fill.
#[inline]
unsafe fn read_behind(fd: c_int, buffer: *mut u8, bytes: usize, place: Place) -> Option<isize> {
    let (client, file) = behind::read_here(fd)?;
    let bytes = bytes.min(READ_BYTES_MAX);
    if bytes == 0 || !may_read(fd) {
        return None;
    }
    if buffer.is_null() || !memory::is_range_writable(buffer.addr(), bytes) {
        // The kernel fills what there is of it, and must have the newest bytes for that.
        behind::bring(fd);
        return None;
    }
    // SAFETY: the program's buffer, writable as probed; nobody else fills it during the call, or the program races with
    // itself.
    let buffer = unsafe { core::slice::from_raw_parts_mut(buffer, bytes) };
    if let Place::At(offset) = place
        && bytes <= GLANCE_BYTES_MAX
        && let Some(count) = client.glance(file, offset, buffer)
    {
        return Some(count as isize);
    }
    read_found(fd, buffer, place)
}

#[inline(never)]
fn read_found(fd: c_int, buffer: &mut [u8], place: Place) -> Option<isize> {
    let raw = |part: &mut [u8], offset: u64| {
        // SAFETY: a slice has room for its length.
        check(unsafe { call!(libc::SYS_pread64, fd, part.as_mut_ptr(), part.len(), offset) })
    };
    let move_by = |bytes: i64| {
        // SAFETY: touches no memory. SEEK_CUR = 1.
        check(unsafe { call!(libc::SYS_lseek, fd, bytes, 1) }).map(|at| at as u64)
    };
    // One call instead of two: most reads get all they ask for. What they do not get is taken back.
    let ahead = Cell::new(0);
    let wanted = buffer.len() as u64;
    let cursor = || {
        ahead.set(0);
        let moved = move_by(wanted as i64).inspect(|&at| ahead.set(at));
        // Too near to the largest offset there is.
        moved.map(|at| at - wanted).or_else(|_| move_by(0).inspect(|&at| ahead.set(at)))
    };
    let seek = |to: u64| {
        if to == ahead.get() { Ok(()) } else { move_by(to as i64 - ahead.get() as i64).map(|_| ()) }
    };
    for _ in 0..target::TRIES {
        let (client, file) = behind::read_here(fd)?;
        let read = critical::section(|| client.read(file, place, &mut *buffer, raw, cursor, seek));
        match read {
            Ok(Reading::Done(count)) => return Some(count as isize),
            Ok(Reading::Kernel) => return None,
            Ok(Reading::Stale) => {
                if let Row::Described(description) = fds::look(fd) {
                    description
                        .set_state(crate::descriptions::State::Pending(holdfast_cache::Origin::Opened));
                }
            }
            Err(errno) => return Some(-(errno.0 as isize)),
        }
    }
    Some(-(Errno::EIO.0 as isize))
}

/// Where a read that has done `done` bytes goes on.
fn place(spot: Spot, done: u64) -> Place {
    match spot {
        Spot::Cursor => Place::Cursor { known: None },
        Spot::At(offset) => Place::At(offset + done),
    }
}

unsafe fn read_bytes(
    number: i64,
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: Option<off_t>,
    cancel: bool,
) -> ssize_t {
    if let Some(spot) = Spot::of(number, offset)
        // SAFETY: the program's buffer.
        && let Some(done) = unsafe { read_behind(fd, buffer.cast(), bytes, place(spot, 0)) }
    {
        if cancel {
            raw::cancellation_point();
        }
        return give(done);
    }
    give(Transfer::new((number, fd), (buffer, bytes), offset, 0, cancel).kernel())
}

unsafe fn read_parts(
    number: i64,
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: Option<off_t>,
    flags: c_int,
) -> ssize_t {
    let call = Transfer::new((number, fd), (parts.cast(), count as usize), offset, flags, true);
    if behind::read_here(fd).is_none() {
        return give(call.kernel());
    }
    // SAFETY: the program's vector.
    let (Some(spot), Some(parts)) = (Spot::of(number, offset), unsafe { transfer::parts(parts, count) })
    else {
        return give(call.kernel());
    };
    if flags != 0 {
        // Not to wait, or not through the page cache: the kernel's to answer, when it can.
        behind::bring(fd);
        return give(call.kernel());
    }
    let mut done = 0u64;
    for part in parts.iter().filter(|part| part.iov_len > 0) {
        // SAFETY: the program's buffer.
        let read = unsafe { read_behind(fd, part.iov_base.cast(), part.iov_len, place(spot, done)) };
        // SAFETY: the program's buffer; the kernel checks its address.
        let read = read.unwrap_or_else(|| unsafe {
            match spot {
                Spot::At(at) => call!(libc::SYS_pread64, fd, part.iov_base, part.iov_len, at + done),
                Spot::Cursor => call!(libc::SYS_read, fd, part.iov_base, part.iov_len),
            }
        });
        match check(read) {
            Err(_) if done > 0 => break,
            Err(_) => return give(read),
            Ok(bytes) => done += bytes as u64,
        }
        if (read as usize) < part.iov_len {
            break;
        }
    }
    done as ssize_t
}

/// `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { read_bytes(libc::SYS_read, fd, buffer, bytes, None, true) }
}

/// `read` as parts of libc use it: not a cancellation point.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_nocancel(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { read_bytes(libc::SYS_read, fd, buffer, bytes, None, false) }
}

/// `pread`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pread(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { read_bytes(libc::SYS_pread64, fd, buffer, bytes, Some(offset), true) }
}

/// `pread` as parts of libc use it: not a cancellation point.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __pread64_nocancel(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { read_bytes(libc::SYS_pread64, fd, buffer, bytes, Some(offset), false) }
}

/// `readv`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program's buffers.
    unsafe { read_parts(libc::SYS_readv, fd, parts, count, None, 0) }
}

/// `preadv`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
) -> ssize_t {
    // SAFETY: the program's buffers.
    unsafe { read_parts(libc::SYS_preadv, fd, parts, count, Some(offset), 0) }
}

/// `preadv2`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    parts: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the program's buffers.
    unsafe { read_parts(libc::SYS_preadv2, fd, parts, count, Some(offset), flags) }
}

/// `__read_chk`: libc's own ends the process when the buffer is too small, and so does this.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    room: size_t,
) -> ssize_t {
    refuse_overflow(bytes, room);
    // SAFETY: the program's buffer.
    unsafe { read(fd, buffer, bytes) }
}

/// `__pread_chk`, as `__read_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __pread_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    refuse_overflow(bytes, room);
    // SAFETY: the program's buffer.
    unsafe { pread(fd, buffer, bytes, offset) }
}

/// `__pread64_chk`, as `__read_chk`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __pread64_chk(
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: off_t,
    room: size_t,
) -> ssize_t {
    refuse_overflow(bytes, room);
    // SAFETY: the program's buffer.
    unsafe { pread(fd, buffer, bytes, offset) }
}

fn refuse_overflow(bytes: usize, room: usize) {
    if bytes > room {
        raw::say(&[b"*** buffer overflow detected ***: terminated\n"]);
        // SAFETY: ends the process as libc would.
        unsafe { libc::abort() };
    }
}
