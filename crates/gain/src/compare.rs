//! Two reports compared: which changes lie beyond the spread, and which are noise.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};

use crate::report::{FORMAT, Report, Row};
use crate::samples::{Change, SAMPLES_MIN, Spread, change};
use crate::side::Side;
use crate::{Host, units};

/// Prints what changed from one report to the other; whether something is slower under Holdfast.
pub fn compare(before: &Path, after: &Path, host: &Host) -> anyhow::Result<bool> {
    let (old, new) = (read(before)?, read(after)?);
    let (text, is_slower) = compared(&old, &new);
    // A report may come from anywhere: what is in it does not reach the terminal as it is.
    let lines = text.lines().map(|line| (host.shown)(line) + "\n");
    (host.print)(&lines.collect::<String>())?;
    Ok(is_slower)
}

fn read(path: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let value: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => bail!("{} is a report of version {format}; this is {FORMAT}", path.display()),
        None => bail!("{} is no report of `holdfast bench --json`", path.display()),
    }
    serde_json::from_value(value)
        .with_context(|| format!("{} is no report of `holdfast bench --json`", path.display()))
}

fn compared(old: &Report, new: &Report) -> (String, bool) {
    let mut text = differences(old, new);
    let _ = writeln!(
        text,
        "{:14} {:10} {:>10} {:>10}  {:>7}  beyond the spread?",
        "", "", "before", "after", "change"
    );
    let (mut slower, mut native) = (Vec::new(), 0);
    for row in &new.workloads {
        let Some(before) = old.workloads.iter().find(|other| other.name == row.name) else {
            let _ = writeln!(text, "{:14} only in the second report", row.name);
            continue;
        };
        for side in Side::ALL {
            let Some((line, changed)) = line(before, row, side) else { continue };
            text += &line;
            let is_changed = matches!(changed, Change::Faster | Change::Slower);
            native += usize::from(side == Side::Native && is_changed);
            if side == Side::Holdfast && changed == Change::Slower {
                slower.push(row.name.as_str());
            }
        }
    }
    for row in old.workloads.iter().filter(|row| new.workloads.iter().all(|other| other.name != row.name)) {
        let _ = writeln!(text, "{:14} only in the first report", row.name);
    }
    text.push('\n');
    if old.rounds.min(new.rounds) < SAMPLES_MIN as u32 {
        let _ = writeln!(
            text,
            "With fewer than {SAMPLES_MIN} rounds nothing can be told from noise: --rounds 5."
        );
    }
    if native > 0 {
        let _ = writeln!(
            text,
            "Natively {native} workloads changed, too: it is the machine, or what else it does, as well."
        );
    }
    match slower.is_empty() {
        true => text += "Nothing is slower under Holdfast beyond the spread.\n",
        false => {
            let _ = writeln!(text, "SLOWER under Holdfast: {}.", slower.join(", "));
        }
    }
    (text, !slower.is_empty())
}

/// What makes the two less comparable.
fn differences(old: &Report, new: &Report) -> String {
    let mut text = String::new();
    let place = |report: &Report| format!("{} on {}", report.file_system.kind, report.file_system.device);
    for (what, before, after) in [
        ("Holdfast", old.holdfast.clone(), new.holdfast.clone()),
        ("machine", old.machine.in_words(), new.machine.in_words()),
        ("file system", place(old), place(new)),
        ("pool", old.pool.media.clone(), new.pool.media.clone()),
        ("time of each", units::time(old.time_ms * 1_000_000), units::time(new.time_ms * 1_000_000)),
    ] {
        if before != after {
            let _ = writeln!(text, "not the same: {what}: {before}; then {after}");
        }
    }
    text
}

fn line(before: &Row, after: &Row, side: Side) -> Option<(String, Change)> {
    let (before, samples) = (&before.samples(side)?.per_s, &after.samples(side)?.per_s);
    let (old, new) = (Spread::of(before)?, Spread::of(samples)?);
    let changed = change(before, samples);
    let told = match changed {
        Change::Faster => "faster",
        Change::Slower => "slower",
        Change::Noise => "noise",
        Change::TooFew => "too few rounds",
    };
    let percent = (new.median / old.median - 1.0) * 100.0;
    let line = format!(
        "{:14} {:10} {:>10} {:>10}  {percent:>+6.1}%  {told}\n",
        after.name,
        side.name(),
        units::rate(old.median),
        units::rate(new.median),
    );
    Some((line, changed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::made;
    use crate::workload::Workload;

    const SLOW: &[f64] = &[100.0, 101.0, 102.0, 103.0];
    const FAST: &[f64] = &[200.0, 201.0, 202.0, 203.0];

    #[test]
    fn only_what_lies_beyond_the_spread_counts() {
        let old = made(&[(Workload::Random, SLOW, FAST), (Workload::Append, SLOW, FAST)]);
        let new =
            made(&[(Workload::Random, SLOW, SLOW), (Workload::Append, SLOW, &[199.0, 202.0, 203.0, 204.0])]);
        let (text, is_slower) = compared(&old, &new);
        assert!(is_slower);
        assert!(text.contains("random         Holdfast          202        102   -49.6%  slower"), "{text}");
        assert!(text.contains("append         Holdfast          202        203    +0.5%  noise"), "{text}");
        assert!(text.ends_with("SLOWER under Holdfast: random.\n"), "{text}");
        assert!(!text.contains("Natively"), "{text}");
        let (text, is_slower) = compared(&new, &old);
        assert!(!is_slower && text.contains("faster"), "{text}");
    }

    #[test]
    fn what_makes_reports_less_comparable_is_said() {
        let old = made(&[(Workload::Random, SLOW, FAST), (Workload::Create, SLOW, FAST)]);
        let mut new = made(&[(Workload::Random, FAST, FAST), (Workload::Append, &SLOW[..3], &FAST[..3])]);
        new.rounds = 3;
        new.machine.kernel = "7.0".into();
        let (text, is_slower) = compared(&old, &new);
        assert!(!is_slower, "{text}");
        for told in [
            "not the same: machine",
            "append         only in the second report",
            "create         only in the first report",
            "fewer than 4 rounds",
            "Natively 1 workloads changed",
        ] {
            assert!(text.contains(told), "{told}\n{text}");
        }
    }

    #[test]
    fn what_is_no_report_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        for (text, told) in [
            ("{", "is no JSON"),
            ("{}", "is no report"),
            ("{\"format\": 9}", "of version 9"),
            ("{\"format\": 1}", "is no report"),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = read(&path).expect_err("refused").to_string();
            assert!(error.contains(told), "{error}");
        }
        assert!(read(&dir.path().join("none")).is_err());
    }
}
