//! The teller: has outsiders' `stat` of files in state Behind be right within moments. What it does to a file is
//! `durable::tell`. It is a thread of its own, because every other one may wait for the disk.
//!
//! As the one who looks most often it also finds the files for which state Behind pays: those that are written again and
//! again. Most files that live shorter than its step are journals, which would leave the state at once by `unlink`, and
//! most that are written once are copies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_board::{FileState, wait};

use crate::keeper::Keeper;

/// How old a size or a time may be that an outsider sees.
const TELL: Duration = Duration::from_millis(10);
/// Steps that found a file in state Through written since the one before, until it counts as written again and again.
const STEPS_WRITTEN: u32 = 2;
const IDLE: Duration = Duration::from_secs(3600);

/// What was last seen of a file in state Through.
struct Young {
    generation: u64,
    newest_seq: u64,
    /// How many steps found it written since the one before.
    steps_written: u32,
}

/// Runs until the keeper stops.
pub(crate) fn run(keeper: &Arc<Keeper>) {
    let header = keeper.durable.board.header();
    let bell = &header.expirer_wake.word;
    // Per slot, its generation and up to which record it was told.
    let mut told: HashMap<u32, (u64, u64)> = HashMap::new();
    let mut young: HashMap<u32, Young> = HashMap::new();
    while header.write_behind.word.load(Ordering::SeqCst) != 0 {
        // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
        let seen = bell.load(Ordering::SeqCst);
        if keeper.is_stopping() {
            return;
        }
        find_written(keeper, &mut young);
        if header.behind_files.census.get() != 0 {
            tell_all(keeper, &mut told);
        }
        // While nothing is dirty the expirer is idle, and the first write rings.
        if header.expirer_idle.word.load(Ordering::SeqCst) != 0 {
            wait(bell, seen, IDLE);
        } else {
            std::thread::sleep(TELL);
        }
    }
}

/// Has files that are written again and again enter state Behind.
fn find_written(keeper: &Keeper, young: &mut HashMap<u32, Young>) {
    let durable = &keeper.durable;
    for file in durable.managed() {
        let row = &durable.board.files()[file.slot as usize];
        if row.state() != FileState::Through || !file.meta().may_be_behind {
            continue;
        }
        let newest_seq = row.newest_seq.load(Ordering::SeqCst);
        let fresh = Young { generation: file.generation, newest_seq, steps_written: 0 };
        let seen = young.entry(file.slot).or_insert(fresh);
        if seen.generation != file.generation {
            *seen = Young { generation: file.generation, newest_seq, steps_written: 0 };
        } else if seen.newest_seq != newest_seq {
            (seen.newest_seq, seen.steps_written) = (newest_seq, seen.steps_written + 1);
            // Once: what keeps it out then is looked at again in the expirer's reviews.
            if seen.steps_written == STEPS_WRITTEN {
                durable.enter_behind(&file);
            }
        }
    }
}

fn tell_all(keeper: &Keeper, told: &mut HashMap<u32, (u64, u64)>) {
    let durable = &keeper.durable;
    for file in durable.managed() {
        let row = &durable.board.files()[file.slot as usize];
        let now = (file.generation, row.newest_seq.load(Ordering::SeqCst));
        if row.state() == FileState::Behind && told.get(&file.slot) != Some(&now) {
            // A disk that refuses is met, and reported, by who drains all of the file.
            let _ = durable.tell(&file);
            told.insert(file.slot, now);
        }
    }
}
