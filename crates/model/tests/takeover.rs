//! A client dies at any step of its operation, and the keeper takes over its lane.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use holdfast_board::model::{Memory, Mutation, Rules, live, spawn};
use holdfast_model::{House, caught, explore, schedules};

const RULES: Rules = Rules { memory: Memory::Buffered, early_returns: true, mutation: None };

/// One client dies before its visible step number `steps`, two others write the same pages
/// meanwhile, the keeper computes S and repairs. Returns whether the client was killed.
fn victim_and_others(rules: Rules, steps: u64, bytes: usize) -> bool {
    let house = House::new(rules, 3, 10);
    let doomed = house.clone();
    let victim = spawn(move || {
        let client = doomed.client(1);
        live(steps, || doomed.write(&client, 100, 1, bytes).unwrap()).is_none()
    });
    let mut others = Vec::new();
    for id in 2..4u32 {
        let house = house.clone();
        others.push(spawn(move || {
            let client = house.client(id);
            house.write(&client, u64::from(id) * 60, id as u8, 90).unwrap();
        }));
    }
    let settling = house.clone();
    others.push(spawn(move || {
        settling.settled_seq();
        settling.settled_seq();
    }));
    let killed = victim.join().unwrap();
    if killed {
        house.repair(1);
    }
    for other in others {
        other.join().unwrap();
    }
    house.check_recovery();
    house.check_settled();
    house.check_acknowledged(&house.records());
    let board = &house.board;
    assert!(board.lanes().iter().all(|lane| lane.owner() == 0 && !lane.is_announced()));
    killed
}

/// Kills at step 0, 1, 2 and so on, until the operation is over before the kill.
fn at_every_step(schedules: usize, bytes: usize) {
    for steps in 0.. {
        let kills = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&kills);
        explore(schedules, move || {
            count.fetch_add(u32::from(victim_and_others(RULES, steps, bytes)), SeqCst);
        });
        if kills.load(SeqCst) == 0 {
            println!("an operation of {bytes} bytes has {steps} steps");
            assert!(steps > 20, "a write takes more than {steps} steps");
            return;
        }
    }
}

/// History 15, invariant 2: killed at every step of a write while others wait for its pages, the
/// operation is rolled forward under its locks or never was; no older bytes land over newer ones, S
/// waits for it, nothing acknowledged is lost, nobody waits for ever.
#[test]
fn a_write_of_a_dead_client_is_whole_or_never_was() {
    at_every_step(schedules(120), 150);
}

/// The same for a group over two segments, with room for it taken before.
#[test]
fn a_group_of_a_dead_client_is_whole_or_never_was() {
    at_every_step(schedules(60), 5000);
}

/// History 15: with the locks opened before the seq is cleared, a dead client's write can be rolled
/// forward onto what another wrote since.
#[test]
fn opening_locks_before_the_seq_is_cleared_is_caught() {
    let rules = Rules { mutation: Some(Mutation::OpenBeforeSettling), ..RULES };
    let steps = Arc::new(AtomicU32::new(0));
    caught(schedules(30_000), "log and page cache differ", move || {
        let steps = steps.fetch_add(1, SeqCst) % 80;
        victim_and_others(rules, u64::from(steps), 150);
    });
}
