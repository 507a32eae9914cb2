//! The command line of `bench`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::sizes;

pub const BENCH_EXAMPLES: &str = "\
Examples:
  holdfast bench /srv/db                                 what would be gained there
  holdfast bench /srv/db --json before.json --html before.html
  holdfast bench compare before.json after.json
  holdfast bench /srv/db --pool /mnt/pmem/bench.pool     on NVM; made, and removed
  holdfast bench /srv/db --rounds 3 --time 30s           what the disk can keep up with

Six workloads run in DIR as they are, under Holdfast, under eatmydata where it is installed, and on
tmpfs, in turn, beside the floor: what the bytes alone cost on the pool's media. All that is made is
removed. DIR needs 384 MiB of room. `append` ends early at 64 MiB and `create` at 20,000 files; the
rate is then that of the time until there. What LD_PRELOAD names is left out on every side. `compare` calls a change one only if each sample of one report lies above all of the other's.";

/// Arguments of `bench`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// What to do instead.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// The directory, on ext4, xfs or btrfs
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// A file on a DAX file system that is not there yet, or a DAX device, instead of a pool in
    /// memory
    #[arg(long, value_name = "PATH")]
    pub pool: Option<PathBuf>,
    /// How often each workload runs on each side
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// How long it runs each time, for example 200ms or 30s; a number without a unit is
    /// milliseconds
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = sizes::parse_ms)]
    pub time: u64,
    /// Write all samples to this file; `-` is standard output, and all else goes to standard error
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a page with charts to this file, or to standard output as `-`
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// What else `bench` does.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Say what changed from one report to another, and whether it is more than noise
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare {
        /// The earlier report, written by --json; `-` is standard input
        before: PathBuf,
        /// The later one
        after: PathBuf,
    },
}

const COMPARE_EXAMPLES: &str = "\
Examples:
  holdfast bench compare before.json after.json

Exit status: 0 if nothing is slower under Holdfast beyond the spread, 3 if something is; 1 if the
reports cannot be compared or nothing can be told from them, with fewer than four rounds, say; 2 for a wrong command line.";

/// Arguments of the worker, which `bench` starts.
#[derive(Args, Debug)]
pub struct BenchWorkerArgs {
    /// The workload
    pub workload: OsString,
    /// Where
    pub dir: PathBuf,
    /// For so long, in milliseconds
    pub time_ms: u64,
}
