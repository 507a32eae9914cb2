//! Calls that may wait for ever, or end this program's memory, made inside of a hook of a thread
//! that puts its signals off until the hook's end ([`crate::golang`], static programs of C).
//!
//! A signal that comes before such a call has begun, or while it waits, makes it end with `EINTR`
//! at once, and marks that it is to be made again once the program's handler has run. No signal may
//! come between the look for one and the call: the handler knows where these instructions stand.
#![allow(unsafe_code)] // Instructions.

use core::arch::{asm, global_asm};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::raw::call6;
use crate::tls::{Info, QUEUED_MAX};

/// Where a thread's area has them: the GS base points to the area.
pub const AREA_AT: usize = 128;

/// What a thread notes of the signals that come while it is in a hook.
#[repr(C)]
pub struct Waits {
    /// [`PUT_OFF`], [`BLOCKED`], or 0.
    pub put_off: AtomicU32,
    /// A call that waited was ended for it.
    pub again: AtomicU32,
    /// The mask to go back to.
    pub mask: AtomicU64,
    /// Where handlers run that have a stack of their own, and of how many bytes.
    other_stack: [AtomicUsize; 2],
    /// How many of `queued` are taken.
    queued_count: AtomicU32,
    /// Signals that must keep their order.
    queued: [Cell<Info>; QUEUED_MAX],
}

/// A signal was put off, and all are blocked.
pub const PUT_OFF: u32 = 1;
/// All are blocked.
pub const BLOCKED: u32 = 2;
/// Where [`Waits`] has its fields.
pub const MASK_AT: usize = core::mem::offset_of!(Waits, mask);
/// As above.
pub const OTHER_STACK_AT: usize = core::mem::offset_of!(Waits, other_stack);
/// As above.
pub const QUEUED_COUNT_AT: usize = core::mem::offset_of!(Waits, queued_count);

impl Default for Waits {
    fn default() -> Self {
        Self {
            put_off: AtomicU32::new(0),
            again: AtomicU32::new(0),
            mask: AtomicU64::new(0),
            other_stack: [const { AtomicUsize::new(0) }; 2],
            queued_count: AtomicU32::new(0),
            queued: [const { Cell::new(Info([0; 16])) }; QUEUED_MAX],
        }
    }
}

impl Waits {
    /// Keeps a signal, in its thread; false where there is no room.
    pub fn queue(&self, info: Info) -> bool {
        let count = self.queued_count.load(Ordering::Relaxed);
        let Some(place) = self.queued.get(count as usize) else { return false };
        place.set(info);
        self.queued_count.store(count + 1, Ordering::Relaxed);
        true
    }

    /// What was kept, which is forgotten, and the mask to go back to. Nothing is put off any more.
    pub fn take(&self) -> ([Info; QUEUED_MAX], usize, u64) {
        let count = self.queued_count.swap(0, Ordering::Relaxed) as usize;
        let none = Info([0; 16]);
        let queued = core::array::from_fn(|at| self.queued.get(at).map_or(none, Cell::get));
        self.put_off.store(0, Ordering::Relaxed);
        (queued, count, self.mask.load(Ordering::Relaxed))
    }

    /// Sets where handlers run.
    pub fn set_other_stack(&self, first: usize, bytes: usize) {
        self.other_stack[1].store(0, Ordering::SeqCst);
        self.other_stack[0].store(first, Ordering::SeqCst);
        self.other_stack[1].store(bytes, Ordering::SeqCst);
    }

    /// Of a new owner.
    pub fn forget(&self) {
        self.set_other_stack(0, 0);
        self.put_off.store(0, Ordering::SeqCst);
        self.again.store(0, Ordering::SeqCst);
        self.queued_count.store(0, Ordering::SeqCst);
    }
}

/// Threads have areas that say of signals.
static ARE_KEPT: AtomicBool = AtomicBool::new(false);

/// From now on each thread puts signals off in its hooks.
pub fn keep() {
    ARE_KEPT.store(true, Ordering::SeqCst);
}

// rdi: number, rsi: six arguments, rdx: the thread's `Waits`.
global_asm!(
    ".hidden holdfast_wait",
    ".globl holdfast_wait",
    ".hidden holdfast_wait_begins",
    ".globl holdfast_wait_begins",
    ".hidden holdfast_wait_is_over",
    ".globl holdfast_wait_is_over",
    ".hidden holdfast_wait_ends",
    ".globl holdfast_wait_ends",
    ".type holdfast_wait,@function",
    "holdfast_wait:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "mov rdi, qword ptr [rsi]",
    "mov rdx, qword ptr [rsi + 16]",
    "mov r10, qword ptr [rsi + 24]",
    "mov r8, qword ptr [rsi + 32]",
    "mov r9, qword ptr [rsi + 40]",
    "mov rsi, qword ptr [rsi + 8]",
    "holdfast_wait_begins:",
    "cmp dword ptr [rcx], {put_off}",
    "je 2f",
    "syscall",
    "holdfast_wait_is_over:",
    "ret",
    "2:",
    "mov dword ptr [rcx + 4], 1",
    "holdfast_wait_ends:",
    "mov rax, -4",
    "ret",
    ".size holdfast_wait, . - holdfast_wait",
    put_off = const PUT_OFF,
);

unsafe extern "C" {
    fn holdfast_wait(number: i64, arguments: *const usize, waits: *const Waits) -> isize;
    fn holdfast_wait_begins();
    fn holdfast_wait_is_over();
    fn holdfast_wait_ends();
}

/// Where to go on instead, with the call left undone, if this instruction is one of those before it
/// is made, or the one by which the kernel would make it once more.
pub fn instead_of(instruction: usize) -> Option<usize> {
    let address = |place: unsafe extern "C" fn()| (place as *const ()).addr();
    let before = address(holdfast_wait_begins)..address(holdfast_wait_is_over);
    before.contains(&instruction).then(|| address(holdfast_wait_ends))
}

/// Makes such a call.
///
/// # Safety
/// As [`call6`].
pub unsafe fn call(number: i64, arguments: [usize; 6]) -> isize {
    if !ARE_KEPT.load(Ordering::Relaxed) {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the caller's promise.
        return unsafe { call6(number, a, b, c, d, e, f) };
    }
    let area: usize;
    // SAFETY: hooks run on areas, to which the GS base points.
    unsafe {
        asm!("rdgsbase {0}", out(reg) area, options(nomem, nostack, preserves_flags));
        let waits = core::ptr::with_exposed_provenance(area + AREA_AT);
        holdfast_wait(number, arguments.as_ptr(), waits)
    }
}
