//! The histories that broke the design once, as scripts: each loses, tears, rolls back or blocks
//! when the rule that stands against it is taken out. docs/crash/histories.md has them in words,
//! under the same numbers.
//!
//! With its rules a story must pass; with any one of them taken out (`holdfast-sim --stories`, in
//! the build that can have deliberate bugs) it must fail. What only real kernels and processes can
//! tell is in `crates/e2e/tests/histories.rs`.

mod plays;

use std::sync::mpsc::channel;

use crate::check::{Checker, Counts, Effort, Violation};
use crate::disk::Journal;
use crate::history::{History, TINY};
use crate::machine::Behind;
use crate::op::{Amid, Step};
use crate::run::{Failure, Only, Shared, Worker};

/// Images of each crash point, and how often something else happens to one: more than in long runs,
/// as there is little to play.
const EFFORT: Effort = Effort { images: 8, inside_one_in: 3, afterlife_one_in: 4, tamper_one_in: 6 };

/// How names are ordered, how files get into state Behind, and whether they are logged from their
/// first sync on.
type Machine = (Journal, Option<Behind>, bool);
const THROUGH: [Machine; 2] = [(Journal::Ext4, None, false), (Journal::Lagging, None, false)];
const BEHIND: [Machine; 2] = [
    (Journal::Ext4, Some(Behind { at_once: true, frames: 4 }), false),
    (Journal::Lagging, Some(Behind { at_once: true, frames: 0 }), false),
];
const BOTH: [Machine; 4] = [THROUGH[0], THROUGH[1], BEHIND[0], BEHIND[1]];
/// Besides, nobody counts what was before the ledger.
const UNCOUNTED: [Machine; 3] = [THROUGH[0], THROUGH[1], (Journal::Bare, None, false)];
const ON_SYNC: [Machine; 3] =
    [(Journal::Ext4, None, true), (Journal::Lagging, None, true), (Journal::Bare, None, true)];

/// A pool whose segments take a write of more than a page as one record: shorter writes are entered
/// in the page rows by stores to memory alone, between which nobody is interrupted.
const ROOMY: (u32, u32, u64) = (4, 6, 36_864);

/// One of the histories.
pub struct Story {
    /// Its number in docs/crash/histories.md.
    pub number: u32,
    /// What it tells; the test that plays it has the same name.
    pub name: &'static str,
    /// The deliberate bugs (`holdfast-canary`) that take out a rule which stands against it.
    pub bugs: &'static [&'static str],
    /// What it is played on.
    machines: &'static [Machine],
    /// Slots, segments and bytes of a segment of the pool it is played on.
    pool: (u32, u32, u64),
    plays: fn(&mut plays::Plays),
}

/// All of them.
pub const STORIES: [Story; 22] = [
    Story {
        number: 1,
        name: "a_segment_is_never_emptied_by_writing_its_newest_records_to_the_file",
        bugs: &[
            "SelectiveDrain",
            "LiveSegmentFreed",
            "ExpiryUnpersisted",
            "RecoverExpired",
            "CoveredInPart",
            "CopyUnfenced",
            "CopyUnredirected",
        ],
        machines: &BOTH,
        pool: TINY,
        plays: plays::nearly_dead_segments,
    },
    Story {
        number: 2,
        name: "the_members_of_a_group_live_and_die_together",
        bugs: &["GroupMemberUnnoted", "RecoverPartGroup"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::groups,
    },
    Story {
        number: 3,
        name: "no_number_is_given_out_twice_and_no_old_record_comes_alive",
        bugs: &["CounterLow", "GenerationKept", "GenerationUnflushed"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::restarts,
    },
    Story {
        number: 4,
        name: "a_torn_name_never_takes_a_slot_with_it",
        bugs: &[
            "HintInPlace",
            "InUseBeforeIdentity",
            "RenameUnsettled",
            "RenameForgotten",
            "RenameExpiresEarly",
            "RenameUncovered",
            "RenameBuiltOld",
            "AwaitedNameUnsynced",
        ],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::torn_names,
    },
    Story {
        number: 5,
        name: "log_and_file_have_two_writers_of_the_same_bytes_in_one_order",
        bugs: &["PageLocksOpen", "CursorOpen", "DropFence"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::two_writers,
    },
    Story {
        number: 6,
        name: "what_the_kernel_refused_or_cut_short_is_never_replayed",
        bugs: &["NoCancel", "CancelUnfenced", "RecoverCancelled"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::short_writes,
    },
    Story {
        number: 7,
        name: "a_sync_counts_only_for_what_was_changed_before_it_began",
        bugs: &["SyncCoversLater"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::changes_amid_a_sync,
    },
    Story {
        number: 8,
        name: "a_sync_is_real_when_something_changed_that_the_log_does_not_hold",
        bugs: &["UnloggedIgnored", "NotedOnce", "DirectorySyncUncounted", "DirectorySyncBlank"],
        machines: &UNCOUNTED,
        pool: TINY,
        plays: plays::unlogged_changes,
    },
    Story {
        number: 8,
        name: "the_first_sync_of_a_file_leaves_nothing_unlogged",
        bugs: &["UnsyncedUnannounced", "UnsyncedForgotten", "UnsyncedSizeForgotten", "LostPagesHidden"],
        machines: &ON_SYNC,
        pool: TINY,
        plays: plays::first_syncs,
    },
    Story {
        number: 9,
        name: "nothing_goes_around_the_log_over_live_records",
        bugs: &["AroundUnsettled", "AroundUnsynced", "BypassUnsettled"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::around_the_log,
    },
    Story {
        number: 10,
        name: "recovery_never_writes_over_what_others_wrote",
        bugs: &["OutsiderUnsettled", "ChangeIgnored"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::outsiders,
    },
    Story {
        number: 13,
        name: "who_waits_for_log_space_holds_nothing_that_others_wait_for",
        bugs: &["ReserveLate"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::no_space,
    },
    Story {
        number: 14,
        name: "nothing_expires_that_was_numbered_but_not_yet_written",
        bugs: &["AnnouncedTooHigh", "AnnouncementsIgnored", "SettledAfterSync", "ExpireBeforeSync"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::expiry_amid_a_write,
    },
    Story {
        number: 15,
        name: "a_dead_writers_record_is_finished_before_others_see_its_bytes",
        bugs: &["RollForwardSkipped", "RollForwardUnflushed", "SizeBelieved"],
        machines: &BOTH,
        pool: TINY,
        plays: plays::dead_writers,
    },
    Story {
        number: 15,
        name: "a_dead_writers_long_write_is_finished_whatever_the_disk_says",
        bugs: &["FinishedByDisk"],
        machines: &BEHIND,
        pool: ROOMY,
        plays: plays::dead_writers_of_pages,
    },
    Story {
        number: 16,
        name: "a_removed_file_stays_away_and_one_that_stays_is_whole",
        bugs: &["UnlinkUnannounced", "RemovalNotWithdrawn", "ReleaseBeforeDirectorySync", "RemovalAssumed"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::removals,
    },
    Story {
        number: 17,
        name: "a_truncation_keeps_its_place_among_the_writes",
        bugs: &[
            "ResizeLoggedLate",
            "RecoverSizesLast",
            "RecoverNoTruncate",
            "RecoverNoPunch",
            "WritersStayIn",
        ],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::truncations,
    },
    Story {
        number: 18,
        name: "bytes_that_a_failed_sync_dropped_are_written_again",
        bugs: &[
            "ClientFailureForgotten",
            "SyncUnderWayForgotten",
            "ReaderUnheard",
            "NoRewrite",
            "SyncErrorIgnored",
            "RewriteBackwards",
        ],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::failed_syncs,
    },
    Story {
        number: 19,
        name: "a_file_that_recovery_builds_anew_survives_its_crash",
        bugs: &["RebuiltUnnamed", "RecoverUnsynced"],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::rebuilt_files,
    },
    Story {
        number: 20,
        name: "a_segment_or_slot_in_new_hands_shows_nothing_of_its_old_ones",
        bugs: &["OlderUseLive", "RetireDirty", "SlotGenerationUnchecked", "NamelessKept"],
        machines: &BOTH,
        pool: TINY,
        plays: plays::new_hands,
    },
    Story {
        number: 21,
        name: "a_read_in_state_behind_sees_every_write_and_nothing_older",
        bugs: &["ReadsUnlocked", "DrainStale", "DrainSkipped", "OldestSeqForgotten"],
        machines: &BEHIND,
        pool: TINY,
        plays: plays::reads_behind,
    },
    Story {
        number: 29,
        name: "a_file_that_is_renamed_over_another_takes_its_place_or_leaves_it",
        bugs: &[
            "ReplacedForgotten",
            "ReplacedNotVoid",
            "TakingsIgnored",
            "TakenFromAnybody",
            "MarkBeforeExpiry",
            "TakenFromTheLiving",
        ],
        machines: &THROUGH,
        pool: TINY,
        plays: plays::replaced_files,
    },
];

impl Story {
    /// The story with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        STORIES.iter().find(|story| story.name == name)
    }

    /// Every way in which it is played.
    pub fn histories(&self) -> Vec<History> {
        let mut plays = Vec::new();
        (self.plays)(&mut plays);
        let history = |(journal, behind, on_sync), steps: &[Step]| History {
            journal,
            pool: self.pool,
            behind,
            spill: None,
            on_sync,
            steps: steps.to_vec(),
        };
        let on_each =
            |steps: &Vec<Step>| self.machines.iter().map(|machine| history(*machine, steps)).collect();
        plays.iter().flat_map(|steps: &Vec<Step>| -> Vec<History> { on_each(steps) }).collect()
    }

    /// Plays it until the first failure.
    pub fn play(&self) -> (Counts, Option<Failure>) {
        let shared = Shared::default();
        let (failures, heard) = channel();
        let mut worker = Worker::new(EFFORT, &shared, failures);
        for history in self.histories() {
            let Some(from) = first_of_interest(&history) else { continue };
            worker.check(&history, from, Only::ALL);
            if let Ok(failure) = heard.try_recv() {
                return (worker.counts, Some(failure));
            }
        }
        for (first, second) in self.two_lives() {
            if let Some(failure) = play_two_lives(&mut worker, &first, &second) {
                return (worker.counts, Some(failure));
            }
        }
        (worker.counts, None)
    }

    /// Histories of a machine whose power fails in between.
    fn two_lives(&self) -> Vec<(History, History)> {
        if self.number == 3 { plays::reused_numbers() } else { Vec::new() }
    }
}

/// The step that is interrupted, since those before it are played without interruption, too; `None`
/// when it has fewer points.
pub fn first_of_interest(history: &History) -> Option<usize> {
    let Some(at) = history.steps.iter().position(|step| step.amid != Amid::Nothing) else { return Some(0) };
    let begun = History { steps: history.steps[..=at].to_vec(), ..history.clone() };
    begun.play(at + 1).interrupted.then_some(at)
}

fn play_two_lives(worker: &mut Worker<'_>, first: &History, second: &History) -> Option<Failure> {
    let superblock = first.superblock();
    let mut checker = Checker {
        superblock: &superblock,
        known: None,
        doubts: false,
        effort: EFFORT,
        behind: None,
        on_sync: false,
        counts: Counts::default(),
    };
    let failed = |violation: Violation, history: &History| Failure {
        violation,
        history: format!("{first}then, after a crash and recovery, {history}"),
        replay: "--help # a second life: cargo test -p holdfast-sim --test stories".to_owned(),
    };
    let played = first.play_all();
    let last = played.snapshots.last().expect("something happened");
    let outcome = match checker.check(last, 0, &[first.seed()], true) {
        Ok(outcome) => outcome.expect("what was asked for"),
        Err(violation) => return Some(failed(violation, second)),
    };
    let played = second.play_after(&outcome, superblock);
    let checked = played.snapshots.iter().enumerate().try_for_each(|(crash, snapshot)| {
        (0..checker.images_of(snapshot)).try_for_each(|image| {
            checker.check(snapshot, image, &[second.seed(), crash as u64], false).map(|_| ())
        })
    });
    worker.counts.add(&checker.counts);
    worker.counts.histories += 2;
    checked.err().map(|violation| failed(violation, second))
}
