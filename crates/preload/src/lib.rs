//! `libholdfast.so`: stands between an unmodified program and libc, and translates its file calls
//! into cache calls.
//!
//! Every libc function that changes a file, its size, its names or its descriptors has a hook here.
//! A hook either hands the call to the cache or passes it on as a raw system call; with no keeper
//! it always passes it on. A hook must never allocate, use std I/O, panic, call `dlsym`, or call
//! the libc function it stands for.

#![allow(unsafe_code)] // A symbol for the linker.

mod hooks;
mod older;
mod parting;
mod start;
mod uncovered;
mod unseen;

// What the hooks stand on: whose each module is, is said once.
use holdfast_descriptors::{
    adoption, behind, changing, descriptions, descriptor, fds, forked, inherit, locks, mapped, process,
    relog, reopen, size_limit, streams, target, unsynced,
};
use holdfast_interpose::{
    cancels, critical, environment, filter, gate, golang, memory, own_calls, own_process, patch, raw,
    signals, spawning, tls, waits,
};

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
