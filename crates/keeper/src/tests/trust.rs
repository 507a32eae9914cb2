//! What a client may say, and what is made of it (docs/trust.md): the keeper looks at a descriptor
//! itself, and checks whatever it reads from the board before it uses it.

use holdfast_pool::{Generation, Seq, Slot};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdfast_board::{Content, FileState, Frame, Page, Source};
use holdfast_cache::{Client, Errno, Origin, Place, Reason};
use holdfast_media::{Bytes, Mapping, Nvm, OpenMode};

use super::behind::{Program, behind_house};
use super::durable::{Bench, bench, bench_that_tells};
use super::{NEVER_MS, contents, errno, house, house_with, write_at};
use crate::config::FenceChoice;
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
        let lane = board.lanes().iter().find(|lane| lane.segment.load(Ordering::SeqCst) != 0).unwrap();
        let seq = board.row(self.place.slot).newest_seq.load(Ordering::SeqCst);
        lane.slot.store(slot.number(), Ordering::SeqCst);
        lane.seq.store(seq, Ordering::SeqCst);
        lane.lock_offset.store(offset, Ordering::SeqCst);
        lane.lock_bytes.store(bytes, Ordering::SeqCst);
        lane.announce.store(seq, Ordering::SeqCst);
        lane.owner.store(DEAD, Ordering::SeqCst);
        self.durable.repair(DEAD);
        assert_eq!(lane.owner.load(Ordering::SeqCst), 0);
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
        lane.slot.store(number() as u32, Ordering::SeqCst);
        lane.announce.store(Seq::new(number()), Ordering::SeqCst);
        lane.seq.store(Seq::new(number()), Ordering::SeqCst);
        lane.lock_offset.store(number(), Ordering::SeqCst);
        lane.lock_bytes.store(number(), Ordering::SeqCst);
        lane.at.store(number() as u32, Ordering::SeqCst);
        lane.generation.store(Generation::new(number()), Ordering::SeqCst);
        for reserved in &lane.reserved {
            reserved.store(number() as u32, Ordering::SeqCst);
        }
        lane.owner.store(DEAD, Ordering::SeqCst);
        bench.durable.repair(DEAD);
        assert_eq!(lane.owner.load(Ordering::SeqCst), 0);
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
        let store = |client: &Client| client.board().header().counter.begin(Seq::new(stray));
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

/// What a stray store does: it changes a byte of the bytes that stand somewhere on a board.
fn spoil_on_board(bytes: &[u8], at: usize) {
    let memory = File::options().read(true).write(true).open("/proc/self/mem").unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    for line in maps.lines().filter(|line| line.contains("holdfast-board") && line.contains("rw-s")) {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [from, to] = [from, to].map(|end| u64::from_str_radix(end, 16).unwrap());
        let mut found = vec![0; (to - from) as usize];
        memory.read_exact_at(&mut found, from).unwrap();
        let Some(place) = found.windows(bytes.len()).position(|part| part == bytes) else { continue };
        let place = place + at;
        memory.write_all_at(&[found[place] ^ 4], from + place as u64).unwrap();
        return;
    }
    panic!("it is on no board");
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
        let house = behind_house("trust-joined", NEVER_MS, 64);
        let (file, place) = house.create("a");
        let program = Program::new(&house.client, place, &file);
        program.write(Place::At(0), &[1; 8192]);
        house.client.bring_to_kernel(place).unwrap();
        program.write(Place::At(4000), &[2; 200]);
        let row = house.client.board().pages().find(place.slot, Page::new(1)).unwrap();
        let Source::Log(from) = row.content.source else { panic!("{row:?}") };
        let (nvm, hit) =
            (Mapping::open(&house.pool, OpenMode::ReadWrite).unwrap().0, (from as i64 + at) as u64);
        let word = hit / 8 * 8;
        nvm.store_u64(word, nvm.load_u64(word) ^ 0x10 << (hit % 8 * 8));
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
