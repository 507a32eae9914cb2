//! What makes a program's calls come to us, and what our code stands on in its process: entries of
//! libc that are patched, Go's calls that are led here, the gate in front of all hooks, signal
//! handlers and cancels that wait, threads' own words, and the kernel's calls without libc.
//!
//! It knows no file and no keeper: the hooks are given to it. Nothing here may allocate, use std
//! I/O, panic, or call a libc function that has a hook.

pub mod cancels;
pub mod critical;
pub mod environment;
pub mod filter;
pub mod gate;
pub mod golang;
pub mod memory;
pub mod own_calls;
pub mod own_process;
pub mod patch;
mod probes;
pub mod raw;
pub mod signals;
pub mod spawning;
pub mod tls;
pub mod waits;
