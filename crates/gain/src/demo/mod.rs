//! The demonstration: real sqlite3 commits single-row transactions natively and under Holdfast, and
//! then loses what a power cut takes, or a kill where nobody may cut anything. Every row that was
//! acknowledged is looked for.
//!
//! It must never call a run good on anything but sqlite3's own answers.

mod cut;
mod disk;
mod kill;
mod stage;
mod victims;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;

use crate::{Host, side, sqlite, units};
use stage::Stage;

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
    let stage = Stage::new(options.dir.as_deref(), Duration::from_secs(options.seconds), host)?;
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
