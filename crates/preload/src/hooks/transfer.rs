//! What reads and writes have in common: the place, the buffers, and the kernel's own call.
//!
//! It looks at a call's arguments and never moves bytes; what the kernel would refuse is the
//! kernel's to refuse.
#![allow(unsafe_code)] // The program's buffers.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

pub use holdfast_session::Spot;
use libc::{iovec, off_t};

use crate::raw::{self, call};
use crate::{cancels, gate, memory};

/// The kernel takes no longer vector.
const PARTS_MAX: usize = 1024;
/// Vectors up to this length are copied to the stack: a KiB.
pub const PARTS_FEW: usize = 64;
/// An address that no program can read, now or later.
const NOWHERE: usize = usize::MAX & !0xfff;

/// The place that an argument names; `None` for one that the kernel refuses.
pub fn spot_of(number: i64, offset: Option<off_t>) -> Option<Spot> {
    match offset {
        None => Some(Spot::Cursor),
        Some(-1) if matches!(number, libc::SYS_preadv2 | libc::SYS_pwritev2) => Some(Spot::Cursor),
        Some(offset) => u64::try_from(offset).ok().map(Spot::At),
    }
}

/// A system call that reads or writes.
#[derive(Clone, Copy)]
pub struct Transfer {
    /// Its descriptor.
    pub fd: c_int,
    number: i64,
    arguments: [usize; 6],
    /// `preadv2` and `pwritev2` flags.
    pub flags: c_int,
    /// Whether the thread may be cancelled in it.
    pub cancel: bool,
}

impl Transfer {
    /// `length` bytes, or parts, at `from`. The kernel takes offsets of vectors in two halves, of
    /// which on 64 bits the first holds all.
    pub fn new(
        (number, fd): (i64, c_int),
        (from, length): (*const c_void, usize),
        offset: Option<off_t>,
        flags: c_int,
        cancel: bool,
    ) -> Self {
        let arguments = [fd as usize, from as usize, length, offset.unwrap_or(0) as usize, 0, flags as usize];
        Self { fd, number, arguments, flags, cancel }
    }

    /// The kernel's call.
    pub fn kernel(&self) -> isize {
        if self.cancel {
            // SAFETY: the program's own call; the kernel checks its addresses.
            return unsafe { cancels::cancellable(self.number, self.arguments) };
        }
        self.plain()
    }

    /// The kernel's call, which may wait for ever ([`gate::outside`]).
    pub fn waiting(&self) -> isize {
        gate::outside(|| self.kernel())
    }

    /// The kernel's call, in which the thread cannot be cancelled.
    pub fn plain(&self) -> isize {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: the program's own call; the kernel checks its addresses.
        unsafe { raw::call6(self.number, a, b, c, d, e, f) }
    }

    /// The same with a vector that lies elsewhere.
    pub fn with_parts(&self, parts: &[iovec]) -> Self {
        let mut other = *self;
        other.arguments[1] = parts.as_ptr().addr();
        other
    }

    /// The same with a vector that cannot be read, whatever another thread maps meanwhile where the
    /// program's own should be.
    pub fn with_unreadable_parts(&self) -> Self {
        let mut other = *self;
        other.arguments[1] = NOWHERE;
        other
    }

    /// The same with other flags, where the call takes flags.
    pub fn with_flags(&self, flags: c_int) -> Self {
        let mut other = *self;
        other.arguments[5] = flags as usize;
        other
    }
}

/// What came of a look at the program's vector.
pub enum Copied<'a> {
    /// All of it, as it was at one moment.
    Parts(&'a [iovec]),
    /// It cannot be read.
    Unreadable,
    /// It is long, and there is no memory to copy it to.
    NoRoom,
}

/// Has `work` use a copy of the program's vector of `length` parts, as [`length_of`] gives it.
/// Whoever sums, probes, logs and then calls the kernel must mean the same parts each time, but
/// another thread can change the program's own at any moment.
///
/// The copy is gone when `work` returns. Longer ones than [`PARTS_FEW`] lie in memory that would be
/// lost if the thread were cancelled in `work`.
///
/// # Safety
/// Where faults do not come to us, the program's vector must be readable.
pub unsafe fn copied<T>(parts: *const iovec, length: usize, work: impl FnOnce(Copied<'_>) -> T) -> T {
    if length > PARTS_FEW {
        // SAFETY: the caller's promise.
        return unsafe { copied_aside(parts, length, work) };
    }
    let mut few = [const { MaybeUninit::<iovec>::uninit() }; PARTS_FEW];
    // SAFETY: there is room for `length` parts; the caller's promise.
    unsafe { copy_to(few.as_mut_ptr().cast(), parts, length, work) }
}

/// The same in memory of its own: the stacks of some signal handlers are smaller than the longest
/// vectors.
#[cold]
unsafe fn copied_aside<T>(parts: *const iovec, length: usize, work: impl FnOnce(Copied<'_>) -> T) -> T {
    let bytes = length * size_of::<iovec>();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory at a place of the kernel's choice.
    let room = unsafe { call!(libc::SYS_mmap, 0, bytes, access, kind, usize::MAX, 0) };
    if raw::check(room).is_err() {
        return work(Copied::NoRoom);
    }
    // SAFETY: there is room for `length` parts; the caller's promise.
    let result = unsafe { copy_to(room as *mut iovec, parts, length, work) };
    // SAFETY: memory of our own, which nobody looks at any more.
    let _ = unsafe { call!(libc::SYS_munmap, room, bytes) };
    result
}

unsafe fn copy_to<T>(
    room: *mut iovec,
    parts: *const iovec,
    length: usize,
    work: impl FnOnce(Copied<'_>) -> T,
) -> T {
    // SAFETY: the caller has room for them, and says that they may be read.
    let is_copied = unsafe { memory::copy_in(room.cast(), parts.addr(), length * size_of::<iovec>()) };
    if !is_copied {
        return work(Copied::Unreadable);
    }
    // SAFETY: filled just now, and nobody else knows the place.
    work(Copied::Parts(unsafe { core::slice::from_raw_parts(room, length) }))
}

/// How many parts a call has; `None` for a number with which the kernel looks at none.
pub fn length_of(count: c_int) -> Option<usize> {
    usize::try_from(count).ok().filter(|length| (1..=PARTS_MAX).contains(length))
}

/// Whether the kernel may take such parts: it refuses negative lengths, and addresses above the
/// program's half.
pub fn are_sound(parts: &[iovec]) -> bool {
    let bytes = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len));
    bytes.is_some_and(|bytes| bytes <= isize::MAX as usize)
}
