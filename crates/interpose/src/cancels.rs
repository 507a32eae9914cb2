//! Cancels (`pthread_cancel`), which libc's own calls are points for, and so ours have to be.
//!
//! Frames that a cancel unwinds have no destructors. Must let none act while its thread is in a
//! critical section.
#![allow(unsafe_code)] // Calls of libc's own functions by address.

use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use holdfast_cache::Errno;

use crate::raw::call6;
use crate::{tls, waits};

/// Cancellation unwinds through this call. It is declared as one that does not unwind, because for
/// one that does, the compiler adds code to our frames that ends the process; frames without such
/// code are simply passed over.
type SetCancelType = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;

/// Stands for `__libc_single_threaded` in a libc that has none: there may be threads.
static MAY_HAVE_THREADS: AtomicU8 = AtomicU8::new(0);

/// libc's `__libc_single_threaded`, `pthread_setcanceltype` and `pthread_testcancel`, if it has
/// them.
static SINGLE_THREADED: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static SET_CANCEL_TYPE: AtomicUsize = AtomicUsize::new(0);
static TEST_CANCEL: AtomicUsize = AtomicUsize::new(0);

/// Tells where libc keeps what cancellation points need. Without it they are none. A null
/// `single_threaded`: libc does not tell whether there is one thread alone.
pub fn set_cancellation(single_threaded: Option<*mut u8>, set_cancel_type: usize, test_cancel: usize) {
    // The parts that glibc once was in (libpthread, librt) are there without them.
    if test_cancel != 0 {
        TEST_CANCEL.store(test_cancel, Ordering::Relaxed);
    }
    if set_cancel_type != 0 {
        SET_CANCEL_TYPE.store(set_cancel_type, Ordering::Relaxed);
    }
    let Some(mut single_threaded) = single_threaded else { return };
    if single_threaded.is_null() {
        single_threaded = MAY_HAVE_THREADS.as_ptr();
    }
    if set_cancel_type != 0 {
        SINGLE_THREADED.store(single_threaded, Ordering::Release);
    }
}

/// No thread is cancelled any more, and there may be more than one.
pub fn forget_cancellation() {
    SINGLE_THREADED.store(core::ptr::null_mut(), Ordering::SeqCst);
    TEST_CANCEL.store(0, Ordering::SeqCst);
    SET_CANCEL_TYPE.store(0, Ordering::SeqCst);
}

/// Whether this process has one thread alone. No, where libc does not tell.
#[inline]
pub fn is_single_threaded() -> bool {
    let flag = SINGLE_THREADED.load(Ordering::Acquire);
    // SAFETY: `flag`, if not null, is a libc variable that lives for ever; libc writes it, hence
    // the atomic.
    !flag.is_null() && unsafe { AtomicU8::from_ptr(flag) }.load(Ordering::Relaxed) != 0
}

/// Acts upon a `pthread_cancel` that has come already, as libc's functions do when they begin: for
/// calls that the cache answers, which may never reach the kernel in a cancellable way.
#[inline]
pub fn cancellation_point() {
    if is_single_threaded() || keeps_cancels_out() {
        return;
    }
    let address = TEST_CANCEL.load(Ordering::Relaxed);
    if address != 0 {
        // SAFETY: the address of libc's `pthread_testcancel`; the frames it may unwind have no
        // destructors, and the type is one that does not unwind for the reason given at
        // `SetCancelType`.
        unsafe {
            let test: unsafe extern "C" fn() = core::mem::transmute(address);
            test();
        }
    }
}

/// What `pthread_setcanceltype` takes.
pub const CANCEL_DEFERRED: c_int = 0;
/// As above.
pub const CANCEL_ASYNCHRONOUS: c_int = 1;

/// libc's own `pthread_setcanceltype`; the type before. A cancel that waits acts in it.
pub fn set_cancel_type(kind: c_int) -> Result<c_int, Errno> {
    let address = SET_CANCEL_TYPE.load(Ordering::Relaxed);
    if address == 0 {
        return Err(Errno(libc::ENOSYS));
    }
    let mut before = 0;
    // SAFETY: the address of libc's `pthread_setcanceltype`; cancellation unwinds frames without
    // destructors.
    let result = unsafe {
        let set: SetCancelType = core::mem::transmute(address);
        set(kind, &raw mut before)
    };
    if result == 0 { Ok(before) } else { Err(Errno(result)) }
}

/// Makes a system call in which `pthread_cancel` may end the thread, as it may in libc's own
/// functions. Not inside a section: what is held there would be held for ever.
///
/// # Safety
/// As [`call6`]; nothing with a destructor may be alive in the callers' frames.
pub unsafe fn cancellable(number: i64, args: [usize; 6]) -> isize {
    let flag = SINGLE_THREADED.load(Ordering::Acquire);
    if flag.is_null() || is_single_threaded() || keeps_cancels_out() {
        // SAFETY: the caller's promise.
        return unsafe { waits::call(number, args) };
    }
    let [a, b, c, d, e, f] = args;
    let address = SET_CANCEL_TYPE.load(Ordering::Relaxed);
    // SAFETY: the address of libc's `pthread_setcanceltype`, stored before `flag` was.
    let set: SetCancelType = unsafe { core::mem::transmute(address) };
    let mut before = 0;
    // PTHREAD_CANCEL_ASYNCHRONOUS SAFETY: a plain libc call; cancellation unwinds frames without
    // destructors (the caller's promise).
    unsafe { set(1, &mut before) };
    // SAFETY: the caller's promise.
    let result = unsafe { call6(number, a, b, c, d, e, f) };
    // SAFETY: as above.
    unsafe { set(before, core::ptr::null_mut()) };
    result
}

/// Whether no cancel may act in this thread now: it is in a section, or makes a call of Go's, which
/// is no cancellation point.
#[inline]
pub fn keeps_cancels_out() -> bool {
    tls::with(|thread| thread.inside.get() != 0 || thread.of_go.get() != 0)
}
