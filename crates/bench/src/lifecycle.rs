//! What Holdfast costs beside the writes: start, idle CPU time, memory.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::lab::{DEFAULT_POOL_BYTES, Lab, Side};
use crate::report::{Bar, Check, Outcome, Run, Series, interleave};
use crate::running::Running;

const IDLE_S: u64 = 10;

/// What `holdfast status --json` says, as far as benchmarks care.
#[derive(Deserialize)]
pub struct Status {
    /// The keeper.
    pub keeper_pid: u32,
    /// Its clients.
    #[serde(default)]
    pub clients: Vec<u32>,
    /// Size of the pool.
    pub pool_bytes: u64,
    /// Size of the board.
    pub board_bytes: u64,
}

impl Status {
    /// Asks the keeper of a pool.
    pub fn of(lab: &Lab, pool: &Path) -> Result<Self> {
        let text = lab.holdfast(&["status", "--json", "--pool"], pool)?;
        serde_json::from_str(&text).with_context(|| format!("holdfast status printed {text}"))
    }
}

/// `holdfast run -- true` against `true`.
pub fn startup(lab: &Lab) -> Result<Outcome> {
    let default = lab.sized_side(DEFAULT_POOL_BYTES)?;
    let side = |label: &str, side: Side| -> Run<'_> {
        let sample = move || {
            let start = Instant::now();
            lab.run(&side, &["true".to_string()])?;
            Ok(start.elapsed().as_secs_f64() * 1000.0)
        };
        (label.into(), Box::new(sample))
    };
    let sides = vec![
        side("true", Side::Native),
        side("holdfast run -- true, pool 256 MiB", default),
        side("holdfast run -- true, main pool", lab.main_side()?),
    ];
    let rounds = lab.options.rounds * 4;
    let series = interleave(rounds, "ms", sides)?;
    let over = |index: usize, name: &str, bar| {
        let value = series[index].median() - series[0].median();
        Check::value(format!("added by holdfast run, {name}"), value, "ms", bar)
    };
    // The bar is meant for the pool that `run` makes by default.
    let checks = vec![over(1, "pool 256 MiB", Some(Bar::AtMost(25.0))), over(2, "main pool", None)];
    let notes = vec![format!("{rounds} rounds; the keeper is started and stopped within each run")];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// Starts a program that has written a little under Holdfast and then sleeps.
fn sleeper(lab: &Lab, side: &Side, seconds: u64) -> Result<Running> {
    let file = lab.home(side).join("idle");
    let script = "echo something > \"$1\" && exec sleep \"$2\"";
    let program = ["sh", "-c", script, "sh", &file.display().to_string(), &seconds.to_string()];
    let running = lab.start(side, &program.map(String::from), Stdio::null())?;
    // By then the age limit of a second has passed, and what was written is expired.
    std::thread::sleep(Duration::from_secs(3));
    Ok(running)
}

/// CPU time and wake-ups of a keeper whose client sleeps.
pub fn idle(lab: &Lab) -> Result<Outcome> {
    let running = sleeper(lab, &lab.main_side()?, IDLE_S + 5)?;
    let pid = Status::of(lab, &lab.pool)?.keeper_pid;
    let before = Usage::of(pid)?;
    std::thread::sleep(Duration::from_secs(IDLE_S));
    let after = Usage::of(pid)?;
    running.finish(lab)?;
    let used_ms = (after.cpu_ns - before.cpu_ns) as f64 / 1e6;
    let wakeups_per_s = (after.wakeups - before.wakeups) as f64 / IDLE_S as f64;
    let checks = vec![
        // A ten-thousandth of a processor: a few wake-ups of a thread that finds nothing to do.
        Check::value(format!("keeper's CPU time in {IDLE_S} s"), used_ms, "ms", Some(Bar::AtMost(1.0))),
        Check::value("keeper's wake-ups", wakeups_per_s, "per second", None),
    ];
    Ok(Outcome { checks, ..Outcome::default() })
}

struct Usage {
    cpu_ns: u64,
    wakeups: u64,
}

impl Usage {
    /// Sums over all threads.
    fn of(pid: u32) -> Result<Self> {
        let (mut cpu_ns, mut wakeups) = (0, 0);
        for thread in fs::read_dir(format!("/proc/{pid}/task")).context("the keeper is gone")? {
            let thread = thread?.path();
            // The ticks of /proc/PID/stat are too coarse: 10 ms.
            let account = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
            cpu_ns += account.split(' ').next().and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
            let status = fs::read_to_string(thread.join("status")).unwrap_or_default();
            let switches = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            wakeups += switches.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Self { cpu_ns, wakeups })
    }
}

/// Bytes of the board of a small and of the main pool.
pub fn board_size(lab: &Lab) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    for side in [lab.sized_side(DEFAULT_POOL_BYTES)?, lab.main_side()?] {
        let Side::Holdfast(pool, _) = &side else { continue };
        let running = sleeper(lab, &side, 4)?;
        let status = Status::of(lab, pool)?;
        running.finish(lab)?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let label = format!("board of a pool of {} MiB", status.pool_bytes >> 20);
        let bar = mib(status.pool_bytes / 64) + 8.0;
        outcome.series.push(Series {
            label: label.clone(),
            unit: "MiB",
            samples: vec![mib(status.board_bytes)],
        });
        outcome.checks.push(Check::value(label, mib(status.board_bytes), "MiB", Some(Bar::AtMost(bar))));
    }
    Ok(outcome)
}
