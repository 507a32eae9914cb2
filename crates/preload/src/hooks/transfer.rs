//! What reads and writes have in common: the place, the buffers, and the kernel's own call.
//!
//! It looks at a call's arguments and never moves bytes; what the kernel would refuse is the kernel's to refuse.
#![allow(unsafe_code)] // The program's buffers.

use core::ffi::{c_int, c_void};

use libc::{iovec, off_t};

use crate::{memory, raw};

/// The kernel takes no longer vector.
const PARTS_MAX: usize = 1024;

/// Where a call reads or writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Spot {
    /// At the description's cursor, which moves.
    Cursor,
    /// At an offset.
    At(u64),
}

impl Spot {
    /// The place that an argument names; `None` for one that the kernel refuses.
    pub fn of(number: i64, offset: Option<off_t>) -> Option<Self> {
        match offset {
            None => Some(Self::Cursor),
            Some(-1) if matches!(number, libc::SYS_preadv2 | libc::SYS_pwritev2) => Some(Self::Cursor),
            Some(offset) => u64::try_from(offset).ok().map(Self::At),
        }
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
    /// `length` bytes, or parts, at `from`. The kernel takes offsets of vectors in two halves, of which on 64 bits the first
    /// holds all.
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
            return unsafe { raw::cancellable(self.number, self.arguments) };
        }
        self.plain()
    }

    /// The kernel's call, in which the thread cannot be cancelled.
    pub fn plain(&self) -> isize {
        let [a, b, c, d, e, f] = self.arguments;
        // SAFETY: the program's own call; the kernel checks its addresses.
        unsafe { raw::call6(self.number, a, b, c, d, e, f) }
    }

    /// The same with other flags, where the call takes flags.
    pub fn with_flags(&self, flags: c_int) -> Self {
        let mut other = *self;
        other.arguments[5] = flags as usize;
        other
    }
}

/// A vector of the program's buffers; `None` for one that the kernel refuses, or where it finds nothing to do.
///
/// # Safety
/// The program says that `count` parts lie at `parts`, and leaves them alone during the call.
pub unsafe fn parts<'a>(parts: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let length = usize::try_from(count).ok().filter(|length| (1..=PARTS_MAX).contains(length))?;
    if parts.is_null() || !memory::is_range_readable(parts.addr(), length * size_of::<iovec>()) {
        return None;
    }
    // SAFETY: readable as probed; the caller's promise.
    let parts = unsafe { core::slice::from_raw_parts(parts, length) };
    if !memory::may_look() {
        return Some(parts);
    }
    let bytes = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
    (1..=isize::MAX as usize).contains(&bytes).then_some(parts)
}
