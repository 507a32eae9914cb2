//! Where the program stands when its thread is in instructions of ours and in no hook: on the way
//! to one, on the way back, or in a stub. A handler that looks there, or leads its thread elsewhere
//! (cancellation does both), must find the program's own registers.
#![allow(unsafe_code)] // Reads what the instructions have put on the stack.

use core::ffi::c_int;

use holdfast_enter::CHECK_BYTES;

use super::calls::{AGAIN, DIRECT};
use super::stubs;

unsafe extern "C" {
    fn holdfast_plain_call();
    fn holdfast_plain_leaves();
    fn holdfast_plain_is_back();
    fn holdfast_plain_may_free();
    fn holdfast_plain_drops();
    fn holdfast_plain_returns();
    fn holdfast_plain_resumed();
}

/// Bytes below the program's stack that are left alone.
const RED_ZONE: u64 = 128;
const WORD: u64 = 8;

/// A thread's registers in the kernel's frame.
pub struct Registers<'a>(pub &'a mut [i64; 23]);

impl Registers<'_> {
    fn get(&self, register: c_int) -> u64 {
        self.0.get(register as usize).map_or(0, |value| *value as u64)
    }

    fn set(&mut self, register: c_int, value: u64) {
        if let Some(place) = self.0.get_mut(register as usize) {
            *place = value as i64;
        }
    }

    /// # Safety
    /// So many words lie on the thread's stack.
    unsafe fn word(&self, at: u64) -> u64 {
        let address = self.get(libc::REG_RSP) + at * WORD;
        // SAFETY: the caller's promise.
        unsafe { core::ptr::with_exposed_provenance::<u64>(address as usize).read() }
    }

    fn drop_words(&mut self, words: u64) {
        self.set(libc::REG_RSP, self.get(libc::REG_RSP) + words * WORD);
    }
}

fn address(place: unsafe extern "C" fn()) -> u64 {
    (place as *const ()).addr() as u64
}

/// Moves a thread to where the program stands, if it is in instructions of ours.
///
/// # Safety
/// The registers are those of a thread that was interrupted, and is in no hook.
pub unsafe fn settle(registers: &mut Registers<'_>) {
    let instruction = registers.get(libc::REG_RIP);
    let call = address(holdfast_plain_call);
    // SAFETY: what lies on the stack at each of these instructions (`ways`).
    unsafe {
        if (call..=address(holdfast_plain_leaves)).contains(&instruction) {
            // Two pushes, of one byte each.
            let pushed = (instruction - call).min(2);
            if pushed == 2 {
                registers.set(libc::REG_RBX, registers.word(0));
            }
            if pushed > 0 {
                registers.set(libc::REG_RAX, registers.word(pushed - 1));
            }
            registers.drop_words(pushed);
            back_to_stub(registers, AGAIN);
        } else if (address(holdfast_plain_is_back)..=address(holdfast_plain_returns)).contains(&instruction) {
            let mut how = registers.get(libc::REG_RCX);
            if instruction <= address(holdfast_plain_may_free) {
                registers.set(libc::REG_RBX, registers.word(0));
                registers.drop_words(2);
            } else if instruction <= address(holdfast_plain_drops) {
                registers.drop_words(1);
            } else if instruction == address(holdfast_plain_returns) {
                how ^= 1;
            }

            back_to_stub(registers, how as usize);
        } else if instruction == address(holdfast_plain_resumed) {
            let saved = [libc::REG_R10, libc::REG_RDX, libc::REG_RSI, libc::REG_RDI, libc::REG_RAX];
            for (at, register) in saved.into_iter().enumerate() {
                registers.set(register, registers.word(1 + at as u64));
            }
            let how = registers.word(6);
            registers.drop_words(7);
            back_to_stub(registers, how as usize);
        } else {
            settle_in_stub(registers, instruction);
        }
    }
}

/// The stub's own return address is on the stack.
unsafe fn back_to_stub(registers: &mut Registers<'_>, how: usize) {
    // SAFETY: the caller's promise.
    let back = unsafe { registers.word(0) };
    let Some((call, _)) = stubs::place_of(back) else { return };
    registers.set(libc::REG_RSP, registers.get(libc::REG_RSP) + WORD + RED_ZONE);
    let instruction = match how {
        AGAIN => call - CHECK_BYTES,
        DIRECT => call,
        _ => call + 2,
    };
    registers.set(libc::REG_RIP, instruction);
}

/// The thread is in a stub, or in the program.
fn settle_in_stub(registers: &mut Registers<'_>, instruction: u64) {
    // Where the instructions of a stub lie before its call (`enter/src/stub.rs`).
    const TO_CALL: u64 = CHECK_BYTES - 22;
    const CALLED: u64 = CHECK_BYTES - 28;
    let Some((call, _)) = stubs::place_of(instruction) else { return };
    match call.wrapping_sub(instruction) {
        TO_CALL => {
            registers.set(libc::REG_RSP, registers.get(libc::REG_RSP) + RED_ZONE);
            registers.set(libc::REG_RIP, call - CHECK_BYTES);
        }
        distance @ 1..=CALLED => {
            if distance == CALLED {
                registers.set(libc::REG_RSP, registers.get(libc::REG_RSP) + RED_ZONE);
            }
            let is_done = registers.get(libc::REG_RCX) != 0;
            registers.set(libc::REG_RIP, if is_done { call + 2 } else { call });
        }
        _ => {}
    }
}

/// The program's instruction in whose place a stub's stands: its call, or what follows it.
pub fn original_of(instruction: u64) -> Option<u64> {
    let (call, original) = stubs::place_of(instruction)?;
    if instruction == call + 2 {
        return Some(original + 2);
    }
    (call.checked_sub(instruction)? <= CHECK_BYTES).then_some(original)
}
