//! Reads and mixes in state Behind, NVCache's figures of its log, batch and read cache, and what an
//! outsider waits for.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::lab::{Lab, Side, lay_out};
use crate::report::{Bar, Check, Outcome, Run, Series, interleave};
use crate::worker::{BLOCK_BYTES, PARTS, Work};

const MIB: u64 = 1 << 20;

/// Holdfast with write-behind and further options.
fn behind(side: Side, more: &[&str]) -> Side {
    match side {
        Side::Holdfast(pool, mut options) => {
            options.push("--write-behind=on".into());
            options.extend(more.iter().map(ToString::to_string));
            Side::Holdfast(pool, options)
        }
        other => other,
    }
}

/// Where a side has its file of so many MiB.
fn laid_out(lab: &Lab, side: &Side, mib: u64) -> Result<PathBuf> {
    let path = lab.home(side).join(format!("behind-{mib}m"));
    lay_out(&path, mib * MIB)?;
    Ok(path)
}

/// Numbers that a worker printed.
fn numbers(lab: &Lab, side: &Side, work: &Work, file: &std::path::Path) -> Result<Vec<f64>> {
    lab.settle()?;
    let text = lab.run(side, &work.command(file)?)?;
    text.split_whitespace()
        .map(|word| word.parse().with_context(|| format!("the worker printed {text}")))
        .collect()
}

/// A side of a comparison of calls per second.
fn rate<'a>(lab: &'a Lab, label: &str, side: Side, work: Work, mib: u64) -> Result<Run<'a>> {
    let file = laid_out(lab, &side, mib)?;
    let sample = move || Ok(numbers(lab, &side, &work, &file)?.iter().sum());
    Ok((label.into(), Box::new(sample)))
}

/// 4 KiB reads of a hot file that a program has open for writing.
pub fn hot_reads(lab: &Lab) -> Result<Outcome> {
    const HOT_MIB: u64 = 4;
    const WIDE_MIB: u64 = 64;
    let seconds = lab.options.seconds;
    let reads = Work::Mix { write_percent: 0, seconds };
    let (cursor, wide) = (Work::Cursor { seconds }, reads.clone());
    let cached = behind(lab.main_side()?, &["--read-cache=256M"]);
    let sides = vec![
        rate(lab, "native, pread", Side::Native, reads.clone(), HOT_MIB)?,
        rate(lab, "holdfast, pread, read cache", cached.clone(), reads.clone(), HOT_MIB)?,
        rate(
            lab,
            "holdfast, pread, no read cache",
            behind(lab.main_side()?, &["--read-cache=0"]),
            reads,
            HOT_MIB,
        )?,
        rate(lab, "native, read at the cursor", Side::Native, cursor.clone(), HOT_MIB)?,
        rate(lab, "holdfast, read at the cursor", cached.clone(), cursor, HOT_MIB)?,
        rate(lab, "native, pread, 64 MiB", Side::Native, wide.clone(), WIDE_MIB)?,
        rate(lab, "holdfast, pread, 64 MiB", cached, wide, WIDE_MIB)?,
    ];
    let series = interleave(lab.options.rounds, "ops/s", sides)?;
    let checks = vec![
        Check::ratio(&series[1], &series[0], Some(Bar::AtLeast(2.0))),
        Check::ratio(&series[2], &series[0], None),
        Check::ratio(&series[4], &series[3], None),
        Check::ratio(&series[6], &series[5], None),
    ];
    let notes = vec![format!(
        "{HOT_MIB} MiB of random 4 KiB blocks, all of them read once before; a read at the cursor costs Holdfast one lseek"
    )];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// Random 4 KiB reads and writes, half and half.
pub fn mixed(lab: &Lab) -> Result<Outcome> {
    const FILE_MIB: u64 = 256;
    let work = Work::Mix { write_percent: 50, seconds: lab.options.seconds };
    let sides = vec![
        rate(lab, "native, no fsync", Side::Native, work.clone(), FILE_MIB)?,
        rate(
            lab,
            "holdfast, write-behind",
            behind(lab.main_side()?, &["--read-cache=512M"]),
            work.clone(),
            FILE_MIB,
        )?,
        rate(lab, "holdfast, write-through", lab.main_side()?, work, FILE_MIB)?,
    ];
    let series = interleave(lab.options.rounds, "ops/s", sides)?;
    let checks = vec![
        Check::ratio(&series[1], &series[0], Some(Bar::AtLeast(1.5))),
        Check::ratio(&series[2], &series[0], None),
    ];
    let notes = vec![format!(
        "{FILE_MIB} MiB, page cache warm; every write of Holdfast's is durable, no native one is"
    )];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// Throughput of a fill before its log is full, and in its last half, in MiB/s.
fn fill(lab: &Lab, side: &Side, mib: u64, log_bytes: u64) -> Result<[f64; 2]> {
    let file = laid_out(lab, side, mib)?;
    let times = numbers(lab, side, &Work::Fill, &file)?;
    ensure!(times.len() as u64 == PARTS, "the worker told {} times", times.len());
    let part_mib = mib as f64 / PARTS as f64;
    let before = (log_bytes * PARTS / (mib * MIB)).clamp(1, PARTS) as usize;
    let half = times.len() / 2;
    Ok([
        part_mib * before as f64 / times[before - 1],
        part_mib * half as f64 / (times[times.len() - 1] - times[half - 1]),
    ])
}

/// Rows of two series each, one sample per round.
fn fills(lab: &Lab, sides: &[(String, Side, u64)], mib: u64) -> Result<Vec<Series>> {
    let empty = |label: String| Series { label, unit: "MiB/s", samples: Vec::new() };
    let mut series: Vec<Series> = sides
        .iter()
        .flat_map(|(label, ..)| {
            [empty(format!("{label}, until it is full")), empty(format!("{label}, last half"))]
        })
        .collect();
    for _ in 0..lab.options.rounds {
        for ((_, side, log_bytes), rows) in sides.iter().zip(series.chunks_mut(2)) {
            for (row, sample) in rows.iter_mut().zip(fill(lab, side, mib, *log_bytes)?) {
                row.samples.push(sample);
            }
        }
    }
    Ok(series)
}

/// NVCache, figure 5: random writes of as many bytes as the file has, through logs of different
/// sizes.
pub fn figure_5(lab: &Lab) -> Result<Outcome> {
    const FILE_MIB: u64 = 1024;
    let sides: Vec<(String, Side, u64)> = [64, 256, 512, 2048]
        .into_iter()
        .map(|mib| Ok((format!("log of {mib} MiB"), behind(lab.sized_side(mib * MIB)?, &[]), mib * MIB)))
        .collect::<Result<_>>()?;
    let series = fills(lab, &sides, FILE_MIB)?;
    let checks = vec![
        Check::ratio(&series[7], &series[6], None),
        Check::ratio(&series[1], &series[0], None),
        Check::ratio(&series[1], &series[3], None),
    ];
    let notes = vec![
        format!("{FILE_MIB} MiB, each 4 KiB block once in random order, fsync after each"),
        "the paper's shape: one speed until the log is full, then the disk's, the same for all sizes; a log larger than the \
         data never slows down"
            .into(),
    ];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// NVCache, figure 6: the same through one log, with different batches.
pub fn figure_6(lab: &Lab) -> Result<Outcome> {
    const FILE_MIB: u64 = 512;
    const LOG_BYTES: u64 = 128 * MIB;
    let sides: Vec<(String, Side, u64)> =
        [("4 KiB", 4u64 << 10), ("400 KiB", 400 << 10), ("4 MiB", 4 << 20), ("20 MiB", 20 << 20)]
            .into_iter()
            .map(|(label, bytes)| {
                let options =
                    [format!("--batch-min={bytes}"), format!("--batch-max={}", bytes.max(64 << 10))];
                let options: Vec<&str> = options.iter().map(String::as_str).collect();
                Ok((format!("batch of {label}"), behind(lab.sized_side(LOG_BYTES)?, &options), LOG_BYTES))
            })
            .collect::<Result<_>>()?;
    let series = fills(lab, &sides, FILE_MIB)?;
    let checks = vec![
        Check::ratio(&series[1], &series[7], None),
        Check::ratio(&series[3], &series[7], None),
        Check::ratio(&series[5], &series[7], None),
    ];
    let notes = vec![
        format!("{FILE_MIB} MiB through a log of {} MiB, fsync after each 4 KiB block", LOG_BYTES / MIB),
        "the paper's shape: tiny batches are slow, beyond a hundred entries the size hardly matters; here a round takes all \
         that was logged while the one before it ran, so batches never stay tiny"
            .into(),
    ];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// NVCache, figure 7: half reads, half writes, with read caches of different sizes.
pub fn figure_7(lab: &Lab) -> Result<Outcome> {
    const FILE_MIB: u64 = 512;
    let work = Work::Mix { write_percent: 50, seconds: lab.options.seconds };
    let mut sides = Vec::new();
    for (label, size) in [
        ("none", "0"),
        ("400 KiB", "400K"),
        ("4 MiB", "4M"),
        ("40 MiB", "40M"),
        ("200 MiB", "200M"),
        ("1 GiB", "1G"),
    ] {
        let side = behind(lab.main_side()?, &[&format!("--read-cache={size}")]);
        sides.push(rate(lab, &format!("read cache {label}"), side, work.clone(), FILE_MIB)?);
    }
    let series = interleave(lab.options.rounds, "ops/s", sides)?;
    let checks = vec![
        Check::ratio(&series[1], &series[0], None),
        Check::ratio(&series[4], &series[1], None),
        Check::ratio(&series[5], &series[1], None),
    ];
    let notes = vec![
        format!("{FILE_MIB} MiB, random 4 KiB, page cache warm"),
        "the paper's shape: the size of the read cache does not matter, because the page cache is behind it; here a cache that \
         holds the file saves the system call as well"
            .into(),
    ];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// How long an outsider waits in `open` for a file of which much is in the log alone.
pub fn outside_open(lab: &Lab) -> Result<Outcome> {
    const BACKLOG_MIB: u64 = 64;
    let side = behind(lab.main_side()?, &["--age-max=3600000"]);
    let blocks = BACKLOG_MIB * MIB / BLOCK_BYTES as u64;
    let sample = |file_mib: u64, write: bool| -> Result<f64> {
        let file = lab.home(&side).join(format!("behind-{file_mib}m"));
        lay_out(&file, file_mib * MIB)?;
        lab.settle()?;
        let command = Work::Backlog { blocks }.command(&file)?;
        let mut running = lab.start(&side, &command, Stdio::piped())?;
        let mut line = String::new();
        BufReader::new(running.take_stdout().context("piped")?).read_line(&mut line)?;
        ensure!(line == "written\n", "the worker said {line:?}: {}", running.complaints());
        let start = Instant::now();
        let outside = File::options().read(true).write(write).open(&file)?;
        let ms = start.elapsed().as_secs_f64() * 1000.0;
        let step = (file_mib * MIB / BLOCK_BYTES as u64 / blocks).max(1);
        for number in (0..blocks).step_by(97) {
            let mut seen = [0; 8];
            outside.read_exact_at(&mut seen, number * step * BLOCK_BYTES as u64)?;
            ensure!(u64::from_le_bytes(seen) == number + 1, "the outsider read old bytes in block {number}");
        }
        drop(outside);
        running.finish(lab)?;
        Ok(ms)
    };
    let sides: Vec<Run<'_>> = vec![
        ("to read, one piece".into(), Box::new(|| sample(BACKLOG_MIB, false))),
        ("to read, scattered".into(), Box::new(|| sample(BACKLOG_MIB * 8, false))),
        ("to write, one piece".into(), Box::new(|| sample(BACKLOG_MIB, true))),
        ("to write, scattered".into(), Box::new(|| sample(BACKLOG_MIB * 8, true))),
    ];
    let series = interleave(lab.options.rounds, "ms", sides)?;
    let checks = series
        .iter()
        .map(|row| Check::value(format!("open {}", row.label), row.median(), "ms", Some(Bar::AtMost(500.0))))
        .collect();
    let notes = vec![
        format!(
            "{BACKLOG_MIB} MiB of 4 KiB blocks in the log alone, of a file of that size and of one eight times larger"
        ),
        "who opens to read waits until they are in the page cache, who opens to write until they are on disk"
            .into(),
    ];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}
