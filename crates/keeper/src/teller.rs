//! The teller: has outsiders' `stat` of files in state Behind be right within moments. What it does to a file is
//! `durable::tell`. It is a thread of its own, because every other one may wait for the disk.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_board::{FileState, wait};

use crate::keeper::Keeper;

/// How old a size or a time may be that an outsider sees.
const TELL: Duration = Duration::from_millis(10);
const IDLE: Duration = Duration::from_secs(3600);

/// Runs until the keeper stops.
pub(crate) fn run(keeper: &Arc<Keeper>) {
    let header = keeper.durable.board.header();
    let bell = &header.expirer_wake.word;
    // Per slot, its generation and up to which record it was told.
    let mut told: HashMap<u32, (u64, u64)> = HashMap::new();
    while header.write_behind.word.load(Ordering::SeqCst) != 0 {
        // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
        let seen = bell.load(Ordering::SeqCst);
        if keeper.is_stopping() {
            return;
        }
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
