//! Loaded pages, keeper and clients in one process: a read without a lock is whole and new whatever
//! happens beside it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdfast_board::FileState;
use holdfast_cache::{Client, FileRef, Place, Reading};
use holdfast_testkit::Random;

use super::behind::{Program, behind_house, state};
use super::{NEVER_MS, contents, errno};

const PAGE: u64 = 4096;

/// How a read was answered.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Optimistic,
    Locked { calls: u32 },
    Kernel,
}

fn read(client: &Client, place: FileRef, file: &std::fs::File, offset: u64, buffer: &mut [u8]) -> Answer {
    use std::os::unix::fs::FileExt;
    if let Some(count) = client.read_optimistically(place, offset, buffer) {
        assert_eq!(count, buffer.len());
        return Answer::Optimistic;
    }
    if client.leaves_to_kernel(place, buffer.len())
        && client.read_by_kernel(place, || file.read_at(buffer, offset).unwrap()).is_some()
    {
        return Answer::Kernel;
    }
    let mut calls = 0;
    let raw = |part: &mut [u8], offset| {
        calls += 1;
        file.read_at(part, offset).map_err(errno)
    };
    match client.read(place, Place::At(offset), buffer, raw, || panic!(), |_| panic!()).unwrap() {
        Reading::Done(count) => {
            assert_eq!(count, buffer.len());
            Answer::Locked { calls }
        }
        Reading::Kernel => Answer::Kernel,
        Reading::Stale => panic!("the slot is in use"),
    }
}

#[test]
fn a_page_is_loaded_once_and_follows_every_write() {
    let house = behind_house("loaded-once", NEVER_MS, 64);
    let (file, place) = house.create("a");
    let client = &house.client;
    let program = Program::new(client, place, &file);
    let mut model: Vec<u8> = (0..8 * PAGE).map(|at| (at / 97) as u8).collect();
    program.write(Place::At(0), &model);
    client.bring_to_kernel(place).unwrap();
    let mut seen = vec![0; 3000];
    assert_eq!(read(client, place, &file, 5000, &mut seen), Answer::Locked { calls: 1 }, "unloaded clean");
    assert_eq!(seen, model[5000..8000]);
    assert_eq!(read(client, place, &file, 5000, &mut seen), Answer::Optimistic, "loaded");
    assert_eq!(seen, model[5000..8000]);
    // Small writes change the loaded page, also after the first was drained.
    for round in 0..4u8 {
        let (at, bytes) = (4100 + u64::from(round) * 450, vec![200 + round; 500]);
        program.write(Place::At(at), &bytes);
        model[at as usize..][..500].copy_from_slice(&bytes);
        assert_eq!(read(client, place, &file, 4096, &mut seen), Answer::Optimistic);
        assert!(seen == model[4096..7096], "round {round}");
        if round % 2 == 1 {
            client.bring_to_kernel(place).unwrap();
        }
    }
    // A whole one is read from the log, and is loaded again by being drained.
    model[4096..8192].fill(7);
    program.write(Place::At(PAGE), &[7; PAGE as usize]);
    assert_eq!(read(client, place, &file, 4096, &mut seen), Answer::Optimistic);
    assert!(seen == model[4096..7096]);
    client.bring_to_kernel(place).unwrap();
    seen.fill(0);
    assert_eq!(read(client, place, &file, 4096, &mut seen), Answer::Optimistic);
    assert!(seen == model[4096..7096]);
    // What cuts the file or leaves it to the kernel drops the page.
    client.truncate(place, 6000, || file.set_len(6000).map_err(errno)).unwrap();
    assert_eq!(client.read_optimistically(place, 4096, &mut seen), None);
    let mut short = vec![0; 1000];
    // A second call finds the end of the file.
    assert_eq!(read(client, place, &file, 4100, &mut short), Answer::Locked { calls: 2 });
    assert!(short == model[4100..5100]);
    client.leave_behind(place, true).unwrap();
    assert_eq!(client.read_optimistically(place, 4096, &mut short), None);
    assert_eq!(read(client, place, &file, 4100, &mut short), Answer::Kernel);
    assert_eq!(state(client, place), FileState::Through);
}

#[test]
fn without_a_read_cache_the_kernel_reads_what_is_drained() {
    let house = behind_house("loaded-none", NEVER_MS, 0);
    let (file, place) = house.create("a");
    let program = Program::new(&house.client, place, &file);
    program.write(Place::At(0), &[3; 5000]);
    let mut seen = [0; 100];
    assert_eq!(read(&house.client, place, &file, 10, &mut seen), Answer::Optimistic, "from the log");
    assert_eq!(seen, [3; 100]);
    house.client.bring_to_kernel(place).unwrap();
    // The keeper may be telling the kernel of the write at this very moment, by a page of its own.
    let asks = || read(&house.client, place, &file, 10, &mut [0; 100]) == Answer::Kernel;
    let asks_soon = || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        asks()
    };
    assert!(asks() || asks_soon());
}

/// History 21: writers put records of one number across two pages; whoever reads one sees one
/// number, and never an older one than it has seen before, while pages are loaded, evicted,
/// drained, expired, and the file leaves the state and comes back.
#[test]
fn an_optimistic_read_never_sees_half_a_write_nor_goes_back() {
    const RECORDS: u64 = 40;
    const BYTES: usize = 3000;
    // Each crosses a page boundary; together they have more pages than there is room for.
    let at = |record: u64| record * 2 * PAGE + 2700;
    let house = behind_house("loaded-racing", 2, 40);
    let (file, place) = house.create("a");
    let numbered = |number: u64| number.to_le_bytes().repeat(BYTES / 8);
    let fill = Program::new(&house.client, place, &file);
    for record in 0..RECORDS {
        fill.write(Place::At(at(record)), &numbered(0));
    }
    let (stop, optimistic, round) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (client, file, stop, numbered, round) = (&house.client, &file, &stop, &numbered, &round);
            scope.spawn(move || {
                let program = Program::new(client, place, file);
                let mut random = Random::new(writer + 1);
                while !stop.load(Ordering::SeqCst) {
                    // One writer has the even records, the other the odd ones.
                    let record = random.number_below(RECORDS / 2) * 2 + writer;
                    let number = round.fetch_add(1, Ordering::SeqCst) + 1;
                    program.write(Place::At(at(record)), &numbered(number));
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let (client, file, optimistic, round) = (&house.client, &file, &optimistic, &round);
                scope.spawn(move || {
                    let mut random = Random::new(100 + reader);
                    let mut newest = [0; RECORDS as usize];
                    let mut buffer = vec![0; BYTES];
                    while round.load(Ordering::SeqCst) < 60_000 {
                        let record = random.number_below(RECORDS);
                        let answer = read(client, place, file, at(record), &mut buffer);
                        // Outside of the state the kernel answers, and it makes no such promise.
                        if answer != Answer::Kernel {
                            let first = u64::from_le_bytes(buffer[..8].try_into().unwrap());
                            assert!(
                                buffer.chunks(8).all(|part| *part == buffer[..8]),
                                "record {record} is torn"
                            );
                            assert!(first >= newest[record as usize], "record {record} goes back");
                            newest[record as usize] = first;
                        }
                        optimistic.fetch_add(u64::from(answer == Answer::Optimistic), Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for turn in 0.. {
            if readers.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                break;
            }
            match turn % 8 {
                7 => house.client.leave_behind(place, false).unwrap(),
                _ => house.client.bring_to_kernel(place).unwrap(),
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        stop.store(true, Ordering::SeqCst);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(optimistic.load(Ordering::SeqCst) > 100, "{optimistic:?} reads were optimistic");
    house.client.leave_behind(place, true).unwrap();
    assert_eq!(contents(&file).len() as u64, at(RECORDS - 1) + BYTES as u64);
}
