//! What the flags of `open` ask for.

use core::ffi::c_int;

use crate::descriptions;

/// Whether `open` flags allow writing.
pub fn may_write(flags: c_int) -> bool {
    flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR)
}

/// Those of [`descriptions::KERNEL_FLAGS`] that `open` flags ask for.
pub fn kernel_flags(flags: c_int) -> u32 {
    let append = if flags & libc::O_APPEND != 0 { descriptions::APPEND } else { 0 };
    append | if flags & libc::O_DIRECT != 0 { descriptions::DIRECT } else { 0 }
}

/// Whether `open` flags allow reading: a fourth mode of access allows neither reading nor writing.
pub fn may_read(flags: c_int) -> bool {
    flags & libc::O_PATH == 0 && matches!(flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR)
}
