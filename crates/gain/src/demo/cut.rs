//! A power cut, in the middle of transactions: natively, under eatmydata and under Holdfast.

use std::path::Path;

use anyhow::Context;
use holdfast_keeper::control::Control;
use holdfast_recovery::{RecoverOptions, recover};

use super::disk::Disk;
use super::kill::unresolved;
use super::stage::Stage;
use super::victims::Victims;
use crate::side::{Side, find_program};
use crate::sqlite::{self, Journal};
use crate::units;

const SIDES: [Side; 3] = [Side::Native, Side::Eatmydata, Side::Holdfast];

/// Shows it; whether what was promised held, and something was at stake.
pub fn show(stage: &Stage<'_>) -> anyhow::Result<bool> {
    let print = stage.host.print;
    print(
        "\nA power cut in the middle: all is stopped, ext4 on a loop device is shut down without flushing, and\n\
         mounted again. The pool stands for NVM, and is recovered. sqlite3 in WAL, synchronous=FULL:\n\n\
         \x20              acknowledged    on disk alone        found         lost\n",
    )?;
    let (mut all_there, mut at_stake) = (true, false);
    for side in SIDES {
        if side == Side::Eatmydata && find_program(side.name()).is_none() {
            print("  eatmydata   not installed (apt-get install eatmydata)\n")?;
            continue;
        }
        let outcome = cut(stage, side).with_context(|| side.name().to_owned())?;
        print(&outcome.in_words(side, stage.host.shown))?;
        // What is dropped on purpose shows that a cut takes something.
        all_there &= side == Side::Eatmydata || outcome.is_good(side);
        at_stake |= outcome.on_disk < outcome.acknowledged;
    }
    if !at_stake {
        print("\nThe cut took nothing from any disk: this run proves nothing.\n")?;
    }
    Ok(all_there && at_stake)
}

/// What was found after a cut.
struct Outcome {
    acknowledged: u64,
    /// Syncs answered from the log; without any, a run under Holdfast proves nothing.
    absorbed: u64,
    /// Acknowledged rows that were on the disk before recovery.
    on_disk: u64,
    /// Those that are there in the end.
    found: u64,
    integrity: String,
    /// What recovery could not bring back.
    unresolved: Vec<String>,
}

impl Outcome {
    fn is_good(&self, side: Side) -> bool {
        self.acknowledged > 0
            && self.found == self.acknowledged
            && self.integrity == "ok"
            && self.unresolved.is_empty()
            && (side != Side::Holdfast || self.absorbed > 0)
    }

    fn in_words(&self, side: Side, shown: fn(&str) -> String) -> String {
        let mut text = format!(
            "  {:10} {:>14} {:>16} {:>12} {:>12}\n",
            side.name(),
            units::count(self.acknowledged),
            units::count(self.on_disk),
            units::count(self.found),
            units::count(self.acknowledged - self.found),
        );
        let damage = (self.integrity != "ok").then(|| format!("its database: {}", self.integrity));
        for told in damage.iter().chain(&self.unresolved) {
            text += &format!("             {}\n", shown(told.lines().next().unwrap_or_default()));
        }
        text
    }
}

fn cut(stage: &Stage<'_>, side: Side) -> anyhow::Result<Outcome> {
    let home = stage.files.path().join(format!("cut-{}", side.name()));
    std::fs::create_dir(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let mut disk = Disk::new(&home, &stage.interrupt)?;
    let database = disk.root.join("rows.db");
    let mut session = stage.open(side, &database, Journal::Wal)?;
    session.insert_for(stage.measured / 2)?;

    let mut pids = vec![session.pid()];
    let mut absorbed = 0;
    if side == Side::Holdfast {
        let mut control = Control::connect(&stage.pool.path)?;
        let status = control.status()?;
        absorbed = status.summary.syncs_absorbed;
        pids.push(control.keeper_pid());
        pids.extend(status.clients);
    }
    let victims = Victims::of(pids)?;
    victims.stop()?;
    disk.cut()?;
    victims.kill()?;
    let acknowledged = session.acknowledged_after_kill()?;

    disk.unmount()?;
    disk.mount(&stage.interrupt)?;
    // sqlite3 changes what it opens: it looks at copies.
    let on_disk = found(&copied(&database, &stage.memory.path().join(side.name()))?, acknowledged)?;
    let mut unresolved_files = Vec::new();
    if side == Side::Holdfast {
        let recovered = recover(&stage.pool.path, &RecoverOptions::default(), &mut |_, _, _| {})?;
        unresolved_files = unresolved(&recovered);
    }
    let found = found(&database, acknowledged)?;
    let integrity = match database.exists() {
        true => sqlite::ask(&database, "PRAGMA integrity_check;")?,
        false => "is gone".to_owned(),
    };
    disk.unmount()?;
    Ok(Outcome { acknowledged, absorbed, on_disk, found, integrity, unresolved: unresolved_files })
}

/// How many of the acknowledged rows a database has; none if it cannot be read.
fn found(database: &Path, acknowledged: u64) -> anyhow::Result<u64> {
    if !database.exists() {
        return Ok(0);
    }
    let question = format!("SELECT count(*) FROM t WHERE id BETWEEN 1 AND {acknowledged};");
    Ok(sqlite::ask(database, &question)?.parse().unwrap_or(0))
}

/// A database copied, with its log.
fn copied(database: &Path, home: &Path) -> anyhow::Result<std::path::PathBuf> {
    std::fs::create_dir(home).with_context(|| format!("cannot make {}", home.display()))?;
    for suffix in ["", "-wal"] {
        let name = format!("rows.db{suffix}");
        match std::fs::copy(database.with_file_name(&name), home.join(&name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot copy {name}"));
            }
            _ => {}
        }
    }
    Ok(home.join("rows.db"))
}
