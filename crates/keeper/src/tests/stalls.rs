//! Files that are taken from clients that stand still: wherever they stand, what others have is
//! kept and what they do when they go on counts for nothing in the log.

use holdfast_pool::{Segment, Seq};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use holdfast_board::{FileState, Inode, LaneEnd, LaneIndex, Locked};
use holdfast_cache::{FileRequest, Outcome, Place};
use holdfast_media::Bytes;

use super::behind::{Program, behind_house};
use super::durable::{Bench, CLIENT, bench};
use super::{NEVER_MS, contents, errno};

fn stands(client: u32) -> bool {
    client == CLIENT
}

fn in_through(name: &str) -> Bench {
    let bench = bench(name);
    bench.write(0, b"acknowledged");
    bench.durable.leave_behind(&bench.managed(), true).unwrap();
    assert_eq!(bench.state(), FileState::Through);
    bench
}

/// Whether its slot may become another file's.
fn may_be_reused(bench: &Bench) -> bool {
    let count = bench.durable.superblock.layout.slot_count;
    (0..count).any(|_| bench.durable.free_slot(|_| false).is_some_and(|place| place.slot == bench.place.slot))
}

#[test]
fn a_write_that_stands_still_is_the_kernels_when_it_goes_on() {
    let bench = in_through("taken-write");
    let key = bench.file.metadata().map(|meta| (meta.dev(), meta.ino())).unwrap();
    // Here the record is durable, and the call is still to be made.
    let raw = || {
        assert!(bench.durable.take_from(&bench.managed(), &stands));
        assert!(bench.durable.file(bench.place).is_none());
        assert_eq!(contents(&bench.file), b"acknowledged");
        assert!(bench.durable.is_stood_in(key.0, key.1), "it would be logged beside the call");
        assert!(!may_be_reused(&bench), "another file would get what the call does");
        // Pages of other files have the same locks.
        assert!(bench.durable.board.page_locks().lock(LaneIndex::new(60), bench.place.slot, 0, 4096));
        bench.durable.board.page_locks().unlock(LaneIndex::new(60), bench.place.slot, 0, 4096);
        bench.file.write_at(b"late", 0).map_err(errno)
    };
    let parts = [Bytes::from_slice(b"late")];
    let outcome = bench.client.write(bench.place, Place::At(0), &parts, raw, || panic!("at an offset"));
    assert_eq!(outcome, Ok(Outcome::Passed { bytes: 4 }), "it is no more durable than natively");
    assert!(!bench.durable.is_stood_in(key.0, key.1) && may_be_reused(&bench));
    assert_eq!(contents(&bench.file), b"lateowledged");
    let slots = bench.durable.slots();
    assert_ne!(slots.generation(bench.place.slot), Some(bench.place.generation), "no record counts");
}

#[test]
fn who_waits_for_a_page_of_who_stands_still_does_nothing_and_asks_anew() {
    let bench = in_through("taken-page");
    let board = &bench.durable.board;
    let lane = &board.lanes()[63.min(board.lanes().len() - 1)];
    let index = 63.min(board.lanes().len() - 1) as u32;
    // Somebody stands still with the first page.
    assert!(lane.try_take(CLIENT + 1));
    lane.announce(bench.place.slot, Seq::new(1));
    lane.note_locks(Locked { offset: 0, bytes: 4096 });
    assert!(board.page_locks().lock(LaneIndex::new(index), bench.place.slot, 0, 4096));
    let outcome = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let parts = [Bytes::from_slice(b"late")];
            let raw = || panic!("it was not its turn");
            bench.client.write(bench.place, Place::At(0), &parts, raw, || panic!("at an offset"))
        });
        let announced = |client: u32| board.lanes_on(bench.place.slot).any(|(_, owner)| owner == client);
        while !announced(CLIENT) {
            std::thread::yield_now();
        }
        assert!(bench.durable.take_from(&bench.managed(), &|client| client == CLIENT + 1));
        writer.join().unwrap()
    });
    assert_eq!(outcome, Ok(Outcome::Stale));
    assert!(!may_be_reused(&bench), "the other one still stands there");
    lane.end_announcement();
    assert!(may_be_reused(&bench));
    assert_eq!(contents(&bench.file), b"acknowledged");
}

#[test]
fn a_change_of_names_that_stands_still_stays_pending_until_it_is_made() {
    let bench = in_through("taken-name");
    let (_other, beside) = bench.manage("beside");
    let (board, slot) = (&bench.durable.board, bench.place.slot);
    let device = bench.file.metadata().unwrap().dev();
    assert!(board.lock_file(slot, CLIENT));
    let path = bench.directory.path().join("new");
    let naming = FileRequest::Naming { dirfd: 0, onto: None };
    bench.durable.answer(CLIENT, bench.place, naming, || Some(path.clone())).unwrap();
    assert!(bench.durable.take_from(&bench.managed(), &stands));
    assert!(bench.durable.file(bench.place).is_none());
    assert!(!may_be_reused(&bench));
    // A commit does not cover what is still to be made.
    let commit = FileRequest::Commit { behind_sync: false };
    let is_in_order = bench.durable.answer(CLIENT + 1, beside, commit, || None).is_ok();
    assert!(!bench.durable.is_clean(device));
    std::fs::rename(bench.directory.path().join("file"), &path).unwrap();
    assert!(!board.unlock_file(slot, CLIENT), "it is told that its hold was taken");
    assert!(may_be_reused(&bench));
    if is_in_order {
        bench.durable.answer(CLIENT + 1, beside, commit, || None).unwrap();
        assert!(bench.durable.is_clean(device));
    }
}

#[test]
fn nothing_is_taken_from_who_works() {
    let bench = in_through("not-taken");
    assert!(!bench.durable.take_from(&bench.managed(), &stands), "nobody has it");
    assert_eq!(bench.state(), FileState::Through);
    bench.durable.allow_behind(&bench.managed(), false);
    if bench.state() != FileState::Behind {
        return;
    }
    // In state Behind an operation goes on in page rows.
    let lane = &bench.durable.board.lanes()[0];
    assert!(lane.try_take(CLIENT));
    lane.announce(bench.place.slot, Seq::new(1));
    assert!(!bench.durable.take_from(&bench.managed(), &stands));
    assert_eq!(bench.state(), FileState::Behind);
}

/// What a stray store may leave that somebody waits for: keeper and clients did so for ever.
#[test]
fn nobody_waits_for_ever_for_what_nobody_has() {
    let kinds =
        ["a page", "the file's end", "the file", "an operation", "a lane", "as the keeper's", "waited for"];
    std::thread::scope(|scope| {
        for (kind, what) in kinds.into_iter().enumerate() {
            scope.spawn(move || {
                let house = behind_house(&format!("stray-{kind}"), NEVER_MS, 64);
                let (file, place) = house.create("a");
                let program = Program::new(&house.client, place, &file);
                program.write(Place::At(0), &[1; 8192]);
                let board = house.client.board();
                let (row, lane) = (board.row(place.slot), &board.lanes()[2]);
                match kind {
                    // Not the last one: the keeper brings that to the page cache for its size.
                    0 => assert!(board.page_locks().lock(LaneIndex::new(0x4141_4140), place.slot, 0, 1)),
                    1 => assert!(row.lock_cursor(LaneIndex::new(0x4141_4140), board.header())),
                    2 => assert!(board.try_claim_file(place.slot, 0x4141_4141)),
                    5 => assert!(board.try_claim_file(place.slot, holdfast_durable::KEEPER_ID)),
                    6 => assert!(board.try_claim_file(place.slot, 0x8000_0000)),
                    _ => {
                        assert!(kind == 3 || lane.try_take(0x4141_4141));
                        lane.announce(place.slot, Seq::new(1));
                    }
                }
                let begun = Instant::now();
                match kind {
                    1 | 2 | 5 | 6 => _ = program.write(Place::At(8192), &[1; 100]),
                    _ => house.client.bring_to_kernel(place).unwrap(),
                }
                let waited = begun.elapsed();
                assert!(
                    waited > Duration::from_secs(4) && waited < Duration::from_secs(60),
                    "{what}: {waited:?}"
                );
                // All of it works as before.
                program.write(Place::At(100), &[2; 5000]);
                house.client.bring_to_kernel(place).unwrap();
                let found = contents(&file);
                let bytes = if matches!(kind, 1 | 2 | 5 | 6) { 8292 } else { 8192 };
                assert!(found == [&[1; 100][..], &[2; 5000], &vec![1; bytes - 5100]].concat(), "{what}");
            });
        }
    });
}

/// A store into a file's row hid the file from whoever opened it anew: they read what the page
/// cache had, and wrote past the log.
#[test]
fn a_file_is_found_whatever_a_program_stored_into_its_row() {
    let house = behind_house("stray-row", NEVER_MS, 64);
    let (file, place) = house.create("a");
    let program = Program::new(&house.client, place, &file);
    program.write(Place::At(0), &[1; 8192]);
    let key = file.metadata().map(|meta| (meta.dev(), meta.ino())).unwrap();
    let row = house.client.board().row(place.slot);
    for flip in 0..64 {
        let inode = row.inode();
        row.set_inode(Inode { device: inode.device ^ 1 << flip, ..inode });
        assert_eq!(house.client.find(key.0, key.1).map(|seen| seen.file), Some(place), "bit {flip} of dev");
        let inode = row.inode();
        row.set_inode(Inode { ino: inode.ino ^ 1 << flip, ..inode });
        assert_eq!(house.client.find(key.0, key.1).map(|seen| seen.file), Some(place), "bit {flip} of ino");
    }
    // Where nobody knows how it was treated it fails, and is not read past what the log has.
    row.scribble_state(FileState::Through as u32 ^ 1);
    assert!(row.state().is_failed());
    row.scribble_state(0);
    assert!(row.state().is_failed());
    let parts = [Bytes::from_slice(b"more")];
    let written = house.client.write(
        place,
        Place::At(0),
        &parts,
        || panic!("it is not made"),
        || panic!("at an offset"),
    );
    assert_eq!(written, Err(holdfast_cache::Errno(libc::EIO)));
    row.scribble_state(FileState::Behind as u32);
    house.client.bring_to_kernel(place).unwrap();
    assert_eq!(contents(&file), [1; 8192]);
}

/// Where a lane goes on was believed: a store there ended the program, or had the log go on in the
/// midst of what it holds.
#[test]
fn a_lane_goes_on_elsewhere_when_its_end_is_nobodys() {
    let bench = bench("stray-lane");
    let board = &bench.durable.board;
    let stray = |change: &dyn Fn(LaneEnd) -> LaneEnd| {
        let lane = board.lanes().iter().find(|lane| lane.has_segment()).expect("a lane with a segment");
        lane.scribble_end(&change(lane.end().expect("its owner's")));
    };
    let stores: [&dyn Fn(LaneEnd) -> LaneEnd; 5] = [
        &|end| LaneEnd { segment: Segment::new(0x3fff_ffff), ..end },
        &|end| LaneEnd { at: end.at ^ 64, ..end },
        &|end| LaneEnd { at: u32::MAX, ..end },
        &|end| LaneEnd { seed: end.seed ^ 1, ..end },
        &|end| LaneEnd { generation: holdfast_pool::Generation::new(3), ..end },
    ];
    for (index, store) in stores.iter().enumerate() {
        bench.write(index as u64 * 4096, &[index as u8 + 1; 4096]);
        stray(store);
        bench.write(index as u64 * 4096 + 4096, b"after it");
    }
    // All records are found, one behind the other.
    let (nvm, superblock) = (&bench.durable.nvm, &bench.durable.superblock);
    let (mut found, mut buffer) = (0, Vec::new());
    for segment in superblock.layout.segments() {
        holdfast_log::scan_segment(
            nvm,
            &superblock.layout,
            &superblock.uuid,
            segment,
            &mut buffer,
            |record| {
                found += usize::from(record.header.slot == bench.place.slot);
            },
        );
    }
    assert!(found >= 2 * stores.len(), "{found}");
}

/// A store had a segment's row name a slot that there is none of, which ended the keeper.
#[test]
fn a_segments_row_may_name_any_slot() {
    let bench = bench("stray-segment");
    bench.write(0, &[1; 4096]);
    let board = &bench.durable.board;
    for row in board.segments() {
        row.note(holdfast_pool::Slot::new(0x4000_0000), board.next_seq());
        row.set_state(holdfast_board::SegmentState::Sealed);
    }
    board.free_dead_segments();
    let kept = board.segments().iter().filter(|row| row.state() == holdfast_board::SegmentState::Sealed);
    assert_eq!(kept.count(), board.segments().len());
}

/// A store there had all programs fail for good, or go on unprotected once the keeper died.
#[test]
fn a_word_that_says_that_the_keeper_is_dead_is_put_right() {
    let house = behind_house("stray-keeper", 100, 64);
    let (file, place) = house.create("a");
    let program = Program::new(&house.client, place, &file);
    let header = house.client.board().header();
    for word in [0, 0x4000_0000, 4711] {
        program.write(Place::At(0), &[1; 8192]);
        header.keeper_word().store(word, std::sync::atomic::Ordering::SeqCst);
        assert!(!header.keeper_alive(), "{word:x}");
        let begun = Instant::now();
        while !header.keeper_alive() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{word:x}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    program.write(Place::At(8192), &[2; 100]);
    house.client.bring_to_kernel(place).unwrap();
    assert_eq!(contents(&file), [&[1; 8192][..], &[2; 100]].concat());
}

/// A store there had every writer sleep for years at its next segment.
#[test]
fn no_pause_is_longer_than_a_keepers() {
    let (said, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let bench = bench("stray-throttle");
        bench.durable.board.header().scribble_throttle(u64::MAX);
        // More than a segment holds.
        let count = 2 * bench.durable.superblock.layout.segment_bytes / 16_384;
        (0..count).for_each(|part| bench.write(part * 16_384, &[1; 16_384]));
        said.send(count).unwrap();
    });
    assert!(hears.recv_timeout(Duration::from_secs(60)).is_ok_and(|count| count > 1));
}

/// Who looks at the table finds such a file, and has it fail for good.
#[test]
fn a_file_without_a_state_fails() {
    let bench = in_through("stray-state");
    let row = bench.durable.board.row(bench.place.slot);
    assert!(!bench.durable.mend_table());
    for word in [0, FileState::Through as u32 ^ 1, u32::MAX] {
        row.scribble_state(word);
        assert!(row.has_no_state() && bench.durable.mend_table(), "{word:x}");
        assert!(!row.has_no_state() && row.state().is_failed(), "{word:x}");
        assert!(!bench.durable.mend_table());
    }
}
