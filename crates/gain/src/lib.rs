//! What a user would gain, measured where it matters to that user: workloads on a directory of
//! theirs, as they are, under Holdfast and beside what is not durable (`bench`); and what a power
//! cut or a kill leaves of each (`demo`).
//!
//! It must never call a number Holdfast's on which Holdfast had no part, never write outside the
//! directories that it makes, and leave none of them behind.

mod bench;
mod chart;
mod compare;
mod demo;
mod floor;
mod html;
mod interrupt;
mod job;
mod machine;
mod media;
mod place;
mod report;
mod samples;
mod side;
mod sqlite;
mod table;
mod target;
mod units;
mod worker;
mod workload;

use std::path::PathBuf;
use std::process::Command;

pub use bench::{BenchOptions, bench};
pub use compare::compare;
pub use demo::{DemoOptions, demo};
pub use interrupt::Interrupted;
pub use worker::work;

/// What the program lends: itself, and its ways to speak.
pub struct Host {
    /// The program, for `run` and for the workloads.
    pub executable: PathBuf,
    /// Its version.
    pub version: &'static str,
    /// Keeps a command out of the run that this process may itself be started in.
    pub keep_out: fn(&mut Command),
    /// A word to whoever started it, on standard error.
    pub say: fn(&str),
    /// Prints to standard output.
    pub print: fn(&str) -> anyhow::Result<()>,
    /// A text from outside, as a terminal may have it.
    pub shown: fn(&str) -> String,
}
