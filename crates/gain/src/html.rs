//! A report as one page of HTML: no script, nothing from the network, and each chart beside a table
//! of the same numbers.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::chart::{Line, chart};
use crate::report::{Report, Row};
use crate::samples::Spread;
use crate::side::Side;
use crate::units;

const STYLE: &str = include_str!("style.css");

/// The page.
pub fn page(report: &Report) -> String {
    let title = format!("What Holdfast would gain on {}", report.directory);
    let verdict = report.verdict();
    let (media, rows) = verdict.split_last().map_or(("", &[][..]), |(last, rows)| (last.as_str(), rows));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "What Holdfast would gain on " code { (report.directory) } }
                p.quiet {
                    "Holdfast " (report.holdfast) ", " (report.date) ". Each workload ran "
                    (units::counted(report.rounds.into(), "time")) " on each side for "
                    (units::time(report.time_ms * 1_000_000))
                    ", the sides in turn. Dots are medians, lines go from the lowest to the highest."
                }
                .verdict { @for row in rows { p { (row) } } }
                div class=[report.pool.is_emulated.then_some("emulated")] { p { (media) } }
                (overview(report))
                @for row in &report.workloads { (workload(report, row)) }
                (facts(report))
            }
        }
    };
    page.into_string() + "\n"
}

/// Holdfast against native, all workloads in one chart.
fn overview(report: &Report) -> Markup {
    let lines: Vec<Line> = report
        .workloads
        .iter()
        .filter_map(|row| {
            let native = Spread::of(&row.samples(Side::Native)?.per_s)?;
            let held = Spread::of(&row.samples(Side::Holdfast)?.per_s)?;
            // Farthest apart, that is.
            let spread = Spread {
                median: held.median / native.median,
                low: held.low / native.high,
                high: held.high / native.low,
            };
            let told = units::ratio(spread.median);
            Some(Line { name: row.name.clone(), told, spread, class: "held" })
        })
        .collect();
    html! {
        section {
            h2 { "Holdfast against native" }
            p.quiet { "How many times as fast; the dashed line is native. Further right is better." }
            (chart("Holdfast against native, times as fast", &lines, Some(1.0)))
        }
    }
}

fn class(side: Side) -> &'static str {
    match side {
        Side::Native => "native",
        Side::Holdfast => "held",
        Side::Eatmydata | Side::Tmpfs => "loose",
    }
}

fn label(side: Side) -> String {
    if side.is_durable() { side.name().to_owned() } else { format!("{} (nothing is durable)", side.name()) }
}

fn workload(report: &Report, row: &Row) -> Markup {
    let measured = Side::ALL.into_iter().filter_map(|side| {
        let spread = Spread::of(&row.samples(side)?.per_s)?;
        Some(Line { name: label(side), told: units::rate(spread.median), spread, class: class(side) })
    });
    let floor = Spread::of(&row.floor).map(|spread| Line {
        name: "floor (the bytes alone)".to_owned(),
        told: units::rate(spread.median),
        spread,
        class: "floor",
    });
    let lines: Vec<Line> = measured.chain(floor).collect();
    let held = row.samples(Side::Holdfast);
    html! {
        section {
            h2 { (row.title) }
            p.quiet { "As " (row.stands_for) "." @if !row.program.is_empty() { " Done by " (row.program) "." } }
            @if let Some(held) = held {
                @for told in held.absorbed_in_words() {
                    p { "Holdfast: " (told) "." }
                }
            }
            .both {
                (chart(&format!("{}, {}", row.title, row.unit), &lines, None))
                .scroll tabindex="0" { (table(report, row)) }
            }
        }
    }
}

fn table(report: &Report, row: &Row) -> Markup {
    let has_times = row.sides.values().any(|samples| samples.times_ns().is_some());
    html! {
        table {
            caption { (row.name) ", " (row.unit) @if has_times { "; times of one operation" } }
            thead { tr {
                th scope="col" { "side" } th scope="col" { "median" } th scope="col" { "x native" }
                th scope="col" { "lowest" } th scope="col" { "highest" }
                @if has_times { th scope="col" { "median time" } th scope="col" { "99 %" } }
            } }
            tbody {
                @for side in Side::ALL {
                    tr {
                        th scope="row" { (side.name()) }
                        @match row.samples(side).and_then(|samples| Some((samples, Spread::of(&samples.per_s)?))) {
                            Some((samples, spread)) => {
                                (numbers(&spread, row.against_native(side)))
                                @if let Some((half, most)) = samples.times_ns() {
                                    td { (units::time(half)) }
                                    td { (units::time(most)) }
                                }
                            }
                            None => {
                                @let why = report.missing.get(side.name()).map_or("not measured", String::as_str);
                                td.why colspan="6" { (why) }
                            }
                        }
                    }
                }
                @if let Some(spread) = Spread::of(&row.floor) {
                    tr { th scope="row" { "floor" } (numbers(&spread, None)) @if has_times { td {} td {} } }
                }
            }
        }
    }
}

fn numbers(spread: &Spread, against_native: Option<f64>) -> Markup {
    html! {
        td { (units::rate(spread.median)) }
        td { (against_native.map(units::ratio).unwrap_or_default()) }
        td { (units::rate(spread.low)) }
        td { (units::rate(spread.high)) }
    }
}

/// Where and how was measured.
fn facts(report: &Report) -> Markup {
    let system = &report.file_system;
    let machine = &report.machine;
    let cpu = format!("{} x {}, {}", machine.cpus, machine.cpu, units::bytes(machine.memory_bytes));
    let pool = &report.pool;
    let rows = [
        ("Command", report.command.clone()),
        ("Date", report.date.clone()),
        ("Holdfast", report.holdfast.clone()),
        ("Machine", cpu),
        ("Kernel", format!("Linux {}", machine.kernel)),
        ("System", machine.system.clone()),
        ("Directory", report.directory.clone()),
        ("File system", format!("{} on {} ({})", system.kind, system.device, system.options)),
        ("Pool", format!("{}, {}", pool.path, units::bytes(pool.bytes))),
        ("NVM", format!("{}. {}", pool.media, pool.in_words())),
    ];
    html! {
        section {
            h2 { "Where and how" }
            dl {
                @for (name, value) in &rows { dt { (name) } dd { (value) } }
                @for note in &report.notes { dt { "Note" } dd { (note) } }
                @for side in Side::ALL { dt { (side.name()) } dd { (side.what()) } }
                dt { "floor" }
                dd { "what it costs to make the bytes of one operation durable on the media of the pool, and nothing else" }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::made;
    use crate::workload::Workload;

    #[test]
    fn a_page_is_whole_and_holds_no_text_from_outside_as_it_is() {
        let rates: &[f64] = &[1000.0, 1100.0, 1200.0, 1300.0];
        let report =
            made(&[(Workload::Random, rates, &[1e6, 1.1e6, 1.2e6, 1.3e6]), (Workload::Plain, rates, rates)]);
        let page = page(&report);
        assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
        assert!(page.contains("/srv/&lt;a&gt; &amp; b") && !page.contains("<a>"), "{page}");
        for word in ["http://", "https://", "<script", "url(", "@import"] {
            assert!(!page.contains(word), "{word}");
        }
        for word in [
            "prefers-color-scheme: dark",
            "EMULATED NVM",
            "not installed",
            "99.9 % of syncs absorbed",
            "1,150,000",
        ] {
            assert!(page.contains(word), "{word}\n{page}");
        }
        // As many charts as tables, and one over all.
        assert_eq!(page.matches("<svg ").count(), page.matches("<table>").count() + 1);
        assert_eq!(page.matches("role=\"img\"").count(), page.matches("aria-label=").count());
    }
}
