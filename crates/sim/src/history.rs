//! A history: a machine of a given shape, and the steps it makes. The same history always plays the
//! same way.

use std::fmt;

use holdfast_pool::{Layout, Seq, Superblock};
use holdfast_testkit::Random;
use serde::{Deserialize, Serialize};

use crate::disk::{DiskState, Journal, Left};
use crate::machine::{Behind, Machine, Outcome, Service, blank_pool, now_unix_s, spill_header};
use crate::nvm::Keep;
use crate::op::{Op, Step};
use crate::recorder::{self, Snapshot};

/// Slots, segments and bytes of a segment of the pool that short histories play on: three small
/// records fill a segment.
pub const TINY: (u32, u32, u64) = (4, 8, 512);

/// What a disk that fails does to the first pages it cannot write follows from it: one reads as
/// before, one is in the cache alone, the third got there. With a seed of which the first four get
/// there, short histories with failing syncs lose nothing.
const DISK_SEED: u64 = 2;

/// What happens to a machine until the power fails.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct History {
    /// How the file system orders changes of names.
    pub journal: Journal,
    /// Slots, segments and bytes of a segment.
    pub pool: (u32, u32, u64),
    /// Whether and when files enter state Behind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<Behind>,
    /// Frames of the spill file, if the log goes on in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<u32>,
    /// Durability = sync: files are logged from their first sync on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_sync: bool,
    /// What happens.
    pub steps: Vec<Step>,
}

/// How a history was played.
pub struct Played {
    /// The moments at which the power may fail.
    pub snapshots: Vec<Snapshot>,
    /// Points of the last step.
    pub points: usize,
    /// Whether the last step was interrupted as it says.
    pub interrupted: bool,
    /// The step at which nobody got on any more.
    pub hangs: Option<usize>,
    /// The first step that had nothing to be done to.
    pub impossible: Option<usize>,
    /// A step after which programs did not see what they had written, and what they saw.
    pub wrong: Option<(usize, String)>,
}

impl History {
    /// The geometry of its pool.
    pub fn layout(&self) -> Layout {
        Layout::miniature(self.pool.0, self.pool.1, self.pool.2).with_frames(self.spill.unwrap_or(0))
    }

    /// Its pool before the first step.
    pub fn superblock(&self) -> Superblock {
        blank_pool(&self.layout()).1
    }

    /// Plays it from an empty machine; snapshots are taken from step `from` on.
    pub fn play(&self, from: usize) -> Played {
        let (nvm, superblock) = blank_pool(&self.layout());
        let mut disk = DiskState::new(self.journal, now_unix_s(), DISK_SEED);
        if let Some(header) = spill_header(&superblock) {
            disk.add_spill(&header.encode(), header.file_bytes());
        }
        let service = Service {
            counter_start: Seq::new(1),
            pinned_segments: Vec::new(),
            pinned_frames: Vec::new(),
            set_aside_slots: Vec::new(),
            behind: self.behind,
            on_sync: self.on_sync,
        };
        let machine = Machine::start(nvm, disk, superblock, service);
        self.play_on(&machine, from)
    }

    /// Plays it from an empty machine, with all snapshots.
    pub fn play_all(&self) -> Played {
        self.play(0)
    }

    /// Plays it on what recovery left, with all snapshots.
    pub fn play_after(&self, left: &Outcome, superblock: Superblock) -> Played {
        let random = &mut Random::new(0);
        let nvm = left.nvm.crash(Keep::All, random);
        let disk = left.disk.crash(Left::Everything, 1, random);
        let machine =
            Machine::start(nvm, disk, superblock, Service::of(&left.recovered, self.behind, self.on_sync));
        self.play_on(&machine, 0)
    }

    /// Plays it on a machine.
    fn play_on(&self, machine: &Machine, from: usize) -> Played {
        let mut played = Played {
            snapshots: Vec::new(),
            points: 0,
            interrupted: false,
            hangs: None,
            impossible: None,
            wrong: None,
        };
        if self.steps.iter().any(|step| matches!(step.op, Op::Haunt(..))) {
            machine.keep_ghost();
        }
        for (index, step) in self.steps.iter().enumerate() {
            if index == from {
                machine.record();
            }
            match machine.step(step) {
                None => {
                    played.impossible = Some(index);
                    break;
                }
                Some(ending) => {
                    (played.points, played.interrupted) = (ending.points, ending.interrupted);
                    if ending.hangs {
                        played.hangs = Some(index);
                        break;
                    }
                    if let Some(wrong) = recorder::complaint() {
                        played.wrong = Some((index, wrong));
                        break;
                    }
                }
            }
        }
        played.snapshots = recorder::recorded();
        played
    }

    /// Numbers that stand for it, to draw images by.
    pub fn seed(&self) -> u64 {
        let text = serde_json::to_string(self).unwrap_or_default();
        let parts: Vec<u64> = text.as_bytes().chunks(8).map(|part| crc32c::crc32c(part).into()).collect();
        Random::of(&parts).draw()
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "pool of {} slots and {} segments of {} bytes, names {:?}",
            self.pool.0, self.pool.1, self.pool.2, self.journal
        )?;
        if let Some(Behind { at_once, frames }) = self.behind {
            let when = if at_once { "at once" } else { "after the first round" };
            writeln!(f, "  files enter state Behind {when}; {frames} frames")?;
        }
        if let Some(frames) = self.spill {
            writeln!(f, "  the log goes on in a file of {frames} frames")?;
        }
        if self.on_sync {
            writeln!(f, "  files are logged from their first sync on")?;
        }
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {}. {step}", index + 1)?;
        }
        Ok(())
    }
}
