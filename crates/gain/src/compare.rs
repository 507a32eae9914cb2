//! Two reports compared: which changes lie beyond the spread, and which are noise.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, bail};

use crate::report::{FORMAT, Report, Row};
use crate::samples::{Change, SAMPLES_MIN, Spread, change};
use crate::side::Side;
use crate::{Host, units};

/// A report is some kilobytes; what is larger than this is none.
const REPORT_BYTES_MAX: u64 = 16 << 20;
/// Names standard input.
const STANDARD_INPUT: &str = "-";

/// What two reports say of Holdfast.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// Something became slower.
    Slower,
    /// Nothing did, of what could be compared.
    NotSlower,
    /// Nothing could be compared, and why.
    Untold(String),
}

/// Prints what changed from one report to the other; whether something is slower under Holdfast.
/// Fails where nothing can be told.
pub fn compare(before: &Path, after: &Path, host: &Host) -> anyhow::Result<bool> {
    if [before, after].iter().all(|path| *path == Path::new(STANDARD_INPUT)) {
        bail!("only one of the reports can come from standard input");
    }
    let (old, new) = (read(before)?, read(after)?);
    let (text, outcome) = compared(&old, &new);
    // A report may come from anywhere: what is in it does not reach the terminal as it is.
    let lines = text.lines().map(|line| (host.shown)(line) + "\n");
    (host.print)(&lines.collect::<String>())?;
    match outcome {
        Outcome::Slower => Ok(true),
        Outcome::NotSlower => Ok(false),
        Outcome::Untold(why) => bail!("nothing can be told of what changed under Holdfast: {why}"),
    }
}

fn read(path: &Path) -> anyhow::Result<Report> {
    let text = text_of(path)?;
    let value: serde_json::Value =
        serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => bail!("{} is a report of version {format}; this is {FORMAT}", path.display()),
        None => bail!("{} is no report of `holdfast bench --json`", path.display()),
    }
    let report: Report = serde_json::from_value(value)
        .with_context(|| format!("{} is no report of `holdfast bench --json`", path.display()))?;
    for (row, samples) in report.workloads.iter().flat_map(|row| row.sides.values().map(move |of| (row, of)))
    {
        if let Some(rate) = samples.per_s.iter().find(|rate| !rate.is_finite() || **rate <= 0.0) {
            bail!("{} has a rate that cannot be: {rate} a second, of {:?}", path.display(), row.name);
        }
    }
    Ok(report)
}

/// All of a file, if it is one that ends, and soon.
fn text_of(path: &Path) -> anyhow::Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    let mut text = String::new();
    let source: &mut dyn std::io::Read = if path == Path::new(STANDARD_INPUT) {
        &mut std::io::stdin().lock()
    } else {
        // Looked at first: to open a FIFO is to wait for who writes it.
        if !std::fs::metadata(path).with_context(cannot)?.is_file() {
            bail!("{} is no regular file; `-` reads standard input", path.display());
        }
        &mut std::fs::File::open(path).with_context(cannot)?
    };
    source.take(REPORT_BYTES_MAX + 1).read_to_string(&mut text).with_context(cannot)?;
    if text.len() as u64 > REPORT_BYTES_MAX {
        bail!("{} is larger than {}: it is no report", path.display(), units::bytes(REPORT_BYTES_MAX));
    }
    Ok(text)
}

fn compared(old: &Report, new: &Report) -> (String, Outcome) {
    let mut text = differences(old, new);
    let _ = writeln!(
        text,
        "{:14} {:10} {:>10} {:>10}  {:>7}  beyond the spread?",
        "", "", "before", "after", "change"
    );
    let (mut slower, mut native, mut held) = (Vec::new(), 0, Vec::new());
    for row in &new.workloads {
        let Some(before) = old.workloads.iter().find(|other| other.name == row.name) else {
            let _ = writeln!(text, "{:14} only in the second report", row.name);
            continue;
        };
        if before.unit != row.unit {
            let units = format!("{} in the first report, {} in the second", before.unit, row.unit);
            let _ = writeln!(text, "{:14} not comparable: {units}", row.name);
            continue;
        }
        for side in Side::ALL {
            let (line, changed) = line(before, row, side);
            text += &line;
            let is_changed = matches!(changed, Some(Change::Faster | Change::Slower));
            native += u64::from(side == Side::Native && is_changed);
            if side == Side::Holdfast {
                held.push((row.name.as_str(), changed));
            }
            if side == Side::Holdfast && changed == Some(Change::Slower) {
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
            "Natively {} changed, too: it is the machine, or what else it does, as well.",
            units::counted(native, "workload")
        );
    }
    let (conclusion, outcome) = concluded(&slower, &held);
    (text + &conclusion, outcome)
}

/// The sentence at the end, from what is slower and what became of each common workload under
/// Holdfast: none where it has no samples.
fn concluded(slower: &[&str], held: &[(&str, Option<Change>)]) -> (String, Outcome) {
    let is_told = |changed: &Option<Change>| !matches!(changed, None | Some(Change::TooFew));
    let why = match () {
        () if held.iter().any(|(_, changed)| is_told(changed)) => None,
        () if held.is_empty() => {
            Some("the reports have no workload in common, or count it in other units".to_owned())
        }
        () if held.iter().all(|(_, changed)| changed.is_none()) => {
            Some("no workload has samples under Holdfast in both reports".to_owned())
        }
        () => Some(format!("no workload has {SAMPLES_MIN} rounds under Holdfast in both reports")),
    };
    if let Some(why) = why {
        return (String::new(), Outcome::Untold(why));
    }
    let untold: Vec<&str> = held.iter().filter(|(_, of)| !is_told(of)).map(|(name, _)| *name).collect();
    let mut text = match untold.as_slice() {
        [] => String::new(),
        _ => format!("Nothing can be told of {} under Holdfast.\n", untold.join(", ")),
    };
    text += &match (slower, untold.as_slice()) {
        ([], []) => "Nothing is slower under Holdfast beyond the spread.\n".to_owned(),
        ([], _) => "Of the others none is slower under Holdfast beyond the spread.\n".to_owned(),
        _ => format!("SLOWER under Holdfast: {}.\n", slower.join(", ")),
    };
    (text, if slower.is_empty() { Outcome::NotSlower } else { Outcome::Slower })
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

/// A line of the table, and what became of the rate; nothing where a report has no samples.
fn line(before: &Row, after: &Row, side: Side) -> (String, Option<Change>) {
    let per_s = |row: &'_ Row| row.samples(side).map(|samples| samples.per_s.clone()).unwrap_or_default();
    let (before, samples) = (per_s(before), per_s(after));
    let (old, new) = (Spread::of(&before), Spread::of(&samples));
    let rate = |spread: Option<Spread>| spread.map_or("-".to_owned(), |spread| units::rate(spread.median));
    let (percent, told, changed) = match (old, new) {
        (Some(old), Some(new)) => {
            let changed = change(&before, &samples);
            let told = match changed {
                Change::Faster => "faster",
                Change::Slower => "slower",
                Change::Noise => "noise",
                Change::TooFew => "too few rounds",
            };
            (format!("{:+.1}%", (new.median / old.median - 1.0) * 100.0), told, Some(changed))
        }
        (Some(_), None) => (String::new(), "no samples in the second report", None),
        (None, Some(_)) => (String::new(), "no samples in the first report", None),
        (None, None) => (String::new(), "no samples in either report", None),
    };
    let line = format!(
        "{:14} {:10} {:>10} {:>10}  {percent:>7}  {told}\n",
        after.name,
        side.name(),
        rate(old),
        rate(new),
    );
    (line, changed)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

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
        let (text, outcome) = compared(&old, &new);
        assert_eq!(outcome, Outcome::Slower);
        assert!(text.contains("random         Holdfast          202        102   -49.6%  slower"), "{text}");
        assert!(text.contains("append         Holdfast          202        203    +0.5%  noise"), "{text}");
        assert!(text.ends_with("SLOWER under Holdfast: random.\n"), "{text}");
        assert!(!text.contains("Natively"), "{text}");
        let (text, outcome) = compared(&new, &old);
        assert!(outcome == Outcome::NotSlower && text.contains("faster"), "{text}");
        assert!(text.ends_with("Nothing is slower under Holdfast beyond the spread.\n"), "{text}");
    }

    #[test]
    fn what_makes_reports_less_comparable_is_said() {
        let old = made(&[(Workload::Random, SLOW, FAST), (Workload::Create, SLOW, FAST)]);
        let mut new = made(&[(Workload::Random, FAST, FAST), (Workload::Append, &SLOW[..3], &FAST[..3])]);
        new.rounds = 3;
        new.machine.kernel = "7.0".into();
        let (text, outcome) = compared(&old, &new);
        assert_eq!(outcome, Outcome::NotSlower, "{text}");
        for told in [
            "not the same: machine",
            "append         only in the second report",
            "create         only in the first report",
            "fewer than 4 rounds",
            "Natively 1 workload changed",
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
            (&" ".repeat(REPORT_BYTES_MAX as usize + 1), "larger than 16.0 MiB"),
        ] {
            std::fs::write(&path, text).expect("written");
            let error = read(&path).expect_err("refused").to_string();
            assert!(error.contains(told), "{error}");
        }
        assert!(read(&dir.path().join("none")).is_err());
    }

    #[test]
    fn what_never_ends_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
        for path in [&fifo, Path::new("/dev/zero"), dir.path()] {
            let error = read(path).expect_err("refused").to_string();
            assert!(error.contains("is no regular file"), "{error}");
        }
    }

    #[test]
    fn where_nothing_can_be_told_that_is_said_and_why() {
        let whole = made(&[(Workload::Random, SLOW, FAST)]);
        let untold = |new: &Report| {
            let (text, outcome) = compared(&whole, new);
            assert!(!text.contains("Nothing is slower"), "{text}");
            match outcome {
                Outcome::Untold(why) => (text, why),
                other => panic!("{other:?}: {text}"),
            }
        };
        let (text, why) = untold(&made(&[(Workload::Append, SLOW, FAST)]));
        assert!(text.contains("append         only in the second") && why.contains("in common"), "{why}");
        let mut other = made(&[(Workload::Random, SLOW, SLOW)]);
        other.workloads[0].unit = "MB/s".to_owned();
        let (text, why) = untold(&other);
        assert!(
            text.contains("random         not comparable: ") && text.contains("MB/s in the second"),
            "{text}"
        );
        assert!(!text.contains("slower") && why.contains("other units"), "{text}{why}");
        let (text, why) = untold(&made(&[(Workload::Random, SLOW, &[])]));
        assert!(
            text.contains("Holdfast          202          -           no samples in the second report"),
            "{text}"
        );
        assert!(text.contains("no samples in either report") && why.contains("has samples"), "{text}{why}");
        let (_, why) = untold(&made(&[(Workload::Random, SLOW, &FAST[..3])]));
        assert!(why.contains("has 4 rounds"), "{why}");
        // What can be told of one says nothing of another.
        let both = |held| made(&[(Workload::Random, SLOW, FAST), (Workload::Append, SLOW, held)]);
        let (text, outcome) = compared(&both(FAST), &both(&[]));
        assert_eq!(outcome, Outcome::NotSlower);
        assert!(!text.contains("Nothing is slower") && text.contains("told of append under"), "{text}");
        assert!(text.ends_with("Of the others none is slower under Holdfast beyond the spread.\n"), "{text}");
    }

    #[test]
    fn rates_that_cannot_be_are_refused_by_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("report");
        let whole = serde_json::to_string(&made(&[(Workload::Random, SLOW, &[2.5; 4])])).expect("JSON");
        for (rate, is_fine) in
            [("2.5", true), ("0.0", false), ("-1.0", false), ("null", false), ("1e999", false)]
        {
            std::fs::write(&path, whole.replacen("2.5", rate, 1)).expect("written");
            match read(&path) {
                Ok(_) => assert!(is_fine, "{rate}"),
                Err(error) => assert!(!is_fine && error.to_string().contains("report"), "{rate}: {error}"),
            }
        }
    }
}
