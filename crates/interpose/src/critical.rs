//! The short section in which a thread holds locks: no signal handler may run in it (history 23).
//!
//! A handler that writes to a file would wait for the page lock its own thread holds. Nothing in
//! the section may wait for the program.

use core::sync::atomic::{Ordering, compiler_fence};

use crate::{cancels, raw, signals, tls};

/// Runs `work` with the program's signal handlers put off until its end. Sections may lie in one
/// another.
#[inline]
pub fn section<R>(work: impl FnOnce() -> R) -> R {
    if !signals::leave_sections_alone() {
        let before = raw::block_signals();
        tls::with(|thread| thread.inside.set(thread.inside.get() + 1));
        let result = work();
        tls::with(|thread| thread.inside.set(thread.inside.get() - 1));
        raw::restore_signals(before);
        return result;
    }
    tls::with(|thread| {
        if thread.asynchronous.get() != 0 {
            put_off_cancels(thread);
        }
        thread.inside.set(thread.inside.get() + 1);
        // The handler runs in this thread: the compiler's order is all it takes.
        compiler_fence(Ordering::SeqCst);
        let result = work();
        compiler_fence(Ordering::SeqCst);
        thread.inside.set(thread.inside.get() - 1);
        compiler_fence(Ordering::SeqCst);
        if thread.asynchronous.get() != 0 {
            let_cancels_in(thread);
        }
        if thread.put_off.get() != 0 && thread.inside.get() == 0 {
            signals::deliver_put_off(thread);
        }
        result
    })
}

/// The program may be cancelled anywhere, but for sections: what it held would be held for ever.
#[cold]
fn put_off_cancels(thread: &tls::Thread) {
    if thread.asynchronous.replace(2) == 1 {
        let _ = cancels::set_cancel_type(cancels::CANCEL_DEFERRED);
    }
}

/// At the end of the outermost section one that came meanwhile acts.
#[cold]
fn let_cancels_in(thread: &tls::Thread) {
    if thread.inside.get() == 0 {
        thread.asynchronous.set(1);
        let _ = cancels::set_cancel_type(cancels::CANCEL_ASYNCHRONOUS);
    }
}

/// `pthread_setcanceltype` has succeeded.
pub fn note_cancel_type(is_asynchronous: bool) {
    tls::with(|thread| thread.asynchronous.set(u32::from(is_asynchronous)));
}
