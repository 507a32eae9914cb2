//! A report as text, eighty columns wide.

use std::fmt::Write as _;

use crate::report::{Report, Row};
use crate::samples::Spread;
use crate::side::Side;
use crate::units;

/// Where and how was measured.
pub fn head(report: &Report, shown: fn(&str) -> String) -> String {
    let system = &report.file_system;
    format!(
        "  machine    {}\n  directory  {} ({} on {})\n  pool       {}, {}, {}\n             {}\n",
        shown(&report.machine.in_words()),
        shown(&report.directory),
        shown(&system.kind),
        shown(&system.device),
        shown(&report.pool.path),
        units::bytes(report.pool.bytes),
        report.pool.media,
        report.pool.in_words(),
    )
}

/// What was measured.
pub fn body(report: &Report) -> String {
    let mut text = String::new();
    for row in &report.workloads {
        let _ = writeln!(text, "\n{} [{}]", row.title, row.name);
        let times = row.sides.values().any(|samples| samples.times_ns().is_some());
        let times = if times { "   median      99 %" } else { "" };
        let head =
            format!("  {:10} {:>11}  {:24} {:>9} {times}", "", row.unit, "lowest .. highest", "x native");
        let _ = writeln!(text, "{}", head.trim_end());
        for side in Side::ALL {
            text += &line(report, row, side);
        }
        if let Some(floor) = Spread::of(&row.floor) {
            let _ = writeln!(text, "  {:10} {:>11}  {}", "floor", units::rate(floor.median), range(&floor));
        }
        if let Some(held) = row.samples(Side::Holdfast) {
            for told in held.absorbed_in_words() {
                let _ = writeln!(text, "  {told}");
            }
        }
        if !row.program.is_empty() {
            let _ = writeln!(text, "  by {}", row.program);
        }
    }
    text
}

fn line(report: &Report, row: &Row, side: Side) -> String {
    let name = side.name();
    let Some(samples) = row.samples(side) else {
        let why = report.missing.get(name).map_or("not measured", String::as_str);
        return format!("  {name:10} {why}\n");
    };
    let Some(spread) = Spread::of(&samples.per_s) else { return format!("  {name:10} no samples\n") };
    let ratio = match side {
        Side::Native => String::new(),
        _ => row.against_native(side).map(units::ratio).unwrap_or_default(),
    };
    let (half, most) = match samples.times_ns() {
        Some((half, most)) => (units::time(half), units::time(most)),
        None => Default::default(),
    };
    let line = format!(
        "  {name:10} {:>11}  {:24} {ratio:>9} {half:>9} {most:>9}",
        units::rate(spread.median),
        range(&spread)
    );
    line.trim_end().to_owned() + "\n"
}

fn range(spread: &Spread) -> String {
    format!("{} .. {}", units::rate(spread.low), units::rate(spread.high))
}

/// What it comes to.
pub fn foot(report: &Report) -> String {
    let verdict = report.verdict().iter().fold("\n".to_owned(), |text, line| text + line + "\n");
    let notes = "\neatmydata and tmpfs make nothing durable. The floor is what the bytes alone cost on\n\
                 the media of the pool. A measurement is short, and the disk follows later:\n\
                 --time 30s shows what it can keep up with.\n";
    verdict + notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::made;
    use crate::workload::Workload;

    #[test]
    fn a_table_has_each_side_or_why_not() {
        let report = made(&[(Workload::Random, &[1000.0, 1100.0, 1200.0], &[1e6, 1.1e6, 1.2e6])]);
        let text = body(&report);
        for line in [
            "  native           1,100  1,000 .. 1,200                        909 us    1.8 ms",
            "  Holdfast     1,100,000  1,000,000 .. 1,200,000     1,000 x    909 ns    1.8 us",
            "  eatmydata  not installed",
            "  tmpfs      not measured",
            "  99.9 % of syncs absorbed",
        ] {
            assert!(text.lines().any(|told| told == line), "{line}\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let mut unmeasured = report.clone();
        unmeasured.workloads[0].sides.insert("tmpfs".into(), crate::report::Samples::default());
        assert!(body(&unmeasured).contains("\n  tmpfs      no samples\n"), "{}", body(&unmeasured));
        let head = head(&report, |text| text.replace('<', "?"));
        assert!(head.contains("/srv/?a> & b (ext4 on /dev/vda)"), "{head}");
    }
}
