//! The histories that broke the design once, as scripts: each loses, tears, rolls back or blocks when the rule that
//! stands against it is taken out. docs/crash.md, section 12, has them in words, under the same numbers.
//!
//! With its rules a story must pass; with any one of them taken out (`holdfast-sim --stories`, in the build that can
//! have deliberate bugs) it must fail. What only real kernels and processes can tell is in `crates/e2e/tests/histories.rs`.

use std::sync::mpsc::channel;

use crate::check::{Checker, Counts, Effort, Violation};
use crate::disk::Journal;
use crate::history::{Behind, History, TINY};
use crate::op::{Amid, Name, Op, Step};
use crate::run::{Failure, Only, Shared, Worker};

const A: Name = b'a';
const B: Name = b'b';
const C: Name = b'c';

/// A step is interrupted at each of its points up to this one.
const POINTS: usize = 24;

/// Images of each crash point, and how often something else happens to one: more than in long runs, as there is little to
/// play.
const EFFORT: Effort = Effort { images: 8, inside_one_in: 3, afterlife_one_in: 4, tamper_one_in: 6 };

/// The machines that files in state Through are played on, and those for files in state Behind.
const THROUGH: [(Journal, Option<Behind>); 2] = [(Journal::Ordered, None), (Journal::Lagging, None)];
const BEHIND: [(Journal, Option<Behind>); 2] = [
    (Journal::Ordered, Some(Behind { at_once: true, frames: 4 })),
    (Journal::Lagging, Some(Behind { at_once: true, frames: 0 })),
];

/// One of the histories.
pub struct Story {
    /// Its number in docs/crash.md.
    pub number: u32,
    /// What it tells; the test that plays it has the same name.
    pub name: &'static str,
    /// The deliberate bugs (`holdfast-canary`) that take out a rule which stands against it.
    pub bugs: &'static [&'static str],
    plays: fn(&mut Vec<Vec<Step>>),
}

/// All of them.
pub const STORIES: [Story; 19] = [
    Story {
        number: 1,
        name: "a_segment_is_never_emptied_by_writing_its_newest_records_to_the_file",
        bugs: &["SelectiveDrain", "LiveSegmentFreed", "ExpiryUnpersisted", "RecoverExpired"],
        plays: nearly_dead_segments,
    },
    Story {
        number: 2,
        name: "the_members_of_a_group_live_and_die_together",
        bugs: &["GroupMemberUnnoted", "RecoverPartGroup"],
        plays: groups,
    },
    Story {
        number: 3,
        name: "no_number_is_given_out_twice_and_no_old_record_comes_alive",
        bugs: &["CounterLow", "GenerationKept", "GenerationUnflushed"],
        plays: restarts,
    },
    Story {
        number: 4,
        name: "a_torn_name_never_takes_a_slot_with_it",
        bugs: &["HintInPlace", "InUseBeforeIdentity", "RenameUnsettled"],
        plays: torn_names,
    },
    Story {
        number: 5,
        name: "log_and_file_have_two_writers_of_the_same_bytes_in_one_order",
        bugs: &["PageLocksOpen", "DropFence"],
        plays: two_writers,
    },
    Story {
        number: 6,
        name: "what_the_kernel_refused_or_cut_short_is_never_replayed",
        bugs: &["NoCancel", "CancelUnfenced", "RecoverCancelled"],
        plays: short_writes,
    },
    Story {
        number: 7,
        name: "a_sync_counts_only_for_what_was_changed_before_it_began",
        bugs: &["SyncCoversLater"],
        plays: changes_amid_a_sync,
    },
    Story {
        number: 8,
        name: "a_sync_is_real_when_something_changed_that_the_log_does_not_hold",
        bugs: &["UnloggedIgnored", "NamesUncounted", "DirectorySyncUncounted", "DirectorySyncBlank"],
        plays: unlogged_changes,
    },
    Story {
        number: 9,
        name: "nothing_goes_around_the_log_over_live_records",
        bugs: &["AroundUnsettled", "AroundUnsynced", "BypassUnsettled"],
        plays: around_the_log,
    },
    Story {
        number: 10,
        name: "recovery_never_writes_over_what_others_wrote",
        bugs: &["OutsiderUnsettled", "ChangeIgnored"],
        plays: outsiders,
    },
    Story {
        number: 13,
        name: "who_waits_for_log_space_holds_nothing_that_others_wait_for",
        bugs: &["ReserveLate"],
        plays: no_space,
    },
    Story {
        number: 14,
        name: "nothing_expires_that_was_numbered_but_not_yet_written",
        bugs: &["AnnouncedTooHigh", "AnnouncementsIgnored", "SettledAfterSync", "ExpireBeforeSync"],
        plays: expiry_amid_a_write,
    },
    Story {
        number: 15,
        name: "a_dead_writers_record_is_finished_before_others_see_its_bytes",
        bugs: &["RollForwardSkipped", "RollForwardUnflushed"],
        plays: dead_writers,
    },
    Story {
        number: 16,
        name: "a_removed_file_stays_away_and_one_that_stays_is_whole",
        bugs: &["UnlinkUnannounced", "RemovalNotWithdrawn", "ReleaseBeforeDirectorySync"],
        plays: removals,
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
        plays: truncations,
    },
    Story {
        number: 18,
        name: "bytes_that_a_failed_sync_dropped_are_written_again",
        bugs: &["ClientFailureForgotten", "NoRewrite", "SyncErrorIgnored", "RewriteBackwards"],
        plays: failed_syncs,
    },
    Story {
        number: 19,
        name: "a_file_that_recovery_builds_anew_survives_its_crash",
        bugs: &["RebuiltTooEarly", "RebuiltUnnamed", "RecoverUnsynced", "CreatedExpiresEarly"],
        plays: rebuilt_files,
    },
    Story {
        number: 20,
        name: "a_segment_or_slot_in_new_hands_shows_nothing_of_its_old_ones",
        bugs: &["OlderUseLive", "RetireDirty"],
        plays: new_hands,
    },
    Story {
        number: 21,
        name: "a_read_in_state_behind_sees_every_write_and_nothing_older",
        bugs: &["ReadsUnlocked", "DrainStale", "DrainSkipped", "OldestSeqForgotten"],
        plays: reads_behind,
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
        let machines = if self.number == 21 { BEHIND } else { THROUGH };
        let history = |(journal, behind), steps: &[Step]| History {
            journal,
            pool: TINY,
            behind,
            steps: steps.to_vec(),
        };
        plays.iter().flat_map(|steps| machines.map(|machine| history(machine, steps))).collect()
    }

    /// Plays it until the first failure.
    pub fn play(&self) -> (Counts, Option<Failure>) {
        let shared = Shared::default();
        let (failures, heard) = channel();
        let mut worker =
            Worker { index: 0, of: 1, effort: EFFORT, shared: &shared, failures, counts: Counts::default() };
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
        if self.number == 3 { reused_numbers() } else { Vec::new() }
    }
}

/// The step that is interrupted, since those before it are played without interruption, too; `None` when it has fewer points.
fn first_of_interest(history: &History) -> Option<usize> {
    let Some(at) = history.steps.iter().position(|step| step.amid != Amid::Nothing) else { return Some(0) };
    let begun = History { steps: history.steps[..=at].to_vec(), ..history.clone() };
    begun.play(at + 1).interrupted.then_some(at)
}

fn play_two_lives(worker: &mut Worker<'_>, first: &History, second: &History) -> Option<Failure> {
    let superblock = first.superblock();
    let mut checker =
        Checker { superblock: &superblock, effort: EFFORT, behind: None, counts: Counts::default() };
    let failed = |violation: Violation, history: &History| Failure {
        violation,
        history: format!("{first}then, after a crash and recovery, {history}"),
        replay: "--help # a second life: cargo test -p holdfast-sim --test histories".to_owned(),
    };
    let played = first.play_all();
    let last = played.snapshots.last().expect("something happened");
    let outcome = match checker.check(last, 0, &[first.seed()]) {
        Ok(outcome) => outcome,
        Err(violation) => return Some(failed(violation, second)),
    };
    let played = second.play_after(&outcome, superblock);
    let checked = played.snapshots.iter().enumerate().try_for_each(|(crash, snapshot)| {
        (0..checker.images_of(snapshot))
            .try_for_each(|image| checker.check(snapshot, image, &[second.seed(), crash as u64]).map(|_| ()))
    });
    worker.counts.add(&checker.counts);
    worker.counts.histories += 2;
    checked.err().map(|violation| failed(violation, second))
}

type Plays = Vec<Vec<Step>>;

fn alone(operations: &[Op]) -> Vec<Step> {
    operations.iter().map(|op| Step::alone(0, *op)).collect()
}

/// The last operation is interrupted at each of its points; then the rest follows.
fn amid(plays: &mut Plays, operations: &[Op], how: impl Fn(usize) -> Amid, rest: &[Step]) {
    for at in 1..=POINTS {
        let mut steps = alone(operations);
        if let Some(last) = steps.last_mut() {
            last.amid = how(at);
        }
        steps.extend_from_slice(rest);
        plays.push(steps);
    }
}

/// Three segments: in the first R covers bytes that the second covers in part, and newer. The second is freed and reused,
/// the first replayed.
fn nearly_dead_segments(plays: &mut Plays) {
    // Segments 0 to 3, of which 0 then has the newest records and is used again, and 2 and 3 keep the oldest.
    let first = [&[Op::Put(A, 0, 40); 12][..], &[Op::Expire]].concat();
    let then = [&first[..], &[Op::Put(A, 0, 20); 3], &[Op::Put(A, 0, 10), Op::Expire]].concat();
    plays.push([alone(&then), vec![Step::alone(1, Op::Put(B, 0, 40)); 3]].concat());
    let old = [Op::Put(A, 0, 40); 3];
    let new = [Op::Put(A, 0, 20); 3];
    let then = [Op::Put(A, 0, 10), Op::Expire];
    let reuse = [Step::alone(1, Op::Put(B, 0, 300)), Step::alone(1, Op::Put(B, 0, 300))];
    plays.push([alone(&[&old[..], &new[..], &then[..]].concat()), reuse.to_vec()].concat());
    plays.push(alone(&[Op::Put(A, 300, 900), Op::Fail(A), Op::Expire, Op::Put(B, 300, 900)]));
}

/// A group whose members lie in several segments; some of them are overwritten, some segments reused.
fn groups(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 500), Op::Put(A, 100, 500)]));
    plays.push(alone(&[Op::Put(A, 300, 900), Op::Fail(A), Op::Expire, Op::Put(B, 300, 900)]));
    plays.push(alone(&[Op::Put(A, 0, 900), Op::Put(A, 600, 300), Op::Expire, Op::Put(B, 0, 900)]));
}

/// Records expire, segments are used again; recovery goes on to serve, and the power fails again.
fn restarts(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Expire, Op::Put(A, 20, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(A, 0, 500), Op::Expire]));
    // Three records fill a segment, which is used again; then the second of its new ones is torn.
    let full = alone(&[&[Op::Put(A, 0, 40); 4][..], &[Op::Expire]].concat());
    plays.push([full, vec![Step::alone(1, Op::Put(B, 0, 40)); 2]].concat());
}

/// The first life gives a file's slot a high generation; the second draws numbers until its file in that slot has the same.
fn reused_numbers() -> Vec<(History, History)> {
    let history = |operations: &[Op]| History {
        journal: Journal::Ordered,
        pool: TINY,
        behind: None,
        steps: alone(operations),
    };
    let first = [&[Op::Put(B, 0, 40); 5][..], &[Op::Put(A, 0, 40), Op::Put(A, 0, 40)]].concat();
    let second = |puts: usize| [&vec![Op::Put(B, 0, 40); puts][..], &[Op::Put(C, 5, 10)]].concat();
    (1..10).map(|puts| (history(&first), history(&second(puts)))).collect()
}

/// Names are written into slots whose files have records.
fn torn_names(plays: &mut Plays) {
    let written = [Op::Put(A, 0, 40), Op::Put(A, 20, 40)];
    for name in [Op::Rename(A, B), Op::RenameRefused(A, B), Op::Unlink(A), Op::UnlinkRefused(A)] {
        plays.push(alone(&[&written[..], &[name]].concat()));
        amid(plays, &[&written[..], &[name]].concat(), |at| Amid::Other(at, 1, Op::Put(A, 5, 20)), &[]);
    }
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Rename(A, B), Op::Put(B, 0, 40), Op::Rename(B, C)]));
}

fn two_writers(plays: &mut Plays) {
    let two = [Op::Put(A, 0, 40), Op::Put(A, 0, 40)];
    amid(plays, &two, |at| Amid::Other(at, 1, Op::Put(A, 20, 20)), &[]);
    // The keeper's round between log and file.
    amid(plays, &two, |at| Amid::Other(at, 1, Op::Expire), &[]);
}

fn short_writes(plays: &mut Plays) {
    for short in [Op::Short(A, 10, 60, 25), Op::Short(A, 10, 60, 0), Op::Short(A, 10, 500, 350)] {
        plays.push(alone(&[Op::Put(A, 0, 40), short]));
        plays.push(alone(&[Op::Put(A, 0, 40), short, Op::Put(B, 0, 40)]));
    }
}

/// One thread's sync is under way while another has the kernel fill in bytes; then that one syncs.
fn changes_amid_a_sync(plays: &mut Plays) {
    let first = [Op::Put(A, 0, 400), Op::Fill(A, 0, 60), Op::Sync(A)];
    amid(
        plays,
        &first,
        |at| Amid::Other(at, 1, Op::Fill(A, 100, 200)),
        &[Step::alone(1, Op::Sync(A)), Step::alone(0, Op::Sync(A))],
    );
}

fn unlogged_changes(plays: &mut Plays) {
    // The kernel's own copies.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Fill(A, 20, 60), Op::Sync(A)]));
    // Renames that no slot holds.
    plays.push(alone(&[
        Op::Put(A, 0, 40),
        Op::Put(B, 0, 40),
        Op::Rename(B, A),
        Op::Put(A, 0, 40),
        Op::Sync(A),
    ]));
    // A file in a watched directory that nobody wrote to yet, and one that is about to get its first record.
    let watched = [Op::Put(A, 0, 40), Op::SyncDirectory];
    plays.push(alone(&[&watched[..], &[Op::Create(B), Op::SyncDirectory]].concat()));
    let refused = [Op::Create(B), Op::Short(B, 0, 40, 0), Op::SyncDirectory];
    plays.push(alone(&[&watched[..], &refused[..]].concat()));
    amid(
        plays,
        &[&watched[..], &[Op::Put(B, 0, 40)]].concat(),
        |at| Amid::Other(at, 1, Op::SyncDirectory),
        &[],
    );
    amid(
        plays,
        &[&watched[..], &[Op::Put(B, 0, 40)]].concat(),
        |at| Amid::KilledAmid(at, 1, Op::SyncDirectory),
        &[],
    );
}

fn around_the_log(plays: &mut Plays) {
    // What the kernel filled in is synced, and the record below it was live.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Fill(A, 10, 60), Op::Sync(A)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Around(A, 10, 60)]));
    // Too large for the log.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(A, 10, 5000)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Bypass(A), Op::Put(A, 10, 60), Op::Sync(A)]));
}

fn outsiders(plays: &mut Plays) {
    for late in [false, true] {
        plays.push(alone(&[Op::Put(A, 0, 40), Op::Outsider(A, late), Op::Put(A, 10, 40)]));
        let two = [Op::Put(A, 0, 40), Op::Put(A, 0, 40)];
        amid(plays, &two, |at| Amid::Other(at, 1, Op::Outsider(A, late)), &[]);
    }
    // Nobody ran Holdfast between crash and recovery, but somebody wrote.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(B, 0, 40), Op::Put(A, 20, 40)]));
}

/// The log is full of a file's records, whose sync failed: nothing is freed before its rewrite, which keeps writers out.
fn no_space(plays: &mut Plays) {
    let full = [Op::Put(A, 0, 900), Op::Fail(A), Op::Expire];
    let more = [Op::Put(A, 0, 900), Op::Put(A, 0, 400), Op::Put(A, 0, 400), Op::Put(A, 0, 900)];
    plays.push(alone(&[&full[..], &more[..]].concat()));
    let others = [Op::Put(B, 0, 900), Op::Put(B, 0, 400), Op::Put(A, 0, 900), Op::Put(B, 0, 900)];
    plays.push(alone(&[&full[..], &others[..]].concat()));
}

fn expiry_amid_a_write(plays: &mut Plays) {
    let written = [Op::Put(A, 0, 40), Op::Put(A, 10, 500)];
    amid(plays, &written, |at| Amid::Other(at, 1, Op::Expire), &[]);
    let expired = [Op::Put(A, 0, 40), Op::Put(A, 0, 40), Op::Expire];
    amid(plays, &expired, |at| Amid::Other(at, 1, Op::Put(A, 300, 500)), &[]);
    amid(plays, &expired, |at| Amid::Other(at, 1, Op::Put(A, 10, 20)), &[]);
}

fn dead_writers(plays: &mut Plays) {
    for op in [Op::Put(A, 10, 60), Op::Put(A, 10, 500), Op::Short(A, 10, 60, 25)] {
        let written = [Op::Put(A, 0, 40), op];
        let next = [Step::alone(1, Op::Put(A, 20, 40))];
        amid(plays, &written, Amid::Killed, &next);
        amid(plays, &written, |at| Amid::KilledAmid(at, 1, Op::Put(A, 20, 40)), &[]);
    }
}

fn removals(plays: &mut Plays) {
    // Half of it expired: what is built anew of the other half is no file.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Expire, Op::Put(A, 20, 40), Op::Unlink(A)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::SyncDirectory, Op::Unlink(A), Op::SyncDirectory, Op::Expire]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::UnlinkRefused(A), Op::Put(A, 20, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Unlink(A), Op::Put(A, 0, 20), Op::Expire, Op::Unlink(A)]));
    let unlinked = [Op::Put(A, 0, 40), Op::Expire, Op::Put(A, 20, 40), Op::Unlink(A)];
    amid(plays, &unlinked, Amid::Killed, &[Step::alone(1, Op::Put(A, 0, 20))]);
    amid(plays, &unlinked, |at| Amid::Other(at, 1, Op::Expire), &[]);
}

fn truncations(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 400), Op::Expire, Op::Put(A, 0, 60), Op::Truncate(A, 20)]));
    plays.push(alone(&[Op::Put(A, 0, 60), Op::Truncate(A, 20), Op::Put(A, 80, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 60), Op::Truncate(A, 20), Op::Truncate(A, 50)]));
    plays.push(alone(&[Op::Put(A, 0, 60), Op::TruncateRefused(A, 5), Op::Put(A, 20, 10)]));
    plays.push(alone(&[Op::Put(A, 0, 60), Op::Punch(A, 8, 16), Op::Put(A, 12, 4)]));
    let cut = [Op::Put(A, 0, 60), Op::Truncate(A, 20)];
    amid(plays, &cut, |at| Amid::Other(at, 1, Op::Put(A, 30, 40)), &[]);
    amid(plays, &cut, Amid::Killed, &[Step::alone(1, Op::Put(A, 10, 5))]);
}

fn failed_syncs(plays: &mut Plays) {
    // The keeper's own sync fails.
    plays.push(alone(&[Op::Put(A, 0, 1200), Op::Put(A, 100, 200), Op::Fail(A), Op::Expire, Op::Expire]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(A, 20, 40), Op::Fail(A), Op::Expire, Op::Expire]));
    // A client's sync takes the kernel's only notice of it.
    plays.push(alone(&[
        Op::Put(A, 0, 1200),
        Op::Put(B, 0, 40),
        Op::Rename(B, C),
        Op::Fail(A),
        Op::Sync(A),
        Op::Expire,
    ]));
}

fn rebuilt_files(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 400)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(A, 20, 40), Op::Put(B, 0, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Expire, Op::Put(A, 20, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Around(A, 10, 30), Op::Put(A, 20, 40)]));
}

fn new_hands(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Unlink(A), Op::Expire, Op::Put(B, 0, 20)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Retire(A), Op::Put(B, 0, 20), Op::Put(A, 5, 10)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Expire, Op::Retire(A), Op::Put(B, 0, 20), Op::Put(A, 5, 10)]));
    let rounds = [Op::Put(A, 0, 300), Op::Expire, Op::Put(A, 0, 20), Op::Expire];
    plays.push(alone(&[&rounds[..], &rounds[..], &[Op::Put(B, 0, 300)]].concat()));
    for op in [Op::Unlink(A), Op::Rename(B, A)] {
        let ending = [Op::Put(A, 0, 40), Op::Put(B, 0, 40), op];
        amid(
            plays,
            &ending,
            |at| Amid::Other(at, 1, Op::Put(A, 10, 40)),
            &[Step::alone(1, Op::Put(C, 0, 30))],
        );
    }
}

/// Reads and drains among writes that are in the log alone.
fn reads_behind(plays: &mut Plays) {
    // Two pages are drained one after the other; the second gets more bytes meanwhile.
    let pages = [Op::Put(A, 0, 40), Op::Put(A, 8192, 40), Op::Expire];
    amid(plays, &pages, |at| Amid::Other(at, 1, Op::Write(A, 8200, 60)), &[]);
    let read = Op::Read(A, 0, 200);
    for op in [Op::Write(A, 10, 60), Op::Write(A, 0, 40), Op::Write(A, 30, 50), Op::Append(A, 50)] {
        let written = [Op::Put(A, 0, 40), op];
        amid(plays, &written, |at| Amid::Other(at, 1, read), &alone(&[read]));
        amid(plays, &written, |at| Amid::Other(at, 1, Op::Drain(A)), &alone(&[read, Op::Expire, read]));
        plays.push(alone(&[&written[..], &[Op::Drain(A), read, Op::Expire, read]].concat()));
        for drain in [Op::Drain(A), Op::Expire] {
            let drained = [Op::Put(A, 0, 40), Op::Put(A, 20, 40), drain];
            amid(plays, &drained, |at| Amid::Other(at, 1, op), &alone(&[read, Op::Expire, read]));
        }
        let looked = [Op::Put(A, 0, 40), Op::Write(A, 60, 20), read];
        amid(plays, &looked, |at| Amid::Other(at, 1, op), &alone(&[read]));
        amid(plays, &looked, |at| Amid::Other(at, 1, Op::Drain(A)), &alone(&[read]));
    }
}
