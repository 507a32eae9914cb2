//! io_uring and libaio: their writes pass no function that could have a hook, so a process that
//! sets one of them up leaves all its files to the kernel, those open now and those opened later.
//!
//! POSIX AIO needs nothing: libc does it with `pwrite` and `fsync`.
#![allow(unsafe_code)] // C entry points.

use core::ffi::{c_int, c_uint, c_void};

use holdfast_cache::Reason;
use libc::size_t;

use crate::patch::{IO_URING_QUEUE_INIT, IO_URING_QUEUE_INIT_MEM, IO_URING_QUEUE_INIT_PARAMS};
use crate::raw::{call, give_int};
use crate::uncovered::leave_to_kernel;

/// libaio's `io_setup`: returns the negative errno.
pub unsafe extern "C-unwind" fn io_setup(events: c_int, context: *mut c_void) -> c_int {
    leave_to_kernel(Reason::AsyncIo);
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe { call!(libc::SYS_io_setup, events, context) as c_int }
}

/// libaio's `io_queue_init`.
pub unsafe extern "C-unwind" fn io_queue_init(events: c_int, context: *mut *mut c_void) -> c_int {
    if events <= 0 || context.is_null() {
        return -libc::EINVAL;
    }
    // SAFETY: the program passes a place for the context.
    unsafe {
        *context = core::ptr::null_mut();
        io_setup(events, context.cast())
    }
}

/// The system call `io_setup`, with libc's convention for errors.
pub(super) unsafe fn io_setup_call(events: usize, context: usize) -> c_int {
    leave_to_kernel(Reason::AsyncIo);
    // SAFETY: the program's own call; the kernel checks its addresses.
    give_int(unsafe { call!(libc::SYS_io_setup, events, context) })
}

/// The system call `io_uring_setup`, with libc's convention for errors.
pub(super) unsafe fn io_uring_setup_call(entries: usize, parameters: usize) -> c_int {
    leave_to_kernel(Reason::AsyncIo);
    // SAFETY: the program's own call; the kernel checks its addresses.
    give_int(unsafe { call!(libc::SYS_io_uring_setup, entries, parameters) })
}

/// liburing's `io_uring_setup`: returns the negative errno.
pub unsafe extern "C-unwind" fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
    leave_to_kernel(Reason::AsyncIo);
    // SAFETY: the program's own call; the kernel checks its addresses.
    unsafe { call!(libc::SYS_io_uring_setup, entries, parameters) as c_int }
}

/// Defines hooks that leave all files to the kernel and call the library's own function.
macro_rules! rings {
    ($($name:ident($($argument:ident: $kind:ty),*) = $original:expr;)*) => {$(
        #[doc = concat!("liburing's `", stringify!($name), "`.")]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            leave_to_kernel(Reason::AsyncIo);
            let address = $original.address();
            if address == 0 {
                return -libc::ENOSYS;
            }
            // SAFETY: liburing's function of this name has this shape; the program's own call.
            unsafe {
                let original: unsafe extern "C" fn($($kind),*) -> c_int = core::mem::transmute(address);
                original($($argument),*)
            }
        }
    )*};
}

rings! {
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) = IO_URING_QUEUE_INIT;
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) =
        IO_URING_QUEUE_INIT_PARAMS;
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void,
        bytes: size_t) = IO_URING_QUEUE_INIT_MEM;
}
