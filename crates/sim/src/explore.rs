//! Which histories are played: all short ones of four sets, and seeded long ones.
//!
//! Sets (every one on both orderings of the file system's journal; only crash points of the last
//! step are checked, because those of earlier steps are the last ones of a shorter history in the
//! set):
//!
//! - *sequences*: all sequences of the [`CORE`] operations on two files, up to the given length,
//!   one after the other. The first file that is named is `a`; thread 0 works on `a`, thread 1 on
//!   `b`.
//! - *all operations*: all sequences of all operations ([`ALL`]), up to three.
//! - *pairs*: two operations at once, after up to two core operations: each client operation, and
//!   the keeper's round, interrupted at each of its points by each operation of the other thread.
//! - *kills*: each client operation, after up to two core operations, killed at each of its points;
//!   then nothing, another write, or the keeper's round; and killed with another write waiting for
//!   what it held.
//! - *directed*: a few longer ones, each for a bug that short ones do not show ([`DIRECTED`]).
//!
//! What stands for more than itself:
//!
//! - *Symmetry*. Names are opaque to the product, processes differ by a number alone, and a blank
//!   machine knows neither. So a history and the one with `a` and `b`, and threads 0 and 1,
//!   exchanged are one, and only those are played whose first file is `a`. A thread follows from
//!   its file; which process does a step matters only in what it has cached of a file, and renames
//!   have each come to files that the other had.
//! - *Prefixes*. A crash inside a prefix is the same crash for all that begin with it: it is
//!   checked once, as the last step of a shorter history. No step looks ahead, so the prefix plays
//!   the same way in all of them.
//! - *Steps that change nothing* ([`changes_nothing`]). Behind a round without a new record, a
//!   directory's sync without a new name and a drain without a row, NVM, disk and model are what
//!   they were, and so is what the keeper decides by. What goes on from there goes on without them
//!   as well. `tests/reductions.rs` compares both, store by store.
//! - *Images*. The same image is recovered once (`crate::known`) and judged each time.
//!
//! `--whole` leaves out nothing but symmetry and prefixes.
//!
//! All of it twice: in state Through, and with files in state Behind, as soon as they are made or
//! after their first round of expiry ([`BEHIND`]); then with what only that state has, beside the
//! rest ([`CORE_BEHIND`], [`ALL_BEHIND`]). And a third time with files that are logged from their
//! first sync on ([`CORE_ON_SYNC`]), in state Through.

use crate::disk::Journal;
use crate::history::{History, TINY};
use crate::machine::Behind;
use crate::op::{Amid, Leave, Name, Op, Step};

mod seeds;
mod spill;

pub use seeds::seeded;
pub use spill::{CORE_SPILL, spilled};

const A: Name = b'a';
const B: Name = b'b';

/// The operations of long sequences.
pub const CORE: [Op; 10] = [
    Op::Put(A, 0, 40),
    Op::Put(B, 0, 40),
    Op::Truncate(A, 20),
    Op::Truncate(B, 20),
    Op::Unlink(A),
    Op::Unlink(B),
    Op::Rename(A, B),
    Op::Rename(B, A),
    Op::Expire,
    Op::SyncDirectory,
];

/// The same with files in state Behind.
pub const CORE_BEHIND: [Op; 10] = [
    Op::Put(A, 0, 40),
    Op::Put(B, 0, 40),
    Op::Put(A, 30, 20),
    Op::Put(A, 90, 20),
    Op::Truncate(A, 20),
    Op::Unlink(A),
    Op::Rename(A, B),
    Op::Clean(u32::MAX),
    Op::Drain(A),
    Op::Expire,
];

/// The same with files that are logged from their first sync on.
pub const CORE_ON_SYNC: [Op; 9] = [
    Op::Put(A, 0, 40),
    Op::Put(B, 0, 40),
    Op::Sync(A),
    Op::Sync(B),
    Op::Unlink(A),
    Op::Rename(A, B),
    Op::Retire(A),
    Op::Expire,
    Op::SyncDirectory,
];

/// All operations, on the first file where one is enough.
pub const ALL: [Op; 30] = [
    Op::Put(A, 0, 40),
    Op::Put(B, 0, 40),
    Op::Put(A, 300, 500),
    Op::Put(A, 10, 5000),
    Op::Create(A),
    Op::Create(B),
    Op::Append(A, 30),
    Op::Append(A, 500),
    Op::Short(A, 10, 60, 25),
    Op::Short(A, 10, 500, 350),
    Op::Short(A, 10, 60, 0),
    Op::Truncate(A, 20),
    Op::TruncateRefused(A, 5),
    Op::Punch(A, 8, 16),
    Op::Around(A, 10, 30),
    Op::Sync(A),
    Op::SyncDirectory,
    Op::Rename(A, B),
    Op::Rename(B, A),
    Op::RenameRefused(A, B),
    Op::Unlink(A),
    Op::UnlinkRefused(A),
    Op::Bypass(A),
    Op::Expire,
    Op::Retire(A),
    Op::Fail(A),
    Op::Outsider(A, false),
    Op::Outsider(A, true),
    Op::Part,
    Op::Release,
];

/// What else happens to files in state Behind: writes that join, cover and pass by what only the
/// log has, over the end of a page, and everything that brings them to the page cache.
pub const ALL_BEHIND: [Op; 20] = [
    Op::Clean(u32::MAX),
    Op::Put(A, 30, 20),
    Op::Put(A, 90, 20),
    Op::Put(A, 4080, 40),
    Op::Append(A, 20),
    Op::Read(A, 10, 60),
    Op::Read(A, 4070, 60),
    Op::Leave(A, Leave::Bring),
    Op::Leave(A, Leave::Once),
    Op::Leave(A, Leave::ForGood),
    Op::Show(A),
    Op::Drain(A),
    Op::Refuse(A),
    Op::Space(false),
    Op::Space(true),
    Op::Frames,
    Op::Tell(A),
    Op::Lend(A),
    Op::Break(A, false),
    Op::Break(A, true),
];

/// How file systems order names and how files get into state Behind, in the sets for that state.
const BEHIND: [(Journal, Behind); 2] = [
    (Journal::Ext4, Behind { at_once: true, frames: 2 }),
    (Journal::Lagging, Behind { at_once: false, frames: 1 }),
];

/// Longer sequences, and what interrupts the last operation.
const DIRECTED: [(&[Op], Spread); 23] = [
    // A sync that fails, and another that begins before anybody knows.
    (&[Op::Put(A, 0, 1200), Op::Fail(A), Op::Expire], Spread::Other(1, Op::Bypass(A))),
    // An outsider's sync, or a client's by another description, takes the kernel's only notice of
    // lost pages.
    (&[Op::Put(A, 0, 1200), Op::Fail(A), Op::Peek(A), Op::Expire], Spread::None),
    (&[Op::Put(A, 0, 1200), Op::Lose(A), Op::Peek(A), Op::Expire], Spread::None),
    (&[Op::Put(A, 0, 1200), Op::Lose(A), Op::Sync(A), Op::Expire], Spread::None),
    (&[Op::Put(A, 0, 40), Op::Lose(A), Op::Sync(A), Op::Expire], Spread::None),
    // A round that empties a segment beside one that drains the same page.
    (
        &[Op::Put(A, 0, 40), Op::Put(A, 4096, 40), Op::Put(A, 8192, 40), Op::Put(A, 12288, 40), Op::Expire],
        Spread::Other(1, Op::Clean(u32::MAX)),
    ),
    // Segments that stay live because a sync fails, and somebody who wants space.
    (&[Op::Put(A, 300, 900), Op::Fail(A), Op::Expire, Op::Put(B, 300, 900)], Spread::None),
    // Names that no slot holds, and a sync that could be absorbed.
    (&[Op::Put(A, 0, 40), Op::Put(B, 0, 40), Op::Rename(B, A), Op::Put(A, 0, 40), Op::Sync(A)], Spread::None),
    // A file that is logged as a whole, which the disk has longer, and whose name another file's
    // sync brings there.
    (&[Op::Put(A, 0, 40), Op::Truncate(A, 20), Op::Sync(A), Op::Put(B, 0, 1200), Op::Sync(B)], Spread::None),
    // A file that is emptied before its first sync: that it is empty is all that the log has of it.
    (&[Op::Put(A, 0, 40), Op::Truncate(A, 0), Op::Sync(A)], Spread::None),
    // Somebody makes a file at the name to which another goes.
    (&[Op::Put(A, 0, 40), Op::Rename(A, B)], Spread::Other(1, Op::Put(B, 0, 40))),
    // A removal of a name that its slot does not know.
    (
        &[
            Op::Put(A, 0, 40),
            Op::Put(B, 0, 40),
            Op::SyncDirectory,
            Op::Sync(A),
            Op::Rename(B, A),
            Op::Unlink(A),
        ],
        Spread::None,
    ),
    // A client's sync, which the rename of an old file makes real, takes the kernel's only notice
    // of lost pages.
    (
        &[
            Op::Put(B, 0, 40),
            Op::Expire,
            Op::Put(A, 0, 1200),
            Op::Rename(B, b'c'),
            Op::Fail(A),
            Op::Sync(A),
            Op::Expire,
        ],
        Spread::None,
    ),
    // The same on a description that both have: the keeper's sync succeeds beside the client's that
    // failed.
    (
        &[
            Op::Put(B, 0, 40),
            Op::Expire,
            Op::Lend(A),
            Op::Put(A, 0, 1200),
            Op::Rename(B, b'c'),
            Op::Fail(A),
            Op::Sync(A),
        ],
        Spread::Other(1, Op::Expire),
    ),
    // A writer of the page whose size the keeper is telling the kernel.
    (&[Op::Put(A, 30, 20), Op::Put(A, 0, 40), Op::Tell(A)], Spread::Other(1, Op::Put(A, 0, 40))),
    // A rename that a slot holds, and a directory sync that it answers.
    (&[Op::Put(A, 0, 40), Op::SyncDirectory, Op::Rename(A, B), Op::SyncDirectory], Spread::None),
    (
        &[Op::Put(A, 0, 40), Op::SyncDirectory, Op::Rename(A, B), Op::SyncDirectory, Op::Expire],
        Spread::Other(1, Op::Put(A, 0, 20)),
    ),
    // Two writers of the same bytes; neither makes the file longer.
    (&[Op::Put(A, 0, 40), Op::Put(A, 0, 40)], Spread::Other(1, Op::Put(A, 20, 20))),
    // A file that is being made, and a change beside it that a slot holds.
    (&[Op::Put(A, 0, 40), Op::Create(B)], Spread::Other(0, Op::Rename(A, b'c'))),
    (&[Op::Put(A, 0, 40), Op::Create(B)], Spread::Other(0, Op::Unlink(A))),
    // A watched directory, and a new file in it that has no record yet.
    (&[Op::Put(A, 0, 40), Op::SyncDirectory, Op::Put(B, 0, 40)], Spread::Other(0, Op::SyncDirectory)),
    // What a frame holds comes to the page cache, over what the disk has.
    (&[Op::Put(A, 0, 40), Op::Expire, Op::Put(A, 10, 20), Op::Put(A, 20, 30), Op::Frames], Spread::None),
    // The keeper's round, and a write in the middle of it.
    (&[Op::Put(A, 0, 40), Op::Put(A, 0, 40), Op::Expire], Spread::Other(1, Op::Put(A, 300, 500))),
];

/// What a history in a set begins as; its interruptions are found by playing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// As it is.
    None,
    /// The last step is interrupted by this at each of its points.
    Other(u8, Op),
    /// The last step's process is killed at each of its points; then this happens.
    Killed(Option<Op>),
    /// The same, and this begins before the repair.
    KilledAmid(u8, Op),
}

/// The names that exist after some operations, and whether `a` or `b` was named first.
pub fn follow(operations: &[Op]) -> Option<[bool; 2]> {
    let mut there = [false; 2];
    let at = |name: &Name| usize::from(*name == B);
    for op in operations {
        match op {
            Op::Put(name, ..) | Op::Lend(name) => there[at(name)] = true,
            Op::Create(name) if !there[at(name)] => there[at(name)] = true,
            Op::Create(_) => return None,
            Op::Rename(from, to) => {
                if !there[at(from)] {
                    return None;
                }
                there[at(from)] = false;
                there[at(to)] = true;
            }
            Op::Unlink(name) => {
                if !there[at(name)] {
                    return None;
                }
                there[at(name)] = false;
            }
            _ => {
                if op.name().is_some_and(|name| !there[at(&name)]) {
                    return None;
                }
            }
        }
    }
    Some(there)
}

/// The step of a sequence that an operation is: thread 1 works on `b`.
pub fn step(op: Op) -> Step {
    Step::alone(u8::from(op.name() == Some(B)), op)
}

/// Visits all possible sequences of `length` operations, up to exchanging the files; those that go
/// on behind a step that changes nothing only if the `whole` is asked for.
pub fn sequences(alphabet: &[Op], length: usize, whole: bool, visit: &mut dyn FnMut(&[Op])) {
    fn grow(alphabet: &[Op], length: usize, whole: bool, so_far: &mut Vec<Op>, visit: &mut dyn FnMut(&[Op])) {
        if so_far.len() == length {
            return visit(so_far);
        }
        for op in alphabet {
            // Before there is a file nothing happens, and the first one is `a`.
            let first = so_far.is_empty();
            if first && !matches!(op, Op::Put(A, ..) | Op::Create(A) | Op::Lend(A)) {
                continue;
            }
            if !whole && so_far.last().is_some_and(|last| changes_nothing(*last, *op)) {
                continue;
            }
            so_far.push(*op);
            if follow(so_far).is_some() {
                grow(alphabet, length, whole, so_far, visit);
            }
            so_far.pop();
        }
    }
    grow(alphabet, length, whole, &mut Vec::new(), visit);
}

/// Whether `op` right behind `last` leaves everything as it was: two rounds of the keeper, or syncs
/// of the directory, in a row are one; and after a round, a drain or a truncation a file has no
/// page row that a drain would take out.
pub fn changes_nothing(last: Op, op: Op) -> bool {
    match op {
        Op::Expire | Op::Clean(_) | Op::SyncDirectory => last == op,
        Op::Drain(name) => {
            last == Op::Expire || last == op || matches!(last, Op::Truncate(cut, _) if cut == name)
        }
        _ => false,
    }
}

/// A history of a set, before its interruptions are spread out.
pub type Seedling = (History, Spread);

/// What the histories of a set have in common.
struct Setting<'a> {
    machines: &'a [(Journal, Option<Behind>, bool)],
    /// The operations of long sequences.
    core: &'a [Op],
    /// All operations.
    all: &'a [Op],
    /// Behind steps that change nothing, too.
    whole: bool,
    /// Frames of the spill file.
    spill: Option<u32>,
}

impl Setting<'_> {
    /// Visits a history on each machine.
    fn each(&self, visit: &mut dyn FnMut(Seedling), steps: &[Op], spread: Spread) {
        for &(journal, behind, on_sync) in self.machines {
            let steps = steps.iter().copied().map(step).collect();
            visit((History { journal, pool: TINY, behind, on_sync, spill: self.spill, steps }, spread));
        }
    }

    fn directed(&self, visit: &mut dyn FnMut(Seedling)) {
        for (steps, spread) in DIRECTED {
            self.each(visit, steps, spread);
        }
    }

    fn visit(&self, operations: usize, visit: &mut dyn FnMut(Seedling)) {
        self.directed(visit);
        for length in 1..=operations.min(3) {
            sequences(self.all, length, self.whole, &mut |steps| self.each(visit, steps, Spread::None));
        }
        for length in 0..=2usize.min(operations.saturating_sub(2)) {
            let mut prefixes = Vec::new();
            if length == 0 {
                prefixes.push(Vec::new());
            } else {
                sequences(self.core, length, self.whole, &mut |steps| prefixes.push(steps.to_vec()));
            }
            for prefix in &prefixes {
                self.interrupted(prefix, visit);
            }
        }
        for length in 4..=operations {
            sequences(self.core, length, self.whole, &mut |steps| self.each(visit, steps, Spread::None));
        }
    }

    /// Each operation after a prefix, interrupted and killed.
    fn interrupted(&self, prefix: &[Op], visit: &mut dyn FnMut(Seedling)) {
        let pauses = |op: &&Op| {
            op.is_clients()
                || rounds(op)
                || matches!(op, Op::Drain(_) | Op::Show(_) | Op::Frames | Op::Tell(_))
        };
        for op in self.all.iter().filter(pauses) {
            let steps = [prefix, &[*op]].concat();
            if prefix.is_empty() && !matches!(op, Op::Put(A, ..) | Op::Create(A) | Op::Lend(A))
                || follow(&steps).is_none()
            {
                continue;
            }
            for other in self.all.iter().filter(|other| pairs(op, other)) {
                self.each(visit, &steps, Spread::Other(1 - step(*op).thread, *other));
            }
            if op.is_clients() {
                for then in [None, Some(Op::Put(A, 20, 40)), Some(Op::Expire)] {
                    self.each(visit, &steps, Spread::Killed(then));
                }
                self.each(visit, &steps, Spread::KilledAmid(1 - step(*op).thread, Op::Put(A, 20, 40)));
            }
        }
    }
}

/// Visits all histories of the sets in which sequences have up to `operations` operations; those
/// that go on behind a step that changes nothing only if the `whole` is asked for.
pub fn exhaustive(operations: usize, whole: bool, visit: &mut dyn FnMut(Seedling)) {
    settings(whole, &mut |setting, operations_max| setting.visit(operations.min(operations_max), visit));
}

/// Visits the directed ones of them.
pub fn directed(visit: &mut dyn FnMut(Seedling)) {
    settings(false, &mut |setting, _| setting.directed(visit));
}

/// Visits the sets, each with the operations that its sequences have at most.
fn settings(whole: bool, visit: &mut dyn FnMut(&Setting<'_>, usize)) {
    let through = [(Journal::Ext4, None, false), (Journal::Lagging, None, false)];
    visit(&Setting { machines: &through, core: &CORE, all: &ALL, whole, spill: None }, usize::MAX);
    let behind = BEHIND.map(|(journal, behind)| (journal, Some(behind), false));
    // What is the same in both states is tried with what only one has, not with itself once more.
    let all = [&ALL[..], &ALL_BEHIND[..]].concat();
    visit(&Setting { machines: &behind, core: &CORE_BEHIND, all: &all, whole, spill: None }, usize::MAX);
    let on_sync = [(Journal::Ext4, None, true), (Journal::Lagging, None, true)];
    visit(&Setting { machines: &on_sync, core: &CORE_ON_SYNC, all: &ALL, whole, spill: None }, 5);
}

/// Histories of the sets that are not played, because they only have steps more that change
/// nothing.
pub fn left_out(operations: usize) -> u64 {
    let count = |whole| {
        let mut count = 0;
        exhaustive(operations, whole, &mut |_| count += 1);
        count
    };
    count(true) - count(false)
}

/// Whether it is one of the keeper's rounds.
fn rounds(op: &Op) -> bool {
    matches!(op, Op::Expire | Op::Part)
}

/// Whether two operations are tried at once: not two of the keeper's own (but for a drain, which
/// request threads make beside its rounds), and not two changes of names of which one is a removal,
/// whose order only the kernel knows.
fn pairs(op: &Op, other: &Op) -> bool {
    let names = |op: &Op| {
        matches!(
            op,
            Op::Rename(..) | Op::RenameRefused(..) | Op::Unlink(_) | Op::UnlinkRefused(_) | Op::Create(_)
        )
    };
    let removes = |op: &Op| matches!(op, Op::Unlink(_) | Op::UnlinkRefused(_));
    let drains = |op: &Op| {
        matches!(
            op,
            Op::Drain(_)
                | Op::Show(_)
                | Op::Clean(_)
                | Op::Frames
                | Op::Tell(_)
                | Op::Spill(_)
                | Op::SpillFails(_)
        )
    };
    let beside = op.is_clients() || other.is_clients() || drains(op) && rounds(other) || drains(other);
    beside && !(removes(op) && names(other) || names(op) && removes(other))
}

/// The interruptions of a history whose last step has `points` points.
pub fn spread(history: &History, spread: Spread, points: usize) -> Vec<History> {
    let last = history.steps.len() - 1;
    (1..=points)
        .map(|at| {
            let mut history = history.clone();
            match spread {
                Spread::None => {}
                Spread::Other(thread, op) => history.steps[last].amid = Amid::Other(at, thread, op),
                Spread::KilledAmid(thread, op) => {
                    history.steps[last].amid = Amid::KilledAmid(at, thread, op);
                }
                Spread::Killed(then) => {
                    history.steps[last].amid = Amid::Killed(at);
                    history.steps.extend(then.map(|op| Step::alone(1, op)));
                }
            }
            history
        })
        .collect()
}
