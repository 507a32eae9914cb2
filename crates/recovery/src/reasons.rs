//! What is said to a person about what becomes of a file.

use holdfast_pool::{MARK_LOST, MARK_REMOVED, MARK_UNWATCHED};

use super::file::SlotFile;
use super::judge::{Changed, Witness};
use super::locate::Location;
use super::plan::{Aside, Facts, Outcome};

/// Why this becomes of a file, in words; or would, where somebody only looks.
pub(super) fn reason<F>(
    outcome: Outcome,
    facts: &Facts,
    location: &Location<F>,
    file: &SlotFile,
    is_dry_run: bool,
) -> String {
    let (was, were) = if is_dry_run { ("would be", "would be") } else { ("was", "were") };
    let witness = facts.witness;
    match outcome {
        // What somebody cut away is not what the page cache had.
        Outcome::Sync if facts.changed == Changed::Yes => {
            format!("somebody else changed it since, and it stays as they left it; it {was} synced")
        }
        Outcome::Sync => format!("the page cache had all of it; it {was} synced"),
        Outcome::Replay => format!("its records {were} written into it"),
        Outcome::ReplayInto => {
            format!("forced: its records {were} written into the file that stands at its path")
        }
        Outcome::Rebuild if location.empty.is_none() => {
            format!(
                "the crash took it and its directory; both {were} made anew (the directory with mode 0700)"
            )
        }
        Outcome::Rebuild => format!("the crash took it; it {was} built anew from its records"),
        Outcome::FinishRebuild if is_dry_run => {
            "an earlier recovery had built it; it would get its name".into()
        }
        Outcome::FinishRebuild => "an earlier recovery had built it; it has its name now".into(),
        Outcome::UnlinkAgain => "the program had removed it and the crash brought it back".into(),
        Outcome::Gone if file.marks & MARK_REMOVED != 0 => "a process outside of Holdfast removed it".into(),
        Outcome::Gone if location.is_removed && !file.is_void() => {
            "it was removed, and the directory that it was in as well".into()
        }
        Outcome::Gone if witness == Witness::Running && !file.is_void() => {
            format!(
                "it was removed or moved out of sight since the keeper died; what the page cache has of it {was} synced"
            )
        }
        Outcome::Gone => "the program removed it".into(),
        Outcome::LeaveFile => {
            "the program had removed it, it came back and somebody used it since: left as it is".into()
        }
        Outcome::Release => "nothing of it is left in the log".into(),
        Outcome::Discard => "its records were not wanted".into(),
        Outcome::SetAside(aside) => reason_aside(aside, location, file),
    }
}

/// Why it is set aside, in words.
fn reason_aside<F>(aside: Aside, location: &Location<F>, file: &SlotFile) -> String {
    let stands =
        location.other.as_ref().map(|(path, what)| format!("{what} at {}", String::from_utf8_lossy(path)));
    match aside {
            Aside::Damaged => match file.identity {
                Err(reason) => format!("{reason}: its file cannot be told"),
                Ok(_) => "no path of it can be read".into(),
            },
            Aside::Earlier if file.marks & MARK_LOST != 0 => {
                "an earlier recovery set it aside: a record of it in the log was damaged, or may have been".into()
            }
            Aside::Earlier => "an earlier recovery set it aside".into(),
            Aside::Conflict if file.marks & MARK_UNWATCHED != 0 => {
                "root's watch ended while it had records in the log, so that nobody can tell whether a process outside \
                 of Holdfast opened it; if none did, --force is right"
                    .into()
            }
            Aside::Conflict => {
                "a process outside of Holdfast opened it while it had records in the log".into()
            }
            Aside::Changed => "it was changed after the crash".into(),
            Aside::Unclear => {
                "the clock was set back, so that nobody can tell whether it was changed or removed after the crash; if it \
                 was not, --force is right"
                    .into()
            }
            Aside::Older => {
                "its file system is older than it was known to be, as after the return of a snapshot; all files on it are set \
                 aside"
                    .into()
            }
            Aside::Lost => {
                "a record of it in the log is damaged, or may be: what the log still has of it may be older than what the \
                 file holds, or lack what came before; --export it and look, then --force writes it to the file"
                    .into()
            }
            Aside::Superseded => {
                "it was served again since, and its old records would go over what was written then: save them with --export, \
                 and --discard them"
                    .into()
            }
            Aside::Vacated => "it is not there, and the names in its directory were changed after the crash: nobody can tell whether the \
                 crash took it or somebody removed it; if it was the crash, --force is right"
                .into(),
            Aside::Replaced => stands.unwrap_or_else(|| "another file stands at its path".into()),
            Aside::Missing => match stands {
                Some(stands) => format!("it is not at any of its paths, and {stands}"),
                None => "it is gone, though no program removed it under Holdfast".into(),
            },
            Aside::Absent => match (&location.absent, &location.orphaned) {
                (Some(reason), _) => reason.clone(),
                (None, _) if location.same.is_some() => {
                    "it is there, and no name of it can be seen from here".into()
                }
                (None, Some(_)) => {
                    "neither it nor its directory is there: what is mounted there may be missing".into()
                }
                (None, None) => "no path of it can be read".into(),
            },
    }
}
