//! What a client may say, and what is made of it (docs/trust.md): the keeper looks at a descriptor
//! itself, and checks whatever it reads from the board before it uses it.

use holdfast_pool::{Generation, Segment, Seq, Slot};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdfast_board::{Content, FileState, Frame, GROUP_SEGMENTS_MAX, LaneEnd, Locked, Page, Source, Way};
use holdfast_cache::{Client, Errno, FileRef, Origin, Place, Reason};
use holdfast_media::{Bytes, Mapping, Nvm, OpenMode};

use super::behind::{Program, behind_house};
use super::durable::{Bench, bench, bench_that_tells};
use super::{House, NEVER_MS, contents, errno, house, house_with, write_at};
use crate::config::FenceChoice;
use crate::control::Control;
use holdfast_disk::OsFile;
use holdfast_durable::{Events, ManagedFile, Writers};
use holdfast_testkit::Random;

/// Who died.
const DEAD: u32 = 9;

#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Events<OsFile> for Told {
    fn trouble(&self, message: String) {
        self.0.lock().unwrap().push(message);
    }

    fn bypassed(&self, _: &Path, _: Reason) {}

    fn released(&self, _: &ManagedFile<OsFile>) {}
}

impl Bench {
    /// Has the lane of the last write be that of a process that died in it, on file `slot`.
    fn die(&self, slot: Slot, (offset, bytes): (u64, u64)) {
        let board = &self.durable.board;
        let lane = board.lanes().iter().find(|lane| lane.has_segment()).unwrap();
        let seq = board.row(self.place.slot).newest_seq();
        assert!(lane.try_take(DEAD));
        lane.announce(slot, seq);
        lane.note_locks(Locked { offset, bytes });
        lane.note_seq(seq);
        self.durable.repair(DEAD);
        assert_eq!(lane.owner(), 0);
    }

    fn leave_behind(&self) {
        self.durable.leave_behind(&self.managed(), true).unwrap();
        assert_eq!(self.state(), FileState::Through);
    }
}

/// A client that has a file open by its path alone, or to read, had it managed, and then wrote to
/// it by records.
#[test]
fn only_a_descriptor_that_can_be_written_to_has_its_file_managed() {
    let house = house("trust-descriptors", NEVER_MS);
    let path = house.directory.path().join("file");
    std::fs::write(&path, "bytes").unwrap();
    let open = |write: bool, flags: i32| {
        File::options().read(true).write(write).custom_flags(flags).open(&path).unwrap()
    };
    let register = |file: &File| house.client.register(file.as_raw_fd(), Origin::Opened, None, || true);
    for (write, flags) in [(false, 0), (false, libc::O_PATH), (true, libc::O_PATH)] {
        assert_eq!(register(&open(write, flags)), Ok(None), "{write} {flags:o}");
    }
    let file = open(true, 0);
    let place = register(&file).unwrap().unwrap();
    // Nor does it hear where the file is.
    assert_eq!(register(&open(false, 0)), Ok(None));
    assert_eq!(register(&open(true, libc::O_APPEND)), Ok(Some(place)));
}

/// A lane that claimed 2^52 bytes of locks aborted the keeper.
#[test]
fn a_dead_lane_may_claim_any_range() {
    for range in [(0, 1 << 52), (u64::MAX, u64::MAX), (1 << 63, 1), (4096, u64::MAX - 4095)] {
        let bench = bench("trust-ranges");
        bench.write(0, &[1; 5000]);
        bench.leave_behind();
        bench.file.write_all_at(&[7; 5000], 0).unwrap();
        bench.die(bench.place.slot, range);
        assert_eq!(contents(&bench.file), [1; 5000], "{range:?}: rolled forward");
        bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    }
}

/// Repair wrote the record of one file to whatever other one the lane named.
#[test]
fn a_record_goes_to_no_file_but_its_own() {
    for is_behind in [false, true] {
        let bench = bench("trust-lanes");
        let (other, place) = bench.manage("other");
        bench.write(0, &[1; 5000]);
        if !is_behind {
            bench.leave_behind();
            let file = bench.durable.file(place).unwrap();
            bench.durable.leave_behind(&file, true).unwrap();
        }
        bench.die(place.slot, (0, 5000));
        for file in bench.durable.managed() {
            bench.durable.settle(&file, Writers::MayBeIn).unwrap();
        }
        assert!(contents(&other).is_empty(), "{is_behind}");
        assert_eq!(contents(&bench.file), [1; 5000]);
    }
}

/// Whatever stands in a lane whose owner is dead.
#[test]
fn a_dead_lane_may_hold_any_numbers() {
    let told = Arc::new(Told::default());
    let bench = bench_that_tells("trust-numbers", Arc::clone(&told) as Arc<dyn Events<OsFile>>);
    let board = &bench.durable.board;
    let mut random = Random::new(7);
    let numbers = [0, 1, 2, 4095, 4096, 1 << 20, 1 << 31, u64::from(u32::MAX), 1 << 52, 1 << 63, u64::MAX];
    for round in 0..2000u64 {
        let (offset, bytes) = (round % 7 * 4096, [round as u8; 3000]);
        let raw = || bench.file.write_at(&bytes, offset).map_err(errno);
        let parts = [Bytes::from_slice(&bytes)];
        bench.client.write(bench.place, Place::At(offset), &parts, raw, || Err(Errno(29))).unwrap();
        if round == 1000 {
            bench.leave_behind();
        }
        let mut number = || {
            numbers[random.number_below(numbers.len() as u64) as usize].wrapping_add(random.number_below(3))
        };
        let lane = &board.lanes()[round as usize % board.lanes().len()];
        assert!(lane.try_take(DEAD));
        lane.announce(Slot::new(number() as u32), Seq::new(number()));
        lane.note_seq(Seq::new(number()));
        lane.note_locks(Locked { offset: number(), bytes: number() });
        let segment = Segment::new(number() as u32 / 2);
        let (at, generation) = (number() as u32, Generation::new(number()));
        lane.scribble_end(&LaneEnd { segment, at, generation, seed: number() as u32 });
        for place in 0..GROUP_SEGMENTS_MAX {
            lane.reserve(place, Segment::new(number() as u32));
        }
        bench.durable.repair(DEAD);
        assert_eq!(lane.owner(), 0);
        if round % 10 == 0 {
            bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
            board.free_dead_segments();
        }
    }
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    let size = contents(&bench.file).len();
    assert_eq!((size, told.0.lock().unwrap().len()), (6 * 4096 + 3000, 0));
}

/// A page row that says that its bytes are where there are none ended the keeper.
#[test]
fn a_page_row_may_point_anywhere() {
    for source in
        [Source::Log((1 << 39) - 1), Source::Frame(Frame::new(4)), Source::Frame(Frame::new(u32::MAX))]
    {
        let told = Arc::new(Told::default());
        let bench = bench_that_tells("trust-rows", Arc::clone(&told) as Arc<dyn Events<OsFile>>);
        bench.write(0, &[1; 4096]);
        let pages = bench.durable.board.pages();
        let row = pages.find(bench.place.slot, Page::new(0)).unwrap();
        pages.redirect(row.index, Content { source, ..row.content });
        assert!(bench.durable.settle(&bench.managed(), Writers::MayBeIn).is_err(), "{source:?}");
        assert!(
            told.0.lock().unwrap().iter().any(|told| told.contains("nonsense")),
            "{told:?}",
            told = told.0
        );
    }
}

/// A stray store into the log became a wrong file, and nobody heard of it.
#[test]
fn what_was_stored_into_the_log_reaches_no_file() {
    const WRITTEN: u64 = 3 * 4096 + 100;
    // Into the record's header, and each page of what it holds.
    for at in [-64, -40, -1, 0, 4096, 9000, WRITTEN as i64 - 1] {
        let told = Arc::new(Told::default());
        let bench = bench_that_tells("trust-sums", Arc::clone(&told) as Arc<dyn Events<OsFile>>);
        bench.write(0, &[1; 5 * 4096]);
        bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
        bench.write(4096, &[2; WRITTEN as usize]);
        bench.write(4096, &[3; 4096]);
        let pages = bench.durable.board.pages();
        let Source::Log(second) = pages.find(bench.place.slot, Page::new(2)).unwrap().content.source else {
            panic!()
        };
        let hit = (second as i64 - 4096 + at) as u64;
        let (nvm, word) = (&bench.durable.nvm, hit / 8 * 8);
        nvm.store_u64(word, nvm.load_u64(word) ^ 0x10 << (hit % 8 * 8));
        assert!(bench.durable.settle(&bench.managed(), Writers::MayBeIn).is_err(), "{at}");
        let is_told = told.0.lock().unwrap().iter().any(|told| told.contains("not what was written"));
        assert!(is_told, "{at}: {:?}", told.0);
        assert!(contents(&bench.file)[2 * 4096..].iter().all(|byte| *byte == 1), "{at}");
        // What is written over it is well.
        bench.write(4096, &[4; WRITTEN as usize]);
        bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
        let expected = [&[1; 4096][..], &[4; WRITTEN as usize], &[1; 4096 - 100]].concat();
        assert!(contents(&bench.file) == expected, "{at}");
    }
}

/// A record with an old number was dead, or was replayed before older ones; one that was too large
/// took the keeper and the program with it.
#[test]
fn what_is_stored_into_the_counter_costs_no_record() {
    for stray in [0, 1, 20, 1 << 60, u64::MAX] {
        let house = house("trust-counter", NEVER_MS);
        let (file, place) = house.create("a");
        let store = |client: &Client| client.board().begin_counter(Seq::new(stray));
        let write = |byte: u8| assert_eq!(write_at(&house.client, place, &file, 0, &[byte; 4096]), 4096);
        (1..=40).for_each(&write);
        store(&house.client);
        write(41);
        assert!(house.replayed(place) == [41; 4096], "{stray:#x}: an older record is replayed over it");
        store(&house.client);
        let (other, its_place) = house.create("b");
        assert_eq!(write_at(&house.client, its_place, &other, 0, &[43; 512]), 512);
        assert!(house.replayed(its_place) == [43; 512], "{stray:#x}");

        let bench = bench("trust-counter-behind");
        for byte in 1..=3 {
            bench.write(0, &[byte; 4096]);
            store(&bench.client);
            bench.write(100, &[byte + 100; 200]);
            store(&bench.client);
            bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
            let expected = [&[byte; 100][..], &[byte + 100; 200], &[byte; 3796]].concat();
            assert!(contents(&bench.file) == expected, "{stray:#x}: {byte}");
        }
    }
}

/// Where these bytes stand on a board of this process.
fn on_board(memory: &File, bytes: &[u8]) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("holdfast-board") && line.contains("rw-s")).find_map(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).unwrap());
        let mut found = vec![0; (to - from) as usize];
        // Another test's board may be gone by now.
        memory.read_exact_at(&mut found, from).ok()?;
        found.windows(bytes.len()).position(|part| part == bytes).map(|place| from + place as u64)
    })
}

/// What a stray store does: it changes a byte of the bytes that stand somewhere on a board.
fn spoil_on_board(bytes: &[u8], at: usize) {
    let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    let place = on_board(&memory, bytes).expect("a board with these bytes") + at as u64;
    let mut byte = [0];
    memory.read_exact_at(&mut byte, place).unwrap();
    memory.write_all_at(&[byte[0] ^ 4], place).unwrap();
}

/// As above, of bytes of several writes that a frame has together.
#[test]
fn what_was_stored_into_a_frame_reaches_no_file() {
    for (round, at) in [0, 1, 20, 38, 39].into_iter().enumerate() {
        let told = Arc::new(Told::default());
        let bench = bench_that_tells("trust-frames", Arc::clone(&told) as Arc<dyn Events<OsFile>>);
        bench.write(0, &[1; 8192]);
        bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
        let marked = format!("{round} {} frames and their sums", std::process::id()).into_bytes();
        let marked: Vec<u8> = marked.into_iter().cycle().take(40).collect();
        bench.write(4996, &marked[..13]);
        bench.write(5009, &marked[13..]);
        bench.write(5030, &marked[34..]);
        let row = bench.durable.board.pages().find(bench.place.slot, Page::new(1)).unwrap();
        assert!(matches!(row.content.source, Source::Frame(_)), "{row:?}");
        spoil_on_board(&marked, at);
        assert!(bench.durable.settle(&bench.managed(), Writers::MayBeIn).is_err(), "{at}");
        let is_told = told.0.lock().unwrap().iter().any(|told| told.contains("not what was written"));
        assert!(is_told, "{at}: {:?}", told.0);
        assert!(contents(&bench.file).iter().all(|byte| *byte == 1), "{at}");
        // What is written over all of it is well.
        bench.write(4996, &marked);
        bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
        let expected = [&[1; 4996][..], &marked, &[1; 8192 - 5036]].concat();
        assert!(contents(&bench.file) == expected, "{at}");
    }
}

/// The words of a row of a whole page in the log, and its key, as a stray store reaches them:
/// where they stand in this process.
fn words_of_row(bench: &Bench, page: u64) -> (File, [u64; 4]) {
    let pages = bench.durable.board.pages();
    let row = pages.find(bench.place.slot, Page::new(page)).unwrap();
    let Source::Log(at) = row.content.source else { panic!("{row:?}") };
    let content = at | u64::from(row.content.lo) << 40 | u64::from(row.content.hi - row.content.lo - 1) << 52;
    let words = [content.to_le_bytes(), row.oldest_seq.get().to_le_bytes()].concat();
    let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    let found = on_board(&memory, &words).expect("a row");
    // The keys lie before the rows, three words each.
    let (rows, keys) = (found - row.index as u64 * 24, pages.capacity() as u64 * 8);
    let key = rows - keys + row.index as u64 * 8;
    let word = |at| {
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, at).unwrap();
        u64::from_le_bytes(bytes)
    };
    assert_eq!(word(key), u64::from(bench.place.slot.word()) | (page / pages.sets()) << 17);
    (memory, [key, found, found + 8, found + 16])
}

/// A page row said fewer bytes than there were, or another page, or was gone: of that a block of a
/// file became wrong, and nobody heard of it.
#[test]
fn what_was_stored_into_a_page_row_loses_no_byte_in_silence() {
    // By which the words are changed: few bits, or all.
    let strays = [1, 1 << 17, 1 << 40, 1 << 45, 1 << 52, 1 << 60, 1 << 63, u64::MAX, 0];
    for word in 0..4 {
        for stray in strays {
            let told = Arc::new(Told::default());
            let bench = bench_that_tells("trust-row-words", Arc::clone(&told) as Arc<dyn Events<OsFile>>);
            bench.write(0, &[1; 5 * 4096]);
            bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
            for page in 1..4 {
                bench.write(page * 4096, &[2; 4096]);
            }
            let (memory, words) = words_of_row(&bench, 2);
            let mut was = [0; 8];
            memory.read_exact_at(&mut was, words[word]).unwrap();
            let stored = if stray == 0 { 0 } else { u64::from_le_bytes(was) ^ stray };
            memory.write_all_at(&stored.to_le_bytes(), words[word]).unwrap();
            let what = format!("word {word}, {stray:#x}");

            let expired = bench.durable.board.expired_seq(bench.place.slot);
            assert!(bench.durable.settle(&bench.managed(), Writers::MayBeIn).is_err(), "{what}");
            let is_told = told.0.lock().unwrap().iter().any(|told| told.contains("something stored into"));
            assert!(is_told, "{what}: {:?}", told.0);
            assert_eq!(bench.durable.board.expired_seq(bench.place.slot), expired, "{what}");
            let found = contents(&bench.file);
            assert_eq!(found.len(), 5 * 4096);
            for page in found.chunks(4096) {
                assert!([[1; 4096], [2; 4096]].iter().any(|whole| page == whole), "{what}");
            }
            // What it was is well.
            memory.write_all_at(&was, words[word]).unwrap();
            bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
            let expected = [&[1; 4096][..], &[2; 3 * 4096], &[1; 4096]].concat();
            assert!(contents(&bench.file) == expected, "{what}");
        }
    }
}

/// What says that a file is in state Behind was stored into: the pool was closed as if the disk had
/// everything.
#[test]
fn a_pool_is_not_closed_while_page_rows_say_that_it_has_bytes() {
    let told = Arc::new(Told::default());
    let bench = bench_that_tells("trust-close", Arc::clone(&told) as Arc<dyn Events<OsFile>>);
    bench.write(0, &[1; 8192]);
    assert!(bench.durable.has_rows_left());
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    assert!(!bench.durable.has_rows_left());
    bench.write(4096, &[2; 4096]);
    for way in [Way::LeaveBehind, Way::Bypass] {
        bench.durable.board.go(bench.place.slot, way);
    }
    assert!(bench.durable.expire_all(), "nothing seems to be dirty");
    told.0.lock().unwrap().clear();
    assert!(bench.durable.has_rows_left());
    assert!(
        told.0.lock().unwrap().iter().any(|told| told.contains("/file: something stored into")),
        "{:?}",
        told.0
    );
}

/// A store into the count of a file's rows had its records expire, with the newest bytes in them.
#[test]
fn rows_that_nobody_counts_are_drained_before_their_records_expire() {
    let bench = bench_that_tells("trust-count", Arc::<Told>::default());
    bench.write(0, &[1; 8192]);
    assert!(bench.durable.has_rows_left());
    bench.durable.board.row(bench.place.slot).page_rows().clear();
    assert!(bench.durable.expire_all());
    assert!(!bench.durable.has_rows_left());
    assert_eq!(contents(&bench.file), [1; 8192]);
}

/// Nor are older bytes read for those that a spoiled row had, or written beside.
#[test]
fn what_a_spoiled_row_says_is_neither_read_nor_joined() {
    for word in 1..4 {
        let bench = bench_that_tells("trust-row-reads", Arc::<Told>::default());
        bench.write(0, &[1; 4 * 4096]);
        bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
        bench.write(4096, &[2; 4096]);
        let (memory, words) = words_of_row(&bench, 1);
        let mut was = [0; 8];
        memory.read_exact_at(&mut was, words[word]).unwrap();
        memory.write_all_at(&(u64::from_le_bytes(was) ^ 1 << 60).to_le_bytes(), words[word]).unwrap();
        for (at, bytes) in [(4096, 100), (8000, 400)] {
            let mut buffer = vec![0; bytes];
            let raw = |part: &mut [u8], at| bench.file.read_at(part, at).map_err(errno);
            let read =
                bench.client.read(bench.place, Place::At(at), &mut buffer, raw, || panic!(), |_| panic!());
            assert_eq!(read, Err(Errno::EIO), "word {word}, at {at}");
        }
        let mut found = [0; 64];
        assert_eq!(bench.client.read_optimistically(bench.place, 4200, &mut found), None, "word {word}");
    }
}

/// A size that a stray store made smaller hid the rows beyond it from the drain.
#[test]
fn rows_beyond_a_size_that_was_stored_are_drained() {
    let bench = bench("trust-size");
    bench.write(0, &[1; 5 * 4096]);
    let row = bench.durable.board.row(bench.place.slot);
    row.set_end(4096);
    bench.durable.drain_all(&bench.managed()).unwrap();
    assert!(contents(&bench.file) == [1; 5 * 4096]);
}

/// A file with a write of 200 bytes at 4000 in its log, of which one is another by now: this one
/// of those in the second page.
fn spoiled_record(at: i64) -> (House, File, FileRef) {
    loop {
        let house = behind_house("trust-joined", NEVER_MS, 64);
        let (file, place) = house.create("a");
        let program = Program::new(&house.client, place, &file);
        program.write(Place::At(0), &[1; 8192]);
        house.client.bring_to_kernel(place).unwrap();
        program.write(Place::At(4000), &[2; 200]);
        let row = || house.client.board().pages().find(place.slot, Page::new(1));
        let Some(Source::Log(from)) = row().map(|row| row.content.source) else { continue };
        let (nvm, hit) =
            (Mapping::open(&house.pool, OpenMode::ReadWrite).unwrap().0, (from as i64 + at) as u64);
        let word = hit / 8 * 8;
        nvm.store_u64(word, nvm.load_u64(word) ^ 0x10 << (hit % 8 * 8));
        // The kernel may have been told of it before that, as of what is written last.
        if row().is_some() {
            return (house, file, place);
        }
    }
}

/// Bytes of a record that was spoiled came to a frame with others, which went to the file.
#[test]
fn what_was_stored_into_the_log_is_joined_with_nothing() {
    // Into its payload and its header. What only touches it goes its own way.
    let cases = [
        (50, 4190, true),
        (50, 4120, true),
        (-40, 4190, true),
        (-120, 4190, true),
        (0, 4090, true),
        (0, 4200, false),
        (0, 6000, false),
    ];
    for (at, joins, overlaps) in cases {
        let (house, file, place) = spoiled_record(at);
        let parts = [Bytes::from_slice(&[3; 70])];
        let raw = || file.write_at(&[3; 70], joins).map_err(errno);
        let written = house.client.write(place, Place::At(joins), &parts, raw, || Err(Errno(29)));
        assert_eq!(written.is_err(), overlaps, "{at} {joins}: {written:?}");
        assert!(house.client.bring_to_kernel(place).is_err(), "{at} {joins}");
        assert!(contents(&file).iter().all(|byte| [1, 2, 3].contains(byte)), "{at} {joins}");
    }
}

/// Between the halves of a registration its descriptor was closed, or its file was removed: whoever
/// registered the file next, or another one with its inode number, waited for five seconds.
#[test]
fn a_registration_that_cannot_be_ended_keeps_nobody() {
    let house = house_with("trust-half", |config| {
        config.exclusive = Vec::new();
        config.fence = FenceChoice::Inotify;
    });
    let path = house.directory.path().join("file");
    let mut first = Some(File::create(&path).unwrap());
    let descriptor = first.as_ref().unwrap().as_raw_fd();
    let half = house.client.register(descriptor, Origin::Created, None, || {
        first = None;
        false
    });
    assert_eq!(half, Ok(None));
    let second = File::options().write(true).open(&path).unwrap();
    let begun = Instant::now();
    assert!(house.client.register(second.as_raw_fd(), Origin::Opened, None, || true).unwrap().is_some());
    assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
}

/// A program that writes over the board was said to have had 140 million million syncs.
#[test]
fn a_count_that_cannot_be_true_is_told_as_damage() {
    let house = house("counts", NEVER_MS);
    let (file, place) = house.create("a");
    write_at(&house.client, place, &file, 0, b"a");
    let status = || Control::connect(&house.pool).unwrap().status().unwrap();
    let before = status();
    assert!(!before.summary.is_board_damaged && before.errors.is_empty(), "{:?}", before.errors);
    for damage in [1 << 47, u64::MAX] {
        house.client.board().header().count_absorbed(None, place.slot);
        house.client.board().header().syncs_real.add(damage);
        let after = status();
        assert!(after.summary.is_board_damaged);
        assert!(after.errors.iter().any(|told| told.contains("the board is damaged")), "{:?}", after.errors);
    }
}
