//! The comparison itself: each workload on each side, in rounds, so that what else the machine does
//! meets all of them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use crate::floor::Floor;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::media::Pool;
use crate::place::Place;
use crate::report::{FORMAT, Report, Row, Samples};
use crate::side::{self, Side, find_program};
use crate::sqlite::{self, Journal, Session};
use crate::target::Target;
use crate::workload::Workload;
use crate::{Host, html, job, table, units, worker};

/// What a start of Holdfast and of a program adds to each measurement, as seen.
const OVERHEAD_MS: u64 = 150;
/// Reasons that are kept of a workload.
const REASONS_MAX: usize = 3;

/// What was asked for.
pub struct BenchOptions {
    /// The user's directory.
    pub dir: PathBuf,
    /// A pool, instead of one in memory.
    pub pool: Option<PathBuf>,
    /// Times each side does each workload.
    pub rounds: u32,
    /// For so long.
    pub time_ms: u64,
    /// Write the report there.
    pub json: Option<PathBuf>,
    /// Write the page there.
    pub html: Option<PathBuf>,
    /// The command line.
    pub command: String,
}

/// Measures, prints, and writes what was asked for.
pub fn bench(options: &BenchOptions, host: &Host) -> anyhow::Result<()> {
    let interrupt = Interrupt::note()?;
    // Two minutes are too long to hear only then that a file cannot be made.
    let target =
        |path: &Option<PathBuf>| path.as_deref().map(|path| Target::new(path, &interrupt)).transpose();
    let (json, html) = (target(&options.json)?, target(&options.html)?);
    if let (Some(json), Some(html)) = (&json, &html)
        && json.is_same(html)
    {
        bail!("--json and --html name the same file: one would replace the other");
    }
    // A report on standard output is alone there.
    let is_taken = json.iter().chain(&html).any(Target::is_standard_output);
    let print = if is_taken { to_standard_error } else { host.print };
    let mut place = Place::new(&options.dir, options.pool.as_deref())?;
    // Has the pool made, and hears at once of what keeps Holdfast from running here.
    let probe = side::command(host, Side::Holdfast, &place.pool, &place.summary(), OsStr::new("true"));
    job::run(probe, &interrupt).context("Holdfast cannot run here")?;
    let floor = place.beside_pool().map(|path| Floor::at(&path)).transpose()?;
    let bench = Bench { options, host, interrupt, place, sqlite: sqlite::version(), floor };
    let mut report = bench.empty()?;
    report.notes.extend(side::left_out(host));
    report.notes.iter().for_each(|note| (host.say)(note));
    let measurements = report.rounds as usize * report.workloads.len() * bench.sides(&report).count();
    let time = Duration::from_millis((options.time_ms + OVERHEAD_MS) * measurements as u64);
    print(&format!(
        "{} workloads, {} of {} a side, interleaved: about {} s\n{}",
        report.workloads.len(),
        units::counted(report.rounds.into(), "round"),
        units::time(options.time_ms * 1_000_000),
        time.as_secs() + 1,
        table::head(&report, host.shown),
    ))?;
    bench.measure_all(&mut report, measurements as u64)?;
    print(&table::body(&report))?;
    print(&table::foot(&report))?;
    if let Some(target) = json {
        let text = serde_json::to_string_pretty(&report).context("cannot write JSON")?;
        target.write(&(text + "\n"))?;
    }
    if let Some(target) = html {
        target.write(&html::page(&report))?;
    }
    Ok(())
}

fn to_standard_error(text: &str) -> anyhow::Result<()> {
    std::io::stderr().write_all(text.as_bytes()).context("cannot write to standard error")
}

struct Bench<'a> {
    options: &'a BenchOptions,
    host: &'a Host,
    interrupt: Interrupt,
    // Before the place, which removes its file.
    floor: Option<Floor>,
    place: Place,
    /// Version of the shell, if there is one.
    sqlite: Option<String>,
}

/// What one measurement found.
struct Sample {
    per_s: f64,
    /// Of half of the operations, and of all but one of a hundred.
    times_ns: Option<(u64, u64)>,
}

/// What `--summary=FILE` says, as far as it matters here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Summary {
    syncs_absorbed: u64,
    syncs_real: u64,
    bypassed: Vec<Bypassed>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Bypassed {
    reason: String,
}

impl Bench<'_> {
    /// A report with nothing measured yet.
    fn empty(&self) -> anyhow::Result<Report> {
        let mut missing = BTreeMap::new();
        if find_program(Side::Eatmydata.name()).is_none() {
            missing.insert(
                Side::Eatmydata.name().to_owned(),
                "not installed (apt-get install eatmydata)".into(),
            );
        }
        let workloads = Workload::ALL.map(|workload| Row::of(workload, self.program(workload)));
        Ok(Report {
            format: FORMAT,
            holdfast: self.host.version.to_owned(),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: self.options.command.clone(),
            machine: Machine::here(),
            directory: self.place.dir.display().to_string(),
            file_system: self.place.file_system.clone(),
            pool: Pool::at(&self.place.pool.path)?,
            rounds: self.options.rounds,
            time_ms: self.options.time_ms,
            missing,
            notes: Vec::new(),
            workloads: workloads.into(),
        })
    }

    /// What a workload is done by, where that is worth a word.
    fn program(&self, workload: Workload) -> String {
        match (workload, &self.sqlite) {
            (Workload::Transactions, Some(version)) => format!("the sqlite3 shell {version}"),
            (Workload::Transactions, None) => {
                "a program that writes as SQLite does; sqlite3 is not installed (apt-get install sqlite3)"
                    .into()
            }
            _ => String::new(),
        }
    }

    fn sides(&self, report: &Report) -> impl Iterator<Item = Side> {
        let missing = report.missing.clone();
        Side::ALL.into_iter().filter(move |side| !missing.contains_key(side.name()))
    }

    fn measure_all(&self, report: &mut Report, measurements: u64) -> anyhow::Result<()> {
        let style = ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}").context("the bar")?;
        // Drawn on standard error, if that is a terminal.
        let bar = ProgressBar::new(measurements).with_style(style.progress_chars("=> "));
        let sides: Vec<Side> = self.sides(report).collect();
        for round in 0..report.rounds as usize {
            for (row, workload) in report.workloads.iter_mut().zip(Workload::ALL) {
                if let (Some(floor), Some(bytes)) = (&self.floor, workload.durable_bytes()) {
                    row.floor.push(floor.per_s(bytes));
                }
                // No side is always the first, behind the same one.
                for turn in 0..sides.len() {
                    let side = sides[(turn + round) % sides.len()];
                    bar.set_message(format!("{}: {}", workload.name(), side.name()));
                    let samples = row.sides.entry(side.name().to_owned()).or_default();
                    let measured = self.measure(workload, side, samples);
                    measured.with_context(|| format!("{} ({})", workload.name(), side.name()))?;
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    fn measure(&self, workload: Workload, side: Side, samples: &mut Samples) -> anyhow::Result<()> {
        let summary = self.place.summary();
        // That of the measurement before must not be taken for this one's.
        match std::fs::remove_file(&summary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", summary.display()));
            }
            _ => {}
        }
        let sample = match workload {
            Workload::Transactions if self.sqlite.is_some() => self.sqlite_rows(side)?,
            _ => self.worker(workload, side)?,
        };
        samples.per_s.push(sample.per_s);
        if let Some((half, most)) = sample.times_ns {
            samples.p50_ns.push(half);
            samples.p99_ns.push(most);
        }
        // What syncs nothing is synced once, when its time is over.
        if side == Side::Holdfast && workload != Workload::Plain {
            let text = std::fs::read_to_string(&summary).context("Holdfast said nothing of what it did")?;
            let told: Summary =
                serde_json::from_str(&text).context("Holdfast's summary is not understood")?;
            samples.syncs_absorbed += told.syncs_absorbed;
            samples.syncs_by_kernel += told.syncs_real;
            for one in told.bypassed {
                if samples.reasons.len() < REASONS_MAX {
                    samples.reasons.insert(format!("left to the kernel: {}", (self.host.shown)(&one.reason)));
                }
            }
        }
        Ok(())
    }

    fn worker(&self, workload: Workload, side: Side) -> anyhow::Result<Sample> {
        let program = self.host.executable.as_os_str();
        let mut command = side::command(self.host, side, &self.place.pool, &self.place.summary(), program);
        command.args(["bench-worker", workload.name()]).arg(self.place.home(side)?);
        command.arg(self.options.time_ms.to_string());
        let measured = worker::read(&job::run(command, &self.interrupt)?)?;
        Ok(Sample {
            per_s: measured.operations as f64 * 1e9 / measured.elapsed_ns as f64,
            times_ns: Some((measured.p50_ns, measured.p99_ns)),
        })
    }

    fn sqlite_rows(&self, side: Side) -> anyhow::Result<Sample> {
        let home = self.place.home(side)?;
        let program = OsStr::new("sqlite3");
        let command = side::command(self.host, side, &self.place.pool, &self.place.summary(), program);
        let database = home.join("rows.db");
        let mut session = Session::open(command, &database, Journal::Wal, &self.interrupt)?;
        let (time, warm_up) = (Duration::from_millis(self.options.time_ms), worker::WARM_UP);
        session.insert_for(time / warm_up)?;
        session.count_from_now();
        session.insert_for(time - time / warm_up)?;
        let done = session.close()?;
        for suffix in ["", "-wal", "-shm"] {
            // The shell removes some of them when it ends.
            let _ = std::fs::remove_file(home.join(format!("rows.db{suffix}")));
        }
        Ok(Sample { per_s: done.rows as f64 / done.elapsed.as_secs_f64().max(1e-9), times_ns: None })
    }
}
