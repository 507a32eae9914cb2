//! The `demo` subcommand: real sqlite3 commits single-row transactions natively and under Holdfast,
//! then is killed together with its keeper, and every row it acknowledged is looked for after
//! recovery. It must never call a run good on anything but sqlite3's own answers.

mod shell;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use holdfast_keeper::control::Control;
use holdfast_recovery::{RecoverOptions, Report, recover};
use rustix::process::{Signal, pidfd_send_signal};
use tempfile::TempDir;

use crate::args::DemoArgs;
use crate::locate::{self, FileSystem};
use crate::sizes::{human_bytes, human_count};
use crate::{preload, report, supervise};
use shell::{Journal, Session};

/// The demo's pool; less if /dev/shm is small.
const POOL_BYTES_MAX: u64 = 256 << 20;
const POOL_BYTES_MIN: u64 = 16 << 20;

/// The `demo` subcommand.
pub fn run(args: &DemoArgs) -> anyhow::Result<u8> {
    if Command::new("sqlite3").arg("--version").output().is_err() {
        bail!("the sqlite3 shell is missing: apt-get install sqlite3");
    }
    preload::library()?;
    let stage = Stage::new(args)?;
    report::print(format!(
        "Holdfast demo: sqlite3 commits one row per transaction, {} s per measurement.\n  databases  {} ({})\n  \
         pool       {} ({}), volatile: it survives the kills below, not a power cut\n\n",
        args.seconds,
        stage.files.path().display(),
        stage.file_system,
        stage.pool.display(),
        human_bytes(stage.pool_bytes),
    ))?;

    report::print("Committed rows per second        native   Holdfast   ratio\n")?;
    for journal in Journal::ALL {
        let native = stage.rate(journal, false)?;
        let held = stage.rate(journal, true)?;
        report::print(format!(
            "  {:28} {:>9} {:>10} {:>6.1}x\n",
            journal.in_words(),
            human_count(native as u64),
            human_count(held as u64),
            held / native
        ))?;
    }

    report::print(
        "  (a rollback journal is made and deleted per transaction; several messages to the keeper each time)\n",
    )?;

    report::print("\nkill -9 of supervisor, keeper and sqlite3 in the middle, then recovery\n")?;
    let mut all_there = true;
    for journal in Journal::ALL {
        let outcome = stage.kill_and_recover(journal)?;
        all_there &= outcome.is_good();
        report::print(outcome.in_words(journal))?;
    }
    report::print(if all_there {
        "\nPASS: every acknowledged row is there.\n"
    } else {
        "\nFAIL: nothing was absorbed, acknowledged rows are missing, or a database is damaged.\n"
    })?;
    Ok(u8::from(!all_there))
}

/// Where the demo plays; removed when it ends.
struct Stage {
    files: TempDir,
    file_system: &'static str,
    /// Holds the directory in /dev/shm that the pool is in.
    _memory: TempDir,
    pool: PathBuf,
    pool_bytes: u64,
    measured: Duration,
}

impl Stage {
    fn new(args: &DemoArgs) -> anyhow::Result<Self> {
        let dir = match &args.dir {
            Some(dir) => dir.clone(),
            None if Path::new("target").is_dir() => PathBuf::from("target"),
            None => PathBuf::from("."),
        };
        let FileSystem::Managed(file_system) = locate::file_system(&dir)? else {
            bail!("{} is not on ext4, xfs or btrfs: name a directory that is with --dir", dir.display());
        };
        let files = locate::absolute(&dir).and_then(|dir| temporary(&dir))?;
        let memory = temporary(Path::new("/dev/shm"))?;
        let facts = rustix::fs::statvfs(memory.path()).context("cannot look at /dev/shm")?;
        let free_bytes = facts.f_bavail * facts.f_frsize;
        let pool_bytes = POOL_BYTES_MAX.min(free_bytes / 2 / POOL_BYTES_MIN * POOL_BYTES_MIN);
        if pool_bytes == 0 {
            bail!(
                "/dev/shm has only {} free: mount -o remount,size=1G /dev/shm (docker run --shm-size=1g)",
                human_bytes(free_bytes)
            );
        }
        let pool = memory.path().join("pool");
        let measured = Duration::from_secs(args.seconds);
        Ok(Self { files, file_system, _memory: memory, pool, pool_bytes, measured })
    }

    fn database(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// sqlite3, by itself or under Holdfast.
    fn sqlite3(&self, held: bool) -> anyhow::Result<Command> {
        if !held {
            return Ok(Command::new("sqlite3"));
        }
        let mut command = Command::new(locate::executable()?);
        command.args(["run", "--volatile", "--pool"]).arg(&self.pool);
        command.arg("--size").arg(self.pool_bytes.to_string()).args(["--", "sqlite3"]);
        Ok(command)
    }

    /// Rows per second.
    fn rate(&self, journal: Journal, held: bool) -> anyhow::Result<f64> {
        let database =
            self.database(&format!("{}-{}.db", journal.name(), if held { "held" } else { "native" }));
        let mut session = Session::open(self.sqlite3(held)?, &database, journal)?;
        session.insert_for(self.measured)?;
        let done = session.close()?;
        Ok(done.rows as f64 / done.elapsed.as_secs_f64().max(1e-9))
    }

    /// Kills everything while rows are being committed, recovers, and looks for the acknowledged
    /// rows.
    fn kill_and_recover(&self, journal: Journal) -> anyhow::Result<Outcome> {
        let database = self.database(&format!("{}-killed.db", journal.name()));
        let mut session = Session::open(self.sqlite3(true)?, &database, journal)?;
        session.insert_for(self.measured / 2)?;

        let mut control = Control::connect(&self.pool)?;
        let before = control.status()?;
        // The supervisor goes first, or it would recover the pool before we look. Descriptors
        // instead of numbers: nobody else can be hit.
        let victims = [session.pid(), control.keeper_pid()].into_iter().chain(before.clients);
        let victims = victims.map(supervise::pidfd_of).collect::<anyhow::Result<Vec<_>>>()?;
        for victim in &victims {
            // One that is already gone is as good as killed.
            let _ = pidfd_send_signal(victim, Signal::KILL);
        }
        drop(control);
        for victim in &victims {
            supervise::wait_for(victim)?;
        }
        let acknowledged = session.acknowledged_after_kill()?;

        let recovered = recover(&self.pool, &RecoverOptions::default(), &mut |_, _, _| {})?;
        let integrity = shell::ask(&database, "PRAGMA integrity_check;")?;
        let found = shell::ask(&database, "SELECT count(*) FROM t;")?;
        let lost = shell::ask(
            &database,
            &format!("SELECT {acknowledged} - count(*) FROM t WHERE id BETWEEN 1 AND {acknowledged};"),
        )?;
        Ok(Outcome {
            absorbed: before.summary.syncs_absorbed,
            acknowledged,
            integrity,
            found,
            lost,
            recovered,
        })
    }
}

/// A directory that is removed again.
fn temporary(parent: &Path) -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new().prefix("holdfast-demo-").tempdir_in(parent);
    made.with_context(|| format!("cannot make a directory in {}", parent.display()))
}

/// What was found after a kill.
struct Outcome {
    /// Syncs answered from the log before the kill; without any, the run proves nothing.
    absorbed: u64,
    acknowledged: u64,
    integrity: String,
    found: String,
    lost: String,
    recovered: Report,
}

impl Outcome {
    fn is_good(&self) -> bool {
        self.absorbed > 0
            && self.acknowledged > 0
            && self.integrity == "ok"
            && self.lost == "0"
            && !report::needs_attention(&self.recovered)
    }

    fn in_words(&self, journal: Journal) -> String {
        let mut text = format!("  {}\n", journal.in_words());
        for (name, value) in [
            ("syncs absorbed", human_count(self.absorbed)),
            ("rows acknowledged", human_count(self.acknowledged)),
            (
                "log found and replayed",
                format!(
                    "{} records, {}",
                    human_count(self.recovered.records),
                    human_bytes(self.recovered.bytes)
                ),
            ),
            ("PRAGMA integrity_check", self.integrity.clone()),
            ("rows in the database", self.found.parse().map_or_else(|_| self.found.clone(), human_count)),
            ("acknowledged rows lost", self.lost.clone()),
        ] {
            text += &format!("    {name:24} {value}\n");
        }
        if report::needs_attention(&self.recovered) {
            text += &report::recovery(&self.recovered);
        }
        text
    }
}
