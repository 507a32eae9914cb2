//! State Behind, keeper and clients in one process: whatever happens in whatever order, a read sees
//! the newest write, the log alone can rebuild the file, and the kernel has it all once the file
//! left the state.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_board::FileState;
use holdfast_cache::{Client, Errno, FileRef, OPTIMISTIC_BYTES_MAX, Origin, Outcome, Place, Reading};
use holdfast_media::Bytes;
use holdfast_testkit::Random;

use super::{House, NEVER_MS, attach, contents, errno, house_with};
use crate::config::WriteBehind;

pub(super) fn behind_house(name: &str, age_ms_max: u64, frames: u64) -> House {
    house_with(name, |config| {
        config.age_ms_max = age_ms_max;
        config.write_behind = WriteBehind::AtOnce;
        config.read_cache_bytes = frames * 4096;
    })
}

pub(super) fn state(client: &Client, place: FileRef) -> FileState {
    client.board().row(place.slot).state()
}

fn rows(client: &Client, place: FileRef) -> u32 {
    client.board().row(place.slot).page_rows().get()
}

/// A description with a cursor of its own, as the hooks would drive it.
pub(super) struct Program<'a> {
    client: &'a Client,
    place: FileRef,
    file: &'a File,
    cursor: AtomicU64,
}

impl<'a> Program<'a> {
    pub(super) fn new(client: &'a Client, place: FileRef, file: &'a File) -> Self {
        Self { client, place, file, cursor: AtomicU64::new(0) }
    }

    pub(super) fn write(&self, place: Place, bytes: &[u8]) -> u64 {
        // In two parts, where there are two bytes.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let parts = [Bytes::from_slice(first), Bytes::from_slice(second)];
        let at = || match place {
            Place::At(offset) => offset,
            Place::Cursor { .. } => self.cursor.load(Ordering::SeqCst),
            Place::Append => self.file.metadata().unwrap().len(),
        };
        let raw = || {
            let offset = at();
            self.file.write_all_at(bytes, offset).map_err(errno)?;
            self.cursor.store(offset + bytes.len() as u64, Ordering::SeqCst);
            Ok(bytes.len())
        };
        let cursor = || Ok(self.cursor.load(Ordering::SeqCst));
        let seek = |to| {
            self.cursor.store(to, Ordering::SeqCst);
            Ok(())
        };
        match self.client.write_seeking(self.place, place, &parts, raw, cursor, seek).unwrap() {
            Outcome::Absorbed { bytes: written, offset } => {
                assert_eq!(written, bytes.len());
                offset
            }
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0xee; bytes];
        if bytes <= OPTIMISTIC_BYTES_MAX
            && let Some(count) = self.client.read_optimistically(self.place, offset, &mut buffer)
        {
            buffer.truncate(count);
            return buffer;
        }
        if self.client.leaves_to_kernel(self.place, bytes)
            && let Some(count) =
                self.client.read_by_kernel(self.place, || self.file.read_at(&mut buffer, offset).unwrap())
        {
            buffer.truncate(count);
            return buffer;
        }
        let raw = |buffer: &mut [u8], offset| self.file.read_at(buffer, offset).map_err(errno);
        let none = || -> Result<u64, Errno> { panic!("no cursor is needed") };
        let read = self.client.read(self.place, Place::At(offset), &mut buffer, raw, none, |_| panic!());
        let count = match read.unwrap() {
            Reading::Done(count) => count,
            Reading::Kernel => {
                // As the kernel does: up to the end of the file.
                let size = self.file.metadata().unwrap().len();
                let count = size.saturating_sub(offset).min(bytes as u64) as usize;
                self.file.read_exact_at(&mut buffer[..count], offset).unwrap();
                count
            }
            Reading::Stale => panic!("the slot is in use"),
        };
        buffer.truncate(count);
        buffer
    }
}

/// What a file should hold.
#[derive(Default)]
struct Model(Vec<u8>);

impl Model {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset as usize + bytes.len();
        self.0.resize(self.0.len().max(end), 0);
        self.0[offset as usize..end].copy_from_slice(bytes);
    }

    fn read(&self, offset: u64, bytes: usize) -> &[u8] {
        let from = self.0.len().min(offset as usize);
        &self.0[from..self.0.len().min(from + bytes)]
    }
}

/// One random operation on file and model; returns its name.
fn step(random: &mut Random, program: &Program<'_>, model: &mut Model, span: u64) -> &'static str {
    let (client, place, file) = (program.client, program.place, program.file);
    let tag = random.number_below(255) as u8 + 1;
    let length = match random.number_below(10) {
        0 => 1 + random.number_below(40_000),
        1 => 4096,
        2 => 8192,
        _ => 1 + random.number_below(700),
    } as usize;
    let bytes: Vec<u8> = (0..length).map(|at| tag.wrapping_add((at / 97) as u8)).collect();
    let offset = if random.number_below(3) == 0 {
        random.number_below(span / 4096) * 4096
    } else {
        random.number_below(span)
    };
    match random.number_below(40) {
        0..14 => {
            assert_eq!(program.write(Place::At(offset), &bytes), offset);
            model.write(offset, &bytes);
            "write"
        }
        14..20 => {
            let end = model.0.len() as u64;
            if end < 2 * span {
                assert_eq!(program.write(Place::Append, &bytes), end);
                model.write(end, &bytes);
            }
            "append"
        }
        20..24 => {
            let cursor = program.cursor.load(Ordering::SeqCst).min(span);
            program.cursor.store(cursor, Ordering::SeqCst);
            assert_eq!(program.write(Place::Cursor { known: None }, &bytes), cursor);
            assert_eq!(program.cursor.load(Ordering::SeqCst), cursor + bytes.len() as u64);
            model.write(cursor, &bytes);
            "write at the cursor"
        }
        24..37 => {
            assert!(
                program.read(offset, length) == model.read(offset, length),
                "at {offset}, {length} bytes"
            );
            "read"
        }
        37 => {
            client.truncate(place, offset, || file.set_len(offset).map_err(errno)).unwrap();
            model.0.resize(offset as usize, 0);
            "truncate"
        }
        38 => {
            let raw = || {
                let mut zeros = vec![0; length];
                let end = file.metadata().unwrap().len();
                zeros.truncate(end.saturating_sub(offset) as usize);
                file.write_all_at(&zeros, offset).map_err(errno)
            };
            client.punch(place, offset, length as u64, raw).unwrap();
            let end = model.0.len().min(offset as usize + length);
            model.0[end.min(offset as usize)..end].fill(0);
            "punch"
        }
        _ => {
            client.bring_to_kernel(place).unwrap();
            assert_eq!(rows(client, place), 0);
            assert!(contents(file) == model.0, "the kernel has all of it");
            "drain"
        }
    }
}

fn random_operations(name: &str, frames: u64, span: u64, seed: u64) {
    let house = behind_house(name, NEVER_MS, frames);
    let (file, place) = house.create("a");
    let program = Program::new(&house.client, place, &file);
    let (mut random, mut model) = (Random::new(seed), Model::default());
    let mut behind = 0;
    for round in 0..3000 {
        assert_eq!(state(&house.client, place), FileState::Behind);
        let what = step(&mut random, &program, &mut model, span);
        behind += u32::from(rows(&house.client, place) > 0);
        let row = house.client.board().row(place.slot);
        let size = row.end();
        assert!(house.client.hidden_size(place).is_none_or(|found| found == size));
        assert_eq!(size, model.0.len() as u64, "size after {what}, seed {seed}, round {round}");
        if round % 500 == 499 {
            assert!(house.replayed(place) == model.0, "log alone, seed {seed}, round {round}");
        }
    }
    assert!(behind > 1500, "rows were in use in {behind} rounds");
    assert!(program.read(0, 4 * span as usize) == model.0);
    house.client.leave_behind(place, true).unwrap();
    assert_eq!((state(&house.client, place), rows(&house.client, place)), (FileState::Through, 0));
    assert!(contents(&file) == model.0, "the kernel has all of it, seed {seed}");
}

#[test]
fn reads_see_the_newest_write_and_the_log_rebuilds_the_file() {
    random_operations("behind-model", 64, 200_000, 1);
}

#[test]
fn the_same_without_a_single_frame() {
    random_operations("behind-no-frames", 0, 200_000, 2);
}

#[test]
fn the_same_in_a_few_pages_with_a_few_frames() {
    random_operations("behind-small", 2, 20_000, 3);
}

/// Several threads write stripes of the same pages, read them back and never see anything else in
/// them, while the keeper drains and expires all the time.
fn racing(name: &str, frames: u64, age_ms_max: u64, rounds: u64) {
    const THREADS: u64 = 4;
    const STRIPE: u64 = 700;
    let house = behind_house(name, age_ms_max, frames);
    let (file, place) = house.create("a");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (client, file) = (&house.client, &file);
                scope.spawn(move || {
                    let program = Program::new(client, place, file);
                    let mut random = Random::new(thread + 10);
                    let mut mine = vec![vec![0u8; STRIPE as usize]; 150];
                    for _ in 0..rounds {
                        let stripe = random.number_below(mine.len() as u64);
                        let start = (stripe * THREADS + thread) * STRIPE;
                        let from = random.number_below(STRIPE);
                        let length = 1 + random.number_below(STRIPE - from);
                        if random.number_below(3) > 0 {
                            let bytes = vec![random.number_below(255) as u8; length as usize];
                            program.write(Place::At(start + from), &bytes);
                            mine[stripe as usize][from as usize..][..length as usize].copy_from_slice(&bytes);
                        } else {
                            let mut seen = program.read(start + from, length as usize);
                            seen.resize(length as usize, 0);
                            let known = &mine[stripe as usize][from as usize..][..length as usize];
                            assert!(seen == known, "thread {thread}, stripe {stripe}");
                        }
                    }
                    mine
                })
            })
            .collect();
        let draining = scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                house.client.bring_to_kernel(place).unwrap();
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let stripes: Vec<Vec<Vec<u8>>> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        stop.store(true, Ordering::SeqCst);
        draining.join().unwrap();
        let mut model = Model::default();
        for (thread, stripes) in stripes.iter().enumerate() {
            for (stripe, bytes) in stripes.iter().enumerate() {
                model.write((stripe as u64 * THREADS + thread as u64) * STRIPE, bytes);
            }
        }
        let program = Program::new(&house.client, place, &file);
        let mut seen = program.read(0, 1 << 20);
        seen.resize(model.0.len(), 0);
        assert!(seen == model.0, "through the cache");
        house.client.leave_behind(place, true).unwrap();
        let mut kernel = contents(&file);
        kernel.resize(model.0.len(), 0);
        assert!(kernel == model.0, "in the kernel");
    });
}

#[test]
fn racing_writers_of_the_same_pages_never_lose_a_byte() {
    racing("behind-racing", 40, NEVER_MS, 6000);
}

#[test]
fn nor_do_they_without_frames() {
    racing("behind-racing-bare", 0, NEVER_MS, 1500);
}

#[test]
fn nor_while_everything_expires_as_fast_as_it_can() {
    racing("behind-expiring", 40, 1, 6000);
}

#[test]
fn racing_appends_each_get_a_place_of_their_own() {
    let house = behind_house("behind-append", 5, 1000);
    let (file, place) = house.create("a");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (client, file) = (&house.client, &file);
            scope.spawn(move || {
                let program = Program::new(client, place, file);
                for round in 0..3000u32 {
                    let mut record = [thread; 100];
                    record[1..5].copy_from_slice(&round.to_le_bytes());
                    let offset = program.write(Place::Append, &record);
                    assert_eq!(offset % 100, 0);
                    assert_eq!(program.read(offset, 100), record);
                }
            });
        }
    });
    let bytes = Program::new(&house.client, place, &file).read(0, 2 << 20);
    assert_eq!(bytes.len(), 4 * 3000 * 100);
    let mut next = [0u32; 4];
    for record in bytes.chunks(100) {
        let round = u32::from_le_bytes(record[1..5].try_into().unwrap());
        assert_eq!(round, next[record[0] as usize]);
        next[record[0] as usize] += 1;
    }
}

#[test]
fn a_log_that_wraps_many_times_is_drained_in_time() {
    let house = behind_house("behind-wrap", NEVER_MS, 16);
    let (file, place) = house.create("a");
    let program = Program::new(&house.client, place, &file);
    for round in 0..6000u64 {
        program.write(Place::At(round % 2000 * 65_536), &vec![round as u8; 65_536]);
    }
    for block in 0..2000u64 {
        let newest = if block < 2000 { 4000 + block } else { block };
        let seen = program.read(block * 65_536, 65_536);
        assert!(seen.iter().all(|byte| *byte == newest as u8) && seen.len() == 65_536, "block {block}");
    }
}

#[test]
fn a_file_that_others_have_open_or_that_goes_away_is_not_left_behind() {
    let house = behind_house("behind-leaves", NEVER_MS, 16);
    let path = house.directory.path().join("shared");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let place = house.client.register(file.as_raw_fd(), Origin::Created, None, || false).unwrap().unwrap();
    assert_eq!(state(&house.client, place), FileState::Through, "somebody reads it where we cannot see it");

    let (file, place) = house.create("removed");
    let program = Program::new(&house.client, place, &file);
    program.write(Place::At(0), b"still readable");
    // Its bytes may be in the page cache by now: the keeper tells them to others.
    assert_eq!(state(&house.client, place), FileState::Behind);
    let path = house.directory.path().join("removed");
    let name = std::ffi::CString::new(path.clone().into_os_string().into_encoded_bytes()).unwrap();
    let removal = house.client.unlinking(place, -100, &name).unwrap();
    std::fs::remove_file(&path).unwrap();
    house.client.unlinked(place, removal, true);
    assert_eq!(contents(&file), b"still readable");

    let (file, place) = house.create("around");
    let program = Program::new(&house.client, place, &file);
    program.write(Place::At(5000), b"before");
    house.client.around(place, || assert_eq!(&contents(&file)[5000..], b"before")).unwrap();
    assert_eq!(state(&house.client, place), FileState::Through);
}

/// What a child of the kill test does until it is killed: writes records that tell whether they are
/// whole, over one another, at the end, across pages.
fn write_until_killed(socket: &str, path: &str, seed: u64) -> ! {
    let client = attach(std::path::Path::new(socket));
    let file = File::options().read(true).write(true).open(path).unwrap();
    let place = client.register(file.as_raw_fd(), Origin::Opened, None, || true).unwrap().unwrap();
    let program = Program::new(&client, place, &file);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let program = &program;
            scope.spawn(move || {
                let mut random = Random::new(seed * 3 + thread);
                loop {
                    program.write(Place::At(random.number_below(RECORDS) * RECORD), &record(random.draw()));
                }
            });
        }
    });
    unreachable!("the writers never end");
}

const RECORD: u64 = 1500;
const RECORDS: u64 = 90;

/// A record of one repeated number.
fn record(number: u64) -> Vec<u8> {
    number.to_le_bytes().iter().copied().cycle().take(RECORD as usize).collect()
}

#[test]
fn whenever_a_writer_is_killed_every_record_is_old_or_new_and_the_log_agrees() {
    if let Ok(child) = std::env::var("HOLDFAST_TEST_WRITER") {
        let parts: Vec<&str> = child.split('|').collect();
        write_until_killed(parts[0], parts[1], parts[2].parse().unwrap());
    }
    let house = behind_house("behind-kill", NEVER_MS, 24);
    let (file, place) = house.create("a");
    let program = Program::new(&house.client, place, &file);
    program.write(Place::At(0), &record(0).repeat(RECORDS as usize));
    let path = house.directory.path().join("a");
    let socket = house.socket.clone();
    let mut random = Random::new(77);
    for round in 0..40 {
        let arguments = ["--exact", "--nocapture", "--quiet"];
        let name = "tests::behind::whenever_a_writer_is_killed_every_record_is_old_or_new_and_the_log_agrees";
        let row = house.client.board().row(place.slot);
        let before = row.newest_seq();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(arguments)
            .arg(name)
            .env("HOLDFAST_TEST_WRITER", format!("{}|{}|{round}", socket.display(), path.display()))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while row.newest_seq() < before.after(200) {
            std::thread::sleep(Duration::from_micros(200));
            assert!(child.try_wait().unwrap().is_none(), "the writer ended by itself");
        }
        std::thread::sleep(Duration::from_micros(random.number_below(3000)));
        child.kill().unwrap();
        child.wait().unwrap();
        // A page lock of the dead is opened by the keeper; reading waits for that.
        let seen = program.read(0, (RECORD * RECORDS) as usize);
        for (index, record) in seen.chunks(RECORD as usize).enumerate() {
            let whole = record.chunks(8).all(|part| *part == record[..part.len()]);
            assert!(whole, "record {index} is torn, round {round}");
        }
        if round % 4 == 3 {
            // Every lane of the dead has been repaired once the file can be had exclusively.
            house.client.bring_to_kernel(place).unwrap();
            assert!(contents(&file) == program.read(0, 1 << 20), "kernel, round {round}");
            let client = &house.client;
            assert!(client.board().lanes().iter().all(|lane| !lane.is_announced()));
            let replayed = house.replayed(place);
            let expired = row.expired_seq() > place.generation.seq();
            assert!(expired || replayed == contents(&file), "log, round {round}");
        }
    }
}

/// Reads of a file in state Through were refused with `EIO` for as long as the keeper wrote the log
/// to it again.
#[test]
fn a_read_waits_while_the_log_is_written_to_the_file_again() {
    let house = super::house("rewritten", NEVER_MS);
    let (file, place) = house.create("file");
    super::write_at(&house.client, place, &file, 0, b"newest");
    assert_eq!(state(&house.client, place), FileState::Through);
    let board = house.client.board();
    let row = board.row(place.slot);
    // As `rewrite` does.
    assert!(board.lock_file(place.slot, holdfast_durable::KEEPER_ID));
    row.page_rows().enter();
    let mut buffer = [0; 6];
    let raw = |_: &mut [u8], _| -> Result<usize, Errno> { panic!("the kernel is asked by the caller") };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            row.page_rows().leave();
            row.unlock_exclusive(holdfast_durable::KEEPER_ID);
        });
        let read = house.client.read(place, Place::At(0), &mut buffer, raw, || panic!(), |_| panic!());
        assert_eq!(read, Ok(Reading::Kernel));
        assert_eq!(row.page_rows().get(), 0, "the read went on before the file was whole");
    });
}
