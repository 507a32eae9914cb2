//! How each of the known histories goes, step by step.

use crate::disk::Journal;
use crate::history::{History, TINY};
use crate::op::{Amid, Name, Op, Step};

/// A step is interrupted at each of its points up to this one.
const POINTS: usize = 24;

const A: Name = b'a';
const B: Name = b'b';
const C: Name = b'c';

pub(super) type Plays = Vec<Vec<Step>>;

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

/// Three segments: in the first R covers bytes that the second covers in part, and newer. The
/// second is freed and reused, the first replayed.
pub(super) fn nearly_dead_segments(plays: &mut Plays) {
    // Segments 0 to 3, of which 0 then has the newest records and is used again, and 2 and 3 keep
    // the oldest.
    let first = [&[Op::Put(A, 0, 40); 12][..], &[Op::Expire]].concat();
    let then = [&first[..], &[Op::Put(A, 0, 20); 3], &[Op::Put(A, 0, 10), Op::Expire]].concat();
    plays.push([alone(&then), vec![Step::alone(1, Op::Put(B, 0, 40)); 3]].concat());
    cleaned(plays);
    let old = [Op::Put(A, 0, 40); 3];
    let new = [Op::Put(A, 0, 20); 3];
    let then = [Op::Put(A, 0, 10), Op::Expire];
    let reuse = [Step::alone(1, Op::Put(B, 0, 300)), Step::alone(1, Op::Put(B, 0, 300))];
    plays.push([alone(&[&old[..], &new[..], &then[..]].concat()), reuse.to_vec()].concat());
    plays.push(alone(&[Op::Put(A, 300, 900), Op::Fail(A), Op::Expire, Op::Put(B, 300, 900)]));
}

/// A group whose members lie in several segments; some of them are overwritten, some segments
/// reused.
pub(super) fn groups(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 500), Op::Put(A, 100, 500)]));
    plays.push(alone(&[Op::Put(A, 300, 900), Op::Fail(A), Op::Expire, Op::Put(B, 300, 900)]));
    plays.push(alone(&[Op::Put(A, 0, 900), Op::Put(A, 600, 300), Op::Expire, Op::Put(B, 0, 900)]));
}

/// Records expire, segments are used again; recovery goes on to serve, and the power fails again.
pub(super) fn restarts(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Expire, Op::Put(A, 20, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(A, 0, 500), Op::Expire]));
    // Three records fill a segment, which is used again; then the second of its new ones is torn.
    let full = alone(&[&[Op::Put(A, 0, 40); 4][..], &[Op::Expire]].concat());
    plays.push([full, vec![Step::alone(1, Op::Put(B, 0, 40)); 2]].concat());
}

/// The first life gives a file's slot a high generation; the second draws numbers until its file in
/// that slot has the same.
pub(super) fn reused_numbers() -> Vec<(History, History)> {
    let history = |operations: &[Op]| History {
        journal: Journal::Ext4,
        pool: TINY,
        behind: None,
        spill: None,
        on_sync: false,
        steps: alone(operations),
    };
    let first = [&[Op::Put(B, 0, 40); 5][..], &[Op::Put(A, 0, 40), Op::Put(A, 0, 40)]].concat();
    let second = |puts: usize| [&vec![Op::Put(B, 0, 40); puts][..], &[Op::Put(C, 5, 10)]].concat();
    (1..10).map(|puts| (history(&first), history(&second(puts)))).collect()
}

/// Names are written into slots whose files have records.
pub(super) fn torn_names(plays: &mut Plays) {
    let written = [Op::Put(A, 0, 40), Op::Put(A, 20, 40)];
    for name in [Op::Rename(A, B), Op::RenameRefused(A, B), Op::Unlink(A), Op::UnlinkRefused(A)] {
        plays.push(alone(&[&written[..], &[name]].concat()));
        amid(plays, &[&written[..], &[name]].concat(), |at| Amid::Other(at, 1, Op::Put(A, 5, 20)), &[]);
    }
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Rename(A, B), Op::Put(B, 0, 40), Op::Rename(B, C)]));
    // Renames over another file, and of one that is not all in the log, which no slot can hold.
    plays.push(alone(&[
        Op::Put(A, 0, 40),
        Op::Put(B, 0, 40),
        Op::Rename(B, A),
        Op::Put(A, 0, 40),
        Op::Sync(A),
    ]));
    plays.push(alone(&[
        Op::Put(A, 0, 40),
        Op::Expire,
        Op::Put(A, 20, 40),
        Op::Rename(A, B),
        Op::Put(A, 0, 40),
    ]));
    held_renames(plays);
}

/// Renames that slots hold: the crash takes them, or the files too.
fn held_renames(plays: &mut Plays) {
    let watched = [Op::Put(A, 0, 40), Op::SyncDirectory];
    let renamed = [&watched[..], &[Op::Rename(A, B), Op::SyncDirectory]].concat();
    plays.push(alone(&renamed));
    // Others get the name that was given up, or that a rename gave up.
    plays.push(alone(&[&renamed[..], &[Op::Put(A, 0, 20), Op::SyncDirectory]].concat()));
    plays.push(alone(&[&renamed[..], &[Op::Rename(B, C), Op::SyncDirectory, Op::Put(B, 0, 20)]].concat()));
    let chain = [Op::Put(B, 0, 30), Op::Rename(B, C), Op::Rename(A, B), Op::SyncDirectory];
    plays.push(alone(&[&watched[..], &chain[..]].concat()));
    plays.push(alone(&[&renamed[..], &[Op::Unlink(B), Op::SyncDirectory]].concat()));
    // The keeper's round in its middle: names it has synced are not all.
    let round = [&watched[..], &[Op::Expire]].concat();
    let synced = [Step::alone(1, Op::SyncDirectory)];
    amid(plays, &round, |at| Amid::Other(at, 1, Op::Rename(A, B)), &synced);
    amid(plays, &[&watched[..], &[Op::Rename(A, B)]].concat(), |at| Amid::Other(at, 1, Op::Expire), &synced);
    amid(plays, &[&watched[..], &[Op::Rename(A, B)]].concat(), Amid::Killed, &synced);
    // Somebody creates a file where it was about to go.
    for rename in [Op::Rename(A, B), Op::RenameRefused(A, B)] {
        amid(plays, &[Op::Put(A, 0, 40), rename], |at| Amid::Other(at, 1, Op::Put(B, 0, 40)), &[]);
    }
    // The name was freed by a removal that no slot holds.
    let freed = [Op::Put(B, 0, 40), Op::Expire, Op::Put(A, 0, 40), Op::Bypass(B), Op::Unlink(B)];
    plays.push(alone(&[&freed[..], &[Op::Rename(A, B)]].concat()));
}

/// Renames over other files, which slots hold: the crash takes them, or the files too.
pub(super) fn replaced_files(plays: &mut Plays) {
    let over = [Op::Put(B, 0, 30), Op::Rename(B, A)];
    let managed = [Op::Put(A, 0, 40), Op::SyncDirectory];
    // A file without a slot, which stays at the name on the disk.
    let closed = [Op::Put(A, 0, 40), Op::Expire, Op::Retire(A), Op::Put(C, 0, 10), Op::SyncDirectory];
    for before in [&managed[..], &closed[..]] {
        let replaced = [before, &over].concat();
        plays.push(alone(&replaced));
        plays.push(alone(&[&replaced[..], &[Op::SyncDirectory]].concat()));
        // Once more under the same names, and once more.
        plays.push(alone(&[&replaced[..], &over, &[Op::SyncDirectory]].concat()));
        plays.push(alone(&[&replaced[..], &over, &over, &[Op::Expire]].concat()));
        plays.push(alone(&[&replaced[..], &[Op::Expire], &over, &[Op::SyncDirectory]].concat()));
        // What else becomes of the name.
        plays.push(alone(&[&replaced[..], &[Op::Unlink(A), Op::SyncDirectory, Op::Put(A, 0, 20)]].concat()));
        plays.push(alone(&[&replaced[..], &[Op::Rename(A, B), Op::SyncDirectory]].concat()));
        plays.push(alone(&[&replaced[..], &[Op::LetGo, Op::Put(B, 0, 20), Op::Release]].concat()));
        plays.push(alone(
            &[before, &[Op::Put(B, 0, 30), Op::RenameRefused(B, A), Op::Put(A, 0, 20)]].concat(),
        ));
        // Others in its middle: the keeper's round, a death, who takes the name or removes it.
        for other in [Op::Expire, Op::SyncDirectory, Op::Unlink(A), Op::Rename(C, A), Op::Put(A, 0, 20)] {
            amid(plays, &replaced, |at| Amid::Other(at, 1, other), &[]);
        }
        amid(plays, &replaced, Amid::Killed, &[Step::alone(1, Op::SyncDirectory)]);
    }
    // Somebody else takes the name by a rename that no slot can hold, before or amid this one.
    let settled = [Op::Put(A, 0, 40), Op::Put(C, 0, 10), Op::Expire, Op::Retire(A), Op::Put(B, 0, 30)];
    let taken = [&settled[..], &[Op::Rename(B, A)]].concat();
    let synced = [Step::alone(1, Op::SyncDirectory)];
    amid(plays, &taken, |at| Amid::Other(at, 1, Op::Rename(C, A)), &synced);
    let taken = [&settled[..], &[Op::Rename(C, A)]].concat();
    amid(plays, &taken, |at| Amid::Other(at, 1, Op::Rename(B, A)), &synced);
}

pub(super) fn two_writers(plays: &mut Plays) {
    let two = [Op::Put(A, 0, 40), Op::Put(A, 0, 40)];
    amid(plays, &two, |at| Amid::Other(at, 1, Op::Put(A, 20, 20)), &[]);
    // Both at its end.
    for other in [Op::Append(A, 20), Op::Put(A, 30, 40)] {
        amid(plays, &[Op::Put(A, 0, 40), Op::Append(A, 30)], |at| Amid::Other(at, 1, other), &[]);
    }
    // The keeper's round between log and file.
    amid(plays, &two, |at| Amid::Other(at, 1, Op::Expire), &[]);
}

pub(super) fn short_writes(plays: &mut Plays) {
    for short in [Op::Short(A, 10, 60, 25), Op::Short(A, 10, 60, 0), Op::Short(A, 10, 500, 350)] {
        plays.push(alone(&[Op::Put(A, 0, 40), short]));
        plays.push(alone(&[Op::Put(A, 0, 40), short, Op::Put(B, 0, 40)]));
    }
}

/// One thread's sync is under way while another has the kernel fill in bytes; then that one syncs.
pub(super) fn changes_amid_a_sync(plays: &mut Plays) {
    let first = [Op::Put(A, 0, 400), Op::Fill(A, 0, 60), Op::Sync(A)];
    amid(
        plays,
        &first,
        |at| Amid::Other(at, 1, Op::Fill(A, 100, 200)),
        &[Step::alone(1, Op::Sync(A)), Step::alone(0, Op::Sync(A))],
    );
}

pub(super) fn unlogged_changes(plays: &mut Plays) {
    // The kernel's own copies.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Fill(A, 20, 60), Op::Sync(A)]));
    // Renames that no slot holds, because the log has not all of the file any more.
    plays.push(alone(&[
        Op::Put(A, 0, 40),
        Op::Put(B, 0, 40),
        Op::Expire,
        Op::Rename(B, A),
        Op::Put(A, 0, 40),
        Op::Sync(A),
    ]));
    // A file in a watched directory that nobody wrote to yet, and one that is about to get its
    // first record.
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
    // A commit comes between the note of a rename and the rename.
    let renamed = [Op::Put(A, 0, 40), Op::Put(B, 0, 40), Op::Expire, Op::Put(C, 0, 40), Op::Rename(B, A)];
    let rest = [Op::Sync(A), Op::Put(A, 0, 20)];
    amid(plays, &renamed, |at| Amid::Within(at, 1, Op::Put(C, 5, 10)), &alone(&rest));
    // What happened while no file was managed: without a journal the ledger does not count it.
    let left = [Op::Put(A, 0, 40), Op::SyncDirectory, Op::Expire, Op::Retire(A)];
    let uncounted = [Op::Create(B), Op::Put(C, 0, 40), Op::SyncDirectory, Op::Put(C, 0, 20)];
    plays.push(alone(&[&left[..], &refused[..]].concat()));
    plays.push(alone(&[&left[..], &uncounted].concat()));
}

/// Durability = sync. Thread 0 has a file registered at its first sync, thread 1 at its first
/// write.
pub(super) fn first_syncs(plays: &mut Plays) {
    let by_other = |op: Op| Step::alone(1, op);
    // The sync comes in the midst of a write that found no row, and of one that found it.
    amid(
        plays,
        &[Op::Put(A, 0, 40), Op::Put(A, 10, 20)],
        |at| Amid::Within(at, 1, Op::Sync(A)),
        &[by_other(Op::Sync(A)), by_other(Op::Put(A, 50, 10))],
    );
    for at in 1..=POINTS {
        let write = Step { thread: 1, op: Op::Put(A, 10, 20), amid: Amid::Within(at, 0, Op::Sync(A)) };
        let rest = [Op::Sync(A), Op::Put(A, 50, 10)].map(by_other);
        plays.push([&[by_other(Op::Put(A, 0, 40)), write], &rest[..]].concat());
    }
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Sync(A), Op::Put(A, 10, 20), Op::Sync(A)]));
    // Somebody outside cut it, and only the page cache knows.
    plays.push(vec![by_other(Op::Put(A, 0, 40)), by_other(Op::Cut(A, 20)), by_other(Op::Sync(A))]);
    // Too long to be logged as a whole: it must not be built anew from what is logged later.
    let long = [Op::Put(A, 0, 5000), Op::Sync(A), Op::Put(A, 0, 20)];
    plays.push([vec![by_other(Op::Put(B, 0, 40)), by_other(Op::Sync(B))], alone(&long)].concat());
    // The kernel could not write what it held.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Lose(A), Op::Sync(A)]));
    // It comes back from somebody outside; who syncs it first again dies.
    let back = [Op::Put(A, 0, 40), Op::Sync(A), Op::Outsider(A, false), Op::Put(A, 5, 10), Op::Sync(A)];
    amid(plays, &back, Amid::Killed, &[by_other(Op::Put(A, 0, 20)), by_other(Op::Sync(A))]);
}

pub(super) fn around_the_log(plays: &mut Plays) {
    // What the kernel filled in is synced, and the record below it was live.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Fill(A, 10, 60), Op::Sync(A)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Around(A, 10, 60)]));
    // Too large for the log.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(A, 10, 5000)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Bypass(A), Op::Put(A, 10, 60), Op::Sync(A)]));
}

pub(super) fn outsiders(plays: &mut Plays) {
    for late in [false, true] {
        plays.push(alone(&[Op::Put(A, 0, 40), Op::Outsider(A, late), Op::Put(A, 10, 40)]));
        let two = [Op::Put(A, 0, 40), Op::Put(A, 0, 40)];
        amid(plays, &two, |at| Amid::Other(at, 1, Op::Outsider(A, late)), &[]);
    }
    // Nobody ran Holdfast between crash and recovery, but somebody wrote.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(B, 0, 40), Op::Put(A, 20, 40)]));
}

/// The log is full of a file's records, whose sync failed: nothing is freed before its rewrite,
/// which keeps writers out.
pub(super) fn no_space(plays: &mut Plays) {
    let full = [Op::Put(A, 0, 900), Op::Fail(A), Op::Expire];
    let more = [Op::Put(A, 0, 900), Op::Put(A, 0, 400), Op::Put(A, 0, 400), Op::Put(A, 0, 900)];
    plays.push(alone(&[&full[..], &more[..]].concat()));
    let others = [Op::Put(B, 0, 900), Op::Put(B, 0, 400), Op::Put(A, 0, 900), Op::Put(B, 0, 900)];
    plays.push(alone(&[&full[..], &others[..]].concat()));
}

pub(super) fn expiry_amid_a_write(plays: &mut Plays) {
    let written = [Op::Put(A, 0, 40), Op::Put(A, 10, 500)];
    amid(plays, &written, |at| Amid::Other(at, 1, Op::Expire), &[]);
    let expired = [Op::Put(A, 0, 40), Op::Put(A, 0, 40), Op::Expire];
    amid(plays, &expired, |at| Amid::Other(at, 1, Op::Put(A, 300, 500)), &[]);
    amid(plays, &expired, |at| Amid::Other(at, 1, Op::Put(A, 10, 20)), &[]);
}

pub(super) fn dead_writers(plays: &mut Plays) {
    for op in [Op::Put(A, 10, 60), Op::Put(A, 10, 500), Op::Short(A, 10, 60, 25)] {
        let written = [Op::Put(A, 0, 40), op];
        let next = [Step::alone(1, Op::Put(A, 20, 40))];
        amid(plays, &written, Amid::Killed, &next);
        amid(plays, &written, |at| Amid::KilledAmid(at, 1, Op::Put(A, 20, 40)), &[]);
    }
    // Nobody knows where the file ends.
    let appended = [Op::Put(A, 0, 40), Op::Append(A, 30)];
    amid(
        plays,
        &appended,
        Amid::Killed,
        &[Step::alone(1, Op::Append(A, 20)), Step::alone(1, Op::Append(A, 10))],
    );
    // State Behind, over the end of a page, whose disk takes nothing.
    let refused = [Op::Put(A, 8192, 10), Op::Put(A, 4096, 40), Op::Refuse(A), Op::Write(A, 4086, 30)];
    amid(plays, &refused, Amid::Killed, &[Step::alone(1, Op::Read(A, 4080, 60))]);
}

/// State Behind: a write of more than a page that joins what its first and its last page have. Its
/// program dies when some of its pages are entered, and the disk refuses to take one of them.
pub(super) fn dead_writers_of_pages(plays: &mut Plays) {
    let joined = [Op::Put(A, 20_480, 10), Op::Put(A, 3970, 60), Op::Put(A, 8070, 60)];
    for others in [&[Op::Refuse(A)][..], &[]] {
        let written = [&joined[..], others, &[Op::Write(A, 4000, 4100)]].concat();
        amid(plays, &written, Amid::Killed, &[Step::alone(1, Op::Read(A, 3900, 600))]);
    }
}

pub(super) fn removals(plays: &mut Plays) {
    // Half of it expired: what is built anew of the other half is no file.
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Expire, Op::Put(A, 20, 40), Op::Unlink(A)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::SyncDirectory, Op::Unlink(A), Op::SyncDirectory, Op::Expire]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::UnlinkRefused(A), Op::Put(A, 20, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Unlink(A), Op::Put(A, 0, 20), Op::Expire, Op::Unlink(A)]));
    let unlinked = [Op::Put(A, 0, 40), Op::Expire, Op::Put(A, 20, 40), Op::Unlink(A)];
    amid(plays, &unlinked, Amid::Killed, &[Step::alone(1, Op::Put(A, 0, 20))]);
    amid(plays, &unlinked, |at| Amid::Other(at, 1, Op::Expire), &[]);
    // Let go of, so that later files have its inode number.
    plays.push(alone(&[
        Op::Put(A, 0, 40),
        Op::Unlink(A),
        Op::LetGo,
        Op::Put(A, 0, 20),
        Op::Unlink(A),
        Op::LetGo,
        Op::Put(A, 0, 60),
        Op::Expire,
    ]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Unlink(A), Op::LetGo, Op::Put(B, 0, 20), Op::Rename(B, A)]));
    let refused = [Op::Put(A, 0, 40), Op::UnlinkRefused(A)];
    amid(plays, &refused, |at| Amid::Other(at, 1, Op::LetGo), &[]);
    amid(plays, &unlinked, |at| Amid::Other(at, 1, Op::LetGo), &[Step::alone(1, Op::Put(A, 0, 20))]);
}

pub(super) fn truncations(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 400), Op::Expire, Op::Put(A, 0, 60), Op::Truncate(A, 20)]));
    plays.push(alone(&[Op::Put(A, 0, 60), Op::Truncate(A, 20), Op::Put(A, 80, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 60), Op::Truncate(A, 20), Op::Truncate(A, 50)]));
    plays.push(alone(&[Op::Put(A, 0, 60), Op::TruncateRefused(A, 5), Op::Put(A, 20, 10)]));
    plays.push(alone(&[Op::Put(A, 0, 60), Op::Punch(A, 8, 16), Op::Put(A, 12, 4)]));
    let cut = [Op::Put(A, 0, 60), Op::Truncate(A, 20)];
    amid(plays, &cut, |at| Amid::Other(at, 1, Op::Put(A, 30, 40)), &[]);
    amid(plays, &cut, Amid::Killed, &[Step::alone(1, Op::Put(A, 10, 5))]);
}

pub(super) fn failed_syncs(plays: &mut Plays) {
    // The keeper's own sync fails.
    plays.push(alone(&[Op::Put(A, 0, 1200), Op::Put(A, 100, 200), Op::Fail(A), Op::Expire, Op::Expire]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(A, 20, 40), Op::Fail(A), Op::Expire, Op::Expire]));
    // A client's sync takes the kernel's only notice of it.
    plays.push(alone(&[
        Op::Put(B, 0, 40),
        Op::Expire,
        Op::Put(A, 0, 1200),
        Op::Rename(B, C),
        Op::Fail(A),
        Op::Sync(A),
        Op::Expire,
    ]));
    // An outsider's, who came to read, does.
    plays.push(alone(&[Op::Put(A, 0, 1200), Op::Fail(A), Op::Peek(A), Op::Expire]));
    plays.push(alone(&[Op::Put(A, 0, 1200), Op::Lose(A), Op::Peek(A), Op::Expire]));
    // It is about to take it when the keeper, which had no description of the file before, syncs
    // with success.
    let pages = [Op::Put(A, 0, 40), Op::Put(A, 4096, 40), Op::Put(A, 8192, 40), Op::Put(A, 12_288, 40)];
    let old = [Op::Put(B, 0, 40), Op::Expire];
    let failing = [&old[..], &pages[..], &[Op::Rename(B, C), Op::Fail(A), Op::Sync(A)]].concat();
    amid(plays, &failing, |at| Amid::Other(at, 1, Op::Expire), &[]);
}

pub(super) fn rebuilt_files(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 400)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Put(A, 20, 40), Op::Put(B, 0, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Expire, Op::Put(A, 20, 40)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Around(A, 10, 30), Op::Put(A, 20, 40)]));
}

pub(super) fn new_hands(plays: &mut Plays) {
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Unlink(A), Op::Expire, Op::Put(B, 0, 20)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Retire(A), Op::Put(B, 0, 20), Op::Put(A, 5, 10)]));
    plays.push(alone(&[Op::Put(A, 0, 40), Op::Expire, Op::Retire(A), Op::Put(B, 0, 20), Op::Put(A, 5, 10)]));
    let rounds = [Op::Put(A, 0, 300), Op::Expire, Op::Put(A, 0, 20), Op::Expire];
    plays.push(alone(&[&rounds[..], &rounds[..], &[Op::Put(B, 0, 300)]].concat()));
    // A file whose slot went to another is written to by who has it open still.
    let replaced = [Op::Put(A, 0, 40), Op::Put(B, 0, 40), Op::Rename(B, A), Op::Put(C, 0, 30)];
    plays.push(alone(
        &[&replaced[..], &[Op::Put(b'd', 0, 30), Op::Put(b'e', 0, 30), Op::Haunt(10, 20), Op::Expire]]
            .concat(),
    ));
    // Its last name goes while something is pending, and somebody writes to it still.
    let pending = [Op::Put(A, 0, 40), Op::Put(B, 0, 40), Op::Put(C, 0, 40), Op::Expire, Op::Rename(B, C)];
    plays.push(alone(&[&pending[..], &[Op::Unlink(A), Op::Haunt(10, 20), Op::Put(C, 0, 10)]].concat()));
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
pub(super) fn reads_behind(plays: &mut Plays) {
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

/// State Behind: records are covered by newer ones, in part or whole, in segments that are given
/// back and used again.
fn cleaned(plays: &mut Plays) {
    let written = [Op::Put(A, 0, 40), Op::Put(A, 4096, 40), Op::Put(A, 8192, 40)];
    let covering = [Op::Put(A, 4096, 40), Op::Put(A, 8192, 40), Op::Put(A, 0, 10), Op::Put(A, 8192, 10)];
    let reuse = [Op::Put(B, 0, 40), Op::Put(B, 4096, 40), Op::Put(B, 8192, 40), Op::Put(B, 0, 20)];
    for bytes in [0, 1000] {
        for newer in [1, 2, 4] {
            let before =
                [&written[..], &covering[..newer], &[Op::Put(A, 4096, 30), Op::Put(A, 4096, 20)]].concat();
            let cleaned = [&before[..], &[Op::Clean(bytes)]].concat();
            let reused: Vec<Step> = reuse.iter().map(|op| Step::alone(1, *op)).collect();
            let end = alone(&[Op::Read(A, 0, 100), Op::Read(A, 4096, 100), Op::Drain(A), Op::Expire]);
            plays.push([alone(&cleaned), reused, end].concat());
            amid(
                plays,
                &cleaned,
                |at| Amid::Other(at, 1, Op::Write(A, 0, 30)),
                &alone(&[Op::Read(A, 0, 100)]),
            );
        }
    }
}
