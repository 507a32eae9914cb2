//! The durable part by itself, on real files: what can be done to a file whose writers somebody
//! keeps out.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdfast_board::{Board, Change, FileState, LaneIndex, Plan, SegmentState};
use holdfast_cache::{Answer, Client, Errno, FileRef, FileRequest, Place, Reason, Refusal};
use holdfast_media::{Bytes, Mapping, OpenMode};
use holdfast_pool::{Identity, Seq};

use super::{contents, errno};
use holdfast_disk::{Disk, DiskFile, OsDisk, OsFile};
use holdfast_durable::{Durable, Effort, Events, Held, ManagedFile, Newcomer, Unanswered, Writers};
use holdfast_testkit::ScratchPool;

/// Its asker keeps the writers out.
const SETTLE: FileRequest = FileRequest::Settle { held: true };
const THROUGH: FileRequest = FileRequest::Through { for_good: false };
const BYPASS: FileRequest = FileRequest::Bypass { reason: Reason::Uncovered, let_go: false };

struct Silent;

impl Events<OsFile> for Silent {
    fn trouble(&self, message: String) {
        panic!("{message}");
    }

    fn bypassed(&self, _: &Path, _: Reason) {}

    fn released(&self, _: &ManagedFile<OsFile>) {}
}

/// A keeper without threads, and one file in state Behind.
pub(super) struct Bench {
    pub durable: Durable<Mapping, OsDisk>,
    pub client: Client,
    pub file: File,
    pub place: FileRef,
    pub pool: ScratchPool,
    pub directory: tempfile::TempDir,
}

pub(super) const CLIENT: u32 = 5;

pub(super) fn bench(name: &str) -> Bench {
    bench_that_tells(name, Arc::new(Silent))
}

pub(super) fn bench_that_tells(name: &str, events: Arc<dyn Events<OsFile>>) -> Bench {
    let pool = ScratchPool::new(name);
    holdfast_recovery::format(&pool, 64 << 20, true, true, &mut |_, _| {}).unwrap();
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let open = || Mapping::open(&pool, OpenMode::ReadWrite).unwrap().0;
    let nvm = open();
    let superblock = holdfast_pool::open(&nvm).unwrap();
    let (layout, uuid) = (superblock.layout, superblock.uuid);
    let plan = Plan::new(layout.slot_count, layout.segment_count).with_frames(4);
    let (board, fd) = Board::create(plan).unwrap();
    board.begin_counter(Seq::new(1000));
    board.header().write_behind.set_level(2);
    let theirs = Board::open(rustix::fd::AsFd::as_fd(&fd), layout.slot_count, layout.segment_count).unwrap();
    let durable = Durable::new((nvm, superblock), Arc::new(board), OsDisk::new(), vec![], events);
    let (file, place) = manage(&durable, &directory.path().join("file"), false);
    let client = Client::new(open(), theirs, layout, uuid, CLIENT);
    Bench { durable, client, file, place, pool, directory }
}

/// An old file that is to be logged, and that nobody else has.
pub(super) fn newcomer<'a>(identity: &'a Identity, path: &'a Path) -> Newcomer<'a> {
    Newcomer { identity, path, created: false, noted: None, fenced: false, bypass: None, unsynced: false }
}

/// A new file, in state Behind.
fn manage(durable: &Durable<Mapping, OsDisk>, path: &Path, fenced: bool) -> (File, FileRef) {
    let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    let place = durable.free_slot(|_| false).unwrap();
    let description = durable.disk.open(path).unwrap();
    let identity = description.identity().unwrap();
    let newcomer = Newcomer { fenced, ..newcomer(&identity, path) };
    assert!(durable.take_slot(place, Held::Open(description), &newcomer).is_ok());
    durable.allow_behind(&durable.file(place).unwrap(), false);
    (file, place)
}

/// A registration that the disk kept waiting for long lost its reservation, and the slot that it
/// took was another file's by then.
#[test]
fn a_slot_that_somebody_has_is_not_taken() {
    let bench = bench("slot-taken");
    bench.write(0, b"acknowledged");
    let path = bench.directory.path().join("late");
    File::create_new(&path).unwrap();
    let description = bench.durable.disk.open(&path).unwrap();
    let identity = description.identity().unwrap();
    let newcomer = newcomer(&identity, &path);
    let late = FileRef { generation: bench.durable.board.draw_generation(), ..bench.place };
    assert!(bench.durable.take_slot(late, Held::Open(description), &newcomer).is_err());
    assert_eq!(bench.durable.slots().generation(bench.place.slot), Some(bench.place.generation));
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    assert_eq!(contents(&bench.file), b"acknowledged");
}

impl Bench {
    pub fn managed(&self) -> Arc<ManagedFile<OsFile>> {
        self.durable.file(self.place).unwrap()
    }

    pub fn state(&self) -> FileState {
        self.durable.board.row(self.place.slot).state()
    }

    /// One more file.
    pub fn manage(&self, name: &str) -> (File, FileRef) {
        manage(&self.durable, &self.directory.path().join(name), false)
    }

    /// One more file, for which nobody vouches that there are no outsiders.
    pub fn manage_fenced(&self, name: &str) -> (File, FileRef) {
        manage(&self.durable, &self.directory.path().join(name), true)
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.write_to(self.place, offset, bytes);
    }

    pub fn write_to(&self, place: FileRef, offset: u64, bytes: &[u8]) {
        let raw = || -> Result<usize, Errno> { panic!("no system call is needed") };
        let parts = [Bytes::from_slice(bytes)];
        self.client
            .write(place, Place::At(offset), &parts, raw, || Err(errno(std::io::Error::other(""))))
            .unwrap();
    }

    fn ask(&self, request: FileRequest) -> Result<Answer, Unanswered> {
        self.durable.answer(CLIENT, self.place, request, || None)
    }
}

#[test]
fn a_file_to_be_rewritten_can_be_settled_and_bypassed_by_who_keeps_its_writers_out() {
    // The rewrite took the file's lock again, which its own caller held, and waited for ever.
    let bench = bench("rewrite-held");
    bench.write(3000, b"a failed sync may have dropped this");
    bench.managed().meta().rewrite = true;
    assert!(bench.durable.board.lock_file(bench.place.slot, CLIENT));
    bench.ask(SETTLE).unwrap();
    bench.durable.board.row(bench.place.slot).unlock_exclusive(CLIENT);
    assert_eq!(&contents(&bench.file)[3000..3008], b"a failed");
    bench.write(10, b"more");
    bench.managed().meta().rewrite = true;
    bench.durable.bypass(&bench.managed(), Reason::MappedShared).unwrap();
    assert_eq!(bench.state(), FileState::Bypassed);
    assert_eq!(&contents(&bench.file)[10..14], b"more");
}

#[test]
fn a_file_that_was_mapped_before_it_had_a_row_never_goes_behind() {
    // The map shows the page cache; what others wrote afterwards was missing there until it was
    // drained.
    let bench = bench("shown");
    let stat = bench.managed().held().stat().unwrap();
    let row = bench.durable.board.row(bench.place.slot);
    for noted in [false, true] {
        assert!(bench.durable.board.lock_file(bench.place.slot, CLIENT));
        bench.ask(THROUGH).unwrap();
        if noted {
            bench.durable.board.header().shown.note(stat.dev, stat.ino);
        }
        row.unlock_exclusive(CLIENT);
        bench.durable.enter_behind(&bench.managed());
        assert_eq!(bench.state() == FileState::Through, noted);
    }
}

#[test]
fn what_a_dead_client_asked_is_not_done_without_its_lock() {
    // It would take the file out of state Behind while others write.
    let bench = bench("asked-late");
    bench.write(0, b"bytes");
    assert_eq!(bench.ask(THROUGH), Err(Refusal::Failed.into()));
    assert_eq!(bench.state(), FileState::Behind);
    assert!(bench.durable.board.lock_file(bench.place.slot, CLIENT));
    bench.ask(THROUGH).unwrap();
    assert_eq!((bench.state(), contents(&bench.file)), (FileState::Through, b"bytes".to_vec()));
}

#[test]
fn a_sync_covers_the_page_rows_of_everything_it_expires() {
    let bench = bench("covers");
    for page in 0..100u64 {
        bench.write(page * 4096 + 7, &[page as u8 + 1; 300]);
    }
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    let row = bench.durable.board.row(bench.place.slot);
    assert_eq!(row.page_rows().get(), 0);
    assert!(!row.has_live_records());
    let bytes = contents(&bench.file);
    for page in 0..100 {
        assert!(bytes[page * 4096 + 7..][..300].iter().all(|byte| *byte == page as u8 + 1));
    }
}

#[test]
fn frames_are_emptied_before_there_are_none() {
    // With all frames in rows, appends of a few bytes went to the page cache one by one, at half
    // the speed.
    let bench = bench("frames");
    let row = bench.durable.board.row(bench.place.slot);
    for page in 0..3u64 {
        for byte in 0..5 {
            // The file grows: its end is in a frame at once.
            bench.write(page * 4096 + byte, &[page as u8 + 1]);
        }
        bench.durable.drain_frames();
        let (rows, pages) = (row.page_rows().get(), [1, 0, 1]);
        assert_eq!(rows, pages[page as usize], "half of the four are in use after the second page");
    }
    bench.write(5 * 4096, &page_of(5, 1));
    bench.durable.drain_frames();
    assert_eq!(row.page_rows().get(), 2, "what lies in the log stays there");
    assert_eq!(contents(&bench.file)[4096..], [2; 5]);
    let log = bench.replayed(6 * 4096);
    assert!((0..3).all(|page| log[page * 4096..][..6] == [[page as u8 + 1; 5].as_slice(), &[0]].concat()));
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    assert!(contents(&bench.file) == log);
}

impl Bench {
    pub fn segments(&self, state: SegmentState) -> usize {
        self.durable.board.segments().iter().filter(|row| row.state() == state).count()
    }

    /// What recovery would make of the file if its bytes in the page cache were lost.
    fn replayed(&self, bytes: usize) -> Vec<u8> {
        let scratch = tempfile::tempfile().unwrap();
        scratch.set_len(bytes as u64).unwrap();
        let file = &scratch;
        let open = || Ok::<_, std::io::Error>(OsFile::from(file.try_clone()?));
        let at = self.place;
        let live =
            holdfast_durable::LiveRecords::of_segments(&self.durable.nvm, &self.durable.superblock, at);
        live.unwrap().apply(&mut || open()).unwrap();
        contents(&scratch)
    }

    fn reclaim(&self, copy_bytes_max: u64) -> holdfast_durable::Reclaimed {
        self.durable.reclaim(Effort { free_goal: u32::MAX, copy_bytes_max, vain_looks_max: u32::MAX })
    }

    fn read(&self, page: u64) -> Vec<u8> {
        let mut buffer = vec![0; 4096];
        let raw = |_: &mut [u8], _| -> Result<usize, Errno> { panic!("a row covers all of the page") };
        let none = || -> Result<u64, Errno> { panic!("no cursor is needed") };
        let at = Place::At(page * 4096);
        self.client.read(self.place, at, &mut buffer, raw, none, |_| panic!()).unwrap();
        buffer
    }
}

fn page_of(page: u64, round: u64) -> Vec<u8> {
    let mut bytes = vec![(page * 7 + round) as u8; 4096];
    bytes[..8].copy_from_slice(&round.to_le_bytes());
    bytes
}

#[test]
fn records_that_newer_ones_cover_die_without_the_disk() {
    let bench = bench("dead-records");
    // 40 pages written over and over: 17 MiB of log, of which the last 160 KiB are needed.
    for round in 0..100 {
        for page in 0..40 {
            bench.write(page * 4096, &page_of(page, round));
        }
    }
    let sealed = bench.segments(SegmentState::Sealed);
    assert!(sealed >= 6, "{sealed} segments are full");
    assert_eq!(bench.reclaim(0).freed as usize, sealed);
    assert_eq!(contents(&bench.file).len(), 0, "the page cache knows nothing of it");
    assert_eq!(bench.managed().meta().failures, 0);
    assert!(bench.replayed(40 * 4096) == (0..40).flat_map(|page| page_of(page, 99)).collect::<Vec<_>>());
}

#[test]
fn what_is_needed_is_copied_and_found_again_while_others_reuse_its_segment() {
    let bench = bench("copied");
    // One page in 50 is written once; it keeps its segment alive.
    let mut cold = Vec::new();
    for turn in 0..40u64 {
        bench.write((1000 + turn) * 4096, &page_of(1000 + turn, 5));
        cold.push(1000 + turn);
        for page in 0..50 {
            bench.write(page * 4096, &page_of(page, turn));
        }
    }
    // A sparse one, which is merged in a frame: its records are needed, and no row points to them.
    bench.write(3000 * 4096 + 10, b"first");
    bench.write(3000 * 4096 + 15, b"second");
    for turn in 40..80u64 {
        for page in 0..50 {
            bench.write(page * 4096, &page_of(page, turn));
        }
    }
    let sealed = bench.segments(SegmentState::Sealed) as u32;
    let freed = bench.reclaim(0).freed;
    assert!(freed > 0 && freed < sealed, "{freed} of {sealed}: those behind the last cold page");
    for _ in 0..3 {
        // Looked at in vain, they are looked at again once much was written.
        let board = &bench.durable.board;
        board.raise_counter(board.next_seq().after(1 << 20));
        let sealed = bench.segments(SegmentState::Sealed);
        let reclaimed = bench.reclaim(1 << 20);
        assert!(reclaimed.copied_bytes > 0 && (reclaimed.freed as usize) >= sealed, "{reclaimed:?} {sealed}");
        // The segments are used again, under other generations.
        for round in 0..110u64 {
            for page in 0..50 {
                bench.write(page * 4096, &page_of(page, round));
            }
        }
        for &page in &cold {
            assert!(bench.read(page) == page_of(page, 5), "page {page}");
        }
        let log = bench.replayed(3001 * 4096);
        assert_eq!(&log[3000 * 4096 + 10..][..11], b"firstsecond");
        assert!(cold.iter().all(|&page| log[page as usize * 4096..][..4096] == page_of(page, 5)));
    }
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    let bytes = contents(&bench.file);
    assert!(cold.iter().all(|&page| bytes[page as usize * 4096..][..4096] == page_of(page, 5)));
    assert_eq!(&bytes[3000 * 4096 + 10..][..11], b"firstsecond");
}

#[test]
fn a_record_that_is_covered_in_part_or_drained_is_kept() {
    // History 1: the covered part alone must not free it.
    let bench = bench("partly-covered");
    bench.write(0, &[1; 8192]);
    bench.write(4096, &[2; 4096]);
    bench.write(20 * 4096, &[3; 4096]);
    bench.durable.drain(&bench.managed(), Seq::MAX, holdfast_durable::Pace::Full).unwrap();
    bench.write(20 * 4096, &[4; 100]);
    for round in 0..30u64 {
        for page in 100..150 {
            bench.write(page * 4096, &page_of(page, round));
        }
    }
    let sealed = bench.segments(SegmentState::Sealed);
    assert_eq!(bench.reclaim(0).freed as usize, sealed - 1);
    let log = bench.replayed(151 * 4096);
    assert_eq!((log[0], log[4095], log[4096], log[8191]), (1, 1, 2, 2));
    assert_eq!((log[20 * 4096], log[20 * 4096 + 100]), (4, 3));
}

#[test]
fn what_asks_for_a_file_that_somebody_has_is_tried_again_and_holds_up_no_thread() {
    // Two such requests took both settlers, and the settle that the holder waited for was never
    // answered.
    let bench = bench("held-by-a-third");
    let board = &bench.durable.board;
    let row = board.row(bench.place.slot);
    bench.write(0, b"bytes");
    assert!(board.lock_file(bench.place.slot, CLIENT + 1));
    assert_eq!(bench.ask(BYPASS), Err(Unanswered::Later));
    // A settle waits for nobody, but for what a failed sync may have dropped the log is written
    // anew.
    bench.managed().meta().rewrite = true;
    assert_eq!(bench.ask(SETTLE), Err(Unanswered::Later));
    assert_eq!(bench.managed().meta().failures, 0, "it was no failure of the disk");
    assert!(!bench.durable.retire(&bench.managed()));
    bench.durable.free_slots();
    // The holder's own request is answered meanwhile.
    bench.durable.answer(CLIENT + 1, bench.place, SETTLE, || None).unwrap();
    row.unlock_exclusive(CLIENT + 1);
    bench.ask(BYPASS).unwrap();
    assert_eq!((bench.state(), contents(&bench.file)), (FileState::Bypassed, b"bytes".to_vec()));
}

#[test]
fn a_file_that_was_left_to_the_kernel_comes_back_when_its_reason_is_gone() {
    let mut bench = bench("back");
    bench.write(0, b"bytes");
    bench.ask(BYPASS).unwrap();
    assert!(!bench.durable.take_back(&bench.managed(), || true), "another reason came up");
    assert_eq!(bench.state(), FileState::Bypassed);
    assert!(bench.durable.take_back(&bench.managed(), || false));
    assert_eq!(bench.state(), FileState::Through);
    let row = bench.durable.board.row(bench.place.slot);
    assert!(row.needs_real_sync(), "what was written meanwhile is in the page cache alone");
    // And one that nobody has open for writing loses its slot: its next opener finds a file like
    // any other.
    bench.ask(BYPASS).unwrap();
    assert!(!bench.durable.retire(&bench.managed()), "it is open for writing");
    let reader = File::open(bench.managed().held().magic_path()).unwrap();
    bench.file = reader;
    let managed = bench.managed();
    // Processes that other tests are starting have a copy of the old one for a moment.
    let begun = std::time::Instant::now();
    while !bench.durable.retire(&managed) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "nobody has it open for writing");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(bench.state(), FileState::Free);
}

/// History 20, in state Behind: segments are emptied, given back and used again under everybody's
/// eyes.
#[test]
fn nobody_reads_or_loses_a_byte_while_segments_are_emptied_all_the_time() {
    const WRITERS: u64 = 2;
    const PAGES: u64 = 1200;
    let bench = bench("emptied-racing");
    let stop = AtomicBool::new(false);
    let (copied, freed) = (AtomicU64::new(0), AtomicU64::new(0));
    let newest = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let bench = &bench;
                scope.spawn(move || {
                    let mut newest = vec![0; PAGES as usize];
                    let mut state = writer + 1;
                    let mut random = |limit: u64| {
                        state = state
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407);
                        (state >> 33) % limit
                    };
                    for round in 1..15_000u64 {
                        // One writer has the even pages; a few are written often, most of them
                        // seldom.
                        let span = if random(3) == 0 { PAGES } else { 50 };
                        let page = random(span) * WRITERS + writer;
                        // Copies need room, too, and here is nobody who would bring files to disk.
                        while bench.durable.count_free() < 4 {
                            std::thread::yield_now();
                        }
                        bench.write(page * 4096, &page_of(page, round));
                        newest[(page / WRITERS) as usize] = round;
                        let page = random(PAGES) * WRITERS + writer;
                        let known = newest[(page / WRITERS) as usize];
                        if known == 0 {
                            continue;
                        }
                        let mut seen = vec![0; 4096];
                        match bench.client.read_optimistically(bench.place, page * 4096, &mut seen) {
                            Some(bytes) => assert_eq!(bytes, 4096),
                            None => seen = bench.read(page),
                        }
                        assert!(seen == page_of(page, known), "page {page} in round {round}");
                    }
                    newest
                })
            })
            .collect();
        let emptying = scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                // What was looked at in vain is looked at again.
                let board = &bench.durable.board;
                board.raise_counter(board.next_seq().after(1 << 12));
                let reclaimed = bench.reclaim(1 << 20);
                copied.fetch_add(reclaimed.copied_bytes, Ordering::SeqCst);
                freed.fetch_add(u64::from(reclaimed.freed), Ordering::SeqCst);
            }
        });
        let newest: Vec<Vec<u64>> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        stop.store(true, Ordering::SeqCst);
        emptying.join().unwrap();
        newest
    });
    let (copied, freed) = (copied.into_inner(), freed.into_inner());
    assert!(copied > 1 << 20 && freed > 20, "{copied} bytes were copied, {freed} segments given back");
    assert_eq!(contents(&bench.file).len(), 0, "nothing was drained");
    let log = bench.replayed((PAGES * WRITERS * 4096) as usize);
    for page in 0..PAGES * WRITERS {
        let round = newest[(page % WRITERS) as usize][(page / WRITERS) as usize];
        let expected = if round == 0 { vec![0; 4096] } else { page_of(page, round) };
        assert!(log[page as usize * 4096..][..4096] == expected, "page {page} in the log");
    }
}

#[test]
fn a_positioned_write_past_the_end_waits_for_an_append_under_way() {
    // It would make the file longer while an append says already where it goes.
    let bench = bench("past-the-end");
    bench.write(0, &[1; 4096]);
    let row = bench.durable.board.row(bench.place.slot);
    let lanes = bench.durable.board.lanes();
    let lane = lanes.len() as u32 - 1;
    // A write that took this lane by chance would let go of its lock at the end.
    assert!(lanes[lane as usize].try_take(9));
    assert!(row.lock_cursor(LaneIndex::new(lane), bench.durable.board.header()));
    std::thread::scope(|scope| {
        bench.write(0, &[2; 4096]);
        let past = scope.spawn(|| bench.write(4096, &[3; 4096]));
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(!past.is_finished());
        assert_eq!(row.end(), 4096);
        row.unlock_cursor(LaneIndex::new(lane));
    });
    assert_eq!(row.end(), 8192);
}

#[test]
fn the_size_that_only_the_board_knows_survives_the_death_of_a_writer() {
    let bench = bench("size-after-repair");
    bench.write(0, &[1; 10_000]);
    let board = &bench.durable.board;
    // A client that died in another operation on the file, of which nothing had been written.
    let lane = &board.lanes()[0];
    assert!(lane.try_take(9));
    lane.announce(bench.place.slot, board.next_seq().next());
    lane.note_seq(board.draw_seq(board.row(bench.place.slot)));
    bench.durable.repair(9);
    assert_eq!(board.row(bench.place.slot).end(), 10_000);
    assert_eq!(contents(&bench.file).len(), 0);
    assert_eq!(bench.client.hidden_size(bench.place), Some(10_000));
}

#[test]
fn who_dies_in_the_midst_of_a_change_leaves_something_pending() {
    let bench = bench("dies-amid");
    let header = bench.durable.board.header();
    let device = bench.file.metadata().unwrap().dev();
    let ledger = || header.ledger(device).unwrap();
    ledger().begin();
    ledger().end(true);
    header.changing.begin(9, 1, Change::Any).end();
    bench.durable.repair(9);
    assert!(ledger().is_clean(), "it made none, or noted it");
    let amid = header.changing.begin(9, 1, Change::Any);
    bench.durable.repair(8);
    assert!(ledger().is_clean(), "somebody else died");
    bench.durable.repair(9);
    assert!(!ledger().is_clean(), "it may have made one");
    drop(amid);
    assert!(ledger().begin());
    ledger().end(true);
    bench.durable.repair(9);
    assert!(ledger().is_clean(), "it died once");
}

#[test]
fn what_is_being_made_while_a_ledger_begins_is_pending() {
    let bench = bench("made-amid");
    let header = bench.durable.board.header();
    let client = &bench.client;
    // Before there is a ledger a note says nothing.
    let ((), noted) = client.making(1, || {
        header.enter_ledger(77);
        ((), None)
    });
    assert_eq!(noted, None);
    let ledger = header.ledger(77).unwrap();
    assert!(ledger.begin());
    ledger.end(true);
    let ((), noted) = client.making(1, || {
        assert!(!ledger.is_clean(), "it may be there by now");
        ((), Some(77))
    });
    assert!(noted.is_some() && ledger.is_clean_but(noted), "noted once, by itself");
    ledger.hold(noted.unwrap());
    client.making(1, || ((), None));
    assert!(ledger.is_clean(), "nothing was made");
}
