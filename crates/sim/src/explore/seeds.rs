//! Seeded long histories, on several miniatures: everything that happens, mixed.
//!
//! A seed's history must stay what it is, since failures are named by it: what is added later is
//! drawn from numbers of its own.

use super::{A, pairs};
use holdfast_testkit::Random;

use crate::disk::Journal;
use crate::history::{History, TINY};
use crate::machine::Behind;
use crate::op::{Amid, Leave, Op, Step};

/// One in so many seeded histories has files that are logged from their first sync on.
const ON_SYNC_ONE_IN: usize = 4;
/// One in so many has a spill file.
const SPILL_ONE_IN: usize = 3;
/// One in so many interruptions is over before the step that is interrupted goes on.
const WITHIN_ONE_IN: usize = 2;
/// In one of so many the kernel loses pages by itself.
const LOSING_ONE_IN: usize = 4;

/// A long history; every other one with files in state Behind.
pub fn seeded(seed: u64) -> History {
    let mut random = Random::of(&[seed, 1]);
    let lags = random.one_in(3);
    let mut kernels = Random::of(&[seed, 7]);
    let journal = match (lags, kernels.one_in(2)) {
        (true, true) => Journal::Btrfs,
        (true, false) => Journal::Lagging,
        (false, true) => Journal::Xfs,
        (false, false) => Journal::Ext4,
    };
    let mut pool = [TINY, (4, 8, 1024), (6, 12, 512), (16, 16, 2048)][random.below(4)];
    let count = 5 + random.below(40);
    let names = 2 + random.below(4);
    let mut other = Random::of(&[seed, 3]);
    let behind = other.one_in(2).then(|| Behind { at_once: other.one_in(2), frames: other.below(4) as u32 });
    if behind.is_some() && other.one_in(3) {
        // Larger writes are in one piece here.
        pool = (6, 12, 8192);
    }
    let stores = other.one_in(3);
    let draw = |random: &mut Random| match behind {
        _ if stores && random.one_in(2) => draw_store(random, names.max(4)),
        Some(_) => draw_behind(random, names, pool.2),
        None => draw(random, names, pool.2),
    };
    // One in so many with a spill file, which is written now and then.
    let mut spills = Random::of(&[seed, 6]);
    let spill = spills.one_in(SPILL_ONE_IN).then(|| 1 + spills.below(8) as u32);
    let mut draw = |random: &mut Random| match (draw(random), spill) {
        (op, None) => op,
        (op, Some(_)) => match spills.below(32) {
            0..=5 => Op::Spill(1 + spills.below(4) as u32),
            6 if spills.one_in(4) => Op::SpillFails(spills.one_in(2)),
            7..=8 => Op::Fail(op.name().unwrap_or(A)),
            _ => op,
        },
    };
    let mut steps: Vec<Step> = (0..count).map(|_| draw_step(&mut random, &mut draw)).collect();
    // One in so many with files that are logged from their first sync on, which there are more of
    // then.
    let mut third = Random::of(&[seed, 5]);
    let on_sync = third.one_in(ON_SYNC_ONE_IN);
    if on_sync {
        sync_more(&mut steps, &mut third);
    }
    // And one in so many where the kernel fails to write back by itself, and outsiders sync what
    // they read.
    let mut fourth = Random::of(&[seed, 7]);
    if fourth.one_in(LOSING_ONE_IN) {
        lose_and_peek(&mut steps, names, &mut fourth);
    }
    let mut fifth = Random::of(&[seed, 9]);
    let mut steps = let_go(steps, &mut fifth);
    // And interruptions that do not go on before the other is answered.
    let mut sixth = Random::of(&[seed, 11]);
    for step in &mut steps {
        if let Amid::Other(at, thread, op) = step.amid
            && sixth.one_in(WITHIN_ONE_IN)
        {
            step.amid = Amid::Within(at, thread, op);
        }
    }
    History { journal, pool, behind, on_sync, spill, steps }
}

/// A step of one thread, which the other one may interrupt, or a death end.
fn draw_step(random: &mut Random, draw: &mut impl FnMut(&mut Random) -> Op) -> Step {
    let thread = random.below(2) as u8;
    let op = draw(random);
    let amid = match random.below(12) {
        0..=2 => Amid::Other(1 + random.below(24), 1 - thread, draw(random)),
        3 if op.is_clients() => Amid::Killed(1 + random.below(20)),
        4 if op.is_clients() => Amid::KilledAmid(1 + random.below(20), 1 - thread, draw(random)),
        _ => Amid::Nothing,
    };
    let amid = match amid {
        Amid::Other(_, _, other) | Amid::KilledAmid(_, _, other) if !pairs(&op, &other) => Amid::Nothing,
        amid => amid,
    };
    Step { thread, op, amid }
}

/// Puts syncs in the place of every other write.
fn sync_more(steps: &mut [Step], random: &mut Random) {
    let written = |op: &Op| matches!(op, Op::Put(..) | Op::Write(..) | Op::Append(..));
    for step in steps.iter_mut().filter(|step| written(&step.op)) {
        if let (true, Some(name)) = (random.one_in(2), step.op.name()) {
            step.op = Op::Sync(name);
        }
    }
}

/// Has the keeper let go of every other file right after its removal.
fn let_go(steps: Vec<Step>, random: &mut Random) -> Vec<Step> {
    let mut all = Vec::new();
    for step in steps {
        let removes = matches!(step.op, Op::Unlink(_)) && random.one_in(2);
        let thread = 1 - step.thread;
        all.push(step);
        if removes {
            all.push(Step::alone(thread, Op::LetGo));
        }
    }
    all
}

/// Puts steps that only some histories have in the place of others.
fn lose_and_peek(steps: &mut [Step], names: usize, random: &mut Random) {
    for step in steps {
        let name = A + random.below(names) as u8;
        let other = match step.op {
            Op::Fail(name) => Op::Lose(name),
            Op::SyncDirectory | Op::TruncateRefused(..) | Op::UnlinkRefused(_) => Op::Lose(name),
            Op::Sync(name) | Op::Outsider(name, _) | Op::Show(name) => Op::Peek(name),
            _ => continue,
        };
        if random.one_in(2) {
            *step = Step::alone(step.thread, other);
        }
    }
}

/// An operation where files are in state Behind: near the ends of pages, and not too large to be
/// there.
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

/// What mail and message stores do: new files get another name that is mostly free, and the
/// directory is synced.
fn draw_store(random: &mut Random, names: usize) -> Op {
    let name = A + random.below(names) as u8;
    let other = A + random.below(names) as u8;
    match random.below(12) {
        0..=3 => Op::Put(name, 0, 1 + random.below(60) as u32),
        4..=7 if name != other => Op::Rename(name, other),
        8 => Op::Unlink(name),
        9 => Op::Expire,
        _ => Op::SyncDirectory,
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
