//! The demonstration: real sqlite3 commits single-row transactions natively and under Holdfast, and
//! then loses what a power cut takes, or a kill where nobody may cut anything. Every row that was
//! acknowledged is looked for.
//!
//! It must never call a run good on anything but sqlite3's own answers.

mod cut;
mod disk;
mod kill;
mod victims;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::bail;
use tempfile::TempDir;

use crate::interrupt::Interrupt;
use crate::machine::FileSystem;
use crate::side::{self, PoolChoice, Side};
use crate::sqlite::{self, Journal, Session};
use crate::{Host, place, units};

/// What was asked for.
pub struct DemoOptions {
    /// Where databases are made.
    pub dir: Option<PathBuf>,
    /// Length of each measurement.
    pub seconds: u64,
}

/// Shows it; whether what was promised held.
pub fn demo(options: &DemoOptions, host: &Host) -> anyhow::Result<bool> {
    if sqlite::version().is_none() {
        bail!("the sqlite3 shell is missing: apt-get install sqlite3");
    }
    if let Some(note) = side::left_out(host) {
        (host.say)(&note);
    }
    let stage = Stage::new(options, host)?;
    (host.print)(&format!(
        "Holdfast demo: sqlite3 commits one row per transaction, {} s per measurement.\n  databases  {} ({})\n  \
         pool       {} ({}): memory that stands for NVM\n\n",
        options.seconds,
        (host.shown)(&stage.files.path().display().to_string()),
        stage.file_system.kind,
        stage.pool.path.display(),
        units::bytes(stage.pool.bytes.unwrap_or_default()),
    ))?;
    stage.show_rates()?;
    let all_there = match disk::Disk::may_be_made() {
        Ok(()) => cut::show(&stage)?,
        Err(why) => {
            (host.print)(&format!("\nNo power cut: {why}.\n"))?;
            kill::show(&stage)?
        }
    };
    (host.print)(if all_there {
        "\nPASS: every row that Holdfast acknowledged is there.\n"
    } else {
        "\nFAIL: nothing was absorbed or nothing was at stake, acknowledged rows are missing, or a database is damaged.\n"
    })?;
    Ok(all_there)
}

/// Where the demonstration plays; removed when it ends.
struct Stage<'a> {
    host: &'a Host,
    interrupt: Interrupt,
    files: TempDir,
    file_system: FileSystem,
    /// Holds the directory in memory that the pool is in.
    memory: TempDir,
    pool: PoolChoice,
    measured: Duration,
}

impl<'a> Stage<'a> {
    fn new(options: &DemoOptions, host: &'a Host) -> anyhow::Result<Self> {
        let dir = match &options.dir {
            Some(dir) => dir.clone(),
            None if Path::new("target").is_dir() => PathBuf::from("target"),
            None => PathBuf::from("."),
        };
        let interrupt = Interrupt::note()?;
        let file_system = place::managed(&dir)?;
        let files = place::temporary(&dir.canonicalize()?)?;
        let memory = place::in_memory()?;
        let pool = PoolChoice { path: memory.path().join("pool"), bytes: Some(place::pool_bytes(0)?) };
        let measured = Duration::from_secs(options.seconds);
        Ok(Self { host, interrupt, files, file_system, memory, pool, measured })
    }

    /// sqlite3 on a side.
    fn open(&self, side: Side, database: &Path, journal: Journal) -> anyhow::Result<Session> {
        let command: Command = side::command(
            self.host,
            side,
            &self.pool,
            &self.memory.path().join("summary.json"),
            OsStr::new("sqlite3"),
        );
        Session::open(command, database, journal, &self.interrupt)
    }

    fn show_rates(&self) -> anyhow::Result<()> {
        (self.host.print)("Committed rows per second        native   Holdfast    ratio\n")?;
        for journal in Journal::ALL {
            let native = self.rate(journal, Side::Native)?;
            let held = self.rate(journal, Side::Holdfast)?;
            (self.host.print)(&format!(
                "  {:28} {:>9} {:>10} {:>8}\n",
                journal.in_words(),
                units::rate(native),
                units::rate(held),
                units::ratio(held / native)
            ))?;
        }
        (self.host.print)(
            "  (a rollback journal is made and deleted per transaction; several messages to the keeper each time)\n",
        )
    }

    /// Rows per second.
    fn rate(&self, journal: Journal, side: Side) -> anyhow::Result<f64> {
        let database = self.files.path().join(format!("{}-{}.db", journal.name(), side.name()));
        let mut session = self.open(side, &database, journal)?;
        session.insert_for(self.measured)?;
        let done = session.close()?;
        Ok(done.rows as f64 / done.elapsed.as_secs_f64().max(1e-9))
    }
}
