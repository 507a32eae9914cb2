//! Writes in state Behind, by fio: against tmpfs and the disk, two at once, over minutes, and
//! through a log that is full.

use std::cell::Cell;
use std::time::Instant;

use anyhow::Result;
use holdfast_log::RECORD_HEADER_BYTES;

use crate::bare::{BLOCK_BYTES, Bare, Block};
use crate::fio::{End, Job};
use crate::fio_benches::{appends, at_home, random_writes, rate, remove};
use crate::lab::{Lab, Side, lay_out};
use crate::report::{Bar, Check, Outcome, Run, interleave};

const GIB: u64 = 1 << 30;
/// Memory that bare records go to.
const BARE_BYTES: usize = 64 << 20;
/// How long the run takes that shall not decay.
const LONG_S: u64 = 120;

/// Holdfast with write-behind, new files included.
pub fn behind(side: Side) -> Side {
    with(side, "--write-behind=at-once")
}

/// Holdfast with write-behind, as users ask for it.
pub fn behind_when_it_pays(side: Side) -> Side {
    with(side, "--write-behind=on")
}

fn with(side: Side, option: &str) -> Side {
    match side {
        Side::Holdfast(pool, mut options) => {
            options.push(option.into());
            Side::Holdfast(pool, options)
        }
        other => other,
    }
}

/// 4 KiB random write + fsync, one job and two, which write as much data between them, and twice as
/// much.
pub fn randwrite(lab: &Lab) -> Result<Outcome> {
    let one = random_writes(lab, 1);
    let two = Job { file_bytes: GIB / 2, files: vec!["half".into(), "half-2".into()], ..one.clone() };
    let more = Job { files: vec!["random".into(), "random-2".into()], ..one.clone() };
    let sides = vec![
        rate(lab, "tmpfs, fsync", Side::Tmpfs, one.clone())?,
        rate(lab, "native, fsync", Side::Native, one.clone())?,
        rate(lab, "native, no fsync", Side::Native, random_writes(lab, 0))?,
        rate(lab, "holdfast, write-behind", behind(lab.main_side()?), one)?,
        rate(lab, "two jobs, 2 x 512 MiB", behind(lab.main_side()?), two.clone())?,
        rate(lab, "native, no fsync, two jobs", Side::Native, Job { writes_per_fsync: 0, ..two })?,
        rate(lab, "two jobs, 2 x 1 GiB", behind(lab.main_side()?), more)?,
    ];
    let series = interleave(lab.options.rounds, "ops/s", sides)?;
    remove(&[lab.home(&Side::Tmpfs).join("random")])?;
    let checks = vec![
        Check::ratio(&series[3], &series[0], Some(Bar::AtLeast(2.0))),
        Check::ratio(&series[3], &series[1], Some(Bar::AtLeast(150.0))),
        Check::ratio(&series[3], &series[2], None),
        Check::ratio(&series[4], &series[3], Some(Bar::AtLeast(1.5))),
        Check::ratio(&series[5], &series[2], None),
        Check::ratio(&series[6], &series[3], None),
    ];
    let notes = vec![
        "a record dies when its page is written again: twice the data in the same log, half as many do"
            .into(),
    ];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// The same for minutes: what is written over must die in the log.
pub fn steady(lab: &Lab) -> Result<Outcome> {
    let short = random_writes(lab, 1);
    let long = Job { end: End::Seconds(LONG_S), ..short.clone() };
    let sides = vec![
        rate(lab, "holdfast, write-behind", behind(lab.main_side()?), short)?,
        rate(lab, &format!("the same for {LONG_S} s"), behind(lab.main_side()?), long)?,
    ];
    let series = interleave(lab.options.rounds.min(3), "ops/s", sides)?;
    let checks = vec![Check::ratio(&series[1], &series[0], Some(Bar::AtLeast(0.9)))];
    Ok(Outcome { series, checks, ..Outcome::default() })
}

/// 256-byte append + fsync to a new file; and what no log can be faster than under fio: fio by
/// itself, and the record by itself.
pub fn append(lab: &Lab) -> Result<Outcome> {
    let job = appends(lab);
    let record_bytes = (job.block_bytes + RECORD_HEADER_BYTES) as usize;
    let path = lab.scratch().join("bare");
    holdfast_media::allocate(&path, BARE_BYTES as u64, |_, _| {})?;
    let bare = Bare::open(&path, 0, BARE_BYTES)?;
    let records_alone = || {
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed().as_secs() < lab.options.seconds {
            bare.run(&Block([0x5a; BLOCK_BYTES]), record_bytes, BARE_BYTES / record_bytes);
            count += BARE_BYTES / record_bytes;
        }
        Ok(count as f64 / start.elapsed().as_secs_f64())
    };
    let sides = vec![
        rate(lab, "tmpfs", Side::Tmpfs, job.clone())?,
        rate(lab, "native", Side::Native, job.clone())?,
        rate(lab, "holdfast, write-behind", behind(lab.main_side()?), job.clone())?,
        rate(lab, "fio alone (null engine)", Side::Tmpfs, Job { engine: "null", ..job })?,
        ("record alone (bare stream and fence)".into(), Box::new(records_alone) as _),
    ];
    let series = interleave(lab.options.rounds, "ops/s", sides)?;
    remove(&[lab.home(&Side::Tmpfs).join("append"), lab.home(&Side::Native).join("append")])?;
    let floor = 1.0 / (1.0 / series[3].median() + 1.0 / series[4].median());
    let limit = "fio alone and record alone, one after the other / tmpfs";
    let checks = vec![
        Check::ratio(&series[2], &series[0], Some(Bar::AtLeast(2.0))),
        Check::ratio(&series[2], &series[1], None),
        Check::value(limit, floor / series[0].median(), "x", None),
    ];
    Ok(Outcome { series, checks, ..Outcome::default() })
}

/// 1 GiB through a pool of 64 MiB, and the longest that one write took.
pub fn saturated(lab: &Lab) -> Result<Outcome> {
    let small = behind(lab.sized_side(GIB / 16)?);
    let spilling = lab.spilling(&small, 2 * GIB)?;
    lay_out(&lab.home(&Side::Native).join("random"), GIB)?;
    let mut checks = Vec::new();
    let mut all = Vec::new();
    for rw in ["randwrite", "write"] {
        let job = Job { rw, end: End::SyncedBytes(GIB), ..random_writes(lab, 0) };
        let (longest, longest_spilling) = (Cell::new(0f64), Cell::new(0f64));
        let run = |label: &str, side: &Side| -> Run<'_> {
            let longest = if label.ends_with("spill file") { &longest_spilling } else { &longest };
            let (side, job) = (side.clone(), at_home(lab, side, job.clone()));
            let sample = move || {
                let done = job.run(lab, &side)?;
                longest.set(longest.get().max(done.write_max_ms));
                Ok((GIB >> 20) as f64 / done.wall_s)
            };
            (format!("{label}, {rw}"), Box::new(sample) as _)
        };
        let native = (format!("native, {rw}"), {
            let job = at_home(lab, &Side::Native, job.clone());
            let sample = move || Ok((GIB >> 20) as f64 / job.run(lab, &Side::Native)?.wall_s);
            Box::new(sample) as Box<dyn FnMut() -> Result<f64>>
        });
        let runs = vec![
            native,
            run("holdfast, write-behind", &small),
            run("holdfast, write-behind, spill file", &spilling),
        ];
        let series = interleave(lab.options.rounds, "MiB/s", runs)?;
        let sides = [("", &series[1], &longest), (", spill file", &series[2], &longest_spilling)];
        for (which, side, longest) in sides {
            checks.push(Check::ratio(side, &series[0], Some(Bar::AtLeast(0.9))));
            let what = format!("longest single write, {rw}{which}");
            checks.push(Check::value(what, longest.get(), "ms", Some(Bar::AtMost(100.0))));
        }
        all.extend(series);
    }
    let notes = vec![
        "wall time of the process, start, final drain and one fsync included; each block of 1 GiB once"
            .into(),
        "the spill file has 2 GiB and lies on the same disk".into(),
    ];
    Ok(Outcome { series: all, checks, notes, ..Outcome::default() })
}
