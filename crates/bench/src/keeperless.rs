//! The library in the benchmark's own process, without a keeper: what a keeper does before and
//! between batches is done here.
//!
//! The library waits for an answer, or for log space, as long as a keeper lives, and there is none
//! to give it. So a batch that takes too long is told that the keeper is dead: it ends with an
//! error, never not at all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use holdfast_board::{Board, Commits, Plan, SegmentState, Way};
use holdfast_cache::{Client, FileRef, Outcome, Place};
use holdfast_media::{Bytes, Mapping};
use holdfast_pool::{Generation, Layout, Seq, Slot};

/// The one file there is.
pub const FILE: FileRef = FileRef { slot: Slot::new(0), generation: Generation::new(1) };

/// Longer than any batch takes, by far.
pub const BATCH_MAX: Duration = Duration::from_secs(20);

const UUID: [u8; 16] = [0x42; 16];

/// A client of a new pool with one file, in state Through, on a file system on which nothing is
/// pending.
pub fn client(nvm: Mapping, layout: Layout, plan: Plan) -> Result<Client> {
    holdfast_pool::format(&nvm, &layout, UUID, 0);
    let (board, _fd) = Board::create(plan).map_err(|error| anyhow!("could not make a board: {error:?}"))?;
    let header = board.header();
    header.begin_keeper(1);
    board.begin_counter(Seq::new(1));
    let row = board.row(FILE.slot);
    // As long as it has no ledger, or that of others' changes, each write waits for a commit.
    header.enter_ledger(row.device());
    let ledger = header.ledger(row.device()).ok_or_else(|| anyhow!("the board has no room for a ledger"))?;
    ledger.set_commits(Commits::ByFile);
    ledger.begin();
    ledger.end(true);
    row.begin_use(FILE.generation);
    board.go(FILE.slot, Way::Register);
    Ok(Client::new(nvm, board, layout, UUID, 1))
}

/// Writes one block, and says so if that is not in the log afterwards.
pub fn write(client: &Client, place: Place, block: &[u8], end: u64) -> Result<()> {
    let parts = [Bytes::from_slice(block)];
    let written = client.write_seeking(FILE, place, &parts, || Ok(block.len()), || Ok(end), |_| Ok(()));
    let is_absorbed = matches!(written, Ok(Outcome::Absorbed { .. }));
    ensure!(is_absorbed, "the library did not absorb a write: {written:?}");
    Ok(())
}

/// How often a batch is made, and what one is.
pub struct Batches<'a> {
    pub count: u64,
    pub operations: u64,
    pub batch: &'a dyn Fn() -> Result<()>,
    /// Longest time for one.
    pub limit: Duration,
}

impl Batches<'_> {
    /// Makes them and tells how many nanoseconds of `clock_s` one operation took. What comes
    /// between batches is not timed.
    pub fn time(&self, client: &Client, clock_s: impl Fn() -> f64) -> Result<f64> {
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            // It is dropped when the batches are over, with whatever result.
            let (_over, is_over) = channel::<()>();
            let (done, limit) = (&done, self.limit);
            scope.spawn(move || {
                let mut seen = 0;
                while is_over.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    let now = done.load(Ordering::Relaxed);
                    if now == seen {
                        client.board().header().end_keeper();
                    }
                    seen = now;
                }
            });
            let mut seconds = 0.0;
            for _ in 0..self.count {
                let start_s = clock_s();
                (self.batch)()?;
                seconds += clock_s() - start_s;
                done.fetch_add(1, Ordering::Relaxed);
                recycle(client);
            }
            Ok(seconds * 1e9 / (self.count * self.operations) as f64)
        })
    }
}

/// Gives full segments back, as a keeper does after expiry.
fn recycle(client: &Client) {
    let sealed = client.board().segments().iter().filter(|row| row.state() == SegmentState::Sealed);
    sealed.for_each(|row| row.set_state(SegmentState::Free));
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_media::OpenMode;
    use holdfast_testkit::ScratchPool;
    use std::time::Instant;

    const POOL_BYTES: u64 = 16 << 20;
    const BLOCK_BYTES: u64 = 4096;

    fn small(pool: &ScratchPool) -> Client {
        holdfast_media::allocate(pool, POOL_BYTES, |_, _| {}).unwrap();
        let layout = Layout::new(POOL_BYTES).unwrap();
        let (nvm, _) = Mapping::open(pool, OpenMode::ReadWrite).unwrap();
        client(nvm, layout, Plan::new(layout.slot_count, layout.segment_count)).unwrap()
    }

    /// Writes so many blocks `count` times, to a file that begins anew each time.
    fn make(client: &Client, count: u64, blocks: u64, limit: Duration) -> Result<f64> {
        let start = Instant::now();
        let batch = || {
            (0..blocks).try_for_each(|number| {
                let at = number * BLOCK_BYTES;
                write(client, Place::At(at), &[7; BLOCK_BYTES as usize], at + BLOCK_BYTES)
            })
        };
        let batches = Batches { count, operations: blocks, batch: &batch, limit };
        batches.time(client, || start.elapsed().as_secs_f64())
    }

    #[test]
    fn more_than_the_pool_holds_is_absorbed_in_batches() {
        for behind in [false, true] {
            let pool = ScratchPool::new("bench-batches");
            let client = small(&pool);
            if behind {
                client.board().go(FILE.slot, Way::EnterBehind);
            }
            let blocks = POOL_BYTES / BLOCK_BYTES / 4;
            let ns = make(&client, 8, blocks, BATCH_MAX).unwrap();
            assert!(ns > 0.0, "behind: {behind}");
        }
    }

    #[test]
    fn a_wait_for_log_space_ends_with_an_error() {
        let pool = ScratchPool::new("bench-space");
        let client = small(&pool);
        let limit = Duration::from_millis(300);
        let error = make(&client, 1, POOL_BYTES / BLOCK_BYTES, limit).unwrap_err();
        assert!(error.to_string().contains("did not absorb a write: Err"), "{error}");
    }
}
