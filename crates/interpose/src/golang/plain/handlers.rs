//! The program's signal handlers. The kernel calls this in the place of each: on a thread that is
//! in a hook the signal is put off until the hook's end; elsewhere the program's handler is called,
//! on the stack and with the thread pointer that the kernel left.
//!
//! A handler that looks at where its thread was finds the program's own instruction, where the
//! thread stood in a stub. Nothing here may use thread-local storage: the thread pointer may be the
//! program's.
#![allow(unsafe_code)] // The kernel's signal frames.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use libc::{siginfo_t, ucontext_t};

use super::super::thread::{Area, STACK_BYTES};
use super::places::{self, Registers};
use crate::{probes, raw, signals, tls, waits};

/// Where the kernel's frame has the registers.
const GREGS_AT: usize =
    core::mem::offset_of!(ucontext_t, uc_mcontext) + core::mem::offset_of!(libc::mcontext_t, gregs);

/// From now on all of the program's handlers come here.
pub fn take_signals() {
    waits::keep();
    signals::take_over_by((deliver as *const ()).addr());
}

/// What the kernel calls. It may change what C functions may, but for the arguments.
#[unsafe(naked)]
unsafe extern "C" fn deliver(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    naked_asm!(
        "rdgsbase rcx",
        "test rcx, rcx",
        "jz 2f",
        "rdfsbase rax",
        "cmp rax, qword ptr [rcx]",
        "je {inside}",
        // On the way to the hook or back.
        "mov rax, qword ptr [rcx + 24]",
        "sub rax, qword ptr [rdx + {stack_pointer}]",
        "cmp rax, {stack_bytes}",
        "jbe {inside}",
        "2:",
        "jmp {outside}",
        stack_pointer = const GREGS_AT + 8 * libc::REG_RSP as usize,
        stack_bytes = const STACK_BYTES,
        inside = sym inside,
        outside = sym outside,
    )
}

/// A signal comes while its thread is in a hook.
unsafe extern "C" fn inside(signal: c_int, info: *mut siginfo_t, context: *mut c_void, area: &Area) {
    let context = context.cast::<ucontext_t>();
    // SAFETY: the kernel passes a frame of its own making, which is ours until we return.
    let (from_kernel, instruction) =
        unsafe { ((*info).si_code > 0, &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize]) };
    if from_kernel && is_synchronous(signal) {
        match probes::instead_of(*instruction as usize).filter(|_| signals::is_fault(signal)) {
            Some(instead) => *instruction = instead as i64,
            // It happens again, without us.
            None => signals::reset(signal),
        }
        return;
    }
    raw::block_signals();
    // SAFETY: as above; the kernel takes 8 bytes of mask and leaves the rest of libc's type alone.
    unsafe {
        let is_kept = signal >= signals::FIRST_QUEUED_SIGNAL
            && area.waits.queue(info.cast::<tls::Info>().read_unaligned());
        if !is_kept {
            signals::send_again(signal, info);
        }
        let mask = (&raw mut (*context).uc_sigmask).cast::<u64>();
        // Of several frames on top of each other the lowest comes last: its mask is the one from
        // before.
        let is_first = area.waits.put_off.load(Ordering::Relaxed) == 0;
        if is_first || *mask | signals::FAULTS != signals::PUT_OFF | signals::FAULTS {
            area.waits.mask.store(*mask, Ordering::Relaxed);
        }
        let sent = if signals::is_fault(signal) { 1 << (signal - 1) } else { 0 };
        *mask = signals::PUT_OFF | sent;
    }
    area.waits.put_off.store(waits::PUT_OFF, Ordering::Relaxed);
    if let Some(instead) = waits::instead_of(*instruction as usize) {
        *instruction = instead as i64;
        area.waits.again.store(1, Ordering::Relaxed);
    }
}

/// The hook that a signal was put off in is over: those that had to keep their order are handed to
/// their handlers, on the stack that the thread has now, and all others may come.
pub unsafe extern "C" fn resume(area: &Area) {
    let (queued, count, mask) = area.waits.take();
    signals::hand_over(queued.into_iter().take(count), mask);
}

fn is_synchronous(signal: c_int) -> bool {
    signals::is_fault(signal) || matches!(signal, libc::SIGILL | libc::SIGFPE | libc::SIGTRAP)
}

/// A signal comes while the program's own code runs.
unsafe extern "C" fn outside(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(wanted) = signals::wanted(signal) else { return };
    // SAFETY: as in `inside`; the program's own handler, which takes what the kernel passes, or
    // less of it. It may leave by a jump: nothing here is to be done then.
    unsafe {
        match wanted.handler {
            libc::SIG_DFL => {
                // It happens again, without us.
                signals::reset(signal);
                if (*info).si_code <= 0 {
                    signals::send_again(signal, info);
                }
            }
            libc::SIG_IGN => {}
            handler => {
                if wanted.flags & signals::SA_RESETHAND != 0 {
                    signals::reset(signal);
                }
                let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
                places::settle(&mut Registers(registers));
                let place = &raw mut registers[libc::REG_RIP as usize];
                let before = *place;
                let shown = places::original_of(before as u64).map_or(before, |original| original as i64);
                *place = shown;
                let handler: unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    core::mem::transmute(handler);
                handler(signal, info, context);
                if *place == shown {
                    *place = before;
                }
            }
        }
    }
}
