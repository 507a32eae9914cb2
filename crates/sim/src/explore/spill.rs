//! Histories in which the log goes on in a spill file, beside the sets without one.

use super::{A, B, Seedling, Setting, Spread, follow, pairs, sequences, step};
use crate::disk::Journal;
use crate::machine::Behind;
use crate::op::Op;

/// The operations of sequences in which the log goes on in a file: what fills segments, and what
/// needs their records.
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
    // A sync fails when segments that were spilled have other records in them: only the frames
    // still have what it dropped.
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

/// Two passes at once: what one has written, while it drains rows, is lost in a failure that the
/// other is told of.
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

/// Visits histories in which the log goes on in a file of a few frames, in both states: all
/// sequences of up to so many operations, spilling beside what else is under way, and deaths.
pub fn spilled(operations: usize, visit: &mut dyn FnMut(Seedling)) {
    let machines = [
        (Journal::Ext4, None, false),
        (Journal::Lagging, None, false),
        (Journal::Ext4, Some(Behind { at_once: true, frames: 2 }), false),
        (Journal::Ext4, None, true),
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
