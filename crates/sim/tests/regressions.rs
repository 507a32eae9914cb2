//! Histories that once lost data or hung, each under the name of what it did, and a short run of
//! everything.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use holdfast_sim::check::{Counts, Effort};
use holdfast_sim::disk::Journal;
use holdfast_sim::history::{History, TINY};
use holdfast_sim::machine::Behind;
use holdfast_sim::op::{Amid, Op, Step};
use holdfast_sim::run::{Only, Shared, Watchman, Worker};

const A: u8 = b'a';
const B: u8 = b'b';

fn run(work: impl FnOnce(&mut Worker<'_>)) -> Counts {
    let shared = Shared::default();
    let (failures, heard) = channel();
    let effort = Effort { images: 8, inside_one_in: 3, afterlife_one_in: 8, tamper_one_in: 8 };
    let is_over = AtomicBool::new(false);
    let counts = std::thread::scope(|scope| {
        scope.spawn(|| watch(&shared, &is_over));
        let mut worker = Worker::new(effort, &shared, failures);
        work(&mut worker);
        shared.ends();
        is_over.store(true, Ordering::Relaxed);
        worker.counts
    });
    let failures: Vec<String> = heard
        .iter()
        .map(|failure| format!("{}\n{}{:#?}", failure.violation, failure.history, failure.violation.trail))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    counts
}

/// A history that hangs in a lock cannot be left: it ends the whole test.
fn watch(shared: &Shared, is_over: &AtomicBool) {
    let mut watchman = Watchman::default();
    while !is_over.load(Ordering::Relaxed) {
        if let Some(replay) = watchman.look(shared, 3000) {
            eprintln!("a history never ends: cargo run --release -p holdfast-sim -- {replay}");
            std::process::abort();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// One in so many of the shortest histories is played here.
const SHORT_PARTS: u64 = 5;
const AT_ONCE: Behind = Behind { at_once: true, frames: 2 };

/// Plays steps on both kinds of file systems and checks every crash point.
fn check(steps: &[Step]) {
    check_in(None, steps);
}

fn check_in(behind: Option<Behind>, steps: &[Step]) {
    for journal in [Journal::Ext4, Journal::Lagging] {
        let history =
            History { journal, pool: TINY, behind, on_sync: false, spill: None, steps: steps.to_vec() };
        let counts = run(|worker| worker.check(&history, 0, Only::ALL));
        assert!(counts.images > 0, "nothing was checked");
    }
}

/// The last step of `steps`, interrupted at each of its first points.
fn check_amid(steps: &[Step], amid: impl Fn(usize) -> Amid) {
    for at in 1..=24 {
        let mut steps = steps.to_vec();
        if let Some(last) = steps.last_mut() {
            last.amid = amid(at);
        }
        check(&steps);
    }
}

fn alone(op: Op) -> Step {
    Step::alone(0, op)
}

/// An append took the end of the file from the board while another writer was moving it. Its record
/// named a place that the other one's bytes had by then; a crash before it was cancelled put it on
/// top of them.
#[test]
fn an_append_that_meets_a_growing_file_is_never_replayed_onto_acknowledged_bytes() {
    check_amid(&[alone(Op::Put(A, 0, 40))], |at| Amid::Other(at, 1, Op::Append(A, 30)));
}

/// After a call around the log nobody knew the size, and an append's record named offset 0.
#[test]
fn an_append_after_a_call_around_the_log_is_never_replayed_at_the_start() {
    check(&[alone(Op::Put(A, 0, 40)), alone(Op::Around(A, 10, 60)), alone(Op::Append(A, 30))]);
}

/// Touched by one process, written by another: no slot said that the file was new, and no directory
/// had its name.
#[test]
fn a_file_that_somebody_made_and_let_go_survives_its_first_write() {
    check(&[alone(Op::Create(A)), alone(Op::Retire(A)), Step::alone(1, Op::Write(A, 0, 40))]);
    for at in 1..=3 {
        let killed = Step { thread: 0, op: Op::Put(A, 0, 40), amid: Amid::Killed(at) };
        check(&[killed, Step::alone(1, Op::Put(A, 20, 40))]);
    }
}

/// A writer was killed between its stores and its fence. The keeper wrote the record to the file,
/// where everybody saw it; then the power failed, and the record was not there. The same with a
/// cancel record.
#[test]
fn what_is_rolled_forward_for_a_dead_writer_is_durable_before_it_is_seen() {
    check_amid(&[alone(Op::Put(A, 0, 40))], Amid::Killed);
    check_amid(&[alone(Op::Put(A, 0, 40)), alone(Op::Short(A, 10, 60, 25))], Amid::Killed);
}

/// A refused rename left the name it had announced in the slot; a file that the crash took was
/// built anew there.
#[test]
fn no_file_is_built_at_a_name_it_never_got() {
    check_amid(&[alone(Op::Put(A, 0, 40))], |at| Amid::Other(at, 1, Op::RenameRefused(A, B)));
}

/// A process died before the rename it had announced. The slot kept two names, and the removal of
/// the one that stood was not taken for the removal of the last: recovery asked a person.
#[test]
fn a_rename_that_its_process_did_not_live_to_make_is_withdrawn() {
    for at in 1..=3 {
        let killed = Step { thread: 0, op: Op::Rename(A, B), amid: Amid::Killed(at) };
        let after = [Step::alone(1, Op::Put(A, 20, 40)), Step::alone(1, Op::Unlink(A))];
        check(&[&[alone(Op::Put(A, 0, 40)), killed][..], &after[..]].concat());
    }
}

/// A name was given away and taken by a new file before the change was counted: the crash brought
/// the old file back to where the new one's records belonged.
#[test]
fn a_new_file_at_a_name_that_was_just_given_away_survives() {
    check_amid(&[alone(Op::Put(A, 0, 40)), alone(Op::Rename(A, B))], |at| {
        Amid::Other(at, 1, Op::Put(A, 0, 40))
    });
}

/// Put a, sync the directory, rename it to b, sync the directory, put another a; the crash takes
/// the rename and the new file, and then somebody puts a file of their own in the place of b.
/// Recovery built the renamed file anew at a, the name that it had given up and that another file
/// was to have.
#[test]
fn a_file_that_was_renamed_is_not_built_at_the_name_it_gave_up() {
    let renamed = [Op::Put(A, 0, 40), Op::SyncDirectory, Op::Rename(A, B), Op::SyncDirectory].map(alone);
    for thread in [0, 1] {
        let then = [Step::alone(thread, Op::Put(A, 0, 20)), alone(Op::SyncDirectory)];
        check(&[&renamed[..], &then[..]].concat());
    }
}

/// Before a rename was made, somebody created a file at its free name. The slot still held the
/// rename; recovery made it, and the file that had the name was set aside.
#[test]
fn a_file_created_where_another_is_about_to_go_keeps_its_name() {
    check_amid(&[alone(Op::Put(A, 0, 40)), alone(Op::Rename(A, B))], |at| {
        Amid::Other(at, 1, Op::Put(B, 0, 40))
    });
    check_amid(&[alone(Op::Put(A, 0, 40)), alone(Op::RenameRefused(A, B))], |at| {
        Amid::Other(at, 1, Op::Put(B, 0, 40))
    });
}

/// A round of the keeper between the announcement of a rename and its call brought the old name to
/// disk and let the records expire; the rename, which the next directory sync answered for, was
/// then held by nobody.
#[test]
fn a_file_does_not_expire_while_it_is_about_to_be_renamed() {
    for at in 1..=24 {
        let mut renamed = Step::alone(0, Op::Rename(A, B));
        renamed.amid = Amid::Other(at, 1, Op::Expire);
        let synced = alone(Op::SyncDirectory);
        check(&[alone(Op::Put(A, 0, 40)), synced, renamed, synced]);
    }
}

/// With a failed sync behind it, a file has to be written again before the next one. Who kept its
/// writers out waited for that, and that waited for them: for ever.
#[test]
fn a_rewrite_does_not_wait_for_who_waits_for_it() {
    for op in [Op::Around(A, 10, 30), Op::Rename(A, B), Op::Bypass(A), Op::Outsider(A, true)] {
        let fails =
            [alone(Op::Put(A, 0, 40)), alone(Op::Fail(A)), alone(Op::Expire), alone(Op::Put(A, 5, 40))];
        check(&[&fails[..], &[alone(op)]].concat());
    }
}

/// A write too large for the log to a file that is left to the kernel was called durable, though
/// only the page cache had it.
#[test]
fn a_large_write_to_a_bypassed_file_is_not_called_durable() {
    check(&[alone(Op::Put(A, 0, 40)), alone(Op::Bypass(A)), alone(Op::Put(A, 10, 5000))]);
}

/// A sync was absorbed while another thread's call around the log had changed the file and was not
/// done.
#[test]
fn a_sync_amid_a_call_around_the_log_is_real() {
    check_amid(&[alone(Op::Put(A, 0, 40)), alone(Op::Around(A, 10, 30))], |at| {
        Amid::Other(at, 1, Op::Sync(A))
    });
}

/// The conflict mark of an outsider that came while the disk failed stayed for good.
#[test]
fn a_conflict_ends_when_the_outsider_is_settled_at_the_second_try() {
    check(&[
        alone(Op::Put(A, 0, 40)),
        alone(Op::Fail(A)),
        alone(Op::Outsider(A, true)),
        alone(Op::Put(A, 5, 40)),
    ]);
}

/// A file was there, and the process died before its first record. A sync of the directory was
/// absorbed because a number had been drawn for that record, and the crash took the file. The same
/// after a first write that the disk refused.
#[test]
fn a_file_whose_first_record_never_came_counts_as_blank() {
    check_amid(&[alone(Op::Put(B, 0, 40)), alone(Op::SyncDirectory), alone(Op::Put(A, 0, 40))], |at| {
        Amid::KilledAmid(at, 1, Op::SyncDirectory)
    });
    let refused = [alone(Op::Create(A)), alone(Op::Short(A, 0, 40, 0))];
    let first = [alone(Op::Put(B, 0, 40)), alone(Op::SyncDirectory)];
    check(&[&first[..], &refused[..], &[alone(Op::SyncDirectory)]].concat());
}

/// Where a sync of one file does not make renames of others durable (btrfs), a new file at a name
/// given away before such a sync met the old one there after a crash.
#[test]
fn a_sync_of_a_file_does_not_stand_for_its_directory_where_names_are_not_ordered() {
    check(&[
        alone(Op::Put(A, 0, 40)),
        alone(Op::Rename(A, B)),
        alone(Op::Sync(B)),
        Step::alone(1, Op::Put(A, 20, 40)),
    ]);
}

/// Renamed over another while it got its first record. The crash took the rename and the file;
/// recovery built it anew at its older name, and a crash tore the only hint that said so.
#[test]
fn a_file_built_at_its_older_name_is_not_forgotten_by_a_crash_in_between() {
    check_amid(&[alone(Op::Put(A, 0, 40)), alone(Op::Expire), Step::alone(1, Op::Put(B, 0, 40))], |at| {
        Amid::Other(at, 0, Op::Rename(B, A))
    });
}

/// State Behind: copies of several live records were fenced together. A crash tore one of them and
/// left the next, which recovery calls damage.
#[test]
fn of_the_copies_of_live_records_only_the_last_can_be_torn() {
    let puts = [0, 4096, 8192, 4096, 4096, 4096].map(|at| alone(Op::Put(A, at, 40)));
    check_in(Some(AT_ONCE), &[&puts[..], &[alone(Op::Clean(1000))]].concat());
}

/// Two threads of the keeper synced a file at once. The kernel told the first of lost pages; before
/// that was noted the second one's sync succeeded, and the records expired.
#[test]
fn a_sync_that_begins_amid_a_failing_one_does_not_expire_what_that_lost() {
    for (op, behind) in [(Op::Bypass(A), None), (Op::Rename(A, B), None), (Op::Bypass(A), Some(AT_ONCE))] {
        for at in 1..=4 {
            let expire = Step { thread: 0, op: Op::Expire, amid: Amid::Other(at, 1, op) };
            check_in(
                behind,
                &[alone(Op::Put(A, 0, 40)), alone(Op::Put(A, 300, 900)), alone(Op::Fail(A)), expire],
            );
        }
    }
}

/// A file whose disk refused it held most of the pool for good, and a write of another file waited
/// for ever. It goes around the log, and so does a truncation.
#[test]
fn a_write_that_expiry_cannot_make_room_for_goes_around_the_log() {
    let mut steps = vec![alone(Op::Put(A, 0, 900))];
    for _ in 0..5 {
        steps.extend([alone(Op::Fail(A)), alone(Op::Expire)]);
    }
    steps.extend([alone(Op::Put(B, 0, 300)), alone(Op::Put(B, 10, 900)), alone(Op::Put(B, 700, 300))]);
    for op in [Op::Put(B, 500, 900), Op::Truncate(B, 100), Op::Append(B, 900)] {
        check_in(None, &[&steps[..], &[Step::alone(1, op)]].concat());
        check_in(Some(AT_ONCE), &[&steps[..], &[Step::alone(1, op)]].concat());
    }
}

/// A segment was emptied by copies of its live records, with one fence behind them all. A crash
/// tore the first, and recovery called the pool damaged.
#[test]
fn copies_that_a_crash_tears_are_not_taken_for_damage() {
    let put = |name, at| alone(Op::Put(name, at, 40));
    check_in(
        Some(AT_ONCE),
        &[put(A, 0), put(A, 4096), put(A, 8192), put(A, 12288), alone(Op::Clean(u32::MAX)), put(B, 0)],
    );
}

/// One of the keeper's threads emptied a segment and waited for a page that another was draining,
/// which then wanted to give segments back, too: where threads are simulated none of them went on.
#[test]
fn a_segment_is_emptied_beside_a_round_that_drains_its_pages() {
    let put = |at| alone(Op::Put(A, at, 40));
    for at in 1..=8 {
        let amid = Amid::Other(at, 1, Op::Clean(u32::MAX));
        let round = Step { thread: 0, op: Op::Expire, amid };
        check_in(Some(AT_ONCE), &[put(0), put(4096), put(8192), put(12288), round]);
    }
}

/// Somebody opened a new file and synced it before the keeper had a description of its own, and was
/// told of the lost pages in its place: the keeper's sync succeeded, and the records expired
/// (invariant 4). A program by another descriptor, which the library did not look up, or an
/// outsider who had come to read.
#[test]
fn nobody_else_takes_the_only_notice_of_lost_pages_of_a_new_file() {
    for loses in [Op::Fail(A), Op::Lose(A)] {
        for syncs in [Op::Sync(A), Op::Peek(A)] {
            let closes = alone(Op::Retire(A));
            check(&[alone(Op::Put(A, 0, 1200)), alone(loses), closes, alone(syncs), alone(Op::Expire)]);
            check_in(
                Some(AT_ONCE),
                &[alone(Op::Put(A, 0, 40)), alone(loses), alone(syncs), alone(Op::Expire)],
            );
        }
    }
}

/// Durability = sync: the kernel had lost pages of a file before its first sync, which the log
/// answered: the program was not told, as by its own sync, and what was logged was what the disk
/// had.
#[test]
fn a_first_sync_tells_of_pages_that_were_lost_before_it() {
    for bytes in [40, 1200] {
        for journal in [Journal::Ext4, Journal::Lagging] {
            let steps = [Op::Put(A, 0, bytes), Op::Lose(A), Op::Sync(A), Op::Expire].map(alone).to_vec();
            let history = History { journal, pool: TINY, behind: None, on_sync: true, spill: None, steps };
            run(|worker| worker.check(&history, 0, Only::ALL));
        }
    }
}

/// Durability = sync: a file was renamed over another before anybody asked for its durability, and
/// then removed. Its slot knew the first name alone. A crash took the rename back, recovery removed
/// the file under that name, and the other one was there again.
#[test]
fn a_removal_never_overtakes_the_rename_before_it() {
    for last in [Op::Unlink(A), Op::UnlinkRefused(A)] {
        for journal in [Journal::Ext4, Journal::Lagging] {
            let steps = [
                Op::Put(A, 0, 40),
                Op::Put(B, 0, 40),
                Op::SyncDirectory,
                Op::Sync(A),
                Op::Rename(B, A),
                last,
            ];
            let steps = steps.map(|op| Step::alone(1, op)).to_vec();
            let history = History { journal, pool: TINY, behind: None, on_sync: true, spill: None, steps };
            run(|worker| worker.check(&history, 0, Only::ALL));
        }
    }
}

/// A program died in an append to a file in state Behind whose disk refused to finish it. Written
/// again with the log, the bytes were seen, and gone with the next write: the board did not know
/// that the file was longer.
#[test]
fn an_append_that_is_finished_late_stays_seen() {
    for at in 1..=16 {
        let dies = Step { thread: 1, op: Op::Append(A, 617), amid: Amid::Killed(at) };
        check_in(
            Some(AT_ONCE),
            &[
                alone(Op::Put(A, 0, 40)),
                alone(Op::Drain(A)),
                alone(Op::Refuse(A)),
                dies,
                alone(Op::Put(A, 10, 20)),
                alone(Op::Expire),
            ],
        );
    }
}

/// Of the simulator's own: a program died in a call that changes nothing, and the file had to be
/// found because of it.
#[test]
fn a_call_that_changes_nothing_promises_nothing() {
    for op in [Op::Punch(A, 4096, 26), Op::Truncate(A, 0)] {
        for at in 1..=6 {
            let dies = |op, at| Step { thread: 0, op, amid: Amid::Killed(at) };
            check(&[alone(Op::Create(A)), dies(op, at), Step::alone(1, Op::Put(B, 0, 40))]);
            check_in(Some(AT_ONCE), &[dies(Op::Put(A, 94, 10), 3), dies(op, at)]);
        }
    }
}

/// Of the simulator's own: a program died in a write that its disk kept the keeper from finishing.
/// What was written next counted as being on top of it, though the write had not come, and need
/// not.
#[test]
fn a_write_that_may_still_come_is_not_what_later_ones_build_on() {
    for at in 1..=12 {
        let dies = Step { thread: 0, op: Op::Put(A, 168, 993), amid: Amid::Killed(at) };
        let around = alone(Op::Around(A, 482, 106));
        check_in(
            Some(Behind { at_once: false, frames: 1 }),
            &[alone(Op::Put(A, 309, 36)), alone(Op::Expire), alone(Op::Fail(A)), dies, around],
        );
    }
}

/// State Behind, on crash points of every kind: writes that cover, join and pass by what only the
/// log has, and what brings it to the page cache, interrupted and killed at each point.
#[test]
fn reads_and_crashes_in_state_behind_find_what_was_written() {
    let first = [alone(Op::Put(A, 4080, 40)), alone(Op::Put(A, 4070, 20))];
    let last =
        [Op::Put(A, 4090, 20), Op::Append(A, 30), Op::Truncate(A, 4085), Op::Read(A, 4060, 80), Op::Drain(A)];
    for op in last {
        for at in 1..=12 {
            let mut amid = vec![Amid::Other(at, 1, Op::Read(A, 4060, 80)), Amid::Other(at, 1, Op::Expire)];
            if op.is_clients() {
                amid.extend([Amid::Killed(at), Amid::KilledAmid(at, 1, Op::Put(A, 4085, 20))]);
            }
            for amid in amid {
                check_in(Some(AT_ONCE), &[&first[..], &[Step { thread: 0, op, amid }]].concat());
            }
        }
    }
}

/// A few thousand images of each kind, with the assertions of the product that ships without them;
/// the whole sets and long runs are the program's, which `test.sh` has play them.
#[test]
fn short_histories_and_seeds_keep_every_promise() {
    let counts = run(|worker| {
        // A part in which all kinds of histories are.
        (worker.index, worker.of) = (0, SHORT_PARTS);
        assert!(worker.exhaustive(1));
        (worker.index, worker.of) = (0, 1);
        worker.seeds(1, 4, None);
    });
    assert!(counts.images > 5_000 && counts.images_inside_recovery > 500 && counts.tampered > 100);
}
