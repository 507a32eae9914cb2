//! One run of fio, described and read back. It knows fio, not benchmarks.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::lab::{Lab, Side};

/// What fio shall do. One thread per file.
#[derive(Clone)]
pub struct Job {
    /// `randwrite`, `write`, `read` or `randread`.
    pub rw: &'static str,
    /// Bytes per call.
    pub block_bytes: u64,
    /// Size of each file.
    pub file_bytes: u64,
    /// fio's engine: `psync`, or `null`, which does nothing.
    pub engine: &'static str,
    /// The files.
    pub files: Vec<PathBuf>,
    /// How long, or how much.
    pub end: End,
    /// An fsync follows this many writes; 0: none.
    pub writes_per_fsync: u64,
    /// Whether the file is there already and is written over.
    pub overwrite: bool,
}

/// When fio stops.
#[derive(Clone, Copy)]
pub enum End {
    /// After this many seconds.
    Seconds(u64),
    /// After this many bytes, each block once.
    Bytes(u64),
    /// The same, with one fsync at the very end.
    SyncedBytes(u64),
}

/// What fio did.
pub struct Done {
    /// Operations per second, all threads together.
    pub ops_per_s: f64,
    /// Time from start to end of the process.
    pub wall_s: f64,
    /// The longest that one write took.
    pub write_max_ms: f64,
}

#[derive(Deserialize)]
struct Output {
    jobs: Vec<JobOutput>,
}

#[derive(Deserialize)]
struct JobOutput {
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    iops: f64,
    #[serde(default)]
    clat_ns: Latency,
}

#[derive(Default, Deserialize)]
struct Latency {
    max: u64,
}

impl Job {
    /// The command line.
    pub fn command(&self) -> Vec<String> {
        let mut args: Vec<String> = ["fio", "--thread", "--group_reporting", "--randrepeat=0"]
            .iter()
            .chain(&["--fallocate=none", "--invalidate=0", "--output-format=json"])
            .map(ToString::to_string)
            .collect();
        args.push(format!("--ioengine={}", self.engine));
        args.push(format!("--rw={}", self.rw));
        args.push(format!("--bs={}", self.block_bytes));
        args.push(format!("--size={}", self.file_bytes));
        match self.end {
            End::Seconds(seconds) => {
                args.extend(["--time_based".into(), format!("--runtime={seconds}"), "--norandommap".into()]);
            }
            End::Bytes(bytes) => args.push(format!("--io_size={bytes}")),
            End::SyncedBytes(bytes) => args.extend([format!("--io_size={bytes}"), "--end_fsync=1".into()]),
        }
        if self.writes_per_fsync > 0 {
            args.push(format!("--fsync={}", self.writes_per_fsync));
        }
        if self.overwrite {
            args.push("--overwrite=1".into());
        }
        for (number, file) in self.files.iter().enumerate() {
            args.push(format!("--name=job{number}"));
            args.push(format!("--filename={}", file.display()));
        }
        args
    }

    /// Runs it on a side, from a file system at rest.
    pub fn run(&self, lab: &Lab, side: &Side) -> Result<Done> {
        lab.settle()?;
        let start = Instant::now();
        let text = lab.run(side, &self.command())?;
        let wall_s = start.elapsed().as_secs_f64();
        // fio may print notes before its JSON.
        let json = &text[text.find('{').unwrap_or(0)..];
        let output: Output =
            serde_json::from_str(json).with_context(|| format!("fio printed no result: {text}"))?;
        let ops_per_s = output.jobs.iter().map(|job| job.read.iops + job.write.iops).sum();
        let write_max_ns = output.jobs.iter().map(|job| job.write.clat_ns.max).max().unwrap_or(0);
        Ok(Done { ops_per_s, wall_s, write_max_ms: write_max_ns as f64 / 1e6 })
    }
}
