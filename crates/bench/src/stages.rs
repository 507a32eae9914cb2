//! Where the time of one write goes: the stages of a 4 KiB write in state Behind, each by itself in
//! a loop over random pages of 1 GiB, and the whole of it through the library and through the
//! hooks.
//!
//! Stages in a loop overlap less than in the whole, or more: their sum is near the whole, not equal
//! to it.

use std::sync::atomic::Ordering;

use anyhow::{Result, bail};
use holdfast_board::{Board, Content, LaneIndex, PAGE_BYTES, Page, Plan, SegmentState, Source, Way};
use holdfast_cache::{Client, FileRef, Outcome as Absorbed, Place};
use holdfast_log::{Draft, Kind, Tail, append};
use holdfast_media::{Bytes, Mapping, Nvm, OpenMode};
use holdfast_pool::{Layout, SEGMENT_HEADER_BYTES, Segment, Slot};

use crate::behind_writes::behind;
use crate::lab::{Lab, lay_out};
use crate::report::{Check, Outcome, Run, interleave};
use crate::worker::Work;

const POOL_BYTES: u64 = 256 << 20;
const FILE_PAGES: u64 = 1 << 18;
/// Writes between two clean-ups; with their headers they fit the pool.
const BATCH: u64 = 20_000;
const FILE: FileRef = FileRef { slot: Slot::new(0), generation: 1 };

/// The stages.
pub fn stages(lab: &Lab) -> Result<Outcome> {
    let path = lab.scratch().join("stages.pool");
    if !path.exists() {
        holdfast_media::allocate(&path, POOL_BYTES, |_, _| {})?;
    }
    let nvm = Mapping::open(&path, OpenMode::ReadWrite)?.0;
    let layout = Layout::new(POOL_BYTES)?;
    holdfast_pool::format(&nvm, &layout, [0x42; 16], 0);
    // Page rows for the whole file, as the pool of a real run would have them.
    let plan = Plan::new(layout.slot_count, 2048).with_frames(0);
    let (board, _fd) =
        Board::create(plan).map_err(|error| anyhow::anyhow!("could not make a board: {error:?}"))?;
    board.use_huge_pages();
    board.header().counter.raise(1);
    let row = &board.files()[0];
    row.begin_use(1);
    row.size_hint.store(FILE_PAGES * PAGE_BYTES, Ordering::SeqCst);
    board.go(Slot::new(0), Way::Register);
    board.go(Slot::new(0), Way::EnterBehind);
    let client = Client::new(nvm, board, layout, [0x42; 16], 1);
    let (board, nvm) = (client.board(), Mapping::open(&path, OpenMode::ReadWrite)?.0);
    for row in &board.segments()[layout.segment_count as usize..] {
        row.set_state(SegmentState::Pinned);
    }
    let source = [0x5a_u8; PAGE_BYTES as usize];
    let pages: Vec<u64> = {
        let mut state = 88_172_645_463_325_252_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % FILE_PAGES
        };
        (0..BATCH).map(|_| next()).collect()
    };
    let whole = || {
        for &page in &pages {
            let parts = [Bytes::from_slice(&source)];
            let place = Place::At(page * PAGE_BYTES);
            match client.write_seeking(FILE, place, &parts, || Ok(4096), || Ok(0), |_| Ok(())) {
                Ok(Absorbed::Absorbed { .. }) => {}
                other => bail!("the library did not absorb a write: {other:?}"),
            }
        }
        Ok(())
    };
    // All rows are there before the first stage is timed.
    for page in 0..FILE_PAGES {
        let content = Content { lo: 0, hi: PAGE_BYTES as u32, source: Source::Log(0) };
        board.pages().insert(Slot::new(0), Page::new(page), content, 1, &row_of(board).page_rows);
    }
    let lane = &board.lanes()[board.lanes().len() - 1];
    let lanes = || {
        for _ in 0..BATCH {
            while !lane.try_take(1) {}
            lane.announce.store(board.header().counter.get() + 1, Ordering::SeqCst);
            lane.announce.store(0, Ordering::Release);
            lane.owner.swap(0, Ordering::AcqRel);
        }
        Ok(())
    };
    let locks = || {
        for &page in &pages {
            board.prefetch_page(Slot::new(0), Page::new(page));
            board.page_locks().lock(LaneIndex::new(1), Slot::new(0), page * PAGE_BYTES, PAGE_BYTES);
            board.page_locks().unlock(LaneIndex::new(1), Slot::new(0), page * PAGE_BYTES, PAGE_BYTES);
        }
        Ok(())
    };
    let rows = || {
        for &page in &pages {
            board.prefetch_page(Slot::new(0), Page::new(page));
            let content = Content { lo: 0, hi: PAGE_BYTES as u32, source: Source::Log(0) };
            if let Some(row) = board.pages().find(Slot::new(0), Page::new(page)) {
                board.pages().replace(row.index, content, 1);
            }
        }
        Ok(())
    };
    let draws = || {
        for _ in 0..BATCH {
            let seq = board.header().counter.add(1);
            row_of(board).newest_seq.fetch_max(seq, Ordering::SeqCst);
        }
        Ok(())
    };
    let record = |bytes: usize, fenced: bool| {
        let (nvm, layout, source) = (&nvm, &layout, &source);
        move || {
            for number in 0..BATCH {
                let taken = 64 + bytes as u64;
                let per_segment = (layout.segment_bytes - SEGMENT_HEADER_BYTES) / (64 + PAGE_BYTES);
                let segment = (number / per_segment) as u32 % layout.segment_count;
                let at = SEGMENT_HEADER_BYTES + number % per_segment * taken;
                let tail = Tail {
                    segment_offset: layout.segment_offset(Segment::new(segment)),
                    at: at as u32,
                    generation: 1,
                    seed: 1,
                };
                let draft = Draft {
                    kind: Kind::Write,
                    slot: Slot::new(0),
                    slot_generation: 1,
                    seq: number,
                    file_offset: 0,
                    extent: bytes as u64,
                    unix_time_ns: 0,
                    group_index: 0,
                    group_count: 1,
                    is_called: false,
                };
                append(nvm, &tail, &draft, &[Bytes::from_slice(&source[..bytes])], 0, bytes);
                if fenced {
                    nvm.fence();
                }
            }
            Ok(())
        }
    };
    let clock = || {
        for _ in 0..BATCH {
            std::hint::black_box(rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse));
        }
        Ok(())
    };
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
        timed("lane and announcement", Box::new(lanes)),
        timed("page lock", Box::new(locks)),
        timed("seq and file row", Box::new(draws)),
        timed("clock", Box::new(clock)),
        timed("header and its checksum", Box::new(record(0, false))),
        timed("record, copied and summed", Box::new(record(PAGE_BYTES as usize, false))),
        timed("the same, with a fence", Box::new(record(PAGE_BYTES as usize, true))),
        timed("page row", Box::new(rows)),
        timed("all through the library", Box::new(whole)),
        ("all through the hooks".into(), Box::new(hooked)),
    ];
    let series = interleave(lab.options.rounds, "ns/op", sides)?;
    let checks = vec![Check::ratio(&series[8], &series[6], None), Check::ratio(&series[9], &series[8], None)];
    let notes =
        vec!["4 KiB at random pages of 1 GiB; stages are timed apart, so they do not add up exactly; time of a processor, but for the hooks".into()];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

type Stage<'a> = Box<dyn Fn() -> Result<()> + 'a>;

/// A side that tells the nanoseconds of one of `BATCH` times `batches` operations.
fn timed<'a>(client: &'a Client, batches: u64, label: &str, stage: Stage<'a>) -> Run<'a> {
    let sample = move || {
        let mut seconds = 0.0;
        for _ in 0..batches {
            let start = cpu_s();
            stage()?;
            seconds += cpu_s() - start;
            // As a keeper does once all of it is written over.
            for row in client.board().segments() {
                if row.state() == SegmentState::Sealed {
                    row.set_state(SegmentState::Free);
                }
            }
        }
        Ok(seconds * 1e9 / (batches * BATCH) as f64)
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
