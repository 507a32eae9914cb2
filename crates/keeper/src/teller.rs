//! The teller: has outsiders' `stat` of files in state Behind be right within moments. What it does
//! to a file is `durable::tell`. It is a thread of its own, because every other one may wait for
//! the disk.
//!
//! As the one who looks most often it also finds the files for which state Behind pays: those that
//! are written again and again. Most files that live shorter than its step are journals, which
//! would leave the state at once by `unlink`, and most that are written once are copies.

use holdfast_media::Nvm;
use holdfast_pool::{Generation, Seq, Slot};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::keeper::Keeper;
use holdfast_disk::Disk;
use holdfast_durable::{Durable, ManagedFile};

/// A step: how old a size or a time may be that an outsider sees.
const TELL: Duration = Duration::from_millis(10);
/// The same of a file that is written in every step. Telling takes an open, which the fence looks
/// at as at any other.
const TELL_AGAIN: Duration = Duration::from_millis(100);
/// Steps that found a file in state Through written since the one before, until it counts as
/// written again and again.
const STEPS_WRITTEN: u32 = 2;
const IDLE: Duration = Duration::from_secs(3600);

/// What was last seen of a file in state Through.
struct Young {
    generation: Generation,
    newest_seq: Seq,
    /// How many steps found it written since the one before.
    steps_written: u32,
}

/// What outsiders were told of a file in state Behind.
struct Told {
    generation: Generation,
    newest_seq: Seq,
    /// What had been written at the last step.
    seen_seq: Seq,
    at: Instant,
}

/// Runs until the keeper stops.
pub(crate) fn run(keeper: &Arc<Keeper>) {
    let header = keeper.durable.board.header();
    let bell = &header.expirer_wake;
    // By slot.
    let mut told: HashMap<Slot, Told> = HashMap::new();
    let mut young: HashMap<Slot, Young> = HashMap::new();
    while header.write_behind.is_on() {
        // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
        let seen = bell.rung();
        if keeper.is_stopping() {
            return;
        }
        for file in keeper.durable.managed() {
            let state = keeper.durable.board.row(file.slot).state();
            if state.keeps_up() {
                look_at_writes(&keeper.durable, &file, &mut young);
            } else if state.lags() {
                tell(&keeper.durable, &file, &mut told);
            }
        }
        // While nothing is dirty the expirer is idle, and the first write rings.
        if header.is_expirer_idle() {
            bell.sleep(seen, IDLE);
        } else {
            std::thread::sleep(TELL);
        }
    }
}

/// Has a file that is written again and again enter state Behind.
fn look_at_writes<N: Nvm, D: Disk>(
    durable: &Durable<N, D>,
    file: &ManagedFile<D::File>,
    young: &mut HashMap<Slot, Young>,
) {
    if !file.meta().may_be_behind {
        return;
    }
    let newest_seq = durable.board.row(file.slot).newest_seq();
    let fresh = || Young { generation: file.generation, newest_seq, steps_written: 0 };
    let seen = young.entry(file.slot).or_insert_with(fresh);
    if seen.generation != file.generation {
        *seen = fresh();
    } else if seen.newest_seq != newest_seq {
        (seen.newest_seq, seen.steps_written) = (newest_seq, seen.steps_written + 1);
        // Once: what keeps it out then is looked at again in the expirer's reviews.
        if seen.steps_written == STEPS_WRITTEN {
            durable.enter_behind(file);
        }
    }
}

fn tell<N: Nvm, D: Disk>(
    durable: &Durable<N, D>,
    file: &ManagedFile<D::File>,
    told: &mut HashMap<Slot, Told>,
) {
    let newest_seq = durable.board.row(file.slot).newest_seq();
    if let Some(before) = told.get_mut(&file.slot).filter(|told| told.generation == file.generation) {
        // Whoever has stopped writing is told of at the next step.
        let goes_on = std::mem::replace(&mut before.seen_seq, newest_seq) != newest_seq;
        if before.newest_seq == newest_seq || goes_on && before.at.elapsed() < TELL_AGAIN {
            return;
        }
    }
    // A disk that refuses is met, and reported, by who drains all of the file.
    let _ = durable.tell(file);
    let generation = file.generation;
    told.insert(file.slot, Told { generation, newest_seq, seen_seq: newest_seq, at: Instant::now() });
}
