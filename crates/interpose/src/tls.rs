//! The few bytes each thread owns.
//!
//! Initial-exec thread-local storage, written by hand: `std::thread_local!` may allocate and may
//! run destructors, and both are forbidden in a hook. A child made by vfork or posix_spawn shares
//! this block with the thread that made it, which is how hooks in the child learn what they are.

// Thread-local storage without std needs its address from the thread pointer.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use core::cell::Cell;

global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".balign 16",
    ".globl holdfast_thread",
    ".hidden holdfast_thread",
    ".type holdfast_thread,@object",
    ".size holdfast_thread,592",
    "holdfast_thread:",
    ".zero 592",
    ".previous",
);

/// One thread's block; all zero when the thread starts.
#[repr(C)]
pub struct Thread {
    /// This thread's row of the gate ([`crate::gate`], which looks for it here first), or null.
    pub row: Cell<*const ()>,
    /// How often it was counted there when a child began to run in our memory.
    pub depth_before: Cell<u32>,
    /// 1 when such a child has given up rights: its hooks leave everything to the kernel.
    pub quiet: Cell<u32>,
    /// Above 0 while this thread is inside a call that runs a child in our memory (vfork,
    /// posix_spawn, popen, system).
    pub spawning: Cell<u32>,
    /// 1 while this thread forks with the keeper's knowledge; the child inherits it.
    pub forking: Cell<u32>,
    /// Write calls that came through the hooks.
    pub writes: Cell<u32>,
    /// Above 0 while this thread is inside a critical section.
    pub inside: Cell<u32>,
    /// 1 when a signal waits for the section's end.
    pub put_off: Cell<u32>,
    /// How many of `queued` are taken.
    pub queued_count: Cell<u32>,
    /// One more than its place among the holds (`holds`); 0 before the first.
    pub place: Cell<u32>,
    /// 1 while this thread holds a number.
    pub holds: Cell<u32>,
    /// 1 where the program lets cancels end this thread at any moment; 2 while a section puts that
    /// off.
    pub asynchronous: Cell<u32>,
    /// 1 while a call is made that Go's code made by itself: no cancel acts in it.
    pub of_go: Cell<u32>,
    /// The signal mask to go back to then.
    pub mask_before: Cell<u64>,
    /// The area for Go's calls ([`crate::golang`], which knows its place), or null.
    pub area: Cell<*const ()>,
    /// Signals that must keep their order, to be handed to their handlers at the section's end.
    pub queued: [Cell<Info>; QUEUED_MAX],
}

/// More can only come on top of each other before the first of them has blocked all others.
pub const QUEUED_MAX: usize = 4;

/// What the kernel says about a signal: a `siginfo_t`.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
pub struct Info(pub [u64; 16]);

const _: () = assert!(size_of::<Thread>() == 592);
// The gate looks for it there.
const _: () = assert!(core::mem::offset_of!(Thread, row) == 0);
/// Where [`Thread::area`] lies in the block.
pub const AREA_AT: usize = core::mem::offset_of!(Thread, area);

/// Runs `work` with this thread's block.
#[inline]
pub fn with<R>(work: impl FnOnce(&Thread) -> R) -> R {
    let address: *const Thread;
    // SAFETY: reads the thread pointer and the block's offset from it; the block is 592 zeroed
    // bytes in the static TLS of this library, which the loader sets up for every thread before it
    // runs.
    unsafe {
        asm!(
            "mov {address}, qword ptr [rip + holdfast_thread@GOTTPOFF]",
            "add {address}, qword ptr fs:[0]",
            address = out(reg) address,
            options(pure, readonly, nostack),
        );
    }
    // SAFETY: the block lives as long as the thread; only this thread, or a child that runs while
    // this thread is suspended, touches it; `Thread` holds only `Cell`s of integers and an address,
    // for which any bytes are valid.
    work(unsafe { &*address })
}

/// Where the block lies, counted from the thread pointer.
pub fn offset() -> isize {
    let offset: isize;
    // SAFETY: reads a number that the loader has written.
    unsafe {
        asm!(
            "mov {offset}, qword ptr [rip + holdfast_thread@GOTTPOFF]",
            offset = out(reg) offset,
            options(pure, readonly, nostack),
        );
    }
    offset
}
