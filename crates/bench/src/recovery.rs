//! How fast a killed system's log is brought back to the files.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde::Deserialize;

use crate::fio::{End, Job};
use crate::lab::{Lab, Side, lay_out};
use crate::lifecycle::Status;
use crate::report::{Bar, Check, Outcome, Run, interleave};

const GIB: u64 = 1 << 30;

/// What `holdfast recover --json` says, as far as benchmarks care.
#[derive(Deserialize)]
struct Report {
    bytes: u64,
    scan_ns: u64,
    apply_ns: u64,
}

/// Fills a log that nobody drains, kills everything, and times `holdfast recover`.
pub fn recovery(lab: &Lab) -> Result<Outcome> {
    // Records take a header each, and the keeper must not be forced to expire.
    let log_bytes = GIB.min(lab.options.pool_bytes / 2);
    let file = lab.home(&Side::Native).join("random");
    lay_out(&file, GIB)?;
    lab.main_side()?;
    let split = std::cell::RefCell::new((Vec::new(), Vec::new()));
    let sides: Vec<Run<'_>> = vec![
        (
            "holdfast recover".into(),
            Box::new(|| {
                crash(lab, &file, log_bytes)?;
                let start = Instant::now();
                let text = lab.holdfast(&["recover", "--json", "--pool"], &lab.pool)?;
                let seconds = start.elapsed().as_secs_f64();
                let report: Report = serde_json::from_str(&text)
                    .with_context(|| format!("holdfast recover printed {text}"))?;
                ensure!(
                    report.bytes >= log_bytes * 9 / 10,
                    "only {} bytes were left to recover",
                    report.bytes
                );
                split.borrow_mut().0.push(report.scan_ns as f64 / 1e9);
                split.borrow_mut().1.push(report.apply_ns as f64 / 1e9);
                Ok(report.bytes as f64 / GIB as f64 / seconds)
            }),
        ),
        (
            "plain writes of the same amount + fsync".into(),
            Box::new(|| {
                lab.settle()?;
                plain(&file, log_bytes)
            }),
        ),
    ];
    let series = interleave(lab.options.rounds, "GiB/s", sides)?;
    let checks = vec![
        Check::value("recovery, log per second", series[0].median(), "GiB/s", Some(Bar::AtLeast(1.0))),
        Check::ratio(&series[0], &series[1], None),
    ];
    let (scan_s, apply_s) = split.into_inner();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let notes = vec![
        format!("{} MiB of log: 4 KiB random writes over a file of 1 GiB", log_bytes >> 20),
        format!("mean of scan {:.3} s, of apply (fsync included) {:.3} s", mean(&scan_s), mean(&apply_s)),
    ];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// What no recovery of this design can beat: the same bytes written to the file in order, and one
/// fsync.
fn plain(file: &std::path::Path, bytes: u64) -> Result<f64> {
    let file = fs::File::options().write(true).open(file)?;
    let block = vec![0x5a; 1 << 20];
    let start = Instant::now();
    for number in 0..bytes >> 20 {
        file.write_all_at(&block, number << 20)?;
    }
    file.sync_all()?;
    Ok(bytes as f64 / GIB as f64 / start.elapsed().as_secs_f64())
}

fn crash(lab: &Lab, file: &std::path::Path, log_bytes: u64) -> Result<()> {
    lab.settle()?;
    let limit = (log_bytes + log_bytes / 4).to_string();
    let extra = ["--age-max", "3600000", "--batch-min", &limit, "--batch-max", &limit].map(String::from);
    let side = Side::Holdfast(lab.pool.clone(), extra.to_vec());
    let job = Job {
        rw: "randwrite",
        block_bytes: 4096,
        file_bytes: GIB,
        engine: "psync",
        files: vec![file.to_path_buf()],
        end: End::Bytes(log_bytes),
        writes_per_fsync: 0,
        overwrite: true,
    };
    let script = "\"$@\" >&2 && echo written && exec sleep 600";
    let mut program = ["sh", "-c", script, "sh"].map(String::from).to_vec();
    program.extend(job.command());
    let mut running = lab.start(&side, &program, Stdio::null())?;
    let mut line = String::new();
    if let Some(stdout) = running.take_stdout() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    ensure!(line == "written\n", "could not fill the log: {}", running.complaints());
    let status = Status::of(lab, &lab.pool)?;
    // The supervisor first: it would recover by itself.
    running.kill()?;
    for pid in std::iter::once(status.keeper_pid).chain(status.clients) {
        end(pid)?;
    }
    Ok(())
}

fn end(pid: u32) -> Result<()> {
    let Some(pid) = Pid::from_raw(pid as i32) else { bail!("holdfast status gave no process id") };
    kill_process(pid, Signal::KILL).ok();
    let deadline = Instant::now() + Duration::from_secs(10);
    while test_kill_process(pid).is_ok() {
        ensure!(Instant::now() < deadline, "process {pid:?} does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
