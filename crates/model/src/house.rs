//! A board, a pool and one file, with clients that write and a keeper that syncs, expires, frees
//! and repairs.
//!
//! The kernel's part is played here: a page cache whose writes happen at once, and a disk that
//! holds what was synced.

use std::sync::{Arc, Mutex, MutexGuard};

use holdfast_board::model::{Rules, begin, choose, step};
use holdfast_board::{Board, Commits, Plan, Way};
use holdfast_cache::{Client, Errno, FileRef, Outcome, Place};
use holdfast_log::{Header, Kind, scan_segment, whole_write};
use holdfast_media::Bytes;
use holdfast_pool::{Generation, Identity, Ownership, Segment, Seq, Slot, Taken};
use shuttle::current::context_switches;

use crate::media::Media;

/// The slot of the house's file.
pub const SLOT: u32 = 1;
/// What the counter gave out before the file came.
const GENERATION: Generation = Generation::new(10);
const KEEPER: u32 = 1;

/// What the kernel knows of the file, and what the model notes of it.
#[derive(Default)]
struct Kernel {
    cache: Vec<u8>,
    disk: Vec<u8>,
    /// Bytes of which id were put into the page cache at which moment.
    written: Vec<(u8, usize)>,
    /// Values of S and the moments at which they were computed.
    settled: Vec<(Seq, usize)>,
    /// Ids of acknowledged writes.
    acknowledged: Vec<u8>,
}

/// Everything; clones share it.
#[derive(Clone)]
pub struct House {
    /// The board.
    pub board: Board,
    /// The pool.
    pub media: Media,
    kernel: Arc<Mutex<Kernel>>,
}

impl House {
    /// An empty house for one execution.
    pub fn new(rules: Rules, lanes: u32, segments: u32) -> Self {
        begin(rules);
        let board = Board::ordinary(Plan::small(SLOT + 1, segments, lanes, 4));
        let media = Media::new();
        let identity = Identity { fs_uuid: [1; 16], handle_type: 1, handle: vec![1; 8], inode: 1 };
        let ownership = Ownership { mode: 0o600, owner: 0, group: 0 };
        let taken =
            Taken { identity: &identity, ownership, marks: 0, path: b"/a", parent: None, stamp: None };
        media.slots().take(Slot::new(SLOT), GENERATION, &taken);
        let header = board.header();
        board.begin_counter(GENERATION.seq().next());
        // Nothing is pending on the one file system there is.
        header.enter_ledger(0);
        if let Some(ledger) = header.ledger(0) {
            ledger.set_commits(Commits::ByFile);
            ledger.begin();
            ledger.end(true);
        }
        header.begin_keeper(KEEPER);
        let row = board.row(Slot::new(SLOT));
        row.prepare(GENERATION, 0);
        row.begin_use(GENERATION);
        board.go(Slot::new(SLOT), Way::Register);
        Self { board, media, kernel: Arc::default() }
    }

    /// The file.
    pub fn file(&self) -> FileRef {
        FileRef { slot: Slot::new(SLOT), generation: GENERATION }
    }

    /// A process attached to the keeper.
    pub fn client(&self, id: u32) -> Client<Media> {
        let media = &self.media;
        Client::new(media.clone(), self.board.clone(), *media.layout(), media.uuid(), id)
    }

    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().expect("no thread panics while it holds it")
    }

    /// The kernel's `pwrite` of bytes that are all `id`.
    pub fn pwrite(&self, offset: u64, bytes: &[u8]) {
        choose();
        if step() {
            let mut kernel = self.kernel();
            put(&mut kernel.cache, offset, bytes);
            kernel.written.push((bytes[0], context_switches()));
        }
    }

    /// A client's write of `bytes` bytes that are all `id`, through the real write path.
    pub fn write(&self, client: &Client<Media>, offset: u64, id: u8, bytes: usize) -> Result<Outcome, Errno> {
        self.write_with(client, offset, id, bytes, || ())
    }

    /// The same; `inside` runs beside the kernel's write.
    pub fn write_with(
        &self,
        client: &Client<Media>,
        offset: u64,
        id: u8,
        bytes: usize,
        inside: impl Fn(),
    ) -> Result<Outcome, Errno> {
        let payload = vec![id; bytes];
        let raw = || {
            inside();
            self.pwrite(offset, &payload);
            Ok(payload.len())
        };
        let parts = [Bytes::from_slice(&payload)];
        let result = client.write(self.file(), Place::At(offset), &parts, raw, || Err(Errno::EIO));
        if matches!(result, Ok(Outcome::Absorbed { .. })) {
            self.kernel().acknowledged.push(id);
        }
        result
    }

    /// Computes S and notes when.
    pub fn settled_seq(&self) -> Seq {
        let settled = self.board.settled_seq(Slot::new(SLOT));
        self.kernel().settled.push((settled, context_switches()));
        settled
    }

    /// Whether records of the file may be live.
    pub fn is_dirty(&self) -> bool {
        self.board.row(Slot::new(SLOT)).has_live_records()
    }

    /// What the keeper does with a dirty file: S, `fsync`, expire, free.
    pub fn settle(&self) {
        let settled = self.settled_seq();
        choose();
        {
            let mut kernel = self.kernel();
            kernel.disk = kernel.cache.clone();
        }
        let row = self.board.row(Slot::new(SLOT));
        let expired = row.expired_seq();
        if row.newest_seq() > expired && settled > expired {
            self.media.slots().set_expired_seq(Slot::new(SLOT), settled);
            row.set_expired_seq(settled);
        }
        self.board.free_dead_segments();
    }

    /// What the keeper does when `client` is dead.
    pub fn repair(&self, client: u32) {
        for dead in self.board.dead_lanes(client) {
            if let Some(seq) = dead.seq {
                let (media, layout) = (&self.media, self.media.layout());
                for (header, payload) in
                    whole_write(media, layout, &media.uuid(), &dead.segments, seq, |_| ())
                {
                    if header.kind == Kind::Write {
                        self.pwrite(header.file_offset, &payload);
                    }
                }
            }
            self.board.open_lane(&dead);
        }
        for slot in self.board.files_held_by(client) {
            self.board.row(slot).unlock_exclusive(client);
        }
    }

    /// All valid records, in the order of their seqs.
    pub fn records(&self) -> Vec<(Header, Vec<u8>)> {
        let (media, layout, mut found) = (&self.media, self.media.layout(), Vec::new());
        for segment in 0..self.board.plan().segment_count {
            scan_segment(media, layout, &media.uuid(), Segment::new(segment), &mut Vec::new(), |record| {
                found.push((record.header, record.payload.to_vec()));
            });
        }
        found.sort_by_key(|(header, _)| (header.seq, header.group_index));
        let members = |seq| found.iter().filter(|(header, _)| header.seq == seq).count();
        let whole = |header: &Header| members(header.seq) == usize::from(header.group_count);
        found.iter().filter(|(header, _)| whole(header)).cloned().collect()
    }

    /// Recovery after a power cut now: the live records over what is on the disk.
    fn recovered(&self) -> Vec<u8> {
        let expired = self.media.slots().expired_seq(Slot::new(SLOT)).expect("the word is whole");
        let mut bytes = self.kernel().disk.clone();
        for (header, payload) in self.records() {
            if header.seq > expired {
                put(&mut bytes, header.file_offset, &payload);
            }
        }
        bytes
    }

    /// With nobody at work: recovery would make of the file what the page cache holds.
    pub fn check_recovery(&self) {
        assert!(self.recovered() == self.kernel().cache, "log and page cache differ");
    }

    /// S is never ahead of the page cache (history 14). Only while no segment was reused.
    pub fn check_settled(&self) {
        let (kernel, records) = (self.kernel(), self.records());
        for (header, payload) in records {
            let done = kernel.written.iter().find(|(id, _)| *id == payload[0]).map(|&(_, at)| at);
            for &(settled, at) in &kernel.settled {
                let missed = header.seq <= settled && done.is_none_or(|done| done > at);
                assert!(!missed, "S = {settled} covers seq {} before its bytes were written", header.seq);
            }
        }
    }

    /// Everything acknowledged is in `records`.
    pub fn check_acknowledged(&self, records: &[(Header, Vec<u8>)]) {
        for id in &self.kernel().acknowledged {
            assert!(records.iter().any(|(_, payload)| payload[0] == *id), "acknowledged write {id} is lost");
        }
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, from: &[u8]) {
    let end = offset as usize + from.len();
    bytes.resize(bytes.len().max(end), 0);
    bytes[offset as usize..end].copy_from_slice(from);
}
