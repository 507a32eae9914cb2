//! Hostile pools: superblocks, segments and whole images that no writer of ours would make, against
//! opening, scanning and recovery. Never a panic, never unbounded memory or time, never a change to
//! a file that no valid record names.
//!
//! An input is a few hundred bytes, read as a list of choices ([`arbitrary`]): what stands in which
//! field, what is sealed with a checksum that holds, what is damaged afterwards. So nearly every
//! input gets past the checksums, and every input can be kept as a small file. What is built from
//! them must stay in a scratch directory.
//!
//! `cargo run --release -p holdfast-fuzz -- --seconds 60` looks for new trouble; the tests replay
//! `corpus/`.
#![forbid(unsafe_code)]

mod choices;
mod image;
mod mutate;
mod oracle;
mod ram;
pub mod session;
mod targets;
mod yard;

pub use targets::{Bench, Target};
