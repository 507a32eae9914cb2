//! The instructions where Go's calls come in: they leave the goroutine's stack, which may have no
//! room, for the thread's area, and come back as `Syscall6` and `rawVforkSyscall` would.
//!
//! There is one way for threads that Go made, which get our thread pointer for as long as a hook
//! runs, and one for threads that libc made, which have it already. Nothing here may use a stack
//! for more than the few words that Go's functions may use without asking.
#![allow(unsafe_code)] // Instructions.

use core::arch::global_asm;

use super::calls;
use super::thread::{AREA_BYTES, BUSY, FREE, STACK_BYTES, VFORK_DONE, VFORK_FAILED, make, make_for_libc};
use crate::{spawning, tls};

/// Where Go's code leads.
pub type Way = unsafe extern "C" fn();

/// Where `Syscall6` leads.
pub const CALL: Way = holdfast_go_call;
/// Where `rawVforkSyscall` leads.
pub const VFORK: Way = holdfast_go_vfork;
/// The same, for threads that libc made.
pub const LIBC_CALL: Way = holdfast_go_libc_call;
/// As above.
pub const LIBC_VFORK: Way = holdfast_go_libc_vfork;

unsafe extern "C" {
    fn holdfast_go_call();
    fn holdfast_go_vfork();
    fn holdfast_go_libc_call();
    fn holdfast_go_libc_vfork();
}

// What differs: how a thread knows itself (`owner`, in r12), how it finds its area (`area`, in
// r11), how it keeps that (`keep`, may use rax), and what it does when it comes to the area
// (`come`, may use r10, and r12 behind the owner) and leaves it (`leave`, r11 is the area, may use
// r12).
//
// Go calls with the number in rax and arguments in rbx, rcx, rdi, rsi, r8, r9; it gets results in
// rax and rbx and the error in rcx, and keeps nothing but rsp, rbp, r14 and xmm15 = 0.
macro_rules! ways {
    (call $call:literal, claim $claim:literal, run $run:literal, vfork $vfork:literal,
     owner [$($owner:literal)*], area [$($area:literal)*], keep [$($keep:literal)*],
     come [$($come:literal)*], leave [$($leave:literal)*], enter $enter:path, make $make:path) => {
        global_asm!(
            concat!(".hidden ", $call),
            concat!(".globl ", $call),
            concat!(".type ", $call, ",@function"),
            concat!($call, ":"),
            "cmp rax, {numbers}",
            "jae 9f",
            "lea r11, [rip + {hooked}]",
            "cmp byte ptr [r11 + rax], 0",
            "je 9f",
            $($owner,)*
            $($area,)*
            "test r11, r11",
            "jz 5f",
            "3:",
            "cmp qword ptr [r11 + 8], r12",
            "jne 5f",
            "mov r13, rax",
            "xor eax, eax",
            "mov r10d, {busy}",
            "lock cmpxchg dword ptr [r11 + 16], r10d",
            "mov r10d, eax",
            "mov rax, r13",
            "jne 4f",
            "cmp qword ptr [r11 + 8], r12",
            "jne 6f",
            "mov qword ptr [r11 + 32], rsp",
            "mov qword ptr [r11 + 40], rbp",
            "mov qword ptr [r11 + 48], r14",
            "mov qword ptr [r11 + 56], rax",
            "mov qword ptr [r11 + 64], rbx",
            "mov qword ptr [r11 + 72], rcx",
            "mov qword ptr [r11 + 80], rdi",
            "mov qword ptr [r11 + 88], rsi",
            "mov qword ptr [r11 + 96], r8",
            "mov qword ptr [r11 + 104], r9",
            "mov rsp, qword ptr [r11 + 24]",
            $($come,)*
            "xor ebp, ebp",
            "mov rdi, r11",
            "call {enter}",
            $($area,)*
            $($leave,)*
            "mov rsp, qword ptr [r11 + 32]",
            "mov rbp, qword ptr [r11 + 40]",
            "mov r14, qword ptr [r11 + 48]",
            "pxor xmm15, xmm15",
            "cld",
            "test rdx, rdx",
            "jnz 7f",
            "mov rdx, qword ptr [r11 + 80]",
            "mov dword ptr [r11 + 16], {free}",
            "2:",
            "cmp rax, -4095",
            "jae 8f",
            "mov rbx, rdx",
            "xor ecx, ecx",
            "ret",
            "8:",
            "neg rax",
            "mov rcx, rax",
            "mov rax, -1",
            "xor ebx, ebx",
            "ret",
            // It has an owner's call in it: a handler's own call. Or it gets another owner.
            "4:",
            "cmp r10d, {busy}",
            "je 9f",
            "jmp 5f",
            // It got another owner a moment before.
            "6:",
            "mov dword ptr [r11 + 16], {free}",
            "5:",
            concat!("call ", $claim),
            "test r11, r11",
            "jnz 3b",
            "mov rax, -12",
            "jmp 2b",
            // The call is Go's to make.
            "7:",
            "mov rax, qword ptr [r11 + 56]",
            "mov rbx, qword ptr [r11 + 64]",
            "mov rcx, qword ptr [r11 + 72]",
            "mov rdi, qword ptr [r11 + 80]",
            "mov rsi, qword ptr [r11 + 88]",
            "mov r8, qword ptr [r11 + 96]",
            "mov r9, qword ptr [r11 + 104]",
            "mov dword ptr [r11 + 16], {free}",
            "9:",
            "mov r10, rsi",
            "mov rdx, rdi",
            "mov rsi, rcx",
            "mov rdi, rbx",
            "syscall",
            "jmp 2b",
            concat!(".size ", $call, ", . - ", $call),
            // Gives this thread, whose owner's word is in r12, an area, in r11; 0 where there is no
            // memory. Keeps everything else but rcx, which the call of it has free, and xmm15.
            concat!(".type ", $claim, ",@function"),
            concat!($claim, ":"),
            "push rax",
            "push rbx",
            "push rcx",
            "push rdi",
            "push rsi",
            "push r8",
            "push r9",
            "push rdx",
            "push r10",
            "push r12",
            "mov eax, {mmap}",
            "xor edi, edi",
            "mov esi, {area_bytes}",
            "mov edx, 3",
            "mov r10d, 0x22",
            "mov r8, -1",
            "xor r9d, r9d",
            "syscall",
            "xor r11d, r11d",
            "cmp rax, -4095",
            "jae 2f",
            "mov rdi, rax",
            "mov rsi, r12",
            "mov rbx, rsp",
            "lea rsp, [rdi + {stack_bytes}]",
            "call {make}",
            "mov rsp, rbx",
            "mov r12, rax",
            "test rdx, rdx",
            "jz 3f",
            "mov eax, {munmap}",
            "mov rdi, rdx",
            "mov esi, {area_bytes}",
            "syscall",
            "3:",
            "mov r11, r12",
            $($keep,)*
            "2:",
            "pop r12",
            "pop r10",
            "pop rdx",
            "pop r9",
            "pop r8",
            "pop rsi",
            "pop rdi",
            "pop rcx",
            "pop rbx",
            "pop rax",
            "ret",
            concat!(".size ", $claim, ", . - ", $claim),
            // Runs the function at r13 on the area at r11. Keeps rbx, rbp, r14.
            concat!(".type ", $run, ",@function"),
            concat!($run, ":"),
            "push rbp",
            "push rbx",
            "push r12",
            "mov rbx, rsp",
            "mov rsp, qword ptr [r11 + 24]",
            // Twice, as the stack's end is a multiple of 16.
            "push r11",
            "push r11",
            $($come,)*
            "call r13",
            "pop r11",
            $($leave,)*
            "mov rsp, rbx",
            "pop r12",
            "pop rbx",
            "pop rbp",
            "ret",
            concat!(".size ", $run, ", . - ", $run),
            // The number is in rax and the arguments are where the kernel takes them; the return
            // address lies on the stack, which the child uses, too.
            concat!(".hidden ", $vfork),
            concat!(".globl ", $vfork),
            concat!(".type ", $vfork, ",@function"),
            concat!($vfork, ":"),
            $($owner,)*
            $($area,)*
            "test r11, r11",
            "jz 3f",
            "cmp qword ptr [r11 + 8], r12",
            "je 4f",
            "3:",
            concat!("call ", $claim),
            "test r11, r11",
            "jz 5f",
            "4:",
            "push rax",
            "push rdi",
            "push rsi",
            "push rdx",
            "lea r13, [rip + {begins}]",
            concat!("call ", $run),
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "pop rax",
            "xor r10d, r10d",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "pop r12",
            "syscall",
            "push r12",
            "test rax, rax",
            "jz 6f",
            "mov r12, rax",
            $($area,)*
            // The child may have ended in a hook.
            "mov dword ptr [r11 + 16], {free}",
            "lea r13, [rip + {ends}]",
            concat!("call ", $run),
            "mov rax, r12",
            "6:",
            "pxor xmm15, xmm15",
            "cld",
            "cmp rax, -4095",
            "jae 7f",
            "jmp qword ptr [rip + {done}]",
            "5:",
            "mov rax, -12",
            "7:",
            "jmp qword ptr [rip + {failed}]",
            concat!(".size ", $vfork, ", . - ", $vfork),
            numbers = const calls::NUMBERS,
            hooked = sym calls::HOOKED,
            enter = sym $enter,
            make = sym $make,
            begins = sym spawning::spawning_begins,
            ends = sym spawning::spawning_ends,
            done = sym VFORK_DONE,
            failed = sym VFORK_FAILED,
            busy = const BUSY,
            free = const FREE,
            mmap = const libc::SYS_mmap,
            munmap = const libc::SYS_munmap,
            area_bytes = const AREA_BYTES,
            stack_bytes = const STACK_BYTES,
        );
    };
}

// The word below the thread pointer holds the goroutine, under either pointer.
ways! {
    call "holdfast_go_call", claim "holdfast_go_claim", run "holdfast_go_run", vfork "holdfast_go_vfork",
    owner ["rdfsbase r12"],
    area ["rdgsbase r11"],
    keep ["wrgsbase r11"],
    come [
        "mov r10, qword ptr [r11]"
        "mov r12, qword ptr fs:[-8]"
        "mov qword ptr [r10 - 8], r12"
        "wrfsbase r10"
    ],
    leave ["mov r12, qword ptr [r11 + 8]" "wrfsbase r12"],
    enter calls::enter, make make
}

// libc's thread pointer points to itself, and the block of ours has a word for the area.
ways! {
    call "holdfast_go_libc_call", claim "holdfast_go_libc_claim", run "holdfast_go_libc_run",
    vfork "holdfast_go_libc_vfork",
    owner ["mov r12, qword ptr fs:[0]"],
    area [
        "mov r11, qword ptr [rip + holdfast_thread@GOTTPOFF]"
        "mov r11, qword ptr fs:[r11 + 64]"
    ],
    keep [
        "mov rax, qword ptr [rip + holdfast_thread@GOTTPOFF]"
        "mov qword ptr fs:[rax + 64], r11"
    ],
    come [],
    leave [],
    enter calls::enter_for_libc, make make_for_libc
}

const _: () = assert!(tls::AREA_AT == 64);
