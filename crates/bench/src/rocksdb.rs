//! RocksDB: db_bench as Debian ships it.

use anyhow::{Context, Result};

use crate::behind_writes::behind;
use crate::lab::{Lab, Side};
use crate::report::{Bar, Check, Outcome, Run, interleave};

/// `fillsync`: one synced write-ahead record per key.
pub fn fillsync(lab: &Lab) -> Result<Outcome> {
    // Operations per second only size the runs.
    let sides = [
        ("native", Side::Native, 5_000),
        ("holdfast", lab.main_side()?, 100_000),
        ("eatmydata (not durable)", Side::Eatmydata, 100_000),
        ("holdfast, write-behind", behind(lab.main_side()?), 100_000),
    ];
    let runs = sides
        .into_iter()
        .map(|(label, side, per_s)| -> Run<'_> {
            let operations = per_s * lab.options.seconds;
            (label.into(), Box::new(move || sample(lab, &side, operations)))
        })
        .collect();
    let series = interleave(lab.options.rounds, "ops/s", runs)?;
    let checks = vec![
        Check::ratio(&series[1], &series[2], Some(Bar::AtLeast(0.75))),
        Check::ratio(&series[3], &series[2], Some(Bar::AtLeast(0.95))),
        Check::ratio(&series[1], &series[0], None),
    ];
    Ok(Outcome { series, checks, ..Outcome::default() })
}

fn sample(lab: &Lab, side: &Side, operations: u64) -> Result<f64> {
    let dir = lab.home(side).join("rocksdb");
    std::fs::remove_dir_all(&dir).ok();
    lab.settle()?;
    let program = [
        "db_bench".to_string(),
        "--benchmarks=fillsync".into(),
        format!("--db={}", dir.display()),
        format!("--num={operations}"),
        "--threads=1".into(),
        "--seed=1".into(),
    ];
    let output = lab.run(side, &program)?;
    output
        .lines()
        .find_map(|line| {
            let rest = line.strip_prefix("fillsync")?;
            let words: Vec<&str> = rest.split_whitespace().collect();
            let unit = words.iter().position(|word| *word == "ops/sec")?;
            words[unit.checked_sub(1)?].parse().ok()
        })
        .with_context(|| format!("db_bench printed no result: {output}"))
}
