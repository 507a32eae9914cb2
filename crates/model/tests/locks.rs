//! Page locks, cursor lock and the file's exclusive word.
#![cfg(shuttle)]

use holdfast_pool::Slot;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use holdfast_board::model::{Memory, Mutation, Rules, begin, choose, live, spawn};
use holdfast_board::{Board, FileState, LaneIndex, PAGE_BYTES, Plan};
use holdfast_cache::Outcome;
use holdfast_model::{House, SLOT, caught, exhaust, explore, schedules};

const BUFFERED: Rules = Rules { memory: Memory::Buffered, early_returns: false, mutation: None };

/// Runs lanes that lock ranges of pages, each twice, and checks that no page has two holders.
fn lanes_over(rules: Rules, rounds: u32, ranges: &'static [(u64, u64)]) {
    begin(rules);
    let board = Board::ordinary(Plan::small(1, 1, 1, 4));
    board.header().begin_keeper(1);
    let holders: Arc<[AtomicU32; 4]> = Arc::default();
    let mut threads = Vec::new();
    for (lane, &(page, pages)) in (0..).zip(ranges) {
        let (board, holders) = (board.clone(), Arc::clone(&holders));
        threads.push(spawn(move || {
            let locks = board.page_locks();
            for _ in 0..rounds {
                assert!(
                    locks.lock(LaneIndex::new(lane), Slot::new(0), page * PAGE_BYTES, pages * PAGE_BYTES),
                    "the keeper lives"
                );
                for holder in &holders[page as usize..(page + pages) as usize] {
                    assert_eq!(holder.swap(lane + 1, SeqCst), 0, "two lanes hold a page");
                }
                choose();
                for holder in &holders[page as usize..(page + pages) as usize] {
                    holder.store(0, SeqCst);
                }
                locks.unlock(LaneIndex::new(lane), Slot::new(0), page * PAGE_BYTES, pages * PAGE_BYTES);
            }
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Under every schedule there is: two lanes exclude each other on a page, none sleeps for ever.
#[test]
fn two_lanes_share_a_page_under_every_schedule() {
    let count = exhaust(|| lanes_over(Rules::default(), 1, &[(0, 1), (0, 1)]));
    println!("{count} schedules");
    assert!(count > 100, "only {count} schedules: nothing raced");
}

/// Overlapping ranges, locked in the order of the table, also across its end: mutual exclusion, no
/// lost wake-up, no deadlock; with stores that others see late.
#[test]
fn overlapping_ranges_exclude_each_other() {
    explore(schedules(6000), || lanes_over(BUFFERED, 2, &[(0, 2), (1, 2), (0, 3)]));
    explore(schedules(2000), || lanes_over(BUFFERED, 2, &[(1, 1), (1, 1), (1, 1), (0, 4)]));
}

/// The cursor lock of a file serializes its appenders: no two inside, no lost wake-up.
#[test]
fn the_cursor_lock_excludes_and_wakes() {
    explore(schedules(4000), || {
        begin(BUFFERED);
        let board = Board::ordinary(Plan::small(1, 1, 3, 1));
        board.header().begin_keeper(1);
        let inside = Arc::new(AtomicU32::new(0));
        let mut threads = Vec::new();
        for lane in 0..3 {
            let (board, inside) = (board.clone(), Arc::clone(&inside));
            threads.push(spawn(move || {
                let (row, header) = (&board.files()[0], board.header());
                for _ in 0..2 {
                    assert!(row.lock_cursor(LaneIndex::new(lane), header));
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two lanes hold the cursor");
                    choose();
                    inside.fetch_sub(1, SeqCst);
                    row.unlock_cursor(LaneIndex::new(lane));
                }
            }));
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

/// Two writers and two who want the file for themselves: the keeper, and a client that truncates.
fn writers_and_holders(rules: Rules) {
    let house = House::new(rules, 3, 8);
    let inside = Arc::new(AtomicU32::new(0));
    let mut threads = Vec::new();
    for id in 1..3u32 {
        let (house, inside) = (house.clone(), Arc::clone(&inside));
        threads.push(spawn(move || {
            let client = house.client(id);
            let beside = || {
                inside.fetch_add(1, SeqCst);
                choose();
                inside.fetch_sub(1, SeqCst);
            };
            let offset = u64::from(id) * PAGE_BYTES;
            let outcome = house.write_with(&client, offset, id as u8, 10, beside);
            assert!(matches!(outcome, Ok(Outcome::Absorbed { bytes: 10, .. })), "{outcome:?}");
        }));
    }
    let (keepers, seen) = (house.clone(), Arc::clone(&inside));
    threads.push(spawn(move || {
        const KEEPER_ID: u32 = 0x7fff_ffff;
        assert!(keepers.board.lock_file(Slot::new(SLOT), KEEPER_ID), "the keeper lives");
        assert_eq!(seen.load(SeqCst), 0, "a writer is inside of an exclusive file");
        choose();
        assert_eq!(seen.load(SeqCst), 0, "a writer is inside of an exclusive file");
        assert!(keepers.board.row(Slot::new(SLOT)).unlock_exclusive(KEEPER_ID));
    }));
    let (cutter, seen) = (house.clone(), Arc::clone(&inside));
    threads.push(spawn(move || {
        let client = cutter.client(3);
        let outcome = client.truncate(cutter.file(), 0, || {
            assert_eq!(seen.load(SeqCst), 0, "a writer is inside of an exclusive file");
            choose();
            assert_eq!(seen.load(SeqCst), 0, "a writer is inside of an exclusive file");
            Ok(())
        });
        assert!(outcome.is_ok(), "{outcome:?}");
    }));
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Announcements are shared holds: nobody is inside while a file is exclusive, writers go on
/// afterwards, no wake-up is lost; with stores that others see late.
#[test]
fn nobody_writes_while_a_file_is_exclusive() {
    explore(schedules(4000), || writers_and_holders(BUFFERED));
}

/// The look at the exclusive word must come after the announcement.
#[test]
fn looking_before_announcing_is_caught() {
    let rules = Rules { mutation: Some(Mutation::LookBeforeAnnouncing), ..BUFFERED };
    caught(schedules(20_000), "inside of an exclusive file", move || writers_and_holders(rules));
}

/// A client that dies at any step of a truncation, exclusive word in hand or not: the repair lets
/// the others in.
#[test]
fn a_dead_holder_of_a_file_is_let_go() {
    for steps in 0.. {
        let killed = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&killed);
        explore(schedules(40), move || {
            let rules = Rules { memory: Memory::Buffered, early_returns: true, mutation: None };
            let house = House::new(rules, 2, 8);
            let victim = house.clone();
            let holder = spawn(move || {
                let client = victim.client(1);
                live(steps, || client.truncate(victim.file(), 0, || Ok(())).unwrap()).is_none()
            });
            let other = house.clone();
            let writer = spawn(move || {
                let client = other.client(2);
                other.write(&client, 0, 2, 10).unwrap();
            });
            if holder.join().unwrap() {
                count.fetch_add(1, SeqCst);
                house.repair(1);
            }
            writer.join().unwrap();
            let row = house.board.row(Slot::new(SLOT));
            assert!(!row.is_exclusive() && row.state() == FileState::Through);
            assert!(house.board.lanes().iter().all(|lane| lane.owner() == 0));
        });
        if killed.load(SeqCst) == 0 {
            assert!(steps > 20, "a truncation takes more than {steps} steps");
            return;
        }
    }
}
