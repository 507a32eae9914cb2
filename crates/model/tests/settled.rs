//! S, the seq up to which a file's bytes are in the page cache, and the keeper's death.
#![cfg(shuttle)]

use holdfast_board::model::{Memory, Mutation, Rules, spawn};
use holdfast_model::{House, caught, explore, schedules};

const BUFFERED: Rules = Rules { memory: Memory::Buffered, early_returns: false, mutation: None };

/// Three writers of one file, two of them of the same pages, and a keeper that computes S three
/// times.
fn writers_and_keeper(rules: Rules) {
    let house = House::new(rules, 3, 8);
    let mut threads = Vec::new();
    for id in 1..4u32 {
        let house = house.clone();
        threads.push(spawn(move || {
            let client = house.client(id);
            for round in 0..2 {
                let offset = u64::from(id % 2) * 4096;
                house.write(&client, offset, (id * 10 + round) as u8, 20).unwrap();
            }
        }));
    }
    let keeper = house.clone();
    threads.push(spawn(move || {
        for _ in 0..3 {
            keeper.settled_seq();
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    house.check_settled();
    house.check_recovery();
}

/// Invariant 2, history 14: no seq up to S belongs to an operation whose bytes were not written
/// when S was computed; with stores that others see late. At the end log and page cache are alike
/// (invariant 1, history 5).
#[test]
fn s_is_never_ahead_of_the_page_cache() {
    explore(schedules(4000), || writers_and_keeper(BUFFERED));
}

/// History 14: a seq drawn before it is announced is covered by an S that should wait for it.
#[test]
fn drawing_before_announcing_is_caught() {
    let rules = Rules { mutation: Some(Mutation::DrawBeforeAnnouncing), ..BUFFERED };
    caught(schedules(20_000), "before its bytes were written", move || writers_and_keeper(rules));
}

/// History 14: a counter read after the announcements includes seqs that were announced too late to
/// be seen.
#[test]
fn reading_announcements_first_is_caught() {
    let rules = Rules { mutation: Some(Mutation::AnnouncementsBeforeCounter), ..BUFFERED };
    caught(schedules(20_000), "before its bytes were written", move || writers_and_keeper(rules));
}

/// History 11: what is acknowledged although the keeper dies is in the log that recovery reads
/// after its death.
#[test]
fn nothing_acknowledged_after_the_keepers_death_is_missed_by_recovery() {
    explore(schedules(4000), || {
        let house = House::new(Rules { early_returns: true, ..BUFFERED }, 2, 8);
        let mut threads = Vec::new();
        for id in 1..3u32 {
            let house = house.clone();
            threads.push(spawn(move || {
                let client = house.client(id);
                for round in 0..2 {
                    let _ = house.write(&client, 0, (id * 10 + round) as u8, 20);
                }
            }));
        }
        house.board.header().end_keeper();
        let found = house.records();
        for thread in threads {
            thread.join().unwrap();
        }
        house.check_acknowledged(&found);
    });
}
