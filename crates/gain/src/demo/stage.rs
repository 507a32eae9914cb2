//! Where the demonstration plays, and how fast sqlite3 is there.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::interrupt::Interrupt;
use crate::machine::FileSystem;
use crate::side::{self, PoolChoice, Side};
use crate::sqlite::{Journal, Session};
use crate::{Host, place, units};

/// Where the demonstration plays; removed when it ends.
pub(super) struct Stage<'a> {
    pub(super) host: &'a Host,
    pub(super) interrupt: Interrupt,
    pub(super) files: TempDir,
    pub(super) file_system: FileSystem,
    /// Holds the directory in memory that the pool is in.
    pub(super) memory: TempDir,
    pub(super) pool: PoolChoice,
    pub(super) measured: Duration,
}

impl<'a> Stage<'a> {
    pub(super) fn new(dir: Option<&Path>, measured: Duration, host: &'a Host) -> anyhow::Result<Self> {
        let dir = match dir {
            Some(dir) => dir.to_path_buf(),
            None if Path::new("target").is_dir() => PathBuf::from("target"),
            None => PathBuf::from("."),
        };
        let interrupt = Interrupt::note()?;
        let file_system = place::managed(&dir)?;
        let files = place::temporary(&dir.canonicalize()?)?;
        let memory = place::in_memory()?;
        let pool = PoolChoice { path: memory.path().join("pool"), bytes: Some(place::pool_bytes(0)?) };
        Ok(Self { host, interrupt, files, file_system, memory, pool, measured })
    }

    /// sqlite3 on a side.
    pub(super) fn open(&self, side: Side, database: &Path, journal: Journal) -> anyhow::Result<Session> {
        let command: Command = side::command(
            self.host,
            side,
            &self.pool,
            &self.memory.path().join("summary.json"),
            OsStr::new("sqlite3"),
        );
        Session::open(command, database, journal, &self.interrupt)
    }

    pub(super) fn show_rates(&self) -> anyhow::Result<()> {
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
