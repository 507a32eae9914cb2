//! What the exhaustive sets leave out leaves out nothing: each reduction of `holdfast_sim::explore`
//! and `holdfast_sim::known` against the whole.

use std::sync::mpsc::channel;

use holdfast_sim::check::{Counts, Effort};
use holdfast_sim::disk::{Journal, Left};
use holdfast_sim::explore::{CORE, CORE_BEHIND, changes_nothing, follow, sequences, step};
use holdfast_sim::history::{History, TINY};
use holdfast_sim::known::Digest;
use holdfast_sim::machine::Behind;
use holdfast_sim::nvm::Keep;
use holdfast_sim::op::Op;
use holdfast_sim::recorder::Snapshot;
use holdfast_sim::run::{Shared, Worker};
use holdfast_testkit::Random;

fn explore(whole: bool, doubts: bool) -> Counts {
    let shared = Shared::default();
    let (failures, heard) = channel();
    let effort = Effort { images: 4, inside_one_in: 6, afterlife_one_in: 8, tamper_one_in: 24 };
    // A part of the sets in which all kinds of histories are.
    let mut worker = Worker::new(effort, &shared, failures).part(5, 40);
    (worker.whole, worker.doubts) = (whole, doubts);
    assert!(worker.exhaustive(2));
    let counts = worker.counts;
    drop(worker);
    let failures: Vec<String> = heard.iter().map(|failure| failure.violation.to_string()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    counts
}

/// An image that comes up again is recovered again, in doubt, and becomes what it became before;
/// without sharing, the crash points and the images drawn of them are as many.
#[test]
fn what_is_known_of_an_image_is_what_recovery_makes_of_it() {
    let doubtful = explore(false, true);
    assert!(doubtful.images_known > 10_000, "{doubtful:?}");
    let whole = explore(true, false);
    assert_eq!(whole.images_known, 0);
    assert_eq!((doubtful.histories, doubtful.crash_points), (whole.histories, whole.crash_points));
    let drawn = |counts: &Counts| counts.images - counts.images_inside_recovery - counts.afterlives;
    assert_eq!(drawn(&doubtful), drawn(&whole));
}

/// Everything that a crash may leave at each crash point of the last step of a history, as far as
/// it is not drawn.
fn images(steps: &[Op], journal: Journal, behind: Option<Behind>) -> Vec<(usize, [Digest; 4])> {
    let steps: Vec<_> = steps.iter().copied().map(step).collect();
    let last = steps.len() - 1;
    let played = History { journal, pool: TINY, behind, on_sync: false, spill: None, steps }.play(last);
    assert!(played.hangs.is_none() && played.impossible.is_none() && played.wrong.is_none());
    let of = |snapshot: &Snapshot| {
        let random = &mut Random::new(0);
        let disk = [Left::Synced, Left::Everything].map(|left| snapshot.disk.crash(left, 1, random).digest());
        let nvm = [Keep::None, Keep::All].map(|keep| snapshot.nvm.crash(keep, random).digest());
        (snapshot.nvm.pending(), [disk[0], disk[1], nvm[0], nvm[1]])
    };
    played.snapshots.iter().map(of).collect()
}

/// A step that changes nothing has no crash point that the step before does not have; and whatever
/// comes after it does the same, store by store, as without it.
#[test]
fn histories_go_on_behind_a_step_that_changes_nothing_as_without_it() {
    let behind = |at_once, frames| Some(Behind { at_once, frames });
    let machines = [
        (Journal::Ext4, None, &CORE),
        (Journal::Lagging, None, &CORE),
        (Journal::Ext4, behind(true, 2), &CORE_BEHIND),
        (Journal::Lagging, behind(false, 1), &CORE_BEHIND),
    ];
    let mut compared = 0;
    for (journal, behind, core) in machines {
        for length in 2..=3 {
            sequences(core, length, false, &mut |steps| {
                let last = steps[length - 1];
                for idle in
                    core.iter().copied().filter(|op| changes_nothing(last, *op) && possible(steps, *op))
                {
                    for next in core.iter().copied().filter(|op| possible(steps, *op)) {
                        let with = [steps, &[idle, next]].concat();
                        let without = [steps, &[next]].concat();
                        // Records tell the second they were written: both must be of the same.
                        let same = (0..20)
                            .any(|_| images(&with, journal, behind) == images(&without, journal, behind));
                        assert!(same, "{steps:?}, {idle}: then {next} does something else, {behind:?}");
                        compared += 1;
                    }
                }
            });
        }
    }
    assert!(compared > 1000, "only {compared} were compared");
}

/// Whether there is a file for it.
fn possible(steps: &[Op], op: Op) -> bool {
    follow(&[steps, &[op]].concat()).is_some()
}
