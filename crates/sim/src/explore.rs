//! Which histories are played: all short ones of four sets, and seeded long ones.
//!
//! Sets (every one on both orderings of the file system's journal; only crash points of the last step are checked,
//! because those of earlier steps are the last ones of a shorter history in the set):
//!
//! - *sequences*: all sequences of the [`CORE`] operations on two files, up to the given length, one after the other.
//!   The first file that is named is `a`; thread 0 works on `a`, thread 1 on `b`.
//! - *all operations*: all sequences of all operations ([`ALL`]), up to three.
//! - *pairs*: two operations at once, after up to two core operations: each client operation, and the keeper's round,
//!   interrupted at each of its points by each operation of the other thread.
//! - *kills*: each client operation, after up to two core operations, killed at each of its points; then nothing,
//!   another write, or the keeper's round; and killed with another write waiting for what it held.
//! - *directed*: a few longer ones, each for a bug that short ones do not show ([`DIRECTED`]).
//!
//! What stands for more than itself:
//!
//! - *Symmetry*. Names are opaque to the product, processes differ by a number alone, and a blank machine knows neither. So a
//!   history and the one with `a` and `b`, and threads 0 and 1, exchanged are one, and only those are played whose first file
//!   is `a`. A thread follows from its file; which process does a step matters only in what it has cached of a file, and renames
//!   have each come to files that the other had.
//! - *Prefixes*. A crash inside a prefix is the same crash for all that begin with it: it is checked once, as the last step of a
//!   shorter history. No step looks ahead, so the prefix plays the same way in all of them.
//! - *Steps that change nothing* ([`changes_nothing`]). Behind a round without a new record, a directory's sync without a new
//!   name and a drain without a row, NVM, disk and model are what they were, and so is what the keeper decides by. What goes on
//!   from there goes on without them as well. `tests/reductions.rs` compares both, store by store.
//! - *Images*. The same image is recovered once (`crate::known`) and judged each time.
//!
//! `--whole` leaves out nothing but symmetry and prefixes.
//!
//! All of it twice: in state Through, and with files in state Behind, as soon as they are made or after their first round
//! of expiry ([`BEHIND`]); then with what only that state has, beside the rest ([`CORE_BEHIND`], [`ALL_BEHIND`]). And a third time with
//! files that are logged from their first sync on ([`CORE_ON_SYNC`]), in state Through.

use crate::disk::Journal;
use crate::history::{Behind, History, TINY};
use crate::op::{Amid, Leave, Name, Op, Step};
use crate::random::Random;

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

/// One in so many seeded histories has files that are logged from their first sync on.
const ON_SYNC_ONE_IN: usize = 4;

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

/// What else happens to files in state Behind: writes that join, cover and pass by what only the log has, over the end of a
/// page, and everything that brings them to the page cache.
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
    (Journal::Ordered, Behind { at_once: true, frames: 2 }),
    (Journal::Lagging, Behind { at_once: false, frames: 1 }),
];

/// Longer sequences, and what interrupts the last operation.
const DIRECTED: [(&[Op], Spread); 9] = [
    // A sync that fails, and another that begins before anybody knows.
    (&[Op::Put(A, 0, 1200), Op::Fail(A), Op::Expire], Spread::Other(1, Op::Bypass(A))),
    // Segments that stay live because a sync fails, and somebody who wants space.
    (&[Op::Put(A, 300, 900), Op::Fail(A), Op::Expire, Op::Put(B, 300, 900)], Spread::None),
    // Names that no slot holds, and a sync that could be absorbed.
    (&[Op::Put(A, 0, 40), Op::Put(B, 0, 40), Op::Rename(B, A), Op::Put(A, 0, 40), Op::Sync(A)], Spread::None),
    // A client's sync takes the kernel's only notice of lost pages.
    (
        &[Op::Put(A, 0, 1200), Op::Put(B, 0, 40), Op::Rename(B, b'c'), Op::Fail(A), Op::Sync(A), Op::Expire],
        Spread::None,
    ),
    // The same on a description that both have: the keeper's sync succeeds beside the client's that failed.
    (
        &[Op::Lend(A), Op::Put(A, 0, 1200), Op::Put(B, 0, 40), Op::Rename(B, b'c'), Op::Fail(A), Op::Sync(A)],
        Spread::Other(1, Op::Expire),
    ),
    // A writer of the page whose size the keeper is telling the kernel.
    (&[Op::Put(A, 30, 20), Op::Put(A, 0, 40), Op::Tell(A)], Spread::Other(1, Op::Put(A, 0, 40))),
    // Two writers of the same bytes; neither makes the file longer.
    (&[Op::Put(A, 0, 40), Op::Put(A, 0, 40)], Spread::Other(1, Op::Put(A, 20, 20))),
    // A watched directory, and a new file in it that has no record yet.
    (&[Op::Put(A, 0, 40), Op::SyncDirectory, Op::Put(B, 0, 40)], Spread::Other(0, Op::SyncDirectory)),
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

/// Visits all possible sequences of `length` operations, up to exchanging the files; those that go on behind a step that
/// changes nothing only if the `whole` is asked for.
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

/// Whether `op` right behind `last` leaves everything as it was: two rounds of the keeper, or syncs of the directory, in a row
/// are one; and after a round, a drain or a truncation a file has no page row that a drain would take out.
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

    fn visit(&self, operations: usize, visit: &mut dyn FnMut(Seedling)) {
        for (steps, spread) in DIRECTED {
            self.each(visit, steps, spread);
        }
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

/// Visits all histories of the sets in which sequences have up to `operations` operations; those that go on behind a step that
/// changes nothing only if the `whole` is asked for.
pub fn exhaustive(operations: usize, whole: bool, visit: &mut dyn FnMut(Seedling)) {
    let through = [(Journal::Ordered, None, false), (Journal::Lagging, None, false)];
    Setting { machines: &through, core: &CORE, all: &ALL, whole, spill: None }.visit(operations, visit);
    let behind = BEHIND.map(|(journal, behind)| (journal, Some(behind), false));
    // What is the same in both states is tried with what only one has, not with itself once more.
    let all = [&ALL[..], &ALL_BEHIND[..]].concat();
    Setting { machines: &behind, core: &CORE_BEHIND, all: &all, whole, spill: None }.visit(operations, visit);
    let on_sync = [(Journal::Ordered, None, true), (Journal::Lagging, None, true)];
    let operations = operations.min(5);
    Setting { machines: &on_sync, core: &CORE_ON_SYNC, all: &ALL, whole, spill: None }
        .visit(operations, visit);
}

/// The operations of sequences in which the log goes on in a file: what fills segments, and what needs their records.
pub const CORE_SPILL: [Op; 10] = [
    Op::Put(A, 300, 900),
    Op::Put(B, 0, 40),
    Op::Put(A, 10, 600),
    Op::Short(A, 10, 500, 350),
    Op::Truncate(A, 20),
    Op::Unlink(A),
    Op::Fail(A),
    Op::Expire,
    Op::Spill(2),
    Op::Spill(8),
];

/// What else happens beside them.
const ALL_SPILL: [Op; 6] = [
    Op::SpillFails(false),
    Op::SpillFails(true),
    Op::Rename(A, B),
    Op::Outsider(A, false),
    Op::Retire(A),
    Op::Part,
];

/// Longer sequences with a spill file.
const DIRECTED_SPILL: [&[Op]; 3] = [
    // A sync fails when segments that were spilled have other records in them: only the frames still have what it dropped.
    &[
        Op::Put(A, 0, 1200),
        Op::Spill(8),
        Op::Put(B, 300, 900),
        Op::Put(B, 300, 900),
        Op::Fail(A),
        Op::Expire,
        Op::Expire,
        Op::Put(B, 0, 40),
    ],
    // Small writes that only page rows have, spilled; then their segments are used again.
    &[
        Op::Put(A, 0, 40),
        Op::Put(A, 4096, 40),
        Op::Put(A, 8192, 40),
        Op::Put(A, 12288, 40),
        Op::Spill(8),
        Op::Put(A, 12288, 40),
        Op::Put(A, 12288, 40),
        Op::Put(A, 12288, 40),
        Op::Put(A, 12288, 40),
        Op::Put(A, 12288, 40),
        Op::Put(A, 12288, 40),
    ],
    // Frames that are given back and used again.
    &[
        Op::Put(A, 300, 900),
        Op::Spill(8),
        Op::Expire,
        Op::Put(A, 10, 900),
        Op::Spill(8),
        Op::Put(A, 20, 900),
        Op::Put(B, 20, 900),
        Op::Spill(8),
    ],
];

/// Two passes at once: what one has written, while it drains rows, is lost in a failure that the other is told of.
const FAILING_SPILL: [Op; 10] = [
    Op::Put(A, 0, 40),
    Op::Put(A, 4096, 40),
    Op::Put(A, 8192, 40),
    Op::Put(A, 12288, 40),
    Op::Put(A, 16384, 40),
    Op::Put(A, 20480, 40),
    Op::Put(A, 24576, 40),
    Op::Put(A, 28672, 40),
    Op::SpillFails(true),
    Op::Spill(1),
];

/// Visits histories in which the log goes on in a file of a few frames, in both states: all sequences of up to so many
/// operations, spilling beside what else is under way, and deaths.
pub fn spilled(operations: usize, visit: &mut dyn FnMut(Seedling)) {
    let machines = [
        (Journal::Ordered, None, false),
        (Journal::Lagging, None, false),
        (Journal::Ordered, Some(Behind { at_once: true, frames: 2 }), false),
        (Journal::Ordered, None, true),
    ];
    let all = [&CORE_SPILL[..], &ALL_SPILL[..]].concat();
    for frames in [3, 8] {
        let setting =
            Setting { machines: &machines, core: &CORE_SPILL, all: &all, whole: false, spill: Some(frames) };
        for steps in DIRECTED_SPILL {
            for end in 1..=steps.len() {
                setting.each(visit, &steps[..end], Spread::None);
            }
        }
        setting.each(visit, &FAILING_SPILL, Spread::Other(1, Op::Spill(1)));
        let spills = |steps: &[Op]| steps.iter().any(|op| matches!(op, Op::Spill(_)));
        for length in 2..=operations {
            let alphabet = if length > 3 { &CORE_SPILL[..] } else { &all[..] };
            sequences(alphabet, length, false, &mut |steps| {
                if spills(steps) {
                    setting.each(visit, steps, Spread::None);
                }
            });
        }
        if frames > 3 {
            continue;
        }
        let first = [Op::Put(A, 300, 900), Op::Put(B, 0, 40)];
        let again = [first[0], Op::Spill(8), first[0]];
        let befores = [&again[..], &first[..], &first[..1]];
        let befores = &befores[..if operations > 3 { 3 } else { 1 }];
        for op in &all {
            for other in all.iter().filter(|other| pairs(op, other) && spills(&[*op, **other])) {
                for before in befores {
                    let steps = [*before, &[*op]].concat();
                    if follow(&steps).is_some() {
                        setting.each(visit, &steps, Spread::Other(1 - step(*op).thread, *other));
                    }
                }
            }
        }
        for op in all.iter().filter(|op| op.is_clients()) {
            let steps = [&first[..], &[Op::Spill(8), *op]].concat();
            if follow(&steps).is_some() {
                for then in [None, Some(Op::Spill(8)), Some(Op::Expire)] {
                    setting.each(visit, &steps, Spread::Killed(then));
                }
                let other = 1 - step(*op).thread;
                setting.each(visit, &steps, Spread::KilledAmid(other, Op::Put(A, 20, 40)));
            }
        }
    }
}

/// Histories of the sets that are not played, because they only have steps more that change nothing.
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

/// Whether two operations are tried at once: not two of the keeper's own (but for a drain, which request threads make
/// beside its rounds), and not two changes of names, whose order against each other only the kernel knows.
fn pairs(op: &Op, other: &Op) -> bool {
    let names = |op: &Op| {
        matches!(
            op,
            Op::Rename(..) | Op::RenameRefused(..) | Op::Unlink(_) | Op::UnlinkRefused(_) | Op::Create(_)
        )
    };
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
    beside && !(names(op) && names(other))
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

/// A long history; every other one with files in state Behind.
pub fn seeded(seed: u64) -> History {
    let mut random = Random::of(&[seed, 1]);
    let journal = if random.one_in(3) { Journal::Lagging } else { Journal::Ordered };
    let mut pool = [TINY, (4, 8, 1024), (6, 12, 512), (16, 16, 2048)][random.below(4)];
    let count = 5 + random.below(40);
    let names = 2 + random.below(4);
    let mut other = Random::of(&[seed, 3]);
    let behind = other.one_in(2).then(|| Behind { at_once: other.one_in(2), frames: other.below(4) as u32 });
    if behind.is_some() && other.one_in(3) {
        // Larger writes are in one piece here.
        pool = (6, 12, 8192);
    }
    let draw = |random: &mut Random| match behind {
        Some(_) => draw_behind(random, names, pool.2),
        None => draw(random, names, pool.2),
    };
    let mut steps: Vec<Step> = Vec::new();
    let mut spills = Random::of(&[seed, 6]);
    let spill = spills.one_in(3).then(|| 1 + spills.below(8) as u32);
    let mut draw = |random: &mut Random| match (draw(random), spill) {
        (op, None) => op,
        (op, Some(_)) => match spills.below(32) {
            0..=5 => Op::Spill(1 + spills.below(4) as u32),
            6 if spills.one_in(4) => Op::SpillFails(spills.one_in(2)),
            7..=8 => Op::Fail(op.name().unwrap_or(A)),
            _ => op,
        },
    };
    for _ in 0..count {
        let thread = random.below(2) as u8;
        let op = draw(&mut random);
        let amid = match random.below(12) {
            0..=2 => Amid::Other(1 + random.below(24), 1 - thread, draw(&mut random)),
            3 if op.is_clients() => Amid::Killed(1 + random.below(20)),
            4 if op.is_clients() => Amid::KilledAmid(1 + random.below(20), 1 - thread, draw(&mut random)),
            _ => Amid::Nothing,
        };
        let amid = match amid {
            Amid::Other(_, _, other) | Amid::KilledAmid(_, _, other) if !pairs(&op, &other) => Amid::Nothing,
            amid => amid,
        };
        steps.push(Step { thread, op, amid });
    }
    // One in so many with files that are logged from their first sync on, which there are more of then.
    let mut third = Random::of(&[seed, 5]);
    let on_sync = third.one_in(ON_SYNC_ONE_IN);
    if on_sync {
        let written = |op: &Op| matches!(op, Op::Put(..) | Op::Write(..) | Op::Append(..));
        for step in steps.iter_mut().filter(|step| written(&step.op)) {
            if let (true, Some(name)) = (third.one_in(2), step.op.name()) {
                step.op = Op::Sync(name);
            }
        }
    }
    History { journal, pool, behind, on_sync, spill, steps }
}

/// An operation where files are in state Behind: near the ends of pages, and not too large to be there.
fn draw_behind(random: &mut Random, names: usize, segment_bytes: u64) -> Op {
    let name = A + random.below(names) as u8;
    // Mostly so near to one another that they join.
    let within = if random.one_in(3) { random.below(300) } else { 16 * random.below(5) };
    let at = [0, 0, 4096, 8192][random.below(4)] + within as u32;
    let at = if random.one_in(4) { at.saturating_sub(40) } else { at };
    let small = 1 + random.below((segment_bytes / 8) as usize) as u32;
    match random.below(40) {
        0..=11 => Op::Put(name, at, small),
        12..=13 => Op::Append(name, small),
        14..=16 => Op::Read(name, at.saturating_sub(20), 2 * small),
        17 => Op::Leave(name, [Leave::Bring, Leave::Once, Leave::ForGood][random.below(3)]),
        18 => Op::Drain(name),
        19 => match random.below(5) {
            0 => Op::Show(name),
            1 => Op::Refuse(name),
            2 => Op::Space(false),
            _ => Op::Space(true),
        },
        20 => Op::Truncate(name, at),
        21 => Op::Punch(name, at, small),
        22 => Op::Expire,
        23..=24 => Op::Clean(u32::MAX),
        25 => [Op::Frames, Op::Tell(name), Op::Part, Op::Release][random.below(4)],
        _ => draw(random, names, segment_bytes),
    }
}

fn draw(random: &mut Random, names: usize, segment_bytes: u64) -> Op {
    let name = A + random.below(names) as u8;
    let other = A + random.below(names) as u8;
    let at = random.below(600) as u32;
    let small = 1 + random.below(120) as u32;
    let large = 1 + random.below(segment_bytes as usize * 2) as u32;
    match random.below(40) {
        0..=9 => Op::Put(name, at, small),
        10..=12 => Op::Put(name, at, large),
        13 => Op::Put(name, at, 8000),
        14..=16 => Op::Append(name, if random.one_in(3) { large } else { small }),
        17 => Op::Short(name, at, small + 1, random.below(small as usize) as u32),
        18 => Op::Short(name, at, large + 1, random.below(large as usize) as u32),
        19..=20 => Op::Truncate(name, at),
        21 => Op::TruncateRefused(name, at),
        22 => Op::Punch(name, at, small),
        23 => Op::Around(name, at, small),
        24..=25 => Op::Sync(name),
        26..=27 => Op::SyncDirectory,
        28..=29 if name != other => Op::Rename(name, other),
        30 if name != other => Op::RenameRefused(name, other),
        31..=32 => Op::Unlink(name),
        33 => Op::UnlinkRefused(name),
        34 => Op::Retire(name),
        35 => Op::Fail(name),
        36 => Op::Outsider(name, random.one_in(2)),
        37 if random.one_in(4) => Op::Bypass(name),
        _ => Op::Expire,
    }
}
