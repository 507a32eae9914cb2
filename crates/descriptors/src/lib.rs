//! This process as its keeper knows it: a client, the descriptions behind its descriptors, what a
//! call on each of them is about, and what the programs that it starts inherit of them.
//!
//! The session decides what becomes of a file; here are the numbers by which a program means it.
//! Nothing here may allocate, use std I/O or panic, or know which function of libc was called.

pub mod adoption;
pub mod behind;
pub mod changing;
pub mod descriptions;
pub mod descriptor;
pub mod fds;
pub mod forked;
pub mod holds;
pub mod inherit;
pub mod locks;
pub mod mapped;
pub mod open_flags;
pub mod process;
pub mod relog;
pub mod reopen;
pub mod size_limit;
mod stream_marks;
pub mod streams;
pub mod target;
pub mod unsynced;

// What it stands on: whose each module is, is said once.
use holdfast_interpose::{cancels, critical, environment, gate, own_process, raw, signals, tls};
