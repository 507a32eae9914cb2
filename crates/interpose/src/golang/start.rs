//! The stack as the kernel gives it to a program at its start, and the jump to its first
//! instruction.
#![allow(unsafe_code)] // Rewrites the initial stack and leaves for another program's code.

use core::arch::asm;
use core::ffi::c_char;

use super::agent::VARIABLE;
use super::hooks::Arguments;
use crate::raw;

const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
const AT_EXECFN: u64 = 31;

/// Where the program begins, and what the kernel would tell it.
pub struct Beginning {
    /// Where the kernel put the auxiliary vector.
    pub auxiliary: usize,
    /// The first instruction.
    pub entry: u64,
    /// The program's headers, as they are mapped.
    pub headers: u64,
    /// How many.
    pub headers_count: u64,
    /// Its thread pointer is 0, as the kernel has it, and not the one that is there.
    pub without_pointer: bool,
}

/// The environment, without the variable that asked for the program: taken out where it stands.
///
/// # Safety
/// `arguments` is the array that the kernel passed, behind which the environment lies, up to the
/// auxiliary vector.
pub unsafe fn without_variable(arguments: Arguments, auxiliary: usize) -> *mut *const c_char {
    // SAFETY: the caller's promise; the last entry before the vector is null.
    unsafe {
        let mut first = arguments.cast_mut();
        while !(*first).is_null() {
            first = first.add(1);
        }
        first = first.add(1);
        let (mut from, mut to) = (first, first);
        while from.addr() < auxiliary && !(*from).is_null() {
            if !raw::path(*from).to_bytes().starts_with(VARIABLE) {
                *to = *from;
                to = to.add(1);
            }
            from = from.add(1);
        }
        *to = core::ptr::null();
        first
    }
}

/// Begins the program.
///
/// # Safety
/// It is mapped; `arguments` is the array that the kernel passed, and nobody uses what lies above
/// it but for what it points to.
pub unsafe fn begin(arguments: Arguments, path: *const c_char, beginning: &Beginning) -> ! {
    let &Beginning { auxiliary, entry, headers, headers_count, without_pointer } = beginning;
    // SAFETY: the caller's promise: all of it is the initial stack, of which less is used than
    // before.
    unsafe {
        let mut end = without_variable(arguments, auxiliary);
        while !(*end).is_null() {
            end = end.add(1);
        }
        let mut to: *mut [u64; 2] = end.add(1).cast();
        let mut from: *const [u64; 2] = core::ptr::with_exposed_provenance(auxiliary);
        loop {
            let [kind, value] = from.read();
            let value = match kind {
                AT_PHDR => headers,
                AT_PHNUM => headers_count,
                AT_BASE => 0,
                AT_ENTRY => entry,
                AT_EXECFN => path.addr() as u64,
                _ => value,
            };
            to.write([kind, value]);
            (to, from) = (to.add(1), from.add(1));
            if kind == AT_NULL {
                break;
            }
        }
        asm!(
            "mov rsp, rdi",
            "mov rax, rsi",
            "test edx, edx",
            "jz 2f",
            "xor edx, edx",
            "wrfsbase rdx",
            "2:",
            "xor ebx, ebx",
            "xor ecx, ecx",
            "xor edx, edx",
            "xor ebp, ebp",
            "xor esi, esi",
            "xor edi, edi",
            "xor r8d, r8d",
            "xor r9d, r9d",
            "cld",
            "jmp rax",
            in("rdi") arguments.sub(1),
            in("rsi") entry,
            in("edx") u32::from(without_pointer),
            options(noreturn),
        );
    }
}
