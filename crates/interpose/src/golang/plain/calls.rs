//! Which calls of a static program go to the hooks, and how they are answered.
#![allow(unsafe_code)] // The program's own calls.

use core::ffi::{c_int, c_long};
use core::sync::atomic::Ordering;

use holdfast_cache::Unseen;
use holdfast_enter::is_led;

use super::super::calls::own_link;
use super::super::hooks::{Hooks, hooks};
use super::super::thread::Area;
use crate::{memory, own_process, raw, signals, spawning, tls, waits};

/// The hook has made the call.
pub const DONE: usize = 0;
/// The call is to be made where it stands.
pub const DIRECT: usize = 1;
/// A signal came: once its handler has run, the call is to come here again.
pub const AGAIN: usize = 2;

const ARCH_SET_GS: usize = 0x1001;

/// An answer to the program.
#[repr(C)]
pub struct Answer {
    /// What the kernel would say.
    result: isize,
    how: usize,
}

const DIRECTLY: Answer = Answer { result: 0, how: DIRECT };

impl Answer {
    fn done(result: isize) -> Self {
        Self { result, how: DONE }
    }
}

/// What the program calls with, as the way has put it on the area's stack.
#[repr(C)]
pub struct Registers {
    r9: usize,
    r8: usize,
    r10: usize,
    rdx: usize,
    rsi: usize,
    rdi: usize,
    rax: usize,
}

/// Makes the call of an area's thread.
pub unsafe extern "C" fn enter(area: &Area, registers: &Registers) -> Answer {
    let Registers { r9, r8, r10, rdx, rsi, rdi, rax } = *registers;
    let number = rax as c_long;
    let Some(hooks) = hooks().filter(|_| is_led(number)) else { return DIRECTLY };
    // SAFETY: the program's own call.
    let answer = unsafe { answer(area, hooks, number, [rdi, rsi, rdx, r10, r8, r9]) };
    if area.waits.again.load(Ordering::Relaxed) != 0 {
        area.waits.again.store(0, Ordering::Relaxed);
        if answer.how == DONE && answer.result == -(libc::EINTR as isize) {
            return Answer { result: 0, how: AGAIN };
        }
    }
    answer
}

/// # Safety
/// The program's own call.
unsafe fn answer(area: &Area, hooks: &Hooks, number: c_long, mut arguments: [usize; 6]) -> Answer {
    // A child that ran in this memory is gone, or its parent would not run.
    if tls::with(|thread| thread.spawning.get() != 0) && !own_process::runs_in_parents_memory() {
        spawning::spawning_ends();
    }
    if own_process::is_new_child() {
        area.take_number();
    }
    match number {
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => {
            // SAFETY: the caller's promise.
            return unsafe { make_child(area, hooks, number, arguments) };
        }
        libc::SYS_rt_sigaction => {
            // SAFETY: the caller's promise.
            return unsafe { set_handler(arguments) };
        }
        libc::SYS_sigaltstack => {
            // SAFETY: the caller's promise.
            unsafe { note_other_stack(area, arguments[0]) };
            return DIRECTLY;
        }
        libc::SYS_arch_prctl => {
            if arguments[0] == ARCH_SET_GS {
                (hooks.leave)(Unseen::StaticCall);
                return Answer::done(-(libc::EPERM as isize));
            }
            return DIRECTLY;
        }
        libc::SYS_write | libc::SYS_writev | libc::SYS_ioctl if (hooks.is_kernels)(arguments[0] as c_int) => {
            return DIRECTLY;
        }
        libc::SYS_mmap | libc::SYS_mprotect | libc::SYS_pkey_mprotect
            if arguments[2] as c_int & libc::PROT_EXEC != 0 =>
        {
            // Nobody has looked at what calls that code makes.
            (hooks.leave)(Unseen::StaticLoads);
        }
        libc::SYS_readlink | libc::SYS_readlinkat => {
            let at = usize::from(number == libc::SYS_readlinkat);
            let Some(path) = own_link(arguments[at]) else { return DIRECTLY };
            let bytes = path.to_bytes();
            let count = bytes.len().min(arguments[at + 2]);
            if !memory::is_range_writable(arguments[at + 1], count) {
                return DIRECTLY;
            }
            // SAFETY: the program's room for the answer.
            unsafe {
                let room = core::ptr::with_exposed_provenance_mut(arguments[at + 1]);
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), room, count);
            }
            return Answer::done(count as isize);
        }
        libc::SYS_execve => {
            if let Some(path) = own_link(arguments[0]) {
                arguments[0] = path.as_ptr().addr();
            }
        }
        _ => {}
    }
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the caller's promise.
    let result = unsafe { (hooks.syscall)(number, a, b, c, d, e, f) };
    Answer::done(if result == -1 { -(raw::errno() as isize) } else { result as isize })
}

/// A call that makes a thread or a process.
///
/// # Safety
/// The program's own call.
unsafe fn make_child(area: &Area, hooks: &Hooks, number: c_long, arguments: [usize; 6]) -> Answer {
    let (flags, has_stack) = match number {
        libc::SYS_fork => (0, false),
        libc::SYS_vfork => (libc::CLONE_VM | libc::CLONE_VFORK, false),
        libc::SYS_clone => (arguments[0] as c_int, arguments[1] != 0),
        _ => {
            // Flags are its first word, the stack its sixth.
            const WORDS: usize = 6;
            if !memory::is_range_readable(arguments[0], WORDS * size_of::<u64>()) {
                return DIRECTLY;
            }
            let words: *const u64 = core::ptr::with_exposed_provenance(arguments[0]);
            // SAFETY: readable, as probed.
            unsafe { (words.read_unaligned() as c_int, words.add(WORDS - 1).read_unaligned() != 0) }
        }
    };
    let has = |flag: c_int| flags & flag != 0;
    if has(libc::CLONE_THREAD) {
        return DIRECTLY;
    }
    if has(libc::CLONE_VM) {
        if !has(libc::CLONE_VFORK) || has(libc::CLONE_SETTLS) {
            // Two processes at once on one area, or one of which the child cannot be told.
            (hooks.leave)(Unseen::StaticMemory);
            super::stubs::release();
            return DIRECTLY;
        }
        if has(libc::CLONE_FILES) {
            (hooks.forks)(true);
        }
        spawning::spawning_begins();
        return DIRECTLY;
    }
    if has(libc::CLONE_FILES) || has_stack {
        // Its child begins on a stack of its own, and tells the keeper of itself later.
        (hooks.forks)(has(libc::CLONE_FILES));
        return DIRECTLY;
    }
    // SAFETY: the caller's promise: the child goes on from here, with a copy of this memory.
    let result = unsafe { (hooks.fork)(number, arguments) };
    if result == 0 {
        area.take_number();
    }
    Answer::done(result)
}

/// Notes where handlers are to run, unless this is one that runs there: the kernel refuses it.
///
/// # Safety
/// The program's own call.
unsafe fn note_other_stack(area: &Area, new: usize) {
    if new == 0
        || area.waits.put_off.load(Ordering::Relaxed) == waits::BLOCKED
        || !memory::is_range_readable(new, size_of::<libc::stack_t>())
    {
        return;
    }
    // SAFETY: readable, as probed.
    let stack = unsafe { core::ptr::with_exposed_provenance::<libc::stack_t>(new).read_unaligned() };
    let bytes = if stack.ss_flags & libc::SS_DISABLE != 0 { 0 } else { stack.ss_size };
    area.waits.set_other_stack(stack.ss_sp.addr(), bytes);
}

/// `rt_sigaction`.
///
/// # Safety
/// The program's own call.
unsafe fn set_handler([signal, new, old, bytes, ..]: [usize; 6]) -> Answer {
    let room = size_of::<signals::Action>();
    if new != 0 && !memory::is_range_readable(new, room) || old != 0 && !memory::is_range_writable(old, room)
    {
        return Answer::done(-(libc::EFAULT as isize));
    }
    let [new, old] = [new, old].map(core::ptr::with_exposed_provenance_mut::<signals::Action>);
    // SAFETY: null, or of the kernel's shape and accessible, as probed.
    let result = unsafe { signals::rt_sigaction(signal as c_int, new, old, bytes) };
    Answer::done(if result == -1 { -(raw::errno() as isize) } else { 0 })
}
