//! A third design, beside those of the product: the set of designs is a type, on the client's side
//! and on the keeper's, and what is around them does not know which there are.

#[path = "../front_end/plain.rs"]
mod plain;
mod queue;

use holdfast_pool::Seq;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use holdfast_board::{Board, Plan, RequestState, Way};
use holdfast_cache::{Answer, Client, Reason, Refusal, Request, designs};
use holdfast_disk::{Disk, DiskFile, OsDisk, OsFile};
use holdfast_durable::{Durable, Events, Held, ManagedFile, Newcomer, Pace, Unanswered, Writers, upkeeps};
use holdfast_media::{Bytes, Mapping, OpenMode};
use holdfast_session::File;
use holdfast_testkit::{Random, ScratchPool};

use plain::Plain;
use queue::Queue;

designs! {
    /// The designs of these tests, for clients.
    Designs { Through => holdfast_cache::through::Through, Behind => holdfast_cache::behind::Behind, Other => Queue }
}

upkeeps! {
    /// The same, for the keeper.
    Upkeep {
        Through => holdfast_durable::Through,
        Behind => holdfast_durable::Behind,
        Other => Queue ;
        holdfast_durable::Behind
    }
}

type House = Durable<Mapping, OsDisk, Upkeep>;
type Opened<'a> = File<'a, Plain, Mapping, Designs>;

struct Silent;

impl Events<OsFile> for Silent {
    fn trouble(&self, message: String) {
        panic!("{message}");
    }

    fn bypassed(&self, _: &Path, _: Reason) {}

    fn released(&self, _: &ManagedFile<OsFile>) {}
}

/// A keeper without threads of its own, and a client of it.
struct Bench {
    durable: House,
    client: Client,
    pool: ScratchPool,
    directory: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

const CLIENT: u32 = 5;

fn bench(name: &str) -> Bench {
    let _alone = queue::alone();
    let pool = ScratchPool::new(name);
    holdfast_recovery::format(&pool, 64 << 20, true, true, &mut |_, _| {}).unwrap();
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let open = || Mapping::open(&pool, OpenMode::ReadWrite).unwrap().0;
    let nvm = open();
    let superblock = holdfast_pool::open(&nvm).unwrap();
    let (layout, uuid) = (superblock.layout, superblock.uuid);
    let (board, fd) = Board::create(Plan::new(layout.slot_count, layout.segment_count)).unwrap();
    board.header().begin_keeper(1);
    board.begin_counter(Seq::new(1000));
    board.header().write_behind.set(true);
    let theirs = Board::open(rustix::fd::AsFd::as_fd(&fd), layout.slot_count, layout.segment_count).unwrap();
    let durable = Durable::new((nvm, superblock), Arc::new(board), OsDisk::new(), vec![], Arc::new(Silent));
    let client = Client::new(open(), theirs, layout, uuid, CLIENT);
    Bench { durable, client, pool, directory, _alone }
}

impl Bench {
    /// A new file whose design is the queue.
    fn open(&self, name: &str) -> (Opened<'_>, Arc<ManagedFile<OsFile>>) {
        let path = self.directory.path().join(name);
        let plain = Plain::create(&path).unwrap();
        let place = self.durable.free_slot(|_| false).unwrap();
        let description = self.durable.disk.open(&path).unwrap();
        let identity = description.identity().unwrap();
        let newcomer = Newcomer {
            identity: &identity,
            path: &path,
            created: false,
            noted: None,
            fenced: false,
            bypass: None,
            unsynced: false,
        };
        assert!(self.durable.take_slot(place, Held::Open(description), &newcomer).is_ok());
        let managed = self.durable.file(place).unwrap();
        managed.meta().may_be_behind = true;
        assert!(self.durable.enter(&managed, Way::EnterOther));
        (File::open(&self.client, plain, 0, None).unwrap(), managed)
    }

    /// Answers requests until told to end, beside what `work` does.
    fn serving(&self, work: impl FnOnce()) {
        let is_over = AtomicBool::new(false);
        let bell = &self.durable.board.header().request_wake;
        let serve = || {
            while !is_over.load(Ordering::SeqCst) {
                let seen = bell.rung();
                self.durable.board.header().hearings.answer(|| ());
                for cell in self.durable.board.requests() {
                    if cell.take() {
                        let Some(Request::File(place, request)) = Request::decode(cell.asked()) else {
                            panic!("a request about a file")
                        };
                        let answer = match self.durable.answer(cell.client(), place, request, || None) {
                            Ok(answer) => Ok(answer),
                            Err(Unanswered::Refused(refusal)) => Err(refusal),
                            Err(Unanswered::Later) => Err(Refusal::Failed),
                        };
                        cell.set_answer(Answer::encode(answer));
                        cell.set_state(RequestState::Done);
                        cell.wake();
                    }
                }
                bell.sleep(seen, Duration::from_millis(5));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(serve);
            // Whatever becomes of the work: a server that goes on would hide that.
            struct Ends<'a>(&'a AtomicBool);
            impl Drop for Ends<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::SeqCst);
                }
            }
            let _ends = Ends(&is_over);
            work();
        });
    }
}

/// Does this and that to a file, and knows what it must hold.
fn works(bench: &Bench, file: &Opened<'_>, managed: &ManagedFile<OsFile>, random: &mut Random) -> Vec<u8> {
    let mut holds: Vec<u8> = Vec::new();
    for step in 0..600u64 {
        let (offset, bytes) =
            (random.number_below(30_000), 1 + random.number_below(if step % 9 == 0 { 9000 } else { 3000 }));
        let content = vec![step as u8 | 1; bytes as usize];
        let parts = [Bytes::from_slice(&content)];
        match random.number_below(12) {
            kind @ 0..=6 => {
                let at = if kind < 5 { offset as usize } else { holds.len() };
                let written = if kind < 5 { file.write_at(&parts, offset) } else { file.append(&parts) };
                assert_eq!(written, Ok(content.len()));
                holds.resize(holds.len().max(at + content.len()), 0);
                holds[at..at + content.len()].copy_from_slice(&content);
            }
            7 => {
                file.truncate(offset).unwrap();
                holds.resize(offset as usize, 0);
            }
            8 => {
                file.punch(offset, bytes).unwrap();
                let (from, to) =
                    (holds.len().min(offset as usize), holds.len().min((offset + bytes) as usize));
                holds[from..to].fill(0);
            }
            9 => bench.durable.settle(managed, Writers::MayBeIn).unwrap(),
            10 => {
                let settled = bench.durable.board.settled_seq(managed.slot);
                bench.durable.drain(managed, Seq::new(settled.get() / 2), Pace::Full).unwrap();
            }
            _ => {
                let mut found = vec![0xee; bytes as usize];
                let count = file.read_at(&mut found, offset).unwrap();
                let from = holds.len().min(offset as usize);
                let to = holds.len().min(from + bytes as usize);
                assert!(found[..count] == holds[from..to], "step {step}: {bytes} bytes at {offset}");
            }
        }
    }
    holds
}

#[test]
fn a_third_design_keeps_what_it_acknowledged() {
    let bench = bench("queue");
    let (file, managed) = bench.open("a");
    let row = bench.durable.board.row(managed.slot);
    let path = bench.directory.path().join("a");
    bench.serving(|| {
        let mut holds = works(&bench, &file, &managed, &mut Random::new(7));
        assert!(row.state().lags(), "it is in its design still");
        file.append(&[Bytes::from_slice(b"in the queue")]).unwrap();
        file.sync().unwrap();
        holds.extend_from_slice(b"in the queue");
        assert!(row.page_rows().get() > 0, "the page cache has it all");
        assert!(std::fs::read(&path).unwrap() != holds, "the page cache has it all");
        // Who reads where we do not see it.
        bench.client.leave_behind(file.managed().unwrap().file, false).unwrap();
        assert!(row.state().keeps_up());
        assert!(std::fs::read(&path).unwrap() == holds);
    });
}

#[test]
fn what_only_a_third_designs_queue_has_comes_back_after_a_crash() {
    let bench = bench("queue-crash");
    let mut all = Vec::new();
    {
        let (file, managed) = bench.open("a");
        bench.serving(|| all = works(&bench, &file, &managed, &mut Random::new(11)));
        bench.serving(|| {
            file.append(&[Bytes::from_slice(b"the end")]).unwrap();
            all.extend_from_slice(b"the end");
        });
        assert!(bench.durable.board.row(managed.slot).page_rows().get() > 0);
    }
    // Nobody closes the pool, and nobody drains.
    let path = bench.directory.path().join("a");
    assert!(std::fs::read(&path).unwrap() != all, "the page cache has it all");
    let options = holdfast_recovery::RecoverOptions::default();
    let report = holdfast_recovery::recover(&bench.pool, &options, &mut |_, _, _| {}).unwrap();
    assert_eq!(
        report.files.iter().map(|file| file.outcome).collect::<Vec<_>>(),
        [holdfast_recovery::FileOutcome::Replayed]
    );
    assert!(std::fs::read(&path).unwrap() == all);
}

/// Only a file's own design knows where its newest bytes are.
#[test]
fn a_client_that_does_not_know_a_design_changes_nothing() {
    let bench = bench("queue-unknown");
    let (file, _) = bench.open("a");
    let place = file.managed().unwrap().file;
    let before = bench.client.newest_seq(place);
    let raw = || panic!("the call was made");
    let parts = [Bytes::from_slice(b"bytes")];
    let outcome = bench.client.write(place, holdfast_cache::Place::At(0), &parts, raw, || panic!());
    assert_eq!(outcome, Err(holdfast_cache::Errno::EIO));
    let outcome = bench.client.truncate(place, 10, || panic!("the call was made"));
    assert_eq!(outcome, Err(holdfast_cache::Errno::EIO));
    assert_eq!(bench.client.newest_seq(place), before, "a record was made");
}

/// Whoever asks for a property of a state works for a design that nobody has written yet.
#[test]
fn the_state_of_a_file_is_matched_in_five_places() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // Those that judge and measure the product may name a state.
    let product = ["board", "cache", "session", "preload", "disk", "durable", "recovery", "keeper", "cli"];
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = product.iter().map(|name| crates.join(name).join("src")).collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else if std::fs::read_to_string(&path).is_ok_and(|text| text.contains("FileState::")) {
            found.push(path.strip_prefix(crates).unwrap().display().to_string());
        }
    }
    found.retain(|path| !path.contains("tests"));
    found.sort();
    let expected = [
        "board/src/states.rs",
        "board/src/ways.rs",
        "cache/src/design.rs",
        "durable/src/upkeep.rs",
        "keeper/src/listing.rs",
    ];
    assert_eq!(found, expected);
}

/// What others did may be on the disk with the sync of any file: nobody is told that it is over
/// before the keeper has heard of that (invariant 9).
#[test]
fn a_sync_by_the_kernel_is_over_when_the_keeper_has_heard() {
    let bench = bench("hearing");
    let _managed = bench.open("a");
    let (client, hearings) = (&bench.client, &bench.durable.board.header().hearings);
    let (synced, is_synced) = std::sync::mpsc::channel();
    let is_over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            client.hearing_all(|| synced.send(()).unwrap());
            is_over.store(true, Ordering::SeqCst);
        });
        is_synced.recv().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!is_over.load(Ordering::SeqCst), "nobody has heard");
        assert!(hearings.answer(|| ()), "nobody asked");
    });
    assert!(is_over.load(Ordering::SeqCst));
}
