//! Who is inside a hook: every hook is entered through here, so that a thread that takes the
//! library out of the process (`parting`) can wait until nobody uses it.
//!
//! A thread counts itself in a row of its own. A call that may wait for ever (a read of a pipe, a
//! lock) is made outside, and whoever comes back from one must not use what it held before. Nothing
//! here may allocate, or call the kernel while nobody parts, but once for each thread.
#![allow(unsafe_code)] // The way into every hook is made of instructions.

use core::arch::global_asm;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use core::time::Duration;

use crate::raw::{self, call};
use crate::{own_process, tls};

/// Hooks do their work.
const IN: u32 = 0;
/// A thread waits for the others to leave, and nobody else gets in.
const PARTING: u32 = 1;
/// Calls are libc's own for good.
const OUT: u32 = 2;

const ROWS_MAX: usize = 4096;
/// How long others are waited for. Who is still inside then sleeps in the kernel, or was taken out
/// of a hook by `longjmp` and is not inside at all.
const PATIENCE_MS: u32 = 2000;
const PAUSE_NS: libc::c_long = 200_000;

/// One thread's row.
#[repr(C, align(64))]
struct Row {
    /// Hooks that it is inside of, one in another.
    inside: AtomicU32,
    /// It sleeps until the parting is over.
    waits: AtomicU32,
    /// Its number; 0: free.
    thread: AtomicU32,
}

impl Row {
    const fn new() -> Self {
        Self { inside: AtomicU32::new(0), waits: AtomicU32::new(0), thread: AtomicU32::new(0) }
    }

    fn clear(&self, thread: u32) {
        self.inside.store(0, Ordering::SeqCst);
        self.waits.store(0, Ordering::SeqCst);
        self.thread.store(thread, Ordering::SeqCst);
    }
}

static ROWS: [Row; ROWS_MAX] = [const { Row::new() }; ROWS_MAX];
/// For threads that found no row.
static CROWD: Row = Row::new();
/// Once there were more threads than rows, nobody can tell who is inside.
static CROWDED: AtomicBool = AtomicBool::new(false);
/// One more than the highest row ever used.
static USED: AtomicU32 = AtomicU32::new(0);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// How all hooks are gone into: looked at by each of them.
static GATE: AtomicU32 = AtomicU32::new(IN);

/// Where the calls of one exported name go.
#[repr(C)]
pub struct Slot {
    /// The way through the gate to the hook, or libc's own function.
    target: AtomicPtr<()>,
    /// libc's own function, once it is the one to be called.
    original: AtomicPtr<()>,
}

impl Slot {
    /// A slot that leads to a hook.
    pub const fn new(way: *const ()) -> Self {
        Self { target: AtomicPtr::new(way.cast_mut()), original: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// From now on calls of this name are libc's.
    pub fn release(&self, original: usize) {
        let original = core::ptr::with_exposed_provenance_mut(original);
        self.original.store(original, Ordering::SeqCst);
        self.target.store(original, Ordering::SeqCst);
    }
}

// r10: the slot, r11: the hook. One word of arguments that lie on the stack is passed on.
global_asm!(
    ".hidden holdfast_gate",
    ".globl holdfast_gate",
    ".type holdfast_gate,@function",
    "holdfast_gate:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "mov rax, qword ptr [rip + holdfast_thread@GOTTPOFF]",
    "mov rbx, qword ptr fs:[0]",
    "mov rbx, qword ptr [rbx + rax]",
    "test rbx, rbx",
    "jz 2f",
    "lock inc dword ptr [rbx]",
    "cmp dword ptr [rip + {gate}], 0",
    "jne 2f",
    "3:",
    "sub rsp, 8",
    "push qword ptr [rsp + 24]",
    ".cfi_adjust_cfa_offset 16",
    "call r11",
    "add rsp, 16",
    ".cfi_adjust_cfa_offset -16",
    "dec dword ptr [rbx]",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "ret",
    "2:",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "push rdi",
    "push rsi",
    "push rdx",
    "push rcx",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    ".cfi_adjust_cfa_offset 64",
    "mov rdi, rbx",
    "mov rsi, r10",
    "call {slow}",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rcx",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    ".cfi_adjust_cfa_offset -64",
    "mov rbx, rax",
    "test rax, rax",
    "jnz 3b",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "jmp qword ptr [r10 + 8]",
    ".cfi_endproc",
    ".size holdfast_gate, . - holdfast_gate",
    gate = sym GATE,
    slow = sym slow,
);

unsafe extern "C" {
    /// The way into a hook; only jumps lead there.
    pub fn holdfast_gate();
}

/// A row was counted up, or there is none yet, and the gate may be closed. Returns the row in which
/// the caller is counted, or null: libc's own function is to be called.
unsafe extern "C" fn slow(row: *const Row, slot: *const Slot) -> *const Row {
    // SAFETY: null, or a row of the table.
    let row = unsafe { row.as_ref() }.unwrap_or_else(|| {
        let row = claim();
        row.inside.fetch_add(1, Ordering::SeqCst);
        row
    });
    // SAFETY: the way's own slot, which lives for ever.
    let original = unsafe { slot.as_ref() }.map_or(core::ptr::null_mut(), |slot| {
        if wait_for_gate(row) == OUT { slot.original.load(Ordering::SeqCst) } else { core::ptr::null_mut() }
    });
    if original.is_null() {
        return row;
    }
    row.inside.fetch_sub(1, Ordering::SeqCst);
    core::ptr::null()
}

/// Waits while somebody parts, unless this thread was inside before. How the gate is then.
fn wait_for_gate(row: &Row) -> u32 {
    loop {
        let gate = GATE.load(Ordering::SeqCst);
        if gate != PARTING || row.inside.load(Ordering::SeqCst) > 1 {
            return gate;
        }
        sleep_outside(row, 1);
    }
}

/// Lets those go on who wait for this thread, which is counted `inside` times, and sleeps for a
/// moment.
fn sleep_outside(row: &Row, inside: u32) {
    row.waits.store(1, Ordering::SeqCst);
    row.inside.fetch_sub(inside, Ordering::SeqCst);
    holdfast_board::wait(&GATE, PARTING, Duration::from_millis(20));
    if own_process::is_new_child() {
        // Nobody parts here: it was another thread of the parent's.
        let _ = GATE.compare_exchange(PARTING, IN, Ordering::SeqCst, Ordering::SeqCst);
    }
    row.inside.fetch_add(inside, Ordering::SeqCst);
    row.waits.store(0, Ordering::SeqCst);
}

/// This thread's row.
fn own() -> Option<&'static Row> {
    // SAFETY: null, or a row of the table.
    tls::with(|thread| unsafe { thread.row.get().cast::<Row>().as_ref() })
}

/// Finds a row for this thread.
#[cold]
fn claim() -> &'static Row {
    let thread = owner();
    let start = NEXT.load(Ordering::Relaxed) as usize;
    let free =
        |at: &usize| ROWS[*at].thread.compare_exchange(0, thread, Ordering::SeqCst, Ordering::SeqCst).is_ok();
    let left = |at: &usize| {
        let before = ROWS[*at].thread.load(Ordering::SeqCst);
        let row = &ROWS[*at];
        let is_taken = !lives(before)
            && row.thread.compare_exchange(before, thread, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if is_taken {
            row.clear(thread);
        }
        is_taken
    };
    let all = || (0..ROWS_MAX).map(|step| (start + step) % ROWS_MAX);
    let found = all().find(free).or_else(|| all().find(left));
    let row = found.map_or(&CROWD, |at| {
        NEXT.store(((at + 1) % ROWS_MAX) as u32, Ordering::Relaxed);
        USED.fetch_max(at as u32 + 1, Ordering::SeqCst);
        &ROWS[at]
    });
    if found.is_none() {
        CROWDED.store(true, Ordering::SeqCst);
    }
    tls::with(|block| block.row.set(core::ptr::from_ref(row).cast()));
    row
}

/// Whose row it is. Where areas go from thread to thread with their rows, it is the process's.
fn owner() -> u32 {
    if own_process::is_entered() { raw::getpid() as u32 } else { raw::gettid() }
}

/// Whether a thread of this process has that number.
fn lives(thread: u32) -> bool {
    // SAFETY: touches no memory; signal 0 is none.
    raw::check(unsafe { call!(libc::SYS_tgkill, raw::getpid(), thread, 0) })
        .err()
        .is_none_or(|errno| errno.0 != libc::ESRCH)
}

/// Does what a hook does that has no way through the gate. `None`: not any more.
pub fn within<R>(work: impl FnOnce() -> R) -> Option<R> {
    let row = own().unwrap_or_else(claim);
    row.inside.fetch_add(1, Ordering::SeqCst);
    if GATE.load(Ordering::SeqCst) != IN && wait_for_gate(row) == OUT {
        row.inside.fetch_sub(1, Ordering::SeqCst);
        return None;
    }
    let result = work();
    row.inside.fetch_sub(1, Ordering::SeqCst);
    Some(result)
}

/// Makes a call that may wait for ever. Afterwards there may be no client any more: nothing may be
/// used that was had from one before.
pub fn outside<R>(work: impl FnOnce() -> R) -> R {
    let Some(row) = own() else { return work() };
    let inside = row.inside.swap(0, Ordering::SeqCst);
    let result = work();
    // What a child in our memory left there is set right, too.
    row.inside.store(inside, Ordering::SeqCst);
    while inside != 0 && GATE.load(Ordering::SeqCst) == PARTING {
        sleep_outside(row, inside);
    }
    result
}

/// Whether libc's own functions are called.
pub fn is_open() -> bool {
    GATE.load(Ordering::SeqCst) != OUT
}

/// How often this thread is counted.
pub fn depth() -> u32 {
    own().map_or(0, |row| row.inside.load(Ordering::SeqCst))
}

/// Counts this thread as it was counted before a child ran in its memory.
pub fn restore_depth(depth: u32) {
    if let Some(row) = own() {
        row.inside.store(depth, Ordering::SeqCst);
    }
}

/// Lets nobody else in. False when another thread has parted meanwhile.
pub fn close() -> bool {
    loop {
        match GATE.compare_exchange(IN, PARTING, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return true,
            Err(OUT) => return false,
            Err(_) => outside(|| raw::sleep(PAUSE_NS)),
        }
    }
}

/// Waits for the other threads to leave. False: some may be inside still, or this one is, in a hook
/// that a handler interrupted.
pub fn others_have_left() -> bool {
    let own = own();
    let mut pauses = PATIENCE_MS * 1_000_000 / PAUSE_NS as u32;
    let mut all =
        !CROWDED.load(Ordering::SeqCst) && own.is_none_or(|row| row.inside.load(Ordering::SeqCst) == 0);
    for row in ROWS.iter().take(USED.load(Ordering::SeqCst) as usize) {
        if own.is_some_and(|own| core::ptr::eq(own, row)) {
            continue;
        }
        while row.inside.load(Ordering::SeqCst) != 0 && lives(row.thread.load(Ordering::SeqCst)) {
            if pauses == 0 {
                all = false;
                break;
            }
            pauses -= 1;
            raw::sleep(PAUSE_NS);
        }
    }
    all
}

/// Calls are libc's own from now on: whoever waits goes there, and waits no more when this returns.
pub fn open_to_libc() {
    GATE.store(OUT, Ordering::SeqCst);
    holdfast_board::wake(&GATE, i32::MAX as u32);
    for row in ROWS.iter().take(USED.load(Ordering::SeqCst) as usize) {
        while row.waits.load(Ordering::SeqCst) != 0 && lives(row.thread.load(Ordering::SeqCst)) {
            raw::sched_yield();
        }
    }
}

/// In a forked child: the parent's other threads are not here.
pub fn reset_for_child() {
    let own = own();
    for row in ROWS.iter().take(USED.load(Ordering::SeqCst) as usize) {
        if own.is_some_and(|own| core::ptr::eq(own, row)) {
            row.thread.store(owner(), Ordering::SeqCst);
        } else if row.thread.load(Ordering::Relaxed) != 0 {
            row.clear(0);
        }
    }
    let _ = GATE.compare_exchange(PARTING, IN, Ordering::SeqCst, Ordering::SeqCst);
}
