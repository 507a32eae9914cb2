//! Mail delivery: each message is a file of its own, written in `tmp/`, synced, renamed to a free
//! name in `new/`, and that directory synced. The program that delivers is this one, on every side;
//! it knows nothing of Holdfast.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
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
/// Deliverers at a time, each with a directory of its own: what others have not synced yet is
/// pending at nearly every sync then.
const CROWD: u64 = 4;

/// What mail is delivered and served on.
pub fn sides(lab: &Lab) -> Result<[(&'static str, Side); 4]> {
    Ok([
        ("native", Side::Native),
        ("holdfast", lab.main_side()?),
        ("eatmydata (not durable)", Side::Eatmydata),
        ("holdfast, write-behind", behind(lab.main_side()?)),
    ])
}

/// What is delivered, and by how many.
#[derive(Clone, Copy)]
enum Load {
    /// So many messages by one.
    Burst(u64),
    /// As many as can be for a while, by so many.
    Steady(u64),
}

/// Deliveries per second: of messages that come at once, and of as many as can be for a while, when
/// the disk has to keep up, by one deliverer and by several.
pub fn deliveries(lab: &Lab) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let one = [(1, 0, Some(Bar::AtLeast(1.5))), (1, 2, None), (3, 0, None)];
    let crowd = [(1, 0, Some(Bar::AtLeast(0.9))), (1, 2, None), (3, 0, None)];
    let crowd_name = format!("steady, {CROWD} deliverers");
    let loads = [
        ("at once", Load::Burst(BURST), one),
        ("steady", Load::Steady(1), one),
        (&crowd_name, Load::Steady(CROWD), crowd),
    ];
    for (what, load, checks) in loads {
        let runs = sides(lab)?
            .into_iter()
            .map(|(label, side)| -> Run<'_> {
                (format!("{label}, {what}"), Box::new(move || sample(lab, &side, load)))
            })
            .collect();
        let series = interleave(lab.options.rounds, "messages/s", runs)?;
        for (one, other, bar) in checks {
            outcome.checks.push(Check::ratio(&series[one], &series[other], bar));
        }
        outcome.series.extend(series);
    }
    outcome.notes.push(format!("messages of {MESSAGE_BYTES} bytes, each a file; {BURST} at once"));
    Ok(outcome)
}

fn sample(lab: &Lab, side: &Side, load: Load) -> Result<f64> {
    let dir = lab.home(side).join("mail");
    fs::remove_dir_all(&dir).ok();
    fs::create_dir(&dir)?;
    lab.settle()?;
    let [unit, limit, deliverers] = match load {
        Load::Burst(count) => ["messages".to_owned(), count.to_string(), "1".to_owned()],
        Load::Steady(count) => ["seconds".to_owned(), lab.options.seconds.to_string(), count.to_string()],
    };
    let program = std::env::current_exe()?.display().to_string();
    let told =
        lab.run(side, &[program, DELIVERER.into(), dir.display().to_string(), unit, limit, deliverers])?;
    read_rate(&told)
}

fn read_rate(told: &str) -> Result<f64> {
    told.trim().parse().with_context(|| format!("the deliverer printed {told:?}"))
}

/// Delivers; `args` follow [`DELIVERER`]: directory, unit of the limit, limit, deliverers.
pub fn run(args: &[String]) -> Result<()> {
    let [dir, unit, limit, deliverers] = args else {
        bail!("a deliverer needs a directory, a limit and its unit, and how many deliver")
    };
    let rate = match deliverers.parse().context("that is no number")? {
        1 => deliver(Path::new(dir), unit, limit.parse().context("that is no number")?)?,
        deliverers => have_delivered(Path::new(dir), unit, limit, deliverers)?,
    };
    println!("{rate:.0}");
    Ok(())
}

/// Several processes deliver; the sum of their rates.
fn have_delivered(dir: &Path, unit: &str, limit: &str, deliverers: u64) -> Result<f64> {
    let start = |number: u64| -> Result<_> {
        let own = dir.join(number.to_string());
        fs::create_dir(&own).with_context(|| format!("could not make {}", own.display()))?;
        let mut deliverer = Command::new(std::env::current_exe()?);
        deliverer.arg(DELIVERER).arg(own).args([unit, limit, "1"]).stdout(Stdio::piped());
        Ok(deliverer.spawn()?)
    };
    let started: Vec<_> = (0..deliverers).map(start).collect::<Result<_>>()?;
    let rates = started.into_iter().map(|deliverer| {
        let output = deliverer.wait_with_output()?;
        ensure!(output.status.success(), "a deliverer failed: {}", output.status);
        read_rate(std::str::from_utf8(&output.stdout)?)
    });
    rates.sum()
}

fn deliver(dir: &Path, unit: &str, limit: u64) -> Result<f64> {
    let (tmp, new) = (dir.join("tmp"), dir.join("new"));
    for directory in [&tmp, &new] {
        fs::create_dir(directory).with_context(|| format!("could not make {}", directory.display()))?;
    }
    let directory = File::open(&new)?;
    let (start, mut delivered) = (Instant::now(), 0);
    let is_over = |delivered: u64| match unit {
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
    Ok(delivered as f64 / seconds)
}
