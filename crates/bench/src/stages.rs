//! Where the time of one write goes: the stages of a 4 KiB write in state Behind, each by itself in
//! a loop over random pages of 1 GiB, and the whole of it through the library and through the
//! hooks.
//!
//! Stages in a loop overlap less than in the whole, or more: their sum is near the whole, not equal
//! to it.

use anyhow::Result;
use holdfast_board::{Board, Content, LaneIndex, PAGE_BYTES, Page, Plan, SegmentState, Source, Way};
use holdfast_cache::{Client, Place};
use holdfast_log::{Draft, Kind, Tail, append};
use holdfast_media::{Bytes, Mapping, Nvm, OpenMode};
use holdfast_pool::{Layout, SEGMENT_HEADER_BYTES, Segment, Seq};

use crate::behind_writes::behind;
use crate::keeperless::{self, BATCH_MAX, Batches, FILE};
use crate::lab::{Lab, lay_out};
use crate::report::{Check, Outcome, Run, interleave};
use crate::worker::Work;

const POOL_BYTES: u64 = 256 << 20;
const FILE_PAGES: u64 = 1 << 18;
/// Writes between two clean-ups; with their headers they fit the pool.
const BATCH: u64 = 20_000;

/// The stages.
pub fn stages(lab: &Lab) -> Result<Outcome> {
    let path = lab.scratch().join("stages.pool");
    if !path.exists() {
        holdfast_media::allocate(&path, POOL_BYTES, |_, _| {})?;
    }
    let open = || Mapping::open(&path, OpenMode::ReadWrite).map(|(mapping, _)| mapping);
    let layout = Layout::new(POOL_BYTES)?;
    let client = client(open()?, layout)?;
    let loops = Loops { client: &client, nvm: open()?, layout, pages: random_pages() };
    let batches = 20 * lab.options.seconds;
    let timed = |label, stage| timed(&client, batches, label, stage);
    let side = behind(lab.main_side()?);
    let file = lab.home(&side).join("stages");
    lay_out(&file, FILE_PAGES * PAGE_BYTES)?;
    let hooked = || -> Result<f64> {
        let work = Work::Mix { write_percent: 100, seconds: lab.options.seconds };
        let printed = lab.run(&side, &work.command(&file)?)?;
        let rate: f64 = printed.split_whitespace().last().unwrap_or_default().parse()?;
        Ok(1e9 / rate)
    };
    let sides: Vec<Run<'_>> = vec![
        timed("lane and announcement", Box::new(|| loops.lanes())),
        timed("page lock", Box::new(|| loops.locks())),
        timed("seq and file row", Box::new(|| loops.draws())),
        timed("clock", Box::new(|| loops.clock())),
        timed("header and its checksum", Box::new(|| loops.records(0, false))),
        timed("record, copied and summed", Box::new(|| loops.records(PAGE_BYTES as usize, false))),
        timed("the same, with a fence", Box::new(|| loops.records(PAGE_BYTES as usize, true))),
        timed("page row", Box::new(|| loops.rows())),
        timed("all through the library", Box::new(|| loops.whole())),
        ("all through the hooks".into(), Box::new(hooked)),
    ];
    let series = interleave(lab.options.rounds, "ns/op", sides)?;
    let checks = vec![Check::ratio(&series[8], &series[6], None), Check::ratio(&series[9], &series[8], None)];
    let notes =
        vec!["4 KiB at random pages of 1 GiB; stages are timed apart, so they do not add up exactly; time of a processor, but for the hooks".into()];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// What a page is written with.
static SOURCE: [u8; PAGE_BYTES as usize] = [0x5a; PAGE_BYTES as usize];

/// Each stage in a loop of one batch.
struct Loops<'a> {
    client: &'a Client,
    /// The pool once more, for stores past the client.
    nvm: Mapping,
    layout: Layout,
    pages: Vec<u64>,
}

impl Loops<'_> {
    fn board(&self) -> &Board {
        self.client.board()
    }

    fn lanes(&self) -> Result<()> {
        let board = self.board();
        let lane = &board.lanes()[board.lanes().len() - 1];
        for _ in 0..BATCH {
            while !lane.try_take(1) {}
            lane.announce(FILE.slot, board.next_seq().next());
            lane.end_announcement();
            lane.let_go();
        }
        Ok(())
    }

    fn locks(&self) -> Result<()> {
        let board = self.board();
        for &page in &self.pages {
            board.prefetch_page(FILE.slot, Page::new(page));
            board.page_locks().lock(LaneIndex::new(1), FILE.slot, page * PAGE_BYTES, PAGE_BYTES);
            board.page_locks().unlock(LaneIndex::new(1), FILE.slot, page * PAGE_BYTES, PAGE_BYTES);
        }
        Ok(())
    }

    fn draws(&self) -> Result<()> {
        let board = self.board();
        for _ in 0..BATCH {
            let seq = board.draw_seq(row_of(board));
            row_of(board).raise_newest(seq);
        }
        Ok(())
    }

    fn clock(&self) -> Result<()> {
        for _ in 0..BATCH {
            std::hint::black_box(rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse));
        }
        Ok(())
    }

    /// Records with so many bytes, each in its own place.
    fn records(&self, bytes: usize, fenced: bool) -> Result<()> {
        let (layout, taken) = (&self.layout, 64 + bytes as u64);
        let per_segment = (layout.segment_bytes - SEGMENT_HEADER_BYTES) / (64 + PAGE_BYTES);
        for number in 0..BATCH {
            let segment = Segment::new((number / per_segment) as u32 % layout.segment_count);
            let at = SEGMENT_HEADER_BYTES + number % per_segment * taken;
            let segment_offset = layout.segment_offset(segment);
            let tail = Tail { segment_offset, at: at as u32, generation: FILE.generation, seed: 1 };
            let draft = Draft {
                kind: Kind::Write,
                slot: FILE.slot,
                slot_generation: FILE.generation,
                seq: Seq::new(number),
                file_offset: 0,
                extent: bytes as u64,
                unix_time_ns: 0,
                group_index: 0,
                group_count: 1,
                is_called: false,
            };
            append(&self.nvm, &tail, &draft, &[Bytes::from_slice(&SOURCE[..bytes])], 0, bytes);
            if fenced {
                self.nvm.fence();
            }
        }
        Ok(())
    }

    fn rows(&self) -> Result<()> {
        let board = self.board();
        for &page in &self.pages {
            board.prefetch_page(FILE.slot, Page::new(page));
            if let Some(row) = board.pages().find(FILE.slot, Page::new(page)) {
                board.pages().replace(row.index, whole_page(), Seq::new(1));
            }
        }
        Ok(())
    }

    fn whole(&self) -> Result<()> {
        for &page in &self.pages {
            keeperless::write(self.client, Place::At(page * PAGE_BYTES), &SOURCE, 0)?;
        }
        Ok(())
    }
}

/// A client without a keeper, with its file in state Behind and every page of it in the log.
fn client(nvm: Mapping, layout: Layout) -> Result<Client> {
    // Page rows for the whole file, as the pool of a real run would have them.
    let plan = Plan::new(layout.slot_count, 2048).with_frames(0);
    let client = keeperless::client(nvm, layout, plan)?;
    let board = client.board();
    board.use_huge_pages();
    let row = row_of(board);
    row.set_end(FILE_PAGES * PAGE_BYTES);
    board.go(FILE.slot, Way::EnterBehind);
    for row in &board.segments()[layout.segment_count as usize..] {
        row.set_state(SegmentState::Pinned);
    }
    // All rows are there before the first stage is timed.
    for page in 0..FILE_PAGES {
        board.pages().insert(FILE.slot, Page::new(page), whole_page(), Seq::new(1), row.page_rows());
    }
    Ok(client)
}

/// All bytes of a page, somewhere in the log.
fn whole_page() -> Content {
    Content { lo: 0, hi: PAGE_BYTES as u32, source: Source::Log(0) }
}

/// Pages of the file for one batch.
fn random_pages() -> Vec<u64> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % FILE_PAGES
    };
    (0..BATCH).map(|_| next()).collect()
}

type Stage<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// A side that tells the nanoseconds of one of `BATCH` times `batches` operations.
fn timed<'a>(client: &'a Client, batches: u64, label: &str, stage: Stage<'a>) -> Run<'a> {
    let sample = move || {
        let batches = Batches { count: batches, operations: BATCH, batch: &*stage, limit: BATCH_MAX };
        batches.time(client, cpu_s)
    };
    (label.into(), Box::new(sample))
}

/// What this thread has had of a processor, in seconds: others at work on the machine do not blur
/// the stages.
fn cpu_s() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn row_of(board: &Board) -> &holdfast_board::FileRow {
    &board.files()[0]
}
