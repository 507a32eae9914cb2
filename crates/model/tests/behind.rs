//! State Behind: page rows and their frames between writers, readers and a keeper that drains;
//! truncations; a file that enters the state under a reader; and the keeper's taking over from a
//! client that dies at any step.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use holdfast_board::model::{Memory, Mutation, Rules, live, spawn};
use holdfast_board::{PAGE_BYTES, Plan};
use holdfast_model::{SLOT, Yard, caught, explore, schedules};

const RULES: Rules = Rules { memory: Memory::Buffered, early_returns: false, mutation: None };
const DEADLY: Rules = Rules { early_returns: true, ..RULES };
/// Writes lie across the first two pages, and overlap there.
const FIRST: u64 = PAGE_BYTES - 8;
const BYTES: usize = 16;

/// Enough that none is ever missing: a write without one would have to ask the keeper.
const FRAMES: u32 = 8;

fn plan() -> Plan {
    Plan::small(SLOT + 1, 8, 4, 4).with_frames(FRAMES)
}

/// A file of two pages in state Behind.
fn yard(rules: Rules) -> Yard {
    let yard = Yard::new(rules, plan(), 2 * PAGE_BYTES);
    yard.enter_behind();
    yard
}

fn whole(bytes: &[u8]) -> u8 {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a read is torn: {bytes:?}");
    bytes[0]
}

fn read(yard: &Yard, client: &holdfast_cache::Client<holdfast_model::Media>) -> [u8; BYTES] {
    let mut bytes = [0xee; BYTES];
    assert_eq!(yard.read(client, FIRST, &mut bytes), BYTES);
    bytes
}

/// Reads `turns` times what every write covers, and complains of what is torn or old.
fn look(yard: &Yard, id: u32, turns: u32) {
    let (client, mut last) = (yard.client(id), 0);
    for _ in 0..turns {
        let known = yard.done.load(SeqCst);
        let seen = u64::from(whole(&read(yard, &client)[..BYTES - 4]));
        assert!(seen >= known && seen >= last, "a read is old: {seen} after {known}, {last}");
        last = seen;
    }
}

fn write(yard: &Yard, client: &holdfast_cache::Client<holdfast_model::Media>, at: u64, id: u8) {
    yard.write(client, at, id, BYTES);
    yard.done.store(u64::from(id), SeqCst);
}

/// A writer whose writes lie over the end of a page, a reader of them, and a keeper that drains
/// twice.
fn chaining_and_draining(rules: Rules) {
    let yard = yard(rules);
    let (writer, keeper) = (yard.clone(), yard.clone());
    let writing = spawn(move || {
        let client = writer.client(2);
        for id in 1..=3 {
            // The middle one begins earlier and ends earlier: it joins what is there, in a frame if
            // there is one.
            write(&writer, &client, if id == 2 { FIRST - 4 } else { FIRST }, id);
        }
    });
    let draining = spawn(move || {
        keeper.drain();
        keeper.drain();
    });
    look(&yard, 3, 4);
    writing.join().unwrap();
    draining.join().unwrap();
    assert_eq!(whole(&read(&yard, &yard.client(3))), 3);
    yard.drain();
    assert_eq!(whole(&yard.kernel.contents()[FIRST as usize..][..BYTES]), 3, "the kernel lacks bytes");
    yard.check_drained();
}

/// History 21: a read that meets a write, a merge and a drain of its pages is whole and not older
/// than what was acknowledged, or read, before.
#[test]
fn a_read_is_whole_and_new_while_rows_come_change_and_go() {
    explore(schedules(2000), || chaining_and_draining(RULES));
}

/// History 20: a keeper that drains without the page locks takes a newer row away, or frees the
/// frame that is read.
#[test]
fn draining_without_the_page_locks_is_caught() {
    let rules = Rules { mutation: Some(Mutation::DrainUnlocked), ..RULES };
    // Whoever finds the row half changed by two at once says that first.
    caught(schedules(20_000), "a read is|something stored into", move || chaining_and_draining(rules));
}

/// Where a first write lies that a second one, over the end of its page, is not joined with: that
/// one goes to the page cache at once.
const BEFORE: u64 = FIRST - 100;

/// Two writes and a drain while a reader has the kernel read, who saw no row. The file may enter
/// the state only then.
fn two_writes_under_a_reader(rules: Rules, is_behind: bool) {
    let yard = Yard::new(rules, plan(), 2 * PAGE_BYTES);
    if is_behind {
        yard.enter_behind();
    }
    let worker = yard.clone();
    let working = spawn(move || {
        worker.enter_behind();
        let client = worker.client(2);
        write(&worker, &client, BEFORE, 1);
        write(&worker, &client, FIRST, 2);
        worker.drain();
    });
    let (client, mut last) = (yard.client(3), 0);
    for turn in 0..3 {
        if turn == 2 {
            working.join().unwrap();
            break;
        }
        let known = yard.done.load(SeqCst);
        let mut bytes = [0xee; (FIRST - BEFORE) as usize + BYTES];
        assert_eq!(yard.read(&client, BEFORE, &mut bytes), bytes.len());
        let (first, second) = (whole(&bytes[..BYTES]), whole(&bytes[(FIRST - BEFORE) as usize..]));
        assert!(second == 0 || first == 1, "a read is old: {second} without {first}");
        let seen = u64::from(first.max(second));
        assert!(seen >= known && seen >= last, "a read is old: {seen} after {known}, {last}");
        last = seen;
    }
}

/// History 21, for a file that enters the state while the kernel reads it.
#[test]
fn a_read_is_whole_whenever_the_file_enters_the_state() {
    explore(schedules(1000), || two_writes_under_a_reader(RULES, false));
}

/// History 21: what the kernel read counts only if no row was there, nor came and went, meanwhile.
#[test]
fn a_kernel_read_that_is_not_checked_is_caught() {
    let rules = Rules { mutation: Some(Mutation::KernelReadUnchecked), ..RULES };
    caught(schedules(40_000), "a read is old", move || two_writes_under_a_reader(rules, true));
}

/// A program that writes over the end of a page and cuts the file before that, by turns; a reader;
/// and a keeper that drains of its own accord, too.
fn cutting_under_a_reader(rules: Rules) {
    let yard = yard(rules);
    let (writer, keeper, server) = (yard.clone(), yard.clone(), yard.clone());
    let serving = spawn(move || server.serve());
    let writing = spawn(move || {
        let client = writer.client(2);
        writer.truncate(&client, FIRST);
        write(&writer, &client, FIRST, 1);
        writer.truncate(&client, FIRST);
        write(&writer, &client, FIRST, 2);
        writer.end();
    });
    let draining = spawn(move || keeper.drain());
    let (client, mut last) = (yard.client(3), 0);
    for _ in 0..4 {
        let known = yard.done.load(SeqCst);
        let mut bytes = [0xee; BYTES];
        let count = yard.read(&client, FIRST, &mut bytes);
        assert!(count == 0 || count == BYTES, "a read is torn: it ends after {count} bytes");
        if count > 0 {
            let seen = u64::from(whole(&bytes));
            assert!(seen >= known && seen >= last, "a read is old: {seen} after {known}, {last}");
            last = seen;
        } else {
            assert!(known < 2, "a read is old: the file is cut no more");
        }
    }
    for thread in [writing, draining, serving] {
        thread.join().unwrap();
    }
    assert_eq!(whole(&read(&yard, &client)), 2);
    yard.drain();
    assert_eq!(yard.kernel.contents().len() as u64, FIRST + BYTES as u64);
    yard.check_drained();
}

/// History 17 for readers: a file that is cut and grows again is seen whole, in its old length or
/// in its new one. And two drains of a file that end together leave its rows counted right: the
/// count once went below zero, and to zero with the next row, which hid that one from readers.
#[test]
fn a_read_is_whole_while_the_file_is_cut_and_grows() {
    explore(schedules(1000), || cutting_under_a_reader(RULES));
}

/// Clearing the count while another drain ends is noticed.
#[test]
fn a_count_that_is_cleared_amid_a_drain_is_caught() {
    let rules = Rules { mutation: Some(Mutation::CountClearedAmidDrain), ..RULES };
    caught(schedules(20_000), "rows are left", move || cutting_under_a_reader(rules));
}

/// One client dies before its visible step number `steps`; another writes the same bytes and reads
/// them. Returns whether the client was killed. With `opens_only` the keeper opens what the dead
/// one held and does nothing else.
fn victim_and_other(steps: u64, opens_only: bool) -> bool {
    let yard = yard(DEADLY);
    let before = yard.client(4);
    yard.write(&before, FIRST - 4, 1, BYTES);
    let doomed = yard.clone();
    let victim = spawn(move || {
        let client = doomed.client(1);
        live(steps, || doomed.write(&client, FIRST, 2, BYTES)).is_none()
    });
    let other = yard.clone();
    let reading = spawn(move || {
        let client = other.client(2);
        let mut last = 0;
        for _ in 0..2 {
            let seen = whole(&read(&other, &client)[..BYTES - 4]);
            assert!(seen >= last, "a read is old: {seen} after {last}");
            last = seen;
        }
    });
    let killed = victim.join().unwrap();
    if killed && opens_only {
        for dead in yard.board.dead_lanes(1) {
            yard.board.open_lane(&dead);
        }
    } else if killed {
        yard.repair(1);
    }
    reading.join().unwrap();
    let seen = read(&yard, &before);
    whole(&seen[..BYTES - 4]);
    yard.drain();
    let kernel = yard.kernel.contents()[FIRST as usize..][..BYTES].to_vec();
    assert!(kernel == seen, "the kernel has {kernel:?}, a reader saw {seen:?}");
    killed
}

/// History 15 in state Behind: killed at every step of a write over the end of a page, with one row
/// entered and the other not, it is whole in both or in none.
#[test]
fn a_write_of_a_dead_client_is_whole_in_all_its_pages_or_never_was() {
    for steps in 0.. {
        let kills = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&kills);
        explore(schedules(60), move || {
            count.fetch_add(u32::from(victim_and_other(steps, false)), SeqCst);
        });
        if kills.load(SeqCst) == 0 {
            assert!(steps > 20, "a write takes more than {steps} steps");
            return;
        }
    }
}

/// A keeper that only opens the locks of the dead leaves half a write to readers.
#[test]
fn opening_the_locks_of_the_dead_without_their_write_is_caught() {
    let steps = Arc::new(AtomicU32::new(0));
    caught(schedules(20_000), "a read is torn|read: Errno(5)", move || {
        let steps = steps.fetch_add(1, SeqCst) % 120;
        victim_and_other(u64::from(steps), true);
    });
}
