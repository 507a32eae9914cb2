//! A durable append through the library, in this process: no hook, no keeper, no kernel call.
//!
//! The whole write path of the cache runs (room, announcement, page locks, seq, record, fence);
//! only the kernel's part, the `pwrite` to the page cache, is an empty function here. State Behind
//! has no such part.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use holdfast_board::{Board, Plan, SegmentState, Way};
use holdfast_cache::{Client, FileRef, Outcome as Absorbed, Place};
use holdfast_media::{Bytes, Mapping, Nvm, OpenMode};
use holdfast_pool::{Generation, Layout, Seq, Slot, Zone};

use crate::bare::{BLOCK_BYTES, Bare, Block};
use crate::lab::Lab;
use crate::report::{Bar, Check, Outcome, Run, interleave};

const POOL_BYTES: u64 = 64 << 20;
/// Appends between two clean-ups; with their headers they fit the pool.
const BATCH: usize = 5_000;
const BATCHES_PER_S: u64 = 100;

/// The library against the bare loop, on the same media.
pub fn append_api(lab: &Lab) -> Result<Outcome> {
    let path = lab.scratch().join("append.pool");
    if !path.exists() {
        holdfast_media::allocate(&path, POOL_BYTES, |_, _| {})?;
    }
    let open = || Mapping::open(&path, OpenMode::ReadWrite).map(|(mapping, _)| mapping);
    let layout = Layout::new(POOL_BYTES)?;
    let client = client(open()?, layout)?;

    let segments = layout.offset(Zone::Segments);
    let bare = Bare::open(&path, segments, BATCH * BLOCK_BYTES)?;
    let stream = open()?;
    let source = Block([0x5a; BLOCK_BYTES]);
    let batches = BATCHES_PER_S * lab.options.seconds;
    let timed = |batch: &dyn Fn() -> Result<()>| -> Result<f64> {
        let mut seconds = 0.0;
        for _ in 0..batches {
            let start = Instant::now();
            batch()?;
            seconds += start.elapsed().as_secs_f64();
            recycle(&client);
        }
        Ok(seconds * 1e9 / (batches as usize * BATCH) as f64)
    };
    let through_library = |lags: bool, place: fn(u64) -> Place| append(&client, &source, lags, place);
    let with_checksum = || {
        for number in 0..BATCH as u64 {
            let to = segments + number * BLOCK_BYTES as u64;
            std::hint::black_box(stream.write_streaming(to, Bytes::from_slice(&source.0), 0));
            stream.fence();
        }
        Ok(())
    };
    let sides = vec![
        side(
            &timed,
            "bare stream and fence",
            Box::new(|| {
                bare.run(&source, BLOCK_BYTES, BATCH);
                Ok(())
            }),
        ),
        side(&timed, "stream with checksum and fence", Box::new(with_checksum)),
        side(&timed, "library, write at an offset", Box::new(|| through_library(false, Place::At))),
        side(
            &timed,
            "library, append at the end of file",
            Box::new(|| through_library(false, |_| Place::Append)),
        ),
        side(&timed, "write-behind, write at an offset", Box::new(|| through_library(true, Place::At))),
        side(
            &timed,
            "write-behind, append at the end of file",
            Box::new(|| through_library(true, |_| Place::Append)),
        ),
    ];
    let series = interleave(lab.options.rounds, "ns/op", sides).context("append-api")?;
    let checks = vec![
        Check::ratio(&series[2], &series[0], Some(Bar::AtMost(1.6))),
        Check::ratio(&series[3], &series[0], Some(Bar::AtMost(1.6))),
        Check::ratio(&series[4], &series[0], Some(Bar::AtMost(1.8))),
        Check::ratio(&series[5], &series[0], Some(Bar::AtMost(1.8))),
        Check::ratio(&series[1], &series[0], None),
    ];
    let notes = vec![format!(
        "4 KiB each, {} MiB of touched memory in turn; the write to the page cache is left out on both sides",
        (BATCH * BLOCK_BYTES) >> 20
    )];
    Ok(Outcome { series, checks, notes, ..Outcome::default() })
}

/// A client of a new pool with one file, and no keeper.
fn client(nvm: Mapping, layout: Layout) -> Result<Client> {
    let uuid = [0x42; 16];
    holdfast_pool::format(&nvm, &layout, uuid, 0);
    let (board, _fd) = Board::create(Plan::new(layout.slot_count, layout.segment_count))
        .map_err(|error| anyhow::anyhow!("could not make a board: {error:?}"))?;
    board.header().counter.begin(Seq::new(1));
    board.files()[0].begin_use(Generation::new(1));
    board.go(Slot::new(0), Way::Register);
    Ok(Client::new(nvm, board, layout, uuid, 1))
}

/// A batch of appends through the library, to a file of which the page cache lags or keeps up.
fn append(client: &Client, source: &Block, lags: bool, place: fn(u64) -> Place) -> Result<()> {
    let slot = Slot::new(0);
    let row = client.board().row(slot);
    match (row.state().lags(), lags) {
        (false, true) => client.board().go(slot, Way::EnterBehind),
        (true, false) => client.board().go(slot, Way::LeaveBehind),
        _ => {}
    }
    let file = FileRef { slot, generation: Generation::new(1) };
    for number in 0..BATCH as u64 {
        let offset = number * BLOCK_BYTES as u64;
        let end = offset + BLOCK_BYTES as u64;
        let parts = [Bytes::from_slice(&source.0)];
        match client.write_seeking(file, place(offset), &parts, || Ok(BLOCK_BYTES), || Ok(end), |_| Ok(())) {
            Ok(Absorbed::Absorbed { .. }) => {}
            other => bail!("the library did not absorb a write: {other:?}"),
        }
    }
    row.set_end(0);
    Ok(())
}

type Batch<'a> = Box<dyn Fn() -> Result<()> + 'a>;
type Timer<'a> = &'a dyn Fn(&dyn Fn() -> Result<()>) -> Result<f64>;

fn side<'a>(timed: Timer<'a>, label: &str, batch: Batch<'a>) -> Run<'a> {
    (label.into(), Box::new(move || timed(&*batch)))
}

/// Gives full segments back, as a keeper does after expiry.
fn recycle(client: &Client) {
    for row in client.board().segments() {
        if row.state() == SegmentState::Sealed {
            row.set_state(SegmentState::Free);
        }
    }
}
