//! A durable append through the library, in this process: no hook, no keeper, no kernel call.
//!
//! The whole write path of the cache runs (room, announcement, page locks, seq, record, fence);
//! only the kernel's part, the `pwrite` to the page cache, is an empty function here. State Behind
//! has no such part.

use std::time::Instant;

use anyhow::{Context, Result};
use holdfast_board::{Plan, Way};
use holdfast_cache::{Client, Place};
use holdfast_media::{Bytes, Mapping, Nvm, OpenMode};
use holdfast_pool::{Layout, Zone};

use crate::bare::{BLOCK_BYTES, Bare, Block};
use crate::keeperless::{BATCH_MAX, Batches, FILE, client, write};
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
    let client = client(open()?, layout, Plan::new(layout.slot_count, layout.segment_count))?;

    let segments = layout.offset(Zone::Segments);
    let bare = Bare::open(&path, segments, BATCH * BLOCK_BYTES)?;
    let stream = open()?;
    let source = Block([0x5a; BLOCK_BYTES]);
    let count = BATCHES_PER_S * lab.options.seconds;
    let start = Instant::now();
    let timed = |batch: &dyn Fn() -> Result<()>| -> Result<f64> {
        let batches = Batches { count, operations: BATCH as u64, batch, limit: BATCH_MAX };
        batches.time(&client, || start.elapsed().as_secs_f64())
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

/// A batch of appends through the library, to a file of which the page cache lags or keeps up.
fn append(client: &Client, source: &Block, lags: bool, place: fn(u64) -> Place) -> Result<()> {
    let row = client.row(FILE);
    match (row.state().lags(), lags) {
        (false, true) => client.board().go(FILE.slot, Way::EnterBehind),
        (true, false) => client.board().go(FILE.slot, Way::LeaveBehind),
        _ => {}
    }
    for number in 0..BATCH as u64 {
        let offset = number * BLOCK_BYTES as u64;
        write(client, place(offset), &source.0, offset + BLOCK_BYTES as u64)?;
    }
    row.set_end(0);
    Ok(())
}

type Batch<'a> = Box<dyn Fn() -> Result<()> + 'a>;
type Timer<'a> = &'a dyn Fn(&dyn Fn() -> Result<()>) -> Result<f64>;

fn side<'a>(timed: Timer<'a>, label: &str, batch: Batch<'a>) -> Run<'a> {
    (label.into(), Box::new(move || timed(&*batch)))
}
