//! A kill of everything in the middle, and recovery. It loses nothing natively, either: the page
//! cache survives it, and this says so.

use holdfast_keeper::control::Control;
use holdfast_recovery::{RecoverOptions, Report, recover};

use super::stage::Stage;
use super::victims::Victims;
use crate::side::Side;
use crate::sqlite::{self, Journal};
use crate::units;

/// Shows it; whether what was promised held.
pub fn show(stage: &Stage<'_>) -> anyhow::Result<bool> {
    let print = stage.host.print;
    print("\nkill -9 of supervisor, keeper and sqlite3 in the middle, then recovery\n")?;
    let mut all_there = true;
    for journal in Journal::ALL {
        let outcome = kill_and_recover(stage, journal)?;
        all_there &= outcome.is_good();
        print(&outcome.in_words(journal, stage.host.shown))?;
    }
    print(
        "  A kill takes nothing natively, either: the page cache survives it. What a power cut takes is shown to\n  \
         root: sudo holdfast demo\n",
    )?;
    Ok(all_there)
}

/// Kills everything while rows are being committed, recovers, and looks for the acknowledged rows.
fn kill_and_recover(stage: &Stage<'_>, journal: Journal) -> anyhow::Result<Outcome> {
    let database = stage.files.path().join(format!("{}-killed.db", journal.name()));
    let mut session = stage.open(Side::Holdfast, &database, journal)?;
    session.insert_for(stage.measured / 2)?;

    let mut control = Control::connect(&stage.pool.path)?;
    let before = control.status()?;
    // The supervisor goes first, or it would recover the pool before we look.
    let victims =
        Victims::of([session.pid(), control.keeper_pid()].into_iter().chain(before.clients.clone()))?;
    drop(control);
    victims.kill()?;
    let acknowledged = session.acknowledged_after_kill()?;

    let recovered = recover(&stage.pool.path, &RecoverOptions::default(), &mut |_, _, _| {})?;
    let integrity = sqlite::ask(&database, "PRAGMA integrity_check;")?;
    let found = sqlite::ask(&database, "SELECT count(*) FROM t;")?;
    let lost = sqlite::ask(
        &database,
        &format!("SELECT {acknowledged} - count(*) FROM t WHERE id BETWEEN 1 AND {acknowledged};"),
    )?;
    Ok(Outcome { absorbed: before.summary.syncs_absorbed, acknowledged, integrity, found, lost, recovered })
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
            && unresolved(&self.recovered).is_empty()
    }

    fn in_words(&self, journal: Journal, shown: fn(&str) -> String) -> String {
        let mut text = format!("  {}\n", journal.in_words());
        for (name, value) in [
            ("syncs absorbed", units::count(self.absorbed)),
            ("rows acknowledged", units::count(self.acknowledged)),
            (
                "log found and replayed",
                format!(
                    "{} records, {}",
                    units::count(self.recovered.records),
                    units::bytes(self.recovered.bytes)
                ),
            ),
            ("PRAGMA integrity_check", self.integrity.clone()),
            ("rows in the database", self.found.parse().map_or_else(|_| self.found.clone(), units::count)),
            ("acknowledged rows lost", self.lost.clone()),
        ] {
            text += &format!("    {name:24} {value}\n");
        }
        for told in unresolved(&self.recovered) {
            text += &format!("    {}\n", shown(&told));
        }
        text
    }
}

/// What recovery could not bring back, and damage.
pub fn unresolved(report: &Report) -> Vec<String> {
    let files = report.files.iter().filter(|file| file.outcome.is_unresolved());
    let files = files.map(|file| format!("{}: {}: {}", file.outcome, file.path, file.reason));
    files.chain(report.damaged.iter().map(|record| format!("damaged record: {record}"))).collect()
}
