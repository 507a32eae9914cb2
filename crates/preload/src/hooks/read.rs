//! Everything that reads bytes at a descriptor. Only files of which the page cache may lack bytes
//! are read here; all others are the kernel's, after one load.
#![allow(unsafe_code)] // C entry points and the program's buffers.

use core::cell::Cell;
use core::ffi::{c_int, c_void};

use holdfast_cache::{
    Buffers, Client, Errno, FileRef, OPTIMISTIC_BYTES_MAX, Place, Read, ReadCall, Reading, Stock,
};
use holdfast_session::TRIES;
use libc::{iovec, off_t, size_t, ssize_t};

use super::transfer::{self, Copied, Spot, Transfer};
use crate::behind::Reader;
use crate::descriptions::WRITE_ONLY;
use crate::fds::{self, Row};
use crate::raw::{self, call, check, give};
use crate::{behind, cancels, critical, memory, target};

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

/// The program's buffers, writable as probed.
struct Vector<'a>(&'a [iovec]);

impl Buffers for Vector<'_> {
    fn part(&mut self, index: usize) -> Option<&mut [u8]> {
        let part = self.0.get(index)?;
        if part.iov_len == 0 {
            return Some(&mut []);
        }
        // SAFETY: the program's buffer, writable as `is_writable` probed; nobody else fills it
        // during the call, or the program races with itself.
        Some(unsafe { core::slice::from_raw_parts_mut(part.iov_base.cast(), part.iov_len) })
    }
}

impl Vector<'_> {
    fn bytes(&self) -> usize {
        self.0.iter().fold(0, |sum: usize, part| sum.saturating_add(part.iov_len)).min(READ_BYTES_MAX)
    }

    fn is_writable(&self) -> bool {
        let is_writable = |part: &iovec| {
            !part.iov_base.is_null() && memory::is_range_writable(part.iov_base.addr(), part.iov_len)
        };
        self.0.iter().all(|part| part.iov_len == 0 || is_writable(part))
    }
}

/// Reads from wherever the newest bytes are: from memory, or by the kernel, which is asked again
/// should it not have had all of them all the time. What it read at the cursor cannot be read
/// again: such reads of files in state Behind are not its own.
#[inline]
fn read_spot(call: &Transfer, spot: Spot, vector: &mut Vector<'_>) -> isize {
    let mut is_first = true;
    for _ in 0..TRIES {
        let (client, file) = match behind::reader(call.fd) {
            Reader::Of(client, file) => (client, file),
            Reader::Kernels(seen) => {
                let read = call.waiting();
                if spot == Spot::Cursor || seen.is_none_or(behind::none_entered) {
                    return read;
                }
                continue;
            }
        };
        if is_first && call.cancel {
            cancels::cancellation_point();
        }
        let bytes = vector.bytes();
        let asks_kernel = match spot {
            Spot::At(_) => is_first && client.leaves_to_kernel(file, bytes),
            Spot::Cursor => client.is_in_kernel(file),
        };
        if !asks_kernel && let Some(count) = read_optimistically(call.fd, (client, file), spot, vector, bytes)
        {
            return count as isize;
        }
        is_first = false;
        let read = fds::hold(call.fd, || {
            // Another thread may have put another file in its place.
            matches!(behind::reader(call.fd), Reader::Of(_, now) if now == file)
                .then(|| read_held(call, (client, file), spot, vector, asks_kernel))
                .flatten()
        });
        if let Some(read) = read {
            return read;
        }
    }
    -(Errno::EIO.0 as isize)
}

/// Reads what an optimistic read cannot answer; `None`: to be tried again.
fn read_held(
    call: &Transfer,
    (client, file): (&Client, FileRef),
    spot: Spot,
    vector: &mut Vector<'_>,
    asks_kernel: bool,
) -> Option<isize> {
    let bytes = vector.bytes();
    if !asks_kernel {
        if bytes == 0 || !may_read(call.fd) {
            // The kernel says what comes of it.
            return Some(call.kernel());
        }
        if !vector.is_writable() {
            // The kernel fills what there is of it, and must have the newest bytes for that.
            behind::bring(call.fd);
            return Some(call.kernel());
        }
        match read_found(call.fd, (client, file), spot, vector, bytes) {
            Ok(Reading::Done(count)) => return Some(count as isize),
            Ok(Reading::Kernel) => {}
            Ok(Reading::Stale) => return None,
            Err(errno) => return Some(-(errno.0 as isize)),
        }
    }
    match spot {
        Spot::Cursor => Some(call.kernel()),
        Spot::At(_) => client.read_by_kernel(file, || call.kernel()),
    }
}

/// Reads a file of which all that is asked for lies in memory, in no time: what its number stands
/// for was looked at once.
#[inline]
fn read_optimistically(
    fd: c_int,
    (client, file): (&Client, FileRef),
    spot: Spot,
    vector: &mut Vector<'_>,
    bytes: usize,
) -> Option<usize> {
    let (Spot::At(offset), [_]) = (spot, vector.0) else { return None };
    if bytes == 0 || bytes > OPTIMISTIC_BYTES_MAX || !may_read(fd) || !vector.is_writable() {
        return None;
    }
    client.read_optimistically(file, offset, vector.part(0)?)
}

/// The program's descriptor, read at its cursor or at an offset.
struct Program {
    fd: c_int,
    wanted: u64,
    ahead: Cell<u64>,
}

impl Program {
    fn move_by(&self, bytes: i64) -> Result<u64, Errno> {
        // SAFETY: touches no memory. SEEK_CUR = 1.
        check(unsafe { call!(libc::SYS_lseek, self.fd, bytes, 1) }).map(|at| at as u64)
    }
}

impl ReadCall for Program {
    #[inline]
    fn read(&mut self, part: &mut [u8], offset: u64) -> Result<usize, Errno> {
        // SAFETY: a slice has room for its length.
        check(unsafe { call!(libc::SYS_pread64, self.fd, part.as_mut_ptr(), part.len(), offset) })
    }

    /// One call instead of two: most reads get all they ask for. What they do not get is taken
    /// back.
    fn cursor(&self) -> Result<u64, Errno> {
        self.ahead.set(0);
        let moved = self.move_by(self.wanted as i64).inspect(|&at| self.ahead.set(at));
        // Too near to the largest offset there is.
        moved.map(|at| at - self.wanted).or_else(|_| self.move_by(0).inspect(|&at| self.ahead.set(at)))
    }

    fn set_cursor(&self, to: u64) -> Result<(), Errno> {
        let ahead = self.ahead.get();
        if to == ahead { Ok(()) } else { self.move_by(to as i64 - ahead as i64).map(|_| ()) }
    }
}

/// Reads a file that the kernel does not have in full, or of which pages are loaded.
#[inline(never)]
fn read_found(
    fd: c_int,
    (client, file): (&Client, FileRef),
    spot: Spot,
    vector: &mut Vector<'_>,
    bytes: usize,
) -> Result<Reading, Errno> {
    let place = match spot {
        Spot::Cursor => Place::Cursor { known: None },
        Spot::At(offset) => Place::At(offset),
    };
    let mut call = Program { fd, wanted: bytes as u64, ahead: Cell::new(0) };
    let read = Read { file, place, bytes };
    let read = critical::section(|| client.read_by::<Stock, _>(&read, vector, &mut call));
    if let (Ok(Reading::Stale), Row::Described(description)) = (&read, fds::look(fd)) {
        description.set_state(crate::descriptions::State::Pending(holdfast_cache::Origin::Opened));
    }
    read
}

unsafe fn read_bytes(
    number: i64,
    fd: c_int,
    buffer: *mut c_void,
    bytes: size_t,
    offset: Option<off_t>,
    cancel: bool,
) -> ssize_t {
    let call = Transfer::new((number, fd), (buffer, bytes), offset, 0, cancel);
    let Some(spot) = transfer::spot_of(number, offset) else { return give(call.kernel()) };
    let part = [iovec { iov_base: buffer, iov_len: bytes }];
    give(read_spot(&call, spot, &mut Vector(&part)))
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
    let seen = behind::none_behind();
    if !behind::may_hide() {
        let read = call.waiting();
        if offset.is_none() || seen.is_none_or(behind::none_entered) {
            return give(read);
        }
    }
    let (Some(spot), Some(length)) = (transfer::spot_of(number, offset), transfer::length_of(count)) else {
        return give(call.kernel());
    };
    if flags != 0 || length > transfer::PARTS_FEW {
        // Not to wait, or not through the page cache, or a vector that is too long to be copied to
        // the stack: the kernel's to answer, when it can.
        behind::bring(fd);
        return give(call.kernel());
    }
    let with_copy = |copied: Copied<'_>| match copied {
        Copied::Parts(parts) if transfer::are_sound(parts) => read_spot(&call, spot, &mut Vector(parts)),
        // The kernel says what comes of it.
        _ => call.kernel(),
    };
    // SAFETY: the program's vector.
    give(unsafe { transfer::copied(parts, length, with_copy) })
}

/// `read`.
pub unsafe extern "C-unwind" fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { read_bytes(libc::SYS_read, fd, buffer, bytes, None, true) }
}

/// `read` as parts of libc use it: not a cancellation point.
pub unsafe extern "C-unwind" fn __read_nocancel(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    // SAFETY: the program's buffer.
    unsafe { read_bytes(libc::SYS_read, fd, buffer, bytes, None, false) }
}

/// `pread`.
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
pub unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the program's buffers.
    unsafe { read_parts(libc::SYS_readv, fd, parts, count, None, 0) }
}

/// `preadv`.
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
