//! The files that a keeper knows, with their states; first those that have
//! a slot, then those that were left to the kernel without ever having one.

use std::path::PathBuf;

use anyhow::bail;
use holdfast_keeper::control::Control;
use holdfast_keeper::status::Status;
use serde::Serialize;

use crate::sizes::{human_bytes, human_ns};
use crate::words::{quoted, shown};
use crate::{keepers, report};

/// What is known of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Known {
    /// Its path as last seen.
    pub path: String,
    /// `through`, `behind`, `bypassed`, `unsynced`, `removed`, `failed` or `declined`.
    pub state: String,
    /// Whether it has what is not on disk.
    pub dirty: bool,
    /// How long, in nanoseconds.
    pub oldest_ns: Option<u64>,
    /// Its size in bytes, if the keeper knows it.
    pub size_bytes: Option<u64>,
    /// Why it is left to the kernel.
    pub reason: Option<String>,
    /// Its slot, if it has one.
    pub slot: Option<u32>,
}

/// What `files --json` prints.
#[derive(Serialize)]
struct Answer {
    pool: PathBuf,
    keeper_pid: u32,
    files: Vec<Known>,
}

/// Prints those of a pool's keeper.
pub fn print(pool: PathBuf, json: bool) -> anyhow::Result<()> {
    let Some(mut control) = keepers::keeper(&pool)? else {
        bail!(
            "no keeper runs for pool {}: `holdfast status --pool {}` says what it holds",
            pool.display(),
            quoted(&pool)
        );
    };
    let status = control.status()?;
    let files = known(&mut control, &status)?;
    report::print(if json {
        report::json(&Answer { pool, keeper_pid: status.keeper_pid, files })?
    } else {
        table(&files)
    })?;
    Ok(())
}

/// All files that a keeper knows.
pub fn known(control: &mut Control, status: &Status) -> anyhow::Result<Vec<Known>> {
    let with_slots = control.files()?;
    let declined = status
        .summary
        .bypassed
        .iter()
        .filter(|file| !with_slots.iter().any(|line| line.path == file.path))
        .map(|file| Known {
            path: file.path.clone(),
            state: "declined".to_owned(),
            reason: Some(file.reason.clone()),
            ..Known::default()
        })
        .collect::<Vec<_>>();
    let with_slots = with_slots.into_iter().map(|line| Known {
        path: line.path,
        state: line.state,
        dirty: line.dirty,
        oldest_ns: line.oldest_ns,
        size_bytes: line.size_bytes,
        reason: line.reason,
        slot: Some(line.slot),
    });
    Ok(with_slots.chain(declined).collect())
}

/// How old what is not on disk is, in a word.
pub fn age(file: &Known) -> String {
    match (file.dirty, file.oldest_ns) {
        (false, _) => "-".to_owned(),
        (true, Some(ns)) => human_ns(ns),
        (true, None) => "new".to_owned(),
    }
}

/// The name of a file and, if it is left to the kernel, why.
pub fn name(file: &Known) -> String {
    let reason = file.reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    shown(&format!("{}{reason}", file.path))
}

/// Its size, if it is known.
pub fn size(file: &Known) -> String {
    file.size_bytes.map_or_else(|| "-".to_owned(), human_bytes)
}

fn table(files: &[Known]) -> String {
    let head = format!("{:<9} {:>11} {:>10}  FILE\n", "STATE", "NOT ON DISK", "SIZE");
    files.iter().fold(head, |text, file| {
        text + &format!("{:<9} {:>11} {:>10}  {}\n", file.state, age(file), size(file), name(file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_escapes_and_lines_stays_one_harmless_line() {
        let file = Known {
            path: "/srv/a\u{1b}[2J\nb".to_owned(),
            state: "bypassed".to_owned(),
            reason: Some("mapped shared and writable".to_owned()),
            ..Known::default()
        };
        let told = table(&[file]);
        assert_eq!(told.lines().count(), 2, "{told}");
        assert!(told.contains(r"/srv/a\u{1b}[2J\nb (mapped shared and writable)"), "{told}");
    }

    #[test]
    fn ages_are_of_what_is_not_on_disk() {
        let mut file = Known { oldest_ns: Some(1_500_000), ..Known::default() };
        assert_eq!(age(&file), "-");
        file.dirty = true;
        assert_eq!(age(&file), "1.5 ms");
        file.oldest_ns = None;
        assert_eq!(age(&file), "new");
    }
}
