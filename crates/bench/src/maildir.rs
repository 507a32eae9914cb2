//! Mail delivery: each message is a file of its own, written in `tmp/`, synced, renamed to a free
//! name in `new/`, and that directory synced. The program that delivers is this one, on every side;
//! it knows nothing of Holdfast.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::behind_writes::behind;
use crate::lab::{Lab, Side};
use crate::report::{Bar, Check, Outcome, Run, interleave};

/// The argument that makes this program a deliverer.
pub const DELIVERER: &str = "--deliverer";
const MESSAGE_BYTES: usize = 4096;
/// Messages that come at once: fewer than a pool has slots for files.
const BURST: u64 = 1000;

/// What mail is delivered and served on.
pub fn sides(lab: &Lab) -> Result<[(&'static str, Side); 4]> {
    Ok([
        ("native", Side::Native),
        ("holdfast", lab.main_side()?),
        ("eatmydata (not durable)", Side::Eatmydata),
        ("holdfast, write-behind", behind(lab.main_side()?)),
    ])
}

/// Deliveries per second: of messages that come at once, and of as many as can be for a while, when
/// the disk has to keep up.
pub fn deliveries(lab: &Lab) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for (what, count) in [("at once", Some(BURST)), ("steady", None)] {
        let runs = sides(lab)?
            .into_iter()
            .map(|(label, side)| -> Run<'_> {
                (format!("{label}, {what}"), Box::new(move || sample(lab, &side, count)))
            })
            .collect();
        let series = interleave(lab.options.rounds, "messages/s", runs)?;
        for (one, other, bar) in [(1, 0, Some(Bar::AtLeast(1.5))), (1, 2, None), (3, 0, None)] {
            outcome.checks.push(Check::ratio(&series[one], &series[other], bar));
        }
        outcome.series.extend(series);
    }
    outcome.notes.push(format!("messages of {MESSAGE_BYTES} bytes, each a file; {BURST} at once"));
    Ok(outcome)
}

fn sample(lab: &Lab, side: &Side, count: Option<u64>) -> Result<f64> {
    let dir = lab.home(side).join("mail");
    fs::remove_dir_all(&dir).ok();
    fs::create_dir(&dir)?;
    lab.settle()?;
    let limit = match count {
        Some(count) => ["messages".to_owned(), count.to_string()],
        None => ["seconds".to_owned(), lab.options.seconds.to_string()],
    };
    let program = std::env::current_exe()?.display().to_string();
    let program = [&[program, DELIVERER.into(), dir.display().to_string()][..], &limit].concat();
    let told = lab.run(side, &program)?;
    told.trim().parse().with_context(|| format!("the deliverer printed {told:?}"))
}

/// Delivers; `args` follow [`DELIVERER`]: directory, unit of the limit, limit.
pub fn run(args: &[String]) -> Result<()> {
    let [dir, unit, limit] = args else { bail!("a deliverer needs a directory and a limit") };
    let limit: u64 = limit.parse().context("that is no number")?;
    let dir = Path::new(dir);
    let (tmp, new) = (dir.join("tmp"), dir.join("new"));
    for directory in [&tmp, &new] {
        fs::create_dir(directory).with_context(|| format!("could not make {}", directory.display()))?;
    }
    let directory = File::open(&new)?;
    let (start, mut delivered) = (Instant::now(), 0);
    let is_over = |delivered: u64| match unit.as_str() {
        "messages" => delivered >= limit,
        _ => start.elapsed() >= Duration::from_secs(limit),
    };
    while !is_over(delivered) {
        let name = delivered.to_string();
        let mut file = File::create_new(tmp.join(&name))?;
        file.write_all(&[0x5a; MESSAGE_BYTES])?;
        file.sync_all()?;
        drop(file);
        fs::rename(tmp.join(&name), new.join(&name))?;
        directory.sync_all()?;
        delivered += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    ensure!(seconds > 0.0, "no time has passed");
    println!("{:.0}", delivered as f64 / seconds);
    Ok(())
}
