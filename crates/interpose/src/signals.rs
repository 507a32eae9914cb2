//! The program's signal handlers, which must not run while their thread is inside a critical
//! section (history 23).
//!
//! Blocking signals would cost two system calls for every write. Instead the kernel is given
//! [`deliver`] in the place of every handler: outside a section it calls the program's; inside, it
//! sends the signal to its own thread again, with everything known about it, and blocks all signals
//! until the section's end. Real-time signals, which would lose their place in the queue that way,
//! are kept and handed to their handlers there. Faults are delivered at once: they are the
//! program's own, or those of [`crate::memory`].
//!
//! Must never show: `sigaction` tells the program its own handlers and flags.
#![allow(unsafe_code)] // C entry points, the kernel's signal frames.

use core::arch::global_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use holdfast_canary::{Canary, on};
use libc::{siginfo_t, ucontext_t};

use crate::raw::{self, call};
use crate::{own_process, patch, probes, tls};

const SIGNALS: usize = 65;
/// libc keeps these for itself and lets no program change them.
const LIBC_SIGNALS: [c_int; 2] = [32, 33];
/// musl does with one more.
const MUSL_SIGNAL: c_int = 34;
const SA_RESTORER: u64 = 0x0400_0000;
/// The handler is called once.
pub const SA_RESETHAND: u64 = libc::SA_RESETHAND as u32 as u64;
const MASK_BYTES: usize = 8;
/// From here on signals queue up, in order.
pub const FIRST_QUEUED_SIGNAL: c_int = 34;

/// How the kernel has it, and how `rt_sigaction` takes it.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Action {
    /// The function, or what else is done.
    pub handler: usize,
    /// The kernel's flags.
    pub flags: u64,
    restorer: usize,
    mask: u64,
}

/// What the program asked for, where the kernel was given [`deliver`].
struct Wanted {
    handler: AtomicUsize,
    flags: AtomicU64,
    mask: AtomicU64,
}

impl Wanted {
    const fn new() -> Self {
        Self { handler: AtomicUsize::new(0), flags: AtomicU64::new(0), mask: AtomicU64::new(0) }
    }

    fn set(&self, action: &Action) {
        self.flags.store(action.flags, Ordering::SeqCst);
        self.mask.store(action.mask, Ordering::SeqCst);
        self.handler.store(action.handler, Ordering::SeqCst);
    }

    fn get(&self) -> Action {
        Action {
            handler: self.handler.load(Ordering::SeqCst),
            flags: self.flags.load(Ordering::SeqCst),
            restorer: holdfast_signal_return as *const () as usize,
            mask: self.mask.load(Ordering::SeqCst),
        }
    }
}

static WANTED: [Wanted; SIGNALS] = [const { Wanted::new() }; SIGNALS];
/// Whether there is a limit of files' sizes.
static SIZES_LIMITED: AtomicBool = AtomicBool::new(false);
/// Who has the handlers.
static MODE: AtomicU8 = AtomicU8::new(PROGRAMS);
/// The program: sections block signals.
const PROGRAMS: u8 = 0;
/// We do.
const OURS: u8 = 1;
/// The program, whose handlers never come back to a hook.
const APART: u8 = 2;
/// What the kernel is given in the place of [`deliver`], if it is another.
static OTHER: AtomicUsize = AtomicUsize::new(0);
/// Held while an action is exchanged: table and kernel change together.
static LOCK: AtomicU32 = AtomicU32::new(0);

// Byte for byte what libc gives the kernel, and without unwind tables: unwinders know it by its
// bytes.
global_asm!(
    ".hidden holdfast_signal_return",
    ".globl holdfast_signal_return",
    ".type holdfast_signal_return,@function",
    "nop",
    "holdfast_signal_return:",
    ".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05",
    ".size holdfast_signal_return, . - holdfast_signal_return",
);

unsafe extern "C" {
    fn holdfast_signal_return();
}

/// Whether handlers wait for the end of a section by themselves, or may run in one. If not,
/// sections block signals.
#[inline]
pub fn wait_for_sections() -> bool {
    MODE.load(Ordering::Relaxed) != PROGRAMS
}

/// Whether faults come to us.
#[inline]
pub fn faults_come_to_us() -> bool {
    MODE.load(Ordering::Relaxed) == OURS
}

/// Whether the program's handlers keep to themselves.
#[inline]
pub fn are_apart() -> bool {
    MODE.load(Ordering::Relaxed) == APART
}

/// Whether a section needs no mask: handlers wait for its end, or may run in it. The signal of a
/// write beyond the limit of its file's size must always wait: the write is to be cancelled first.
#[inline]
pub fn leave_sections_alone() -> bool {
    match MODE.load(Ordering::Relaxed) {
        OURS => true,
        APART => !SIZES_LIMITED.load(Ordering::Relaxed),
        _ => false,
    }
}

/// Files may not grow without limit from now on, or may.
pub fn note_size_limit(is_limited: bool) {
    SIZES_LIMITED.store(is_limited, Ordering::Relaxed);
}

/// From now on the program has the handlers, and none of them comes back to a hook.
pub fn stand_apart() {
    give_back();
    MODE.store(APART, Ordering::SeqCst);
}

/// Puts [`deliver`] in front of all handlers. Only the constructor calls it, once `sigaction` is
/// patched.
pub fn take_over() {
    for signal in 1..SIGNALS as c_int {
        let Some(action) = exchange(signal, None) else { continue };
        // Some always, as a section may have one that is not the program's business.
        if is_handler(action.handler) || never_default(signal) && action.handler == libc::SIG_DFL {
            install(signal, &action);
        }
    }
    MODE.store(OURS, Ordering::SeqCst);
}

/// Gives the program's handlers to the kernel again. Signals are blocked in this thread; what
/// others put off is delivered by them.
pub fn give_back() {
    if OTHER.load(Ordering::Relaxed) != 0 {
        // The kernel would call the program's in a hook, on a thread pointer of ours.
        return;
    }
    if MODE.swap(PROGRAMS, Ordering::SeqCst) != OURS {
        return;
    }
    while LOCK.swap(1, Ordering::Acquire) != 0 {
        raw::sched_yield();
    }
    for signal in 1..SIGNALS as c_int {
        if exchange(signal, None).is_some_and(|action| action.handler == deliver_address())
            && let Some(wanted) = WANTED.get(signal as usize).map(Wanted::get)
        {
            let _ = exchange(signal, Some(&wanted));
        }
    }
    LOCK.store(0, Ordering::Release);
}

fn is_handler(handler: usize) -> bool {
    handler != libc::SIG_DFL && handler != libc::SIG_IGN
}

/// Whether it comes of what the thread does.
pub fn is_fault(signal: c_int) -> bool {
    matches!(signal, libc::SIGSEGV | libc::SIGBUS)
}

/// Signals that come of what a section does, and whose default would end the program in it. A write
/// beyond the limit of its file's size must be cancelled first, or the keeper would complete what
/// the kernel has refused.
fn never_default(signal: c_int) -> bool {
    is_fault(signal) || signal == libc::SIGXFSZ
}

/// Signals of faults, as bits of a mask.
pub const FAULTS: u64 = 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);
/// What is blocked until the end of a section in which a signal was put off: all that can be, but
/// for faults. One that comes of a look at the program's memory while it is blocked ends the
/// process.
pub const PUT_OFF: u64 = !(FAULTS | 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));

fn deliver_address() -> usize {
    match OTHER.load(Ordering::Relaxed) {
        0 => deliver as *const () as usize,
        other => other,
    }
}

/// From now on the kernel is given another function in the place of [`deliver`]: threads of the
/// program know nothing of libc.
pub fn take_over_by(other: usize) {
    let before = deliver_address();
    OTHER.store(other, Ordering::SeqCst);
    for signal in 1..SIGNALS as c_int {
        if exchange(signal, None).is_some_and(|action| action.handler == before)
            && let Some(wanted) = wanted(signal)
        {
            install(signal, &wanted);
        }
    }
}

/// What the program wants to be done.
pub fn wanted(signal: c_int) -> Option<Action> {
    WANTED.get(usize::try_from(signal).ok()?).map(Wanted::get)
}

/// Leaves a signal to the kernel, as if there were no handler.
pub fn reset(signal: c_int) {
    let _ = exchange(signal, Some(&Action::default()));
}

/// `rt_sigaction`; `None` when the kernel refuses.
fn exchange(signal: c_int, new: Option<&Action>) -> Option<Action> {
    if let Some(action) = new
        && patch::is_musl()
    {
        return exchange_through_libc(signal, action);
    }
    let mut old = Action::default();
    let new = new.map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: both are null or of the kernel's shape; a handler that it gets is `deliver` or the
    // program's own.
    let result = unsafe { call!(libc::SYS_rt_sigaction, signal, new, &raw mut old, MASK_BYTES) };
    (result == 0).then_some(old)
}

/// musl must know of handlers: it lets no semaphore be interrupted before there is one, and takes
/// them out of the children that `posix_spawn` makes.
fn exchange_through_libc(signal: c_int, new: &Action) -> Option<Action> {
    let address = patch::MUSL_SIGACTION.address();
    if address == 0 {
        return None;
    }
    // SAFETY: all fields are plain integers or nullable.
    let (mut action, mut old): (libc::sigaction, libc::sigaction) = unsafe { core::mem::zeroed() };
    action.sa_sigaction = new.handler;
    action.sa_flags = new.flags as c_int;
    // SAFETY: the first word of libc's set is the kernel's whole set; musl's function of this name
    // has this shape.
    let result = unsafe {
        (&raw mut action.sa_mask).cast::<u64>().write(new.mask);
        let original: unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int =
            core::mem::transmute(address);
        original(signal, &raw const action, &raw mut old)
    };
    (result == 0).then(|| Action {
        handler: old.sa_sigaction,
        flags: u64::from(old.sa_flags as u32),
        restorer: holdfast_signal_return as *const () as usize,
        // SAFETY: as above.
        mask: unsafe { (&raw const old.sa_mask).cast::<u64>().read() },
    })
}

/// Gives the kernel [`deliver`] for what the program wants.
fn install(signal: c_int, action: &Action) -> Option<Action> {
    WANTED.get(signal as usize)?.set(action);
    let flags = action.flags & !SA_RESETHAND | libc::SA_SIGINFO as u64 | SA_RESTORER;
    let restorer = holdfast_signal_return as *const () as usize;
    exchange(signal, Some(&Action { handler: deliver_address(), flags, restorer, mask: action.mask }))
}

/// `rt_sigaction` as the program sees it.
///
/// # Errors
/// -errno, as the kernel's.
pub fn change(signal: c_int, new: Option<&Action>) -> Result<Action, isize> {
    let invalid = Err(-(libc::EINVAL as isize));
    let Some(wanted) = WANTED.get(usize::try_from(signal).unwrap_or(SIGNALS)) else { return invalid };
    // A child in our memory has actions of its own, but shares the table.
    if own_process::runs_in_parents_memory() {
        return exchange(signal, new).map(|old| as_wanted(old, wanted.get())).map_or(invalid, Ok);
    }
    let mask = raw::block_signals();
    while LOCK.swap(1, Ordering::Acquire) != 0 {
        raw::sched_yield();
    }
    let seen = wanted.get();
    let old = match new {
        Some(action)
            if faults_come_to_us()
                && (is_handler(action.handler)
                    || never_default(signal) && action.handler == libc::SIG_DFL) =>
        {
            let old = install(signal, action);
            if old.is_none() {
                wanted.set(&seen);
            }
            old
        }
        _ => exchange(signal, new),
    };
    LOCK.store(0, Ordering::Release);
    raw::restore_signals(mask);
    old.map(|old| as_wanted(old, seen)).map_or(invalid, Ok)
}

fn as_wanted(old: Action, wanted: Action) -> Action {
    if old.handler == deliver_address() { wanted } else { old }
}

/// What the kernel calls in the place of the program's handler.
unsafe extern "C-unwind" fn deliver(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let context = context.cast::<ucontext_t>();
    // SAFETY: the kernel passes a frame of its own making, which is ours until we return.
    let from_kernel = unsafe { (*info).si_code } > 0;
    if from_kernel && is_fault(signal) {
        // SAFETY: as above.
        let registers = unsafe { &mut (*context).uc_mcontext.gregs };
        if let Some(register) = registers.get_mut(libc::REG_RIP as usize)
            && let Some(instead) = probes::instead_of(*register as usize)
        {
            *register = instead as i64;
            return;
        }
    }
    let is_synchronous =
        from_kernel && (is_fault(signal) || matches!(signal, libc::SIGILL | libc::SIGFPE | libc::SIGTRAP));
    let inside = tls::with(|thread| thread.inside.get() != 0) && !on(Canary::SignalsAtOnce);
    if !is_synchronous && inside {
        // SAFETY: as above.
        unsafe { put_off(signal, info, context) };
        return;
    }
    let Some(wanted) = WANTED.get(signal as usize).map(Wanted::get) else { return };
    match wanted.handler {
        libc::SIG_DFL => {
            // The program has no handler for it: it happens again, without us.
            let _ = exchange(signal, Some(&Action::default()));
            if !from_kernel {
                // SAFETY: as above.
                unsafe { send_again(signal, info) };
            }
        }
        libc::SIG_IGN => {}
        // SAFETY: as above.
        _ => unsafe { run(&wanted, signal, info, context) },
    }
}

/// Calls the program's handler.
///
/// # Safety
/// `wanted` is what the program wants for `signal`; `info` and `context` are valid for writes.
unsafe fn run(wanted: &Action, signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    if wanted.flags & SA_RESETHAND != 0 {
        let _ = exchange(signal, Some(&Action::default()));
    }
    // SAFETY: the program's own handler; one that takes only the number ignores the rest. It may
    // end its thread, and so unwind through this call, whose type says that it does not: for one
    // that does, the compiler adds code to our frames that ends the process
    // (`cancels::SetCancelType`).
    unsafe {
        let handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
            core::mem::transmute(wanted.handler);
        handler(signal, info, context.cast());
    }
}

/// Leaves a signal pending until the section's end.
///
/// # Safety
/// `info` and `context` are of the kernel's frame.
unsafe fn put_off(signal: c_int, info: *mut siginfo_t, context: *mut ucontext_t) {
    raw::block_signals();
    tls::with(|thread| {
        // SAFETY: the kernel's own words; it takes 8 bytes of mask and leaves the rest of libc's
        // type alone.
        unsafe {
            let place = thread.queued.get(thread.queued_count.get() as usize);
            match place {
                Some(place) if signal >= FIRST_QUEUED_SIGNAL => {
                    place.set(info.cast::<tls::Info>().read_unaligned());
                    thread.queued_count.set(thread.queued_count.get() + 1);
                }
                _ => send_again(signal, info),
            }
            let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
            // Of several frames on top of each other the lowest comes last: its mask is the one
            // from before. A fault's signal that somebody sends may come after one was put off.
            if thread.put_off.get() == 0 || *mask | FAULTS != PUT_OFF | FAULTS {
                thread.mask_before.set(*mask);
            }
            // One that is sent would come again and again.
            let sent = if is_fault(signal) { 1 << (signal - 1) } else { 0 };
            *mask = if on(Canary::FaultsBlocked) { u64::MAX } else { PUT_OFF | sent };
        }
        thread.put_off.set(1);
    });
}

/// At a section's end: what was put off is delivered.
#[cold]
pub fn deliver_put_off(thread: &tls::Thread) {
    let mask = thread.mask_before.get();
    thread.put_off.set(0);
    let count = thread.queued_count.replace(0);
    // Handlers may enter sections of their own and put signals off again: what waits is taken out
    // first.
    let queued: [tls::Info; tls::QUEUED_MAX] =
        core::array::from_fn(|at| thread.queued.get(at).map_or(tls::Info([0; 16]), core::cell::Cell::get));
    hand_over(queued.into_iter().take(count as usize), mask);
}

/// Calls the handlers of these signals, with all others blocked, and goes back to a mask.
pub fn hand_over(queued: impl Iterator<Item = tls::Info>, mut mask: u64) {
    for mut info in queued {
        let info = (&raw mut info).cast::<siginfo_t>();
        // SAFETY: what the kernel said about a signal.
        let signal = unsafe { (*info).si_signo };
        let Some(wanted) = WANTED.get(signal as usize).map(Wanted::get) else { continue };
        let itself = if wanted.flags & libc::SA_NODEFER as u64 == 0 { 1 << (signal - 1) } else { 0 };
        let mut context = core::mem::MaybeUninit::<ucontext_t>::zeroed();
        // SAFETY: the context is plain memory, zeroed; the mask is its first word.
        unsafe {
            let context = context.as_mut_ptr();
            let seen = (&raw mut (*context).uc_sigmask).cast::<u64>();
            *seen = mask;
            here(&mut (*context).uc_mcontext.gregs);
            raw::restore_signals(mask | wanted.mask | itself);
            if is_handler(wanted.handler) {
                on_its_stack(&wanted, || run(&wanted, signal, info, context));
            }
            mask = *seen;
        }
        raw::block_signals();
    }
    raw::restore_signals(mask);
}

/// Does what calls a handler, on the stack on which the kernel would have called it.
fn on_its_stack(wanted: &Action, mut work: impl FnMut()) {
    // SAFETY: null, and a structure of the kernel's shape.
    let other = unsafe {
        let mut other: libc::stack_t = core::mem::zeroed();
        let told = call!(libc::SYS_sigaltstack, 0, &raw mut other);
        (told == 0 && wanted.flags & libc::SA_ONSTACK as u64 != 0).then_some(other)
    };
    // One that we are on is marked so, and so is one that there is none of.
    let other = other.filter(|other| other.ss_flags == 0 && !on(Canary::HandlersAnywhere));
    let Some(other) = other else { return work() };
    let top = other.ss_sp.addr().wrapping_add(other.ss_size) & !15;
    let (function, argument) = trampoline(&mut work);
    // SAFETY: nobody is on the program's other stack, or the kernel would have said so, and from
    // here on it counts as used: it is told by the address. What is called keeps the registers that
    // C functions keep.
    unsafe {
        core::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top,
            function = in(reg) function,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// A function of C's, and what it takes, that do `work`.
fn trampoline<W: FnMut()>(work: &mut W) -> (unsafe extern "C" fn(*mut c_void), *mut c_void) {
    unsafe extern "C" fn call<W: FnMut()>(work: *mut c_void) {
        // SAFETY: what is passed with this function.
        unsafe { (*work.cast::<W>())() }
    }
    (call::<W>, core::ptr::from_mut(work).cast())
}

/// Where we are, for handlers that look at who they interrupted.
fn here(registers: &mut [libc::greg_t]) {
    let (rip, rsp, rbp): (i64, i64, i64);
    // SAFETY: only reads registers.
    unsafe {
        core::arch::asm!("lea {0}, [rip]", "mov {1}, rsp", "mov {2}, rbp",
            out(reg) rip, out(reg) rsp, out(reg) rbp, options(nomem, nostack, preserves_flags));
    }
    for (register, value) in [(libc::REG_RIP, rip), (libc::REG_RSP, rsp), (libc::REG_RBP, rbp)] {
        if let Some(place) = registers.get_mut(register as usize) {
            *place = value;
        }
    }
}

/// Sends a signal to this thread once more.
///
/// # Safety
/// `info` is what the kernel said about `signal`.
pub unsafe fn send_again(signal: c_int, info: *mut siginfo_t) {
    let pid = raw::getpid();
    // SAFETY: touches no memory but `info`.
    unsafe {
        let tid = call!(libc::SYS_gettid);
        if call!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info) < 0 {
            // No room left in the queue: better without the details than not at all.
            call!(libc::SYS_tgkill, pid, tid, signal);
        }
    }
}

/// `sigaction`.
///
/// # Safety
/// `new` and `old` are null or of libc's shape.
pub unsafe extern "C-unwind" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if LIBC_SIGNALS.contains(&signal) || signal == MUSL_SIGNAL && patch::is_musl() {
        return raw::give_int(-(libc::EINVAL as isize));
    }
    // SAFETY: the program's own structures.
    let wanted = unsafe { new.as_ref() }.map(|new| Action {
        handler: new.sa_sigaction,
        flags: u64::from(new.sa_flags as u32) | SA_RESTORER,
        restorer: holdfast_signal_return as *const () as usize,
        // SAFETY: the first word of libc's set is the kernel's whole set.
        mask: unsafe { (&raw const new.sa_mask).cast::<u64>().read() },
    });
    match change(signal, wanted.as_ref()) {
        Ok(before) => {
            if !old.is_null() {
                // SAFETY: as above; all fields are plain integers or nullable.
                unsafe {
                    let mut shown: libc::sigaction = core::mem::zeroed();
                    shown.sa_sigaction = before.handler;
                    shown.sa_flags = before.flags as c_int;
                    (&raw mut shown.sa_mask).cast::<u64>().write(before.mask);
                    (&raw mut shown.sa_restorer).cast::<usize>().write(before.restorer);
                    *old = shown;
                }
            }
            0
        }
        Err(errno) => raw::give_int(errno),
    }
}

/// The system call, for those who make it through `syscall`.
///
/// # Safety
/// `new` and `old` are null or of the kernel's shape.
pub unsafe fn rt_sigaction(signal: c_int, new: *const Action, old: *mut Action, bytes: usize) -> c_int {
    if bytes != MASK_BYTES {
        return raw::give_int(-(libc::EINVAL as isize));
    }
    // SAFETY: the caller's promise.
    match change(signal, unsafe { new.as_ref() }) {
        Ok(before) => {
            if !old.is_null() {
                // SAFETY: the caller's promise.
                unsafe { *old = before };
            }
            0
        }
        Err(errno) => raw::give_int(errno),
    }
}
