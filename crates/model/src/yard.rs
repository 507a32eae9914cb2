//! One file that may be in state Behind, clients that write, cut and read it as the hooks do, and
//! the keeper's own durable steps: drain, repair, leaving the state, requests.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use holdfast_board::model::{Rules, begin};
use holdfast_board::{Board, Plan, RequestState};
use holdfast_cache::{
    Answer, Client, Errno, FileRef, OPTIMISTIC_BYTES_MAX, Outcome, Place, Reading, Reason, Refusal, Request,
};
use holdfast_disk::DiskFile;
use holdfast_durable::{Durable, Events, Held, ManagedFile, Newcomer, Pace, Unanswered};
use holdfast_media::Bytes;
use holdfast_pool::{Generation, Seq, Slot, Superblock};

use crate::SLOT;
use crate::disk::{Description, OneFile};
use crate::media::Media;

/// What the counter gave out before the file came.
const GENERATION: Generation = Generation::new(10);
const REQUESTS: u32 = 2;
/// The file; its slot is [`SLOT`].
pub const FILE: FileRef = FileRef { slot: Slot::new(SLOT), generation: GENERATION };

struct Listener;

impl Events<Description> for Listener {
    fn trouble(&self, message: String) {
        panic!("the keeper is in trouble: {message}");
    }

    fn bypassed(&self, _: &Path, _: Reason) {}

    fn released(&self, _: &ManagedFile<Description>) {}
}

/// Everything; clones share it.
#[derive(Clone)]
pub struct Yard {
    /// The board.
    pub board: Board,
    /// What the kernel has of the file.
    pub kernel: OneFile,
    /// The newest id that was acknowledged. Not the checker's: looking at it is no step.
    pub done: Arc<AtomicU64>,
    media: Media,
    durable: Arc<Durable<Media, OneFile>>,
    file: Arc<ManagedFile<Description>>,
    is_over: Arc<AtomicU64>,
}

impl Yard {
    /// A file of `bytes` zeros, in state Through.
    pub fn new(rules: Rules, plan: Plan, bytes: u64) -> Self {
        begin(rules);
        let board = Board::ordinary(plan.with_requests(REQUESTS));
        let media = Media::new();
        let header = board.header();
        board.begin_counter(GENERATION.seq().next());
        header.begin_keeper(1);
        header.write_behind.set(true);
        let kernel = OneFile::default();
        kernel.truncate(bytes);
        let superblock = Superblock { uuid: media.uuid(), layout: *media.layout(), created_unix_s: 1 };
        let shared = Arc::new(board.clone());
        let durable =
            Durable::new((media.clone(), superblock), shared, kernel.clone(), Vec::new(), Arc::new(Listener));
        let description = kernel.description();
        let identity = description.identity().expect("it has one");
        let newcomer = Newcomer {
            identity: &identity,
            path: Path::new("/a"),
            created: false,
            noted: None,
            fenced: false,
            bypass: None,
            unsynced: false,
        };
        let place = FileRef { slot: Slot::new(SLOT), generation: GENERATION };
        let taken = durable.take_slot(place, Held::Open(description), &newcomer);
        assert!(taken.is_ok(), "the slot is free");
        let file = durable.file(place).expect("it was just made");
        let (durable, done, is_over) = (Arc::new(durable), Arc::default(), Arc::default());
        Self { board, kernel, done, media, durable, file, is_over }
    }

    /// Through -> Behind.
    pub fn enter_behind(&self) {
        self.durable.allow_behind(&self.file, false);
    }

    /// A process attached to the keeper.
    pub fn client(&self, id: u32) -> Client<Media> {
        let media = &self.media;
        Client::new(media.clone(), self.board.clone(), *media.layout(), media.uuid(), id)
    }

    /// A client's write of bytes that are all `id`.
    pub fn write(&self, client: &Client<Media>, at: u64, id: u8, bytes: usize) {
        let payload = vec![id; bytes];
        let raw = || {
            self.kernel.pwrite(&payload, at);
            Ok(bytes)
        };
        let parts = [Bytes::from_slice(&payload)];
        let outcome = client.write(FILE, Place::At(at), &parts, raw, || Err(Errno::EIO)).expect("written");
        assert!(matches!(outcome, Outcome::Absorbed { .. }), "{outcome:?}");
    }

    /// A client's truncation.
    pub fn truncate(&self, client: &Client<Media>, size: u64) {
        let outcome = client.truncate(FILE, size, || {
            self.kernel.truncate(size);
            Ok(())
        });
        assert!(matches!(outcome, Ok(Outcome::Absorbed { .. })), "{outcome:?}");
    }

    /// A client's read at an offset, in the hooks' order: without a lock, by the kernel, under the
    /// page locks.
    pub fn read(&self, client: &Client<Media>, offset: u64, bytes: &mut [u8]) -> usize {
        for turn in 0.. {
            if bytes.len() <= OPTIMISTIC_BYTES_MAX
                && let Some(count) = client.read_optimistically(FILE, offset, bytes)
            {
                return count;
            }
            let asks_kernel = turn == 0 && client.leaves_to_kernel(FILE, bytes.len());
            if !asks_kernel {
                let raw = |part: &mut [u8], offset| Ok(self.kernel.pread(part, offset));
                let read = client.read(FILE, Place::At(offset), bytes, raw, || panic!(), |_| panic!());
                match read.expect("read") {
                    Reading::Done(count) => return count,
                    Reading::Kernel => {}
                    Reading::Stale => panic!("the slot is in use"),
                }
            }
            if let Some(count) = client.read_by_kernel(FILE, || self.kernel.pread(bytes, offset)) {
                return count;
            }
        }
        unreachable!("turns do not end")
    }

    /// The keeper drains the file.
    pub fn drain(&self) {
        self.durable.drain(&self.file, Seq::MAX, Pace::Full).expect("the disk takes it");
    }

    /// The file leaves state Behind for good.
    pub fn show(&self) {
        self.durable.show(&self.file).expect("the disk takes it");
    }

    /// What the keeper does when `client` is dead.
    pub fn repair(&self, client: u32) {
        self.durable.repair(client);
    }

    /// Answers requests, as the keeper's threads do, until [`Yard::end`].
    pub fn serve(&self) {
        let bell = &self.board.header().request_wake;
        loop {
            let seen = bell.rung();
            for cell in self.board.requests() {
                if !cell.take() {
                    continue;
                }
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
            if self.is_over.load(SeqCst) != 0 {
                return;
            }
            bell.sleep(seen, Duration::from_secs(1));
        }
    }

    /// Nobody asks any more.
    pub fn end(&self) {
        self.is_over.store(1, SeqCst);
        self.board.header().request_wake.ring();
    }

    /// With nobody at work: the kernel has all of the file.
    pub fn check_drained(&self) {
        let row = self.board.row(Slot::new(SLOT));
        assert!(row.page_rows().get() == 0, "rows are left");
        assert!(!row.state().is_failed());
    }
}
