//! `libholdfast.so`: stands between an unmodified program and libc, and translates its file calls
//! into cache calls.
//!
//! Every libc function that changes a file, its size, its names or its descriptors has a hook here.
//! A hook either hands the call to the cache or passes it on as a raw system call; with no keeper
//! it always passes it on. A hook must never allocate, use std I/O, panic, call `dlsym`, or call
//! the libc function it stands for.

#![allow(unsafe_code)] // A symbol for the linker.

mod behind;
mod changing;
mod critical;
mod descriptions;
mod descriptor;
mod fds;
mod filter;
mod gate;
mod golang;
mod holds;
mod hooks;
mod inherit;
mod locks;
mod memory;
mod own_calls;
mod parting;
mod patch;
mod process;
mod raw;
mod relog;
mod reopen;
mod signals;
mod streams;
mod target;
mod tls;
mod unseen;
mod unsynced;

/// What the unwinder, linked in for panics alone, gets when it asks where the tables of an object
/// lie: glibc alone could tell (build.rs).
#[unsafe(no_mangle)]
extern "C" fn holdfast_find_no_object(
    _address: *const core::ffi::c_void,
    _found: *mut core::ffi::c_void,
) -> i32 {
    -1
}

// Deliberate bugs are for the tests' own build alone.
const _: () = assert!(!holdfast_canary::ARMED || cfg!(feature = "canaries"));
