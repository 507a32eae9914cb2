//! Lanes and segments: who has them, when they change hands, who is woken.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use holdfast_board::model::{Memory, Mutation, Rules, spawn};
use holdfast_board::{Board, SegmentState, pause};
use holdfast_model::{House, caught, explore, schedules};

const BUFFERED: Rules = Rules { memory: Memory::Buffered, early_returns: false, mutation: None };
/// Needs a segment for itself (segments have 4096 bytes in the models).
const FULL: usize = 3800;
/// Spans two segments.
const GROUP: usize = 5000;

/// Writers that fill segments and, beside them, an expirer as the keeper runs it: it sleeps while
/// nothing is dirty and is woken by the first writer, by the bell, and by whoever wants space.
fn writers_and_expirer(rules: Rules, lanes: u32, segments: u32, sizes: &'static [&'static [usize]]) {
    let house = House::new(rules, lanes, segments);
    let left = Arc::new(AtomicU32::new(sizes.len() as u32));
    let mut threads = Vec::new();
    for (id, &sizes) in (1..).zip(sizes) {
        let (house, left) = (house.clone(), Arc::clone(&left));
        threads.push(spawn(move || {
            let client = house.client(id);
            for (round, &bytes) in (0..).zip(sizes) {
                house.write(&client, u64::from(id % 2) * 8192, (id * 10 + round) as u8, bytes).unwrap();
            }
            left.fetch_sub(1, SeqCst);
            house.board.header().ring_expirer();
        }));
    }
    let keeper = house.clone();
    threads.push(spawn(move || {
        let header = keeper.board.header();
        loop {
            let rung = header.expirer_wake.rung();
            if keeper.is_dirty() {
                keeper.settle();
                // Where the expirer lets the batch grow.
                pause(Duration::ZERO);
            } else if left.load(SeqCst) == 0 {
                return;
            } else {
                keeper.board.free_dead_segments();
                header.sleep_idle(rung, || keeper.is_dirty(), Duration::MAX);
            }
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    check_idle(&house.board);
    house.check_recovery();
}

/// Nothing is left over: no lane has an owner.
fn check_idle(board: &Board) {
    assert!(board.lanes().iter().all(|lane| lane.owner() == 0 && !lane.is_announced()));
}

/// Invariant 3: a segment is in one hand, and is reused only when its records are dead and its new
/// generation is durable (the media checks it at every store). Whoever waits for space is woken
/// (history 13).
#[test]
fn segments_change_hands_only_when_they_are_dead() {
    explore(schedules(2500), || writers_and_expirer(BUFFERED, 2, 4, &[&[FULL, FULL], &[FULL, 100, FULL]]));
    explore(schedules(1500), || writers_and_expirer(BUFFERED, 2, 6, &[&[FULL, GROUP], &[GROUP, FULL]]));
}

/// Files looked at before the sealed segments are collected: a record may be written and sealed in
/// between.
#[test]
fn looking_at_files_before_segments_is_caught() {
    let rules = Rules { mutation: Some(Mutation::FilesBeforeSegments), ..BUFFERED };
    caught(schedules(20_000), "freed too early", move || {
        writers_and_expirer(rules, 1, 3, &[&[FULL, FULL, FULL, FULL, FULL]]);
    });
}

/// A record before its segment's generation is durable could be taken for one of the segment's
/// older use, or lost.
#[test]
fn a_record_before_its_generation_is_caught() {
    let rules = Rules { mutation: Some(Mutation::RecordBeforeGeneration), ..BUFFERED };
    caught(schedules(100), "whose generation is not durable", move || {
        writers_and_expirer(rules, 1, 4, &[&[FULL]]);
    });
}

/// More clients than lanes: each gets one, whoever waits is woken when one is let go.
#[test]
fn whoever_waits_for_a_lane_is_woken() {
    explore(schedules(3000), || {
        let house = House::new(BUFFERED, 1, 4);
        let mut threads = Vec::new();
        for id in 1..4u32 {
            let house = house.clone();
            threads.push(spawn(move || {
                let client = house.client(id);
                house.write(&client, 0, id as u8, 10).unwrap();
            }));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        check_idle(&house.board);
        house.check_recovery();
    });
}

/// Two writers want two segments each and there are three: neither sleeps on while enough are free,
/// neither keeps the other awake.
#[test]
fn whoever_waits_for_several_segments_is_woken() {
    explore(schedules(2500), || writers_and_expirer(BUFFERED, 2, 3, &[&[GROUP], &[GROUP]]));
}

/// One segment is free; who wants two takes it and must give it back. Who wants one, and looked in
/// between, is woken: the others become free only when it is done.
#[test]
fn a_segment_given_back_wakes_who_waits_for_it() {
    explore(schedules(2500), || {
        let house = House::new(BUFFERED, 2, 3);
        let late = [1, 2].map(|segment| &house.board.segments()[segment]);
        late.iter().for_each(|row| row.set_state(SegmentState::Pinned));
        let writer = |id: u32, bytes| {
            let house = house.clone();
            spawn(move || house.write(&house.client(id), u64::from(id) * 8192, id as u8, bytes).unwrap())
        };
        let (two, one) = (writer(1, GROUP), writer(2, FULL));
        one.join().unwrap();
        late.iter().for_each(|row| row.set_state(SegmentState::Free));
        house.board.header().announce_free_segments();
        two.join().unwrap();
        check_idle(&house.board);
    });
}

/// The checker itself: a wake-up that is lost for sure is reported.
#[test]
fn a_lost_wake_up_is_caught() {
    caught(schedules(1), "deadlock", || {
        let house = House::new(BUFFERED, 1, 1);
        let bell = &house.board.header().segments_freed;
        bell.sleep(bell.rung(), Duration::ZERO);
    });
}
