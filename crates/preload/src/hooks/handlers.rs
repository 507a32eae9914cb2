//! Older ways to install a signal handler. glibc makes them of its `sigaction`, whose entry is
//! patched; musl calls its own unseen, so there they are made of ours.
#![allow(unsafe_code)] // C entry points.

use core::ffi::c_int;

use super::original::original;
use crate::signals::sigaction;
use crate::{cancels, critical, patch};

type Handler = libc::sighandler_t;

const SIG_HOLD: Handler = 2;

/// Installs a handler with nothing but flags, and returns the one before.
unsafe fn install(signal: c_int, handler: Handler, flags: c_int) -> Handler {
    // SAFETY: all fields are plain integers or nullable.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) = unsafe { core::mem::zeroed() };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    // SAFETY: the program's own handler.
    if unsafe { sigaction(signal, &raw const new, &raw mut old) } < 0 {
        return libc::SIG_ERR;
    }
    old.sa_sigaction
}

/// `signal`.
pub unsafe extern "C-unwind" fn signal(signal: c_int, handler: Handler) -> Handler {
    if patch::is_musl() {
        // SAFETY: the program's own call.
        return unsafe { install(signal, handler, libc::SA_RESTART) };
    }
    original!(SIGNAL(signal => c_int, handler => Handler) -> Handler, else libc::SIG_ERR)
}

/// `bsd_signal`, another name for `signal`.
pub unsafe extern "C-unwind" fn bsd_signal(signal: c_int, handler: Handler) -> Handler {
    // SAFETY: the program's own call.
    unsafe { self::signal(signal, handler) }
}

/// `__sysv_signal`, which with musl is `signal`.
pub unsafe extern "C-unwind" fn __sysv_signal(signal: c_int, handler: Handler) -> Handler {
    if patch::is_musl() {
        // SAFETY: the program's own call.
        return unsafe { self::signal(signal, handler) };
    }
    original!(SYSV_SIGNAL(signal => c_int, handler => Handler) -> Handler, else libc::SIG_ERR)
}

/// `sigset`: a handler, or `SIG_HOLD` for blocking the signal.
pub unsafe extern "C-unwind" fn sigset(signal: c_int, handler: Handler) -> Handler {
    if !patch::is_musl() {
        return original!(SIGSET(signal => c_int, handler => Handler) -> Handler, else libc::SIG_ERR);
    }
    // SAFETY: sets of signals are plain memory, which libc fills; the program's own call.
    unsafe {
        let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = core::mem::zeroed();
        if libc::sigaddset(&raw mut set, signal) < 0 {
            return libc::SIG_ERR;
        }
        let (how, old) = if handler == SIG_HOLD {
            let mut old: libc::sigaction = core::mem::zeroed();
            let known = sigaction(signal, core::ptr::null(), &raw mut old) == 0;
            (libc::SIG_BLOCK, if known { old.sa_sigaction } else { libc::SIG_ERR })
        } else {
            (libc::SIG_UNBLOCK, install(signal, handler, 0))
        };
        if old == libc::SIG_ERR || libc::sigprocmask(how, &raw const set, &raw mut before) < 0 {
            return libc::SIG_ERR;
        }
        if libc::sigismember(&raw const before, signal) == 1 { SIG_HOLD } else { old }
    }
}

/// `sigignore`.
pub unsafe extern "C-unwind" fn sigignore(signal: c_int) -> c_int {
    if !patch::is_musl() {
        return original!(SIGIGNORE(signal => c_int) -> c_int, else -1);
    }
    // SAFETY: no handler of the program's.
    if unsafe { install(signal, libc::SIG_IGN, 0) } == libc::SIG_ERR { -1 } else { 0 }
}

/// `siginterrupt`.
pub unsafe extern "C-unwind" fn siginterrupt(signal: c_int, interrupts: c_int) -> c_int {
    if !patch::is_musl() {
        return original!(SIGINTERRUPT(signal => c_int, interrupts => c_int) -> c_int, else -1);
    }
    // SAFETY: all fields are plain integers or nullable; the program's own handler stays.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        if sigaction(signal, core::ptr::null(), &raw mut action) < 0 {
            return -1;
        }
        action.sa_flags &= !libc::SA_RESTART;
        if interrupts == 0 {
            action.sa_flags |= libc::SA_RESTART;
        }
        sigaction(signal, &raw const action, core::ptr::null_mut())
    }
}

/// `pthread_setcanceltype`: a thread that may be cancelled anywhere is not, while it holds what is
/// others' too.
pub unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int {
    if matches!(kind, cancels::CANCEL_DEFERRED | cancels::CANCEL_ASYNCHRONOUS) {
        // Before: one that comes at once must not find the note missing.
        critical::note_cancel_type(kind == cancels::CANCEL_ASYNCHRONOUS);
    }
    match cancels::set_cancel_type(kind) {
        Ok(old) => {
            if !before.is_null() {
                // SAFETY: the program's own place.
                unsafe { *before = old };
            }
            0
        }
        Err(errno) => errno.0,
    }
}
