//! The instructions that look at memory of the program which may not be there: where one of them
//! faults, the handler of faults goes on at the place that answers no ([`crate::memory`]).
#![allow(unsafe_code)] // Instructions.

use core::arch::global_asm;
use core::ffi::c_int;

// rdi: first byte, rsi: last byte.
global_asm!(
    ".hidden holdfast_probe",
    ".globl holdfast_probe",
    ".hidden holdfast_probe_failed",
    ".globl holdfast_probe_failed",
    ".type holdfast_probe,@function",
    "holdfast_probe:",
    "2:",
    "mov al, byte ptr [rdi]",
    "add rdi, 4096",
    "cmp rdi, rsi",
    "jb 2b",
    "mov al, byte ptr [rsi]",
    "mov eax, 1",
    "ret",
    "holdfast_probe_failed:",
    "xor eax, eax",
    "ret",
    ".size holdfast_probe, . - holdfast_probe",
    ".hidden holdfast_probe_writing",
    ".globl holdfast_probe_writing",
    ".hidden holdfast_probe_writing_failed",
    ".globl holdfast_probe_writing_failed",
    ".type holdfast_probe_writing,@function",
    // What stands there stays, also when another thread changes it at the same time.
    "holdfast_probe_writing:",
    "2:",
    "lock or byte ptr [rdi], 0",
    "add rdi, 4096",
    "cmp rdi, rsi",
    "jb 2b",
    "lock or byte ptr [rsi], 0",
    "mov eax, 1",
    "ret",
    "holdfast_probe_writing_failed:",
    "xor eax, eax",
    "ret",
    ".size holdfast_probe_writing, . - holdfast_probe_writing",
    // rdi: to, rsi: from, rdx: bytes.
    ".hidden holdfast_copy",
    ".globl holdfast_copy",
    ".hidden holdfast_copy_failed",
    ".globl holdfast_copy_failed",
    ".type holdfast_copy,@function",
    "holdfast_copy:",
    "mov rcx, rdx",
    "rep movsb",
    "mov eax, 1",
    "ret",
    "holdfast_copy_failed:",
    "xor eax, eax",
    "ret",
    ".size holdfast_copy, . - holdfast_copy",
);

unsafe extern "C" {
    pub fn holdfast_probe(first: usize, last: usize) -> c_int;
    fn holdfast_probe_failed();
    pub fn holdfast_probe_writing(first: usize, last: usize) -> c_int;
    fn holdfast_probe_writing_failed();
    pub fn holdfast_copy(to: *mut u8, from: usize, bytes: usize) -> c_int;
    fn holdfast_copy_failed();
}

/// Where to go on after a fault at this instruction, if it is one of the probe's.
pub fn instead_of(instruction: usize) -> Option<usize> {
    let probes = [
        (holdfast_probe as *const () as usize, holdfast_probe_failed as *const () as usize),
        (holdfast_probe_writing as *const () as usize, holdfast_probe_writing_failed as *const () as usize),
        (holdfast_copy as *const () as usize, holdfast_copy_failed as *const () as usize),
    ];
    probes.into_iter().find_map(|(probe, failed)| (probe..failed).contains(&instruction).then_some(failed))
}
