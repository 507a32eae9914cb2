//! A keeper's state as OpenMetrics 1.0, or as the older text format of Prometheus, which names
//! counters another way. Pure. Units are base units: bytes and seconds.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use holdfast_keeper::status::Status;

use crate::words::shown;

/// The texts that monitoring reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    Openmetrics,
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
}

/// A text that grows by one family of metrics after the other.
pub struct Text {
    format: Format,
    pool: String,
    text: String,
}

/// What a family is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Info,
}

impl Text {
    /// An empty one about a pool.
    pub fn new(format: Format, pool: &str) -> Self {
        Self { format, pool: escaped(pool), text: String::new() }
    }

    /// The whole text.
    pub fn end(mut self) -> String {
        if self.format == Format::Openmetrics {
            self.text += "# EOF\n";
        }
        self.text
    }

    fn family(&mut self, kind: Kind, name: &str, unit: &str, help: &str, samples: &[(Labels<'_>, f64)]) {
        let is_open = self.format == Format::Openmetrics;
        let end = match kind {
            Kind::Counter => "_total",
            Kind::Gauge => "",
            Kind::Info => "_info",
        };
        let sample = format!("holdfast_{name}{end}");
        let (family, word) = match (kind, is_open) {
            (Kind::Counter, true) => (format!("holdfast_{name}"), "counter"),
            (Kind::Counter, false) => (sample.clone(), "counter"),
            (Kind::Info, true) => (format!("holdfast_{name}"), "info"),
            (Kind::Info, false) => (sample.clone(), "gauge"),
            (Kind::Gauge, _) => (sample.clone(), "gauge"),
        };
        let _ = writeln!(self.text, "# TYPE {family} {word}");
        if is_open && !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {family} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {family} {help}");
        for (labels, value) in samples {
            let _ = write!(self.text, "{sample}{{pool=\"{}\"", self.pool);
            for (label, text) in labels.iter() {
                let _ = write!(self.text, ",{label}=\"{}\"", escaped(text));
            }
            let _ = writeln!(self.text, "}} {value}");
        }
    }

    /// A histogram: each bucket holds what is in those before it, too.
    fn took(&mut self, status: &Status) {
        let name = "holdfast_kernel_sync_seconds";
        let _ = writeln!(self.text, "# TYPE {name} histogram");
        if self.format == Format::Openmetrics {
            let _ = writeln!(self.text, "# UNIT {name} seconds");
        }
        let _ = writeln!(self.text, "# HELP {name} What syncs took that the kernel answered.");
        let (mut all, pool) = (0, &self.pool);
        for took in &status.syncs_real_took {
            all += took.count;
            if let Some(below_ns) = took.below_ns {
                let le = seconds(below_ns);
                let _ = writeln!(self.text, "{name}_bucket{{pool=\"{pool}\",le=\"{le}\"}} {all}");
            }
        }
        let _ = writeln!(self.text, "{name}_bucket{{pool=\"{pool}\",le=\"+Inf\"}} {all}");
        let _ = writeln!(self.text, "{name}_sum{{pool=\"{pool}\"}} {}", seconds(status.syncs_real_ns));
        let _ = writeln!(self.text, "{name}_count{{pool=\"{pool}\"}} {all}");
    }

    fn counter(&mut self, name: &str, unit: &str, help: &str, value: f64) {
        self.family(Kind::Counter, name, unit, help, &[(&[], value)]);
    }

    fn gauge(&mut self, name: &str, unit: &str, help: &str, value: f64) {
        self.family(Kind::Gauge, name, unit, help, &[(&[], value)]);
    }
}

type Labels<'a> = &'a [(&'a str, &'a str)];

/// A label's value; what a terminal would obey is told by its number.
fn escaped(text: &str) -> String {
    shown(text).replace('\\', "\\\\").replace('"', "\\\"")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Writes all families; without a keeper only that there is none.
pub fn write(text: &mut Text, status: Option<&Status>) {
    text.gauge("up", "", "Whether a keeper serves the pool.", f64::from(u8::from(status.is_some())));
    let Some(status) = status else { return };
    about_keeper(text, status);
    counters(text, status);
    pool(text, status);
    files(text, status);
}

fn about_keeper(text: &mut Text, status: &Status) {
    let flag = |is: bool| if is { "true" } else { "false" };
    let summary = &status.summary;
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("media", &*status.media),
        ("flush_path", &*status.flush_path),
        ("fence", &*summary.fence),
        ("volatile", flag(summary.volatile)),
        ("service", flag(status.options.service)),
    ];
    text.family(Kind::Info, "keeper", "", "What the keeper is and has.", &[(&labels, 1.0)]);
    text.gauge("clients", "", "Processes attached.", status.clients.len() as f64);
    let stopping = f64::from(u8::from(status.stopping));
    text.gauge("stopping", "", "Whether it was told to stop and waits for its programs.", stopping);
    let errors = status.errors.len() as f64;
    text.gauge("errors", "", "Errors that status tells, twenty at most.", errors);
}

fn counters(text: &mut Text, status: &Status) {
    let summary = &status.summary;
    let syncs: [(Labels<'_>, f64); 2] =
        [(&[("by", "log")], summary.syncs_absorbed as f64), (&[("by", "kernel")], summary.syncs_real as f64)];
    text.family(Kind::Counter, "syncs", "", "Syncs of programs, by who answered them.", &syncs);
    text.took(status);
    for (name, help, value) in [
        ("writes_absorbed", "Writes acknowledged from the log.", summary.writes_absorbed),
        ("truncates_absorbed", "Truncations logged.", summary.truncates_absorbed),
        ("keeper_syncs", "Syncs that the keeper made.", summary.keeper_fsyncs),
        ("stalls", "Times a writer waited for log space.", summary.stalls),
        ("cancelled_writes", "Writes that the kernel refused or cut short.", summary.cancels),
        ("settles", "Times a file was brought to disk before a call went around the log.", summary.settles),
        ("no_room", "Calls that went around the log because it had no room.", summary.no_room),
        ("segments_spilled", "Segments copied to the spill file.", summary.segments_spilled),
    ] {
        text.counter(name, "", help, value as f64);
    }
    for (name, help, value) in [
        ("absorbed_bytes", "Bytes of the writes acknowledged from the log.", summary.bytes_absorbed),
        ("nvm_written_bytes", "Bytes written to NVM, headers and padding included.", summary.nvm_bytes),
        ("written_behind_bytes", "Bytes that write-behind brought to the page cache.", summary.drained_bytes),
    ] {
        text.counter(name, "bytes", help, value as f64);
    }
    text.counter("stall_seconds", "seconds", "Time writers waited for log space.", seconds(summary.stall_ns));
}

fn pool(text: &mut Text, status: &Status) {
    for (name, help, value) in [
        ("pool_bytes", "Size of the pool.", status.pool_bytes),
        ("board_bytes", "Size of the board, without the read cache.", status.board_bytes),
        ("read_cache_bytes", "Memory for pages that are read often.", status.read_cache_bytes),
        ("backlog_bytes", "Upper bound of what is in the log and not yet expired.", status.backlog_bytes),
    ] {
        text.gauge(name, "bytes", help, value as f64);
    }
    for (name, help, value) in [
        ("segments", "Segments of the log.", status.segments),
        ("segments_free", "Segments of the log that are free.", status.segments_free),
        (
            "segments_set_aside",
            "Segments that hold what recovery set aside.",
            status.summary.segments_set_aside as u64,
        ),
        ("spill_frames", "Frames of the spill file.", status.frames),
        ("spill_frames_used", "Frames of the spill file that hold a part of the log.", status.frames_used),
        ("slots", "File slots of the pool.", status.slots),
        ("slots_used", "File slots in use.", status.slots_used),
    ] {
        text.gauge(name, "", help, value as f64);
    }
    let oldest = seconds(status.oldest_ns.unwrap_or(0));
    let help = "How long the oldest write that is not on disk has been in the log alone.";
    text.gauge("oldest_not_on_disk_seconds", "seconds", help, oldest);
}

fn files(text: &mut Text, status: &Status) {
    text.gauge("files_not_on_disk", "", "Files with writes that are not on disk.", status.files_dirty as f64);
    let by_state = &status.summary.files;
    let labels: Vec<_> = by_state.iter().map(|(state, count)| ([("state", &**state)], *count)).collect();
    let samples: Vec<(Labels<'_>, f64)> =
        labels.iter().map(|(labels, count)| (&labels[..], *count as f64)).collect();
    text.family(Kind::Gauge, "files", "", "Files, by state.", &samples);
    let mut by_reason: BTreeMap<&str, u64> = BTreeMap::new();
    for file in &status.summary.bypassed {
        *by_reason.entry(&file.reason).or_default() += 1;
    }
    let labels: Vec<_> = by_reason.iter().map(|(reason, count)| ([("reason", *reason)], *count)).collect();
    let samples: Vec<(Labels<'_>, f64)> =
        labels.iter().map(|(labels, count)| (&labels[..], *count as f64)).collect();
    let help = "Files left to the kernel, by why, of a hundred at most.";
    text.family(Kind::Gauge, "files_bypassed", "", help, &samples);
    let unseen = status.summary.programs_unseen.len() as f64;
    text.gauge("programs_unseen", "", "Programs whose writes are not seen, twenty at most.", unseen);
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_keeper::status::Summary;

    fn told(format: Format, status: Option<&Status>) -> String {
        let mut text = Text::new(format, "/srv/\"a\"\n\u{1b}.pool");
        write(&mut text, status);
        text.end()
    }

    #[test]
    fn without_a_keeper_it_is_down() {
        let text = told(Format::Openmetrics, None);
        assert!(
            text.contains("holdfast_up{pool=\"/srv/\\\"a\\\"\\\\n\\\\u{1b}.pool\"} 0\n# EOF\n"),
            "{text}"
        );
    }

    #[test]
    fn counters_are_named_as_each_format_wants_them() {
        let summary = Summary { syncs_absorbed: 7, syncs_real: 2, ..Summary::default() };
        let status = Status { summary, oldest_ns: Some(1_500_000_000), ..Status::default() };
        let open = told(Format::Openmetrics, Some(&status));
        assert!(open.contains("# TYPE holdfast_syncs counter\n") && open.ends_with("# EOF\n"), "{open}");
        let old = told(Format::Prometheus, Some(&status));
        assert!(old.contains("# TYPE holdfast_syncs_total counter\n") && !old.contains("EOF"), "{old}");
        for text in [open, old] {
            assert!(text.contains(",by=\"log\"} 7\n"), "{text}");
            let oldest = text.lines().find(|line| line.starts_with("holdfast_oldest_not_on_disk_seconds{"));
            assert!(oldest.is_some_and(|line| line.ends_with(" 1.5")), "{text}");
        }
    }
}
