//! Loaded pages: readers without locks against a writer, evictions, a drain and the file leaving
//! state Behind.
#![cfg(shuttle)]

use std::sync::atomic::Ordering::SeqCst;

use holdfast_board::model::{Memory, Mutation, Rules, spawn};
use holdfast_board::{PAGE_BYTES, Plan};
use holdfast_cache::Client;
use holdfast_model::{Media, SLOT, Yard, caught, explore, schedules};

const RULES: Rules = Rules { memory: Memory::Buffered, early_returns: false, mutation: None };
/// The record under test lies across the first two pages.
const AT: u64 = PAGE_BYTES - 4;
const BYTES: usize = 8;
/// Pages behind them, to fill the frames with.
const FILLERS: u64 = 7;

/// A file in state Behind, and seven of eight frames taken by other pages of it.
fn yard(rules: Rules) -> Yard {
    let plan = Plan::small(SLOT + 1, 8, 4, 4).with_loaded(8);
    let yard = Yard::new(rules, plan, (2 + FILLERS + 2) * PAGE_BYTES);
    yard.enter_behind();
    let client = yard.client(1);
    for page in 2..2 + FILLERS {
        read(&yard, &client, page * PAGE_BYTES);
    }
    yard
}

fn read(yard: &Yard, client: &Client<Media>, offset: u64) -> [u8; BYTES] {
    let mut bytes = [0xee; BYTES];
    assert_eq!(yard.read(client, offset, &mut bytes), BYTES);
    bytes
}

fn write(yard: &Yard, client: &Client<Media>, id: u8) {
    yard.write(client, AT, id, BYTES);
    yard.done.store(u64::from(id), SeqCst);
}

/// A writer of two records, a reader of them, a reader whose pages want frames, and a keeper that
/// drains, then takes the file out of the state, after which an outsider writes a third record.
fn readers_and_others(rules: Rules) {
    let place = yard(rules);
    let mut threads = Vec::new();
    let (writer, reader, evictor, keeper) = (place.clone(), place.clone(), place.clone(), place.clone());
    threads.push(spawn(move || {
        let client = writer.client(2);
        write(&writer, &client, 1);
        write(&writer, &client, 2);
    }));
    threads.push(spawn(move || {
        keeper.drain();
        keeper.show();
    }));
    let evicting = spawn(move || {
        let client = evictor.client(4);
        for page in 0..2 {
            read(&evictor, &client, (2 + FILLERS + page) * PAGE_BYTES);
        }
    });
    let reading = spawn(move || {
        let (client, mut last) = (reader.client(3), 0);
        for _ in 0..4 {
            let known = reader.done.load(SeqCst);
            let bytes = read(&reader, &client, AT);
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a read is torn: {bytes:?}");
            let seen = u64::from(bytes[0]);
            assert!(seen >= known && seen >= last, "a read is old: {seen} after {known}, {last}");
            last = seen;
        }
    });
    for thread in threads {
        thread.join().unwrap();
    }
    // The file is the kernel's and the outsider's now.
    place.kernel.pwrite(&[3; BYTES], AT);
    place.done.store(3, SeqCst);
    reading.join().unwrap();
    evicting.join().unwrap();
    assert!(read(&place, &place.client(5), AT) == [3; BYTES], "a read is old at the end");
}

/// History 21, and history 10 for readers: every read is whole, and not older than what was
/// acknowledged, or read, before.
#[test]
fn an_optimistic_read_is_whole_and_new_whatever_happens_beside_it() {
    explore(schedules(3000), || readers_and_others(RULES));
}

/// A change that is not counted is not noticed by who copied one half before it and one half after.
#[test]
fn a_change_that_is_not_counted_is_caught() {
    let rules = Rules { mutation: Some(Mutation::ChangeUncounted), ..RULES };
    caught(schedules(20_000), "a read is torn", move || readers_and_others(rules));
}

/// A loaded page that does not follow a write hides it.
#[test]
fn a_loaded_page_that_does_not_follow_is_caught() {
    let rules = Rules { mutation: Some(Mutation::LoadedUnrefreshed), ..RULES };
    caught(schedules(20_000), "a read is", move || readers_and_others(rules));
}
