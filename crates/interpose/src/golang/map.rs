//! Mapping a Go program as the kernel would, with its calls led to the hooks. Nothing of the
//! program runs yet, and no other thread is there.
#![allow(unsafe_code)] // Maps memory at addresses of the program's and writes to it.

use core::ffi::CStr;

use holdfast_enter::{JUMP_BYTES, Program, Refusal, judge, segments};

use super::image::{Whole, map_segment};
use super::ways::{self, Way};
use super::{name, thread};
use crate::raw::{self, call};

const PAGE: u64 = 4096;

/// Maps the program of this file, which is at `path`.
///
/// # Errors
/// Why it cannot be entered. It can still be executed.
pub fn map(file: &Whole, path: &CStr) -> Result<Program, Refusal> {
    let program = judge(file.bytes())?;
    for segment in segments(file.bytes()) {
        map_segment(&segment, 0, file.fd).ok_or(Refusal::Forbidden)?;
    }
    lead(program.call, ways::CALL).ok_or(Refusal::Forbidden)?;
    if let Some(vfork) = program.vfork {
        // The byte after the jump's place holds how far the program goes when the call succeeds.
        let next = vfork + JUMP_BYTES as u64;
        // SAFETY: mapped above: text of the program.
        let distance = unsafe { *core::ptr::with_exposed_provenance::<i8>(next as usize - 1) };
        thread::set_vfork_ways(next as usize, next.wrapping_add_signed(distance.into()) as usize);
        lead(vfork, ways::VFORK).ok_or(Refusal::Forbidden)?;
    }
    name::take(file.fd, path);
    Ok(program)
}

/// Replaces the instructions at `place` by a jump.
fn lead(place: u64, to: Way) -> Option<()> {
    let page = place - place % PAGE;
    let bytes = place + JUMP_BYTES as u64 - page;
    let mut jump = [0u8; JUMP_BYTES];
    // To the address that follows.
    jump[..6].copy_from_slice(&[0xff, 0x25, 0, 0, 0, 0]);
    jump[6..].copy_from_slice(&(to as *const () as u64).to_le_bytes());
    // SAFETY: the program's text, which nobody runs yet.
    unsafe {
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        raw::check(call!(libc::SYS_mprotect, page, bytes, writable)).ok()?;
        let at = core::ptr::with_exposed_provenance_mut::<u8>(place as usize);
        core::ptr::copy_nonoverlapping(jump.as_ptr(), at, JUMP_BYTES);
        raw::check(call!(libc::SYS_mprotect, page, bytes, libc::PROT_READ | libc::PROT_EXEC)).ok()?;
    }
    Some(())
}
