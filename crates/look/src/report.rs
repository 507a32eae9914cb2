//! What is shown to people: the summary of a run, the report of a recovery; and printing itself. It
//! computes nothing that the JSON form of the same data does not hold.

use std::fmt::Write as _;
use std::io::{ErrorKind, Write as _};

use anyhow::Context;
use holdfast_keeper::status::Summary;
use holdfast_recovery::{FileOutcome, FileReport, Report, shown_json};
use serde::Serialize;

use crate::sizes::{human_bytes, human_count, human_ns};
use crate::words::{shown, shown_lines};

/// Prints to standard output; a reader that has seen enough (`| head`) is no failure.
pub fn print(bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
    print_on(bytes).map(drop)
}

/// As [`print()`]; whether there is still somebody who reads.
pub fn print_on(bytes: impl AsRef<[u8]>) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes.as_ref()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to standard output"),
    }
}

/// Says something on standard error, in one line, whatever names are in it.
pub fn say(text: &str) {
    say_lines(&shown(text.trim_end()));
}

/// As [`say`], where the lines are ours; in one write so that it is not torn by what others say
/// there.
pub fn say_lines(text: &str) {
    let line = format!("holdfast: {}\n", shown_lines(text.trim_end()));
    // There is nobody left to tell.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// The JSON form of anything, indented, with a newline.
pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(shown_json(&serde_json::to_string_pretty(value).context("cannot write JSON")?) + "\n")
}

/// The same in one line.
pub fn json_line(value: &impl Serialize) -> anyhow::Result<String> {
    Ok(shown_json(&serde_json::to_string(value).context("cannot write JSON")?) + "\n")
}

/// Two columns, aligned.
pub fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "  {name:width$}  {value}");
        text
    })
}

/// "persistent" or what a volatile pool survives.
pub fn durability_in_words(volatile: bool) -> &'static str {
    if volatile { "volatile (survives a process crash, not a power cut)" } else { "persistent" }
}

/// The text of `--summary`.
pub fn summary(summary: &Summary) -> String {
    format!("pool {}, {}\n{}", shown(&summary.pool), durability_in_words(summary.volatile), counters(summary))
}

/// The counters of a keeper, without the pool's name.
pub fn counters(summary: &Summary) -> String {
    let files = summary.files.iter().map(|(state, count)| format!("{count} {state}"));
    let files = files.collect::<Vec<_>>().join(", ");
    let front_ends = summary.front_ends.iter().map(|(front_end, count)| format!("{count} {front_end}"));
    let front_ends = front_ends.collect::<Vec<_>>().join(", ");
    let mut text = table(&[
        (
            "writes absorbed",
            format!("{}  ({})", human_count(summary.writes_absorbed), human_bytes(summary.bytes_absorbed)),
        ),
        ("syncs absorbed", human_count(summary.syncs_absorbed)),
        ("syncs by the kernel", human_count(summary.syncs_real)),
        ("truncates absorbed", human_count(summary.truncates_absorbed)),
        ("written to NVM", human_bytes(summary.nvm_bytes)),
        ("written behind", human_bytes(summary.drained_bytes)),
        ("fsyncs by the keeper", human_count(summary.keeper_fsyncs)),
        ("waits for log space", format!("{}  ({})", human_count(summary.stalls), human_ns(summary.stall_ns))),
        ("cancelled writes", human_count(summary.cancels)),
        ("settled first", human_count(summary.settles)),
        ("fence", summary.fence.clone()),
        ("front ends", if front_ends.is_empty() { "none".to_string() } else { front_ends }),
        ("files", if files.is_empty() { "none".to_string() } else { files }),
        (
            "all on disk",
            if summary.drained { "yes".to_string() } else { "NO: the rest is in the pool".to_string() },
        ),
    ]);
    if summary.no_room > 0 {
        let failed = summary.files.get("failed").copied().unwrap_or(0);
        let _ = writeln!(
            text,
            "  no room in the log: {} calls went around it; {} segments hold what recovery set aside (holdfast recover), \
             {failed} files are refused by their disk",
            human_count(summary.no_room),
            summary.segments_set_aside
        );
    }
    for file in &summary.bypassed {
        let _ = writeln!(text, "  bypassed: {}: {}", shown(&file.path), file.reason);
    }
    for unseen in &summary.programs_unseen {
        let _ = writeln!(text, "  not absorbed: what {} writes: {}", shown(&unseen.program), unseen.reason);
    }
    if let Some(report) = &summary.recovered {
        text += &recovery(report, Made::Done);
    }
    text
}

/// Whether a recovery was made, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// It was made.
    Done,
    /// It would do this: nothing was changed.
    Would,
}

/// The lines of a recovery: one in sum, one per file, one per damaged record.
pub fn recovery(report: &Report, made: Made) -> String {
    let mut text = if report.clean {
        "  nothing to recover: the pool was closed cleanly\n".to_string()
    } else {
        format!(
            "  found {} records ({}) of {} files in {} of log; scanned in {}{}\n",
            human_count(report.records),
            human_bytes(report.bytes),
            report.files.iter().filter(|file| !is_unknown(file)).count(),
            human_bytes(report.scanned_bytes),
            human_ns(report.scan_ns),
            match made {
                Made::Done => format!(", applied in {}", human_ns(report.apply_ns)),
                Made::Would => String::new(),
            },
        )
    };
    for file in &report.files {
        text += &recovered_file(file, made);
    }
    for record in &report.damaged {
        let _ = writeln!(text, "  damaged record: {}", shown(record));
    }
    if report.is_superblock_mended {
        text += "  the superblock or its copy was damaged, and was written anew from the other: check the media\n";
    }
    text
}

fn recovered_file(file: &FileReport, made: Made) -> String {
    let is_deed = matches!(
        file.outcome,
        FileOutcome::Replayed
            | FileOutcome::Synced
            | FileOutcome::Rebuilt
            | FileOutcome::Unlinked
            | FileOutcome::Discarded
    );
    let would = if made == Made::Would && is_deed { "would be " } else { "" };
    let reason = if file.reason.is_empty() { String::new() } else { format!(": {}", shown(&file.reason)) };
    let (records, bytes) = (human_count(file.records), human_bytes(file.bytes));
    format!("  {would}{}: {} ({records} records, {bytes}){reason}\n", file.outcome, shown(&file.path))
}

/// Whether somebody has to look at the outcome: a file that was not brought back, or damage, or a
/// name that means no file.
pub fn needs_attention(report: &Report) -> bool {
    !report.damaged.is_empty() || report.files.iter().any(|file| is_unresolved(file) || is_unknown(file))
}

/// Whether somebody named it and the pool knows nothing of it.
pub fn is_unknown(file: &FileReport) -> bool {
    file.outcome == FileOutcome::Unknown
}

/// Whether a file's records are still waiting for a decision.
pub fn is_unresolved(file: &FileReport) -> bool {
    file.outcome.is_unresolved()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(outcome: FileOutcome) -> FileReport {
        FileReport {
            path: "/srv/app.db".to_string(),
            named: "/srv/app.db".to_string(),
            outcome,
            reason: String::new(),
            records: 3,
            bytes: 12_288,
            can_be_forced: true,
        }
    }

    #[test]
    fn a_report_names_files_and_damage() {
        let mut report = Report { files: vec![file(FileOutcome::Replayed)], ..Report::default() };
        assert!(!needs_attention(&report));
        assert!(recovery(&report, Made::Done).contains("  replayed: /srv/app.db (3 records, 12.0 KiB)"));
        assert!(recovery(&report, Made::Would).contains("  would be replayed: /srv/app.db (3 "));
        report.damaged.push("segment 3, offset 128: checksum".to_string());
        assert!(needs_attention(&report));
        assert!(recovery(&report, Made::Done).contains("damaged record: segment 3"));
        let aside = Report { files: vec![file(FileOutcome::SetAside)], ..Report::default() };
        assert!(needs_attention(&aside));
        let misnamed = Report { files: vec![file(FileOutcome::Unknown)], ..Report::default() };
        assert!(needs_attention(&misnamed));
        assert!(recovery(&misnamed, Made::Would).contains(" of 0 files in "));
        assert!(recovery(&misnamed, Made::Would).contains("  unknown: /srv/app.db"));
    }

    #[test]
    fn a_summary_says_what_the_pool_survives() {
        let text = summary(&Summary { writes_absorbed: 1234, volatile: true, ..Summary::default() });
        assert!(text.contains("1,234"));
        assert!(text.contains("not a power cut"));
        assert!(text.contains("NO: the rest is in the pool"));
    }
}
