//! A file that is saved again and again as editors and package managers do: a new one is written
//! and synced, renamed over the old one, and the directory synced. The program that saves is this
//! one, on every side; it knows nothing of Holdfast.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::lab::{Lab, Side};
use crate::maildir::sides;
use crate::report::{Bar, Check, Outcome, Run, interleave};

/// The argument that makes this program an editor.
pub const EDITOR: &str = "--editor";
const FILE_BYTES: usize = 4096;

/// Saves per second.
pub fn replacing(lab: &Lab) -> Result<Outcome> {
    let runs = sides(lab)?
        .into_iter()
        .map(|(label, side)| -> Run<'_> { (label.to_owned(), Box::new(move || sample(lab, &side))) })
        .collect();
    let mut outcome = Outcome::default();
    let series = interleave(lab.options.rounds, "saves/s", runs)?;
    for (one, other, bar) in [(1, 0, Some(Bar::AtLeast(4.0))), (1, 2, None), (3, 0, None)] {
        outcome.checks.push(Check::ratio(&series[one], &series[other], bar));
    }
    outcome.series = series;
    outcome.notes.push(format!("one file of {FILE_BYTES} bytes, two syncs a save"));
    Ok(outcome)
}

fn sample(lab: &Lab, side: &Side) -> Result<f64> {
    let dir = lab.home(side).join("saves");
    fs::remove_dir_all(&dir).ok();
    fs::create_dir(&dir)?;
    lab.settle()?;
    let program = std::env::current_exe()?.display().to_string();
    let program = [program, EDITOR.into(), dir.display().to_string(), lab.options.seconds.to_string()];
    let told = lab.run(side, &program)?;
    told.trim().parse().with_context(|| format!("the editor printed {told:?}"))
}

/// Saves; `args` follow [`EDITOR`]: directory, seconds.
pub fn run(args: &[String]) -> Result<()> {
    let [dir, seconds] = args else { bail!("an editor needs a directory and a time") };
    let limit = Duration::from_secs(seconds.parse().context("that is no number")?);
    let (dir, directory) = (Path::new(dir), File::open(dir)?);
    let (saved, new) = (dir.join("saved"), dir.join("saved.new"));
    let (start, mut saves) = (Instant::now(), 0_u32);
    while start.elapsed() < limit {
        let mut file = File::create(&new)?;
        file.write_all(&[0x5a; FILE_BYTES])?;
        file.sync_all()?;
        drop(file);
        fs::rename(&new, &saved)?;
        directory.sync_all()?;
        saves += 1;
    }
    println!("{:.0}", f64::from(saves) / start.elapsed().as_secs_f64());
    Ok(())
}
