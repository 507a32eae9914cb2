//! SQLite: the stock shell runs a script of single-row transactions.

use std::fmt::Write as _;
use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::behind_writes::behind_when_it_pays;
use crate::lab::{Lab, Side};
use crate::report::{Bar, Check, Outcome, Run, interleave};

/// Seconds since 1970 with milliseconds, printed by SQLite itself before the first and after the
/// last transaction.
const CLOCK: &str = "SELECT (julianday('now') - 2440587.5) * 86400.0;\n";

/// WAL mode.
pub fn wal(lab: &Lab) -> Result<Outcome> {
    let series = compare(lab, "wal", 3_000, 50_000)?;
    let checks = vec![
        Check::ratio(&series[1], &series[2], Some(Bar::AtLeast(0.75))),
        Check::ratio(&series[3], &series[2], Some(Bar::AtLeast(0.95))),
        Check::ratio(&series[1], &series[0], None),
    ];
    Ok(Outcome { series, checks, ..Outcome::default() })
}

/// Rollback journal, deleted at each commit.
pub fn delete(lab: &Lab) -> Result<Outcome> {
    let series = compare(lab, "delete", 1_000, 10_000)?;
    let checks = vec![
        Check::ratio(&series[1], &series[0], Some(Bar::AtLeast(4.0))),
        Check::ratio(&series[1], &series[2], None),
        Check::ratio(&series[3], &series[1], None),
    ];
    Ok(Outcome { series, checks, ..Outcome::default() })
}

/// Native, Holdfast, eatmydata; `native_per_s` and `fast_per_s` only size the scripts.
fn compare(
    lab: &Lab,
    mode: &'static str,
    native_per_s: u64,
    fast_per_s: u64,
) -> Result<Vec<crate::report::Series>> {
    let sides = [
        ("native", Side::Native, native_per_s),
        ("holdfast", lab.main_side()?, fast_per_s),
        ("eatmydata (not durable)", Side::Eatmydata, fast_per_s),
        // New files enter state Behind once they are written again and again, which journals never
        // are.
        ("holdfast, write-behind", behind_when_it_pays(lab.main_side()?), fast_per_s),
    ];
    let runs = sides
        .into_iter()
        .map(|(label, side, per_s)| -> Run<'_> {
            let transactions = per_s * lab.options.seconds;
            (label.into(), Box::new(move || sample(lab, &side, mode, transactions)))
        })
        .collect();
    interleave(lab.options.rounds, "tx/s", runs)
}

fn sample(lab: &Lab, side: &Side, mode: &str, transactions: u64) -> Result<f64> {
    let database = lab.home(side).join("bench.db");
    for suffix in ["", "-wal", "-shm", "-journal"] {
        fs::remove_file(format!("{}{suffix}", database.display())).ok();
    }
    let script = lab.scratch().join(format!("{mode}-{transactions}.sql"));
    if !script.exists() {
        fs::write(&script, self::script(mode, transactions)?)?;
    }
    lab.settle()?;
    let program = ["sqlite3".to_string(), "-batch".into(), database.display().to_string()];
    let output = lab.start(side, &program, Stdio::from(fs::File::open(&script)?))?.finish(lab)?;
    let lines: Vec<&str> = output.lines().collect();
    let clock = |line: Option<&&str>| -> Result<f64> {
        line.and_then(|text| text.parse().ok()).with_context(|| format!("sqlite3 printed {output:?}"))
    };
    ensure!(lines.contains(&mode), "sqlite3 did not take journal_mode={mode}: {output:?}");
    ensure!(lines.contains(&transactions.to_string().as_str()), "rows are missing: {output:?}");
    let seconds = clock(lines.get(2))? - clock(lines.get(1))?;
    ensure!(seconds > 0.0, "too few transactions for the clock; raise --seconds");
    Ok(transactions as f64 / seconds)
}

fn script(mode: &str, transactions: u64) -> Result<String> {
    let mut text = format!(
        "PRAGMA journal_mode={mode};\nPRAGMA synchronous=FULL;\nCREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT);\n{CLOCK}"
    );
    for id in 0..transactions {
        writeln!(text, "INSERT INTO t VALUES({id}, '{id:0100}');")?;
    }
    writeln!(text, "{CLOCK}SELECT count(*) FROM t;")?;
    Ok(text)
}
