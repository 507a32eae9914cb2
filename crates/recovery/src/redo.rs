//! Changes of names that slots hold, made again before any file is written or built: removals, then
//! renames.
//!
//! Must never take a name from anybody: a rename that finds its name taken is not made.

use holdfast_pool::Slot;
use std::collections::HashMap;
use std::io;

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::apply::Applier;
use super::plan::Outcome;
use super::planned::Planned;
use super::replaced::is_yielding;
use holdfast_disk::Disk;

/// Removes and renames again what the program had, so that the names are free which others were
/// given later: a rename may wait for the name that another one gives up. Returns what failed, by
/// slot.
pub(super) fn redo(
    applier: &mut Applier<'_, impl Nvm, impl Disk>,
    files: &[Planned],
) -> HashMap<Slot, io::Error> {
    let mut failed = HashMap::new();
    let is_removed = |planned: &&Planned| planned.outcome == Outcome::UnlinkAgain;
    for planned in files.iter().filter(is_removed).filter(|planned| !is_yielding(planned, files)) {
        applier.beat();
        if let Err(error) = applier.unlink_again(&planned.file) {
            failed.insert(planned.file.slot, error);
        }
    }
    let moves = |planned: &&Planned| {
        matches!(planned.outcome, Outcome::Replay | Outcome::Sync)
            && planned.file.rename().is_some()
            && !on(Canary::RenameForgotten)
    };
    let mut waiting: Vec<&Planned> = files.iter().filter(moves).collect();
    loop {
        let before = waiting.len();
        waiting.retain(|planned| match applier.rename_again(&planned.file) {
            Ok(done) => !done,
            // Under its old name a person may have it all the same.
            Err(_) if planned.is_forced() => false,
            Err(error) => {
                failed.insert(planned.file.slot, error);
                false
            }
        });
        // What is left stays under its old name: somebody else took the new one.
        if waiting.len() == before {
            return failed;
        }
    }
}
