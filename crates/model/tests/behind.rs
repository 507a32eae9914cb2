//! State Behind: page rows and their frames between writers, readers and a keeper that drains, and the keeper's taking over
//! from a client that dies at any step.
#![cfg(shuttle)]

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use holdfast_board::model::{Memory, Mutation, Rules, begin, choose, live, spawn, step};
use holdfast_board::{Board, FileState, PAGE_BYTES, Plan, Source};
use holdfast_cache::behind::fetch;
use holdfast_cache::{Client, Errno, FileRef, Outcome, Place, Reading};
use holdfast_log::whole_write;
use holdfast_media::Bytes;
use holdfast_model::{Media, caught, explore, schedules};

const RULES: Rules = Rules { memory: Memory::Buffered, early_returns: false, mutation: None };
const DEADLY: Rules = Rules { early_returns: true, ..RULES };
const SLOT: u32 = 1;
const GENERATION: u64 = 10;
const FILE: FileRef = FileRef { slot: SLOT, generation: GENERATION };
/// Writes lie across the first two pages, and overlap there.
const FIRST: u64 = PAGE_BYTES - 8;
const BYTES: usize = 16;
const KEEPER: u32 = 77;

/// Enough that none is ever missing: a write without one would have to ask the keeper.
const FRAMES: u32 = 8;

/// How the keeper drains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drain {
    /// Under the page locks, the bytes first, then the row goes.
    Right,
    /// Without the page locks.
    Unlocked,
}

#[derive(Clone)]
struct Yard {
    board: Board,
    media: Media,
    /// What the page cache has of the file.
    kernel: Arc<Mutex<Vec<u8>>>,
    /// The newest id that was acknowledged. Not the checker's: looking at it is no step.
    done: Arc<AtomicU64>,
}

impl Yard {
    /// An empty file in state Behind.
    fn new(rules: Rules) -> Self {
        begin(rules);
        let board = Board::ordinary(Plan::small(SLOT + 1, 8, 4, 4).with_frames(FRAMES));
        let bytes = 2 * PAGE_BYTES;
        board.header().counter.set(GENERATION + 1);
        board.header().keeper.word.store(1, SeqCst);
        let row = &board.files()[SLOT as usize];
        row.generation.store(GENERATION, SeqCst);
        row.size_hint.store(bytes, SeqCst);
        row.set_state(FileState::Behind);
        let kernel = Arc::new(Mutex::new(vec![0; bytes as usize]));
        Self { board, media: Media::new(), kernel, done: Arc::default() }
    }

    fn client(&self, id: u32) -> Client<Media> {
        let media = &self.media;
        Client::new(media.clone(), self.board.clone(), *media.layout(), media.uuid(), id)
    }

    fn pread(&self, offset: u64, bytes: &mut [u8]) {
        choose();
        bytes.copy_from_slice(&self.kernel.lock().unwrap()[offset as usize..][..bytes.len()]);
    }

    fn pwrite(&self, offset: u64, bytes: &[u8]) {
        choose();
        if step() {
            self.kernel.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    fn write(&self, client: &Client<Media>, at: u64, id: u8) {
        let payload = [id; BYTES];
        let raw = || {
            self.pwrite(at, &payload);
            Ok(BYTES)
        };
        let parts = [Bytes::from_slice(&payload)];
        let outcome = client.write(FILE, Place::At(at), &parts, raw, || Err(Errno::EIO)).unwrap();
        assert!(matches!(outcome, Outcome::Absorbed { bytes: BYTES, .. }));
    }

    fn read(&self, client: &Client<Media>, offset: u64) -> [u8; BYTES] {
        let mut bytes = [0xee; BYTES];
        for turn in 0.. {
            if turn == 0 && client.leaves_to_kernel(FILE, BYTES) {
                if client.read_by_kernel(FILE, || self.pread(offset, &mut bytes)).is_some() {
                    break;
                }
                continue;
            }
            let raw = |part: &mut [u8], offset| {
                self.pread(offset, part);
                Ok(part.len())
            };
            match client.read(FILE, Place::At(offset), &mut bytes, raw, || panic!(), |_| panic!()).unwrap() {
                Reading::Done(count) => assert_eq!(count, BYTES),
                Reading::Kernel
                    if client.read_by_kernel(FILE, || self.pread(offset, &mut bytes)).is_none() =>
                {
                    continue;
                }
                Reading::Kernel => {}
                Reading::Stale => panic!("the slot is in use"),
            }
            break;
        }
        bytes
    }

    /// Brings the rows of both pages to the page cache, under locks that the caller holds.
    fn drain_locked(&self) {
        let count = &self.board.files()[SLOT as usize].page_rows;
        for page in 0..2 {
            let Some(row) = self.board.pages().find(SLOT, page) else { continue };
            let mut bytes = vec![0; (row.content.hi - row.content.lo) as usize];
            fetch(&self.board, &self.media, &row.content, row.content.lo, &mut bytes);
            self.pwrite(page * PAGE_BYTES + u64::from(row.content.lo), &bytes);
            self.board.pages().remove(row.index, count);
            if let Source::Frame(frame) = row.content.source {
                self.board.frames().free(frame);
            }
        }
    }

    fn drain(&self, how: Drain) {
        if how == Drain::Unlocked {
            return self.drain_locked();
        }
        assert!(self.board.page_locks().lock(KEEPER, SLOT, 0, 2 * PAGE_BYTES));
        self.drain_locked();
        self.board.page_locks().unlock(KEEPER, SLOT, 0, 2 * PAGE_BYTES);
    }

    /// What the keeper does when `client` is dead.
    fn repair(&self, client: u32) {
        for dead in self.board.dead_lanes(client) {
            if let Some(seq) = dead.seq {
                let (media, layout) = (&self.media, self.media.layout());
                let members = whole_write(media, layout, &media.uuid(), &dead.segments, seq, |_| ());
                // As `durable/repair.rs`: what the rows had is in the kernel before all of the write is.
                let rows = &self.board.files()[SLOT as usize].page_rows;
                rows.enter();
                if !members.is_empty() {
                    self.drain_locked();
                }
                for (header, payload) in members {
                    self.pwrite(header.file_offset, &payload);
                }
                rows.leave();
            }
            self.board.frames().free_taken(dead.index);
            self.board.open_lane(&dead);
        }
        for slot in self.board.files_held_by(client) {
            self.board.files()[slot as usize].unlock_exclusive(client);
        }
    }
}

fn whole(bytes: &[u8]) -> u8 {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a read is torn: {bytes:?}");
    bytes[0]
}

/// A writer whose writes lie over the end of a page, a reader of them, and a keeper that drains twice.
fn chaining_and_draining(how: Drain, rules: Rules) {
    let yard = Yard::new(rules);
    let (writer, reader, keeper) = (yard.clone(), yard.clone(), yard.clone());
    let writing = spawn(move || {
        let client = writer.client(2);
        for id in 1..=3 {
            // The middle one begins earlier and ends earlier: it joins what is there, in a frame if there is one.
            writer.write(&client, if id == 2 { FIRST - 4 } else { FIRST }, id);
            writer.done.store(u64::from(id), SeqCst);
        }
    });
    let draining = spawn(move || {
        keeper.drain(how);
        keeper.drain(how);
    });
    let client = reader.client(3);
    let mut last = 0;
    for _ in 0..4 {
        let known = reader.done.load(SeqCst);
        // The part that every write covers.
        let bytes = reader.read(&client, FIRST);
        let seen = u64::from(whole(&bytes[..BYTES - 4]));
        assert!(seen >= known && seen >= last, "a read is old: {seen} after {known}, {last}");
        last = seen;
    }
    writing.join().unwrap();
    draining.join().unwrap();
    assert_eq!(whole(&yard.read(&client, FIRST)), 3);
    yard.drain(Drain::Right);
    assert_eq!(whole(&yard.kernel.lock().unwrap()[FIRST as usize..][..BYTES]), 3, "the kernel lacks bytes");
    assert_eq!(yard.board.files()[SLOT as usize].page_rows.get(), 0);
}

/// History 21: a read that meets a write, a merge and a drain of its pages is whole and not older than what was
/// acknowledged, or read, before.
#[test]
fn a_read_is_whole_and_new_while_rows_come_change_and_go() {
    explore(schedules(2000), || chaining_and_draining(Drain::Right, RULES));
}

/// History 20: a keeper that drains without the page locks takes a newer row away, or frees the frame that is read.
#[test]
fn draining_without_the_page_locks_is_caught() {
    caught(schedules(20_000), "a read is", || chaining_and_draining(Drain::Unlocked, RULES));
}

/// History 21: what the kernel read counts only if no row was there, nor came and went, meanwhile.
#[test]
fn a_kernel_read_that_is_not_checked_is_caught() {
    let rules = Rules { mutation: Some(Mutation::KernelReadUnchecked), ..RULES };
    caught(schedules(40_000), "a read is", move || chaining_and_draining(Drain::Right, rules));
}

/// One client dies before its visible step number `steps`; another writes the same bytes and reads them. Returns whether the
/// client was killed. With `opens_only` the keeper opens what the dead one held and does nothing else.
fn victim_and_other(steps: u64, opens_only: bool) -> bool {
    let yard = Yard::new(DEADLY);
    let before = yard.client(4);
    yard.write(&before, FIRST - 4, 1);
    let doomed = yard.clone();
    let victim = spawn(move || {
        let client = doomed.client(1);
        live(steps, || doomed.write(&client, FIRST, 2)).is_none()
    });
    let other = yard.clone();
    let reading = spawn(move || {
        let client = other.client(2);
        let mut last = 0;
        for _ in 0..2 {
            let seen = whole(&other.read(&client, FIRST)[..BYTES - 4]);
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
    let seen = yard.read(&before, FIRST);
    whole(&seen[..BYTES - 4]);
    yard.drain(Drain::Right);
    let kernel = yard.kernel.lock().unwrap()[FIRST as usize..][..BYTES].to_vec();
    assert!(kernel == seen, "the kernel has {kernel:?}, a reader saw {seen:?}");
    killed
}

/// History 15 in state Behind: killed at every step of a write over the end of a page, with one row entered and the other not,
/// it is whole in both or in none.
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
    caught(schedules(20_000), "a read is torn", move || {
        let steps = steps.fetch_add(1, SeqCst) % 120;
        victim_and_other(u64::from(steps), true);
    });
}
