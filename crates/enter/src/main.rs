//! `holdfast-enter`: is executed in the place of a static Go program, so that the program has the
//! loader, the C library and `libholdfast.so` beside it. The library maps the Go program and begins
//! it; this program has no more of its own than one word of thread-local storage.
//!
//! That word is the last below the thread pointer, where Go looks for its goroutine. Nothing else
//! here may have thread-local storage: the library looks, and refuses.

#![no_main]
// std has thread-local storage of its own. Where panics unwind, as in the tests' builds, nothing
// goes without it.
#![cfg_attr(panic = "abort", no_std)]
#![allow(unsafe_code)] // C's entry point, and a word at a fixed place.

use core::arch::{asm, global_asm};
use core::ffi::{c_char, c_int};

global_asm!(
    ".section .tbss,\"awT\",@nobits",
    ".balign 16",
    ".globl holdfast_goroutine",
    ".hidden holdfast_goroutine",
    ".type holdfast_goroutine,@object",
    ".size holdfast_goroutine,16",
    "holdfast_goroutine:",
    ".zero 16",
    ".previous",
);

// Without std nobody else asks for the C library, nor for where glibc before 2.34 has `dlsym`.
#[link(name = "dl")]
#[link(name = "c")]
unsafe extern "C" {}

/// What the library exports: it does not return unless the program cannot be started.
type Enter = unsafe extern "C" fn(*const *const c_char) -> c_int;

#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, arguments: *const *const c_char) -> c_int {
    let goroutine: usize;
    // SAFETY: reads this program's own word, which is there for that reason.
    unsafe { asm!("mov {0}, qword ptr fs:[holdfast_goroutine@tpoff]", out(reg) goroutine) };
    // SAFETY: looks a name up.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, holdfast_enter::FUNCTION.as_ptr()) };
    if address.is_null() || goroutine != 0 {
        let message = b"holdfast-enter: is started by Holdfast, with its library in LD_PRELOAD\n";
        // SAFETY: as many bytes as said.
        unsafe { libc::write(2, message.as_ptr().cast(), message.len()) };
        return 126;
    }
    // SAFETY: the library's function of this name has this shape; the arguments are the kernel's.
    unsafe {
        let enter: Enter = core::mem::transmute(address);
        enter(arguments)
    }
}

#[cfg(all(panic = "abort", not(test)))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}
