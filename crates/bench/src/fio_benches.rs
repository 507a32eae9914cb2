//! The benchmarks made of fio runs.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::fio::{End, Job};
use crate::lab::{DEFAULT_POOL_BYTES, Lab, Side, lay_out};
use crate::report::{Bar, Check, Outcome, Run, interleave};

const GIB: u64 = 1 << 30;

/// Random 4 KiB writes over a file of 1 GiB that is there and in the page cache.
pub(crate) fn random_writes(lab: &Lab, writes_per_fsync: u64) -> Job {
    Job {
        rw: "randwrite",
        block_bytes: 4096,
        file_bytes: GIB,
        engine: "psync",
        files: vec!["random".into()],
        end: End::Seconds(lab.options.seconds),
        writes_per_fsync,
        overwrite: true,
    }
}

/// A side of a comparison of operations per second. File names of the job are relative to the
/// side's home.
pub(crate) fn rate<'a>(lab: &'a Lab, label: &str, side: Side, job: Job) -> Result<Run<'a>> {
    let job = at_home(lab, &side, job);
    if job.overwrite {
        for file in &job.files {
            lay_out(file, job.file_bytes)?;
        }
    }
    let sample = move || {
        if !job.overwrite {
            remove(&job.files)?;
        }
        Ok(job.run(lab, &side)?.ops_per_s)
    };
    Ok((label.into(), Box::new(sample)))
}

pub(crate) fn at_home(lab: &Lab, side: &Side, mut job: Job) -> Job {
    for file in &mut job.files {
        *file = lab.home(side).join(&file);
    }
    job
}

pub(crate) fn remove(files: &[PathBuf]) -> Result<()> {
    for file in files.iter().filter(|file| file.exists()) {
        fs::remove_file(file).with_context(|| format!("could not remove {}", file.display()))?;
    }
    Ok(())
}

/// 4 KiB random write + fsync, one job.
pub fn randwrite(lab: &Lab) -> Result<Outcome> {
    let sides = vec![
        rate(lab, "native, no fsync", Side::Native, random_writes(lab, 0))?,
        rate(lab, "native, fsync", Side::Native, random_writes(lab, 1))?,
        rate(lab, "holdfast, fsync", lab.main_side()?, random_writes(lab, 1))?,
        rate(
            lab,
            "holdfast, fsync, pool 256 MiB",
            lab.sized_side(DEFAULT_POOL_BYTES)?,
            random_writes(lab, 1),
        )?,
        rate(lab, "tmpfs, fsync", Side::Tmpfs, random_writes(lab, 1))?,
    ];
    let series = interleave(lab.options.rounds, "ops/s", sides)?;
    remove(&[lab.home(&Side::Tmpfs).join("random")])?;
    let checks = vec![
        Check::ratio(&series[2], &series[0], Some(Bar::AtLeast(0.55))),
        Check::ratio(&series[2], &series[1], Some(Bar::AtLeast(15.0))),
        Check::ratio(&series[3], &series[0], None),
        Check::ratio(&series[2], &series[4], None),
    ];
    Ok(Outcome { series, checks, ..Outcome::default() })
}

/// 256-byte append + fsync to a new file.
pub(crate) fn appends(lab: &Lab) -> Job {
    Job {
        rw: "write",
        block_bytes: 256,
        file_bytes: 16 * GIB,
        engine: "psync",
        files: vec!["append".into()],
        end: End::Seconds(lab.options.seconds),
        writes_per_fsync: 1,
        overwrite: false,
    }
}

/// The same against the disk and tmpfs.
pub fn append(lab: &Lab) -> Result<Outcome> {
    let job = appends(lab);
    let sides = vec![
        rate(lab, "native", Side::Native, job.clone())?,
        rate(lab, "holdfast", lab.main_side()?, job.clone())?,
        rate(lab, "tmpfs", Side::Tmpfs, job)?,
    ];
    let series = interleave(lab.options.rounds, "ops/s", sides)?;
    remove(&[lab.home(&Side::Tmpfs).join("append"), lab.home(&Side::Native).join("append")])?;
    let checks = vec![
        Check::ratio(&series[1], &series[0], Some(Bar::AtLeast(40.0))),
        Check::ratio(&series[1], &series[2], None),
    ];
    Ok(Outcome { series, checks, ..Outcome::default() })
}

/// Two threads on two files against one on one.
pub fn two_jobs(lab: &Lab) -> Result<Outcome> {
    let one = Job { file_bytes: GIB / 2, files: vec!["one".into()], ..random_writes(lab, 1) };
    let two = Job { files: vec!["one".into(), "two".into()], ..one.clone() };
    let unsynced = |job: &Job| Job { writes_per_fsync: 0, ..job.clone() };
    let sides = vec![
        rate(lab, "holdfast, one", lab.main_side()?, one.clone())?,
        rate(lab, "holdfast, two", lab.main_side()?, two.clone())?,
        rate(lab, "native, no fsync, one", Side::Native, unsynced(&one))?,
        rate(lab, "native, no fsync, two", Side::Native, unsynced(&two))?,
    ];
    let series = interleave(lab.options.rounds, "ops/s", sides)?;
    let checks = vec![
        Check::ratio(&series[1], &series[0], Some(Bar::AtLeast(1.5))),
        Check::ratio(&series[3], &series[2], None),
    ];
    let notes = match std::thread::available_parallelism().map_or(1, |n| n.get()) {
        cpus if cpus < 3 => {
            vec![format!("{cpus} CPUs: two writers leave none to the keeper and the kernel's threads")]
        }
        _ => Vec::new(),
    };
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// 1 GiB through a pool of 64 MiB, the final drain included.
pub fn saturated(lab: &Lab) -> Result<Outcome> {
    let random = Job { end: End::SyncedBytes(GIB), ..random_writes(lab, 0) };
    let sequential = Job { rw: "write", ..random.clone() };
    let synced = |job: &Job| Job { writes_per_fsync: 1, ..job.clone() };
    // What a log of this size must do at the least: half of it goes to disk while the other half
    // fills.
    let in_batches = Job { writes_per_fsync: GIB / 16 / 2 / 4096, ..random.clone() };
    let small = lab.sized_side(GIB / 16)?;
    let spilling = lab.spilling(&small, 2 * GIB)?;
    lay_out(&lab.home(&Side::Native).join("random"), GIB)?;
    // What fio itself takes to start and stop is no part of either side.
    let nothing = at_home(lab, &Side::Native, Job { end: End::SyncedBytes(4096), ..random.clone() });
    nothing.run(lab, &Side::Native)?;
    let floor_s = nothing.run(lab, &Side::Native)?.wall_s;
    let side = |label: &str, side: &Side, job: &Job| -> Run<'_> {
        let (side, job) = (side.clone(), at_home(lab, side, job.clone()));
        let mib = (GIB >> 20) as f64;
        (label.into(), Box::new(move || Ok(mib / (job.run(lab, &side)?.wall_s - floor_s))))
    };
    let sides = vec![
        side("native, random", &Side::Native, &random),
        side("native, random, fsync every 32 MiB", &Side::Native, &in_batches),
        side("holdfast, random", &small, &random),
        side("holdfast, random, fsync each", &small, &synced(&random)),
        side("native, sequential", &Side::Native, &sequential),
        side("holdfast, sequential", &small, &sequential),
        side("holdfast, random, spill file", &spilling, &random),
        side("holdfast, sequential, spill file", &spilling, &sequential),
    ];
    let series = interleave(lab.options.rounds, "MiB/s", sides)?;
    let checks = vec![
        Check::ratio(&series[2], &series[0], Some(Bar::AtLeast(0.8))),
        Check::ratio(&series[3], &series[0], None),
        Check::ratio(&series[1], &series[0], None),
        Check::ratio(&series[2], &series[1], None),
        Check::ratio(&series[5], &series[4], Some(Bar::AtLeast(0.8))),
        Check::ratio(&series[6], &series[0], Some(Bar::AtLeast(0.8))),
        Check::ratio(&series[7], &series[4], Some(Bar::AtLeast(0.8))),
    ];
    let notes = vec![
        "the spill file has 2 GiB and lies on the same disk".into(),
        format!(
            "pool 64 MiB; 4 KiB writes, each block of 1 GiB once, fsync at the end; wall time of the process (keeper \
             start and final drain included) less {:.0} ms that fio takes by itself",
            floor_s * 1000.0
        ),
        "the second row shows what the disk allows to anything that must empty 32 MiB of random blocks at a time"
            .into(),
    ];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// Reads that the page cache answers.
pub fn reads(lab: &Lab) -> Result<Outcome> {
    // A difference of 3 % needs more and shorter runs than one of 50 %.
    let rounds = lab.options.rounds * 3;
    let job = |rw| Job { rw, end: End::Seconds(1), ..random_writes(lab, 0) };
    let sides = vec![
        rate(lab, "native, sequential", Side::Native, job("read"))?,
        rate(lab, "holdfast, sequential", lab.main_side()?, job("read"))?,
        rate(lab, "native, random", Side::Native, job("randread"))?,
        rate(lab, "holdfast, random", lab.main_side()?, job("randread"))?,
    ];
    let series = interleave(rounds, "ops/s", sides)?;
    let checks = vec![
        Check::ratio(&series[1], &series[0], Some(Bar::AtLeast(0.97))),
        Check::ratio(&series[3], &series[2], Some(Bar::AtLeast(0.97))),
    ];
    let notes = vec![format!("{rounds} rounds of 1 s")];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}
