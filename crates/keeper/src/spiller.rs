//! The spillers: while log space is short they have the oldest full segments copied to the spill
//! file. What a pass does is `durable::spill`. They are threads of their own, because they wait for
//! the disk: the reclaimer never does, and the expirer may wait for longer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::keeper::Keeper;
use holdfast_durable::Order;

/// Sleep while nobody rings.
const IDLE: Duration = Duration::from_secs(3600);
/// Sleep while another pass is under way.
const SOON: Duration = Duration::from_millis(2);
/// Writers are on their own again when no pass was needed for so long.
const CALM: Duration = Duration::from_millis(100);
/// Segments in one write and one sync: large enough for a disk to be busy, small enough that nobody
/// waits for long.
const BATCH_SEGMENTS: u32 = 4;
/// Files are brought to disk, for their frames, when fewer than one in so many are free.
const SHORT_FRACTION: u32 = 4;

/// Whether the log can go on in the spill file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpillRoom {
    /// Not at all: there is none, its disk refused, or all frames are in use.
    None,
    /// For a while; files should be brought to disk.
    Short,
    /// There are frames enough.
    Plenty,
}

impl Keeper {
    /// Whether the log can go on in the spill file.
    pub(crate) fn spill_room(&self) -> SpillRoom {
        if self.in_order.load(Ordering::SeqCst) {
            let total = self.durable.superblock.layout.segment_count;
            if self.durable.count_free() <= total / 2 {
                return SpillRoom::None;
            }
            self.in_order.store(false, Ordering::SeqCst);
        }
        match self.durable.count_frames() {
            None | Some((_, 0)) => SpillRoom::None,
            Some((all, free)) if free < all / SHORT_FRACTION => SpillRoom::Short,
            Some(_) => SpillRoom::Plenty,
        }
    }
}

/// Runs until the keeper stops.
pub(crate) fn run(keeper: &Arc<Keeper>) {
    let header = keeper.durable.board.header();
    let (bell, goes_on) = (&header.expirer_wake, &header.log_goes_on);
    let mut needed: Option<Instant> = None;
    loop {
        // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
        let seen = bell.rung();
        if keeper.is_stopping() {
            return;
        }
        let again = is_wanted(keeper) && {
            needed = Some(Instant::now());
            goes_on.set(true);
            pass(keeper)
        };
        // Writers that are as fast as they can be between two passes only make rows for the next.
        if keeper.in_order.load(Ordering::SeqCst) || needed.is_some_and(|needed| needed.elapsed() >= CALM) {
            needed = None;
            goes_on.set(false);
        }
        if !again {
            // Segments fill up while another pass is under way, and nobody rings for them.
            let calm = if needed.is_some() { CALM } else { IDLE };
            bell.sleep(seen, if keeper.durable.is_spilling() { SOON } else { calm });
        }
    }
}

/// Whether log space is short and there are frames.
fn is_wanted(keeper: &Keeper) -> bool {
    let durable = &keeper.durable;
    if keeper.spill_room() == SpillRoom::None {
        return false;
    }
    // What the reclaimer can make room for without any disk is its business first.
    if durable.board.header().behind_files().get() != 0 {
        keeper.spill_wanted.load(Ordering::SeqCst)
    } else {
        durable.count_free() <= durable.superblock.layout.segment_count / 2
    }
}

/// One pass. Returns whether another one is due at once.
fn pass(keeper: &Keeper) -> bool {
    let durable = &keeper.durable;
    let total = durable.superblock.layout.segment_count;
    let spilled = durable.spill(BATCH_SEGMENTS.min(total / 4).max(1), Order::Matters);
    if spilled.is_in_order {
        // As without a spill file, until space is no longer short.
        let is_behind = durable.board.header().behind_files().get() != 0;
        keeper.in_order.store(true, Ordering::SeqCst);
        keeper.spill_wanted.store(false, Ordering::SeqCst);
        keeper.reclaim_stuck.store(is_behind, Ordering::SeqCst);
        durable.ring_expirer();
        return false;
    }
    durable.board.header().set_throttle(Duration::ZERO);
    if durable.count_free() > total / 2 {
        keeper.spill_wanted.store(false, Ordering::SeqCst);
    }
    if keeper.spill_room() != SpillRoom::Plenty {
        durable.ring_expirer();
    }
    spilled.segments > 0
}
