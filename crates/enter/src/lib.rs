//! Static programs, and where they call the kernel: judged by the bytes of their code.
//!
//! Go's programs call it in two places, which are known ([`go`]); those of C in many, which are
//! found by decoding all of their code ([`plain`], [`sites`]). A program in which one place cannot
//! be led to the hooks is refused as a whole. Must never allocate or panic: the preloaded library
//! judges, too.

#![no_std]

mod elf;
mod go;
mod numbers;
mod plain;
mod refusal;
mod sites;
mod stub;

pub use elf::{Segment, segments};
pub use go::{JUMP_BYTES, Places, Program, code, is_go_note, is_static_go, judge, notes, places};
pub use numbers::{GO_CALLS, is_led, led};
pub use plain::{Plain, find_sites, judge_plain, scratch_bytes, text};
pub use refusal::Refusal;
pub use sites::{NEAR_JUMP_BYTES, Site};
pub use stub::{CHECK_BYTES, Known, STUB_BYTES, Stub, TABLE_BYTES, jump, write};

/// The variable that names the program which `holdfast-enter` is to be.
pub const VARIABLE: &str = "HOLDFAST_ENTER";
/// The name of the program that enters, beside the library.
pub const NAME: &str = "holdfast-enter";
/// The function of the library that it calls.
pub const FUNCTION: &core::ffi::CStr = c"holdfast_enter";
