//! Loaded pages: readers without locks against a writer, evictions, a drain and the file leaving state Behind.
#![cfg(shuttle)]

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use holdfast_board::model::{Memory, Mutation, Rules, begin, choose, spawn, step};
use holdfast_board::{Board, FileState, PAGE_BYTES, Plan};
use holdfast_cache::behind::fetch;
use holdfast_cache::{Client, FileRef, Outcome, Place, Reading};
use holdfast_media::Bytes;
use holdfast_model::{Media, caught, explore, schedules};

const RULES: Rules = Rules { memory: Memory::Buffered, early_returns: false, mutation: None };
const SLOT: u32 = 1;
const GENERATION: u64 = 10;
const FILE: FileRef = FileRef { slot: SLOT, generation: GENERATION };
/// The record under test lies across the first two pages.
const AT: u64 = PAGE_BYTES - 4;
const BYTES: usize = 8;
/// Pages behind them, to fill the frames with.
const FILLERS: u64 = 7;
const KEEPER: u32 = 77;

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
    /// A file in state Behind, and seven of eight frames taken by other pages of it.
    fn new(rules: Rules) -> Self {
        begin(rules);
        let board = Board::ordinary(Plan::small(SLOT + 1, 8, 4, 4).with_loaded(8));
        let bytes = (2 + FILLERS + 2) * PAGE_BYTES;
        board.header().counter.set(GENERATION + 1);
        board.header().keeper.word.store(1, SeqCst);
        let row = &board.files()[SLOT as usize];
        row.generation.store(GENERATION, SeqCst);
        row.size_hint.store(bytes, SeqCst);
        row.set_state(FileState::Behind);
        let place = Self {
            board,
            media: Media::new(),
            kernel: Arc::new(Mutex::new(vec![0; bytes as usize])),
            done: Arc::default(),
        };
        let client = place.client(1);
        for page in 2..2 + FILLERS {
            place.read(&client, page * PAGE_BYTES);
        }
        place
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

    fn write(&self, client: &Client<Media>, id: u8) {
        let payload = [id; BYTES];
        let raw = || {
            self.pwrite(AT, &payload);
            Ok(BYTES)
        };
        let parts = [Bytes::from_slice(&payload)];
        let outcome = client.write(FILE, Place::At(AT), &parts, raw, || panic!("no cursor")).unwrap();
        assert!(matches!(outcome, Outcome::Absorbed { bytes: BYTES, .. }));
        self.done.store(u64::from(id), SeqCst);
    }

    /// Reads as the hooks do.
    fn read(&self, client: &Client<Media>, offset: u64) -> [u8; BYTES] {
        let mut bytes = [0xee; BYTES];
        loop {
            if let Some(count) = client.glance(FILE, offset, &mut bytes) {
                assert_eq!(count, BYTES);
                return bytes;
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
            return bytes;
        }
    }

    /// What the keeper does to pages under their locks: bytes first, then the row goes.
    fn drain(&self) {
        assert!(self.board.page_locks().lock(KEEPER, SLOT, 0, 2 * PAGE_BYTES));
        for page in 0..2 {
            let Some(row) = self.board.pages().find(SLOT, page) else { continue };
            let mut bytes = vec![0; (row.content.hi - row.content.lo) as usize];
            fetch(&self.board, &self.media, &row.content, row.content.lo, &mut bytes);
            self.pwrite(page * PAGE_BYTES + u64::from(row.content.lo), &bytes);
            self.board.pages().remove(row.index, &self.board.files()[SLOT as usize].page_rows);
        }
        self.board.page_locks().unlock(KEEPER, SLOT, 0, 2 * PAGE_BYTES);
    }

    /// Behind -> Through.
    fn leave_behind(&self) {
        assert!(self.board.lock_file(SLOT, KEEPER));
        self.drain();
        let row = &self.board.files()[SLOT as usize];
        self.board.loaded().drop_file(SLOT, 0);
        row.loaded.store(0, SeqCst);
        row.set_state(FileState::Through);
        row.unlock_exclusive(KEEPER);
    }
}

/// A writer of two records, a reader of them, a reader whose pages want frames, and a keeper that drains, then takes the
/// file out of the state, after which an outsider writes a third record.
fn readers_and_others(rules: Rules) {
    let place = Yard::new(rules);
    let mut threads = Vec::new();
    let (writer, reader, evictor, keeper) = (place.clone(), place.clone(), place.clone(), place.clone());
    threads.push(spawn(move || {
        let client = writer.client(2);
        writer.write(&client, 1);
        writer.write(&client, 2);
    }));
    threads.push(spawn(move || {
        keeper.drain();
        keeper.leave_behind();
    }));
    let evicting = spawn(move || {
        let client = evictor.client(4);
        for page in 0..2 {
            evictor.read(&client, (2 + FILLERS + page) * PAGE_BYTES);
        }
    });
    let reading = spawn(move || {
        let (client, mut last) = (reader.client(3), 0);
        for _ in 0..4 {
            let known = reader.done.load(SeqCst);
            let bytes = reader.read(&client, AT);
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
    place.pwrite(AT, &[3; BYTES]);
    place.done.store(3, SeqCst);
    reading.join().unwrap();
    evicting.join().unwrap();
    assert!(place.read(&place.client(5), AT) == [3; BYTES], "a read is old at the end");
}

/// History 21, and history 10 for readers: every read is whole, and not older than what was acknowledged, or read, before.
#[test]
fn a_glance_is_whole_and_new_whatever_happens_beside_it() {
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
