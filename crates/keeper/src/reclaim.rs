//! The reclaimer: keeps log space free without the disk while files are in state Behind. What a
//! pass does is `durable::reclaim`. It is a thread of its own, because the expirer may wait for the
//! disk at any time. Only where no pass helps are files drained for want of space.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::keeper::Keeper;
use crate::spiller::SpillRoom;
use holdfast_durable::Effort;

/// Sleep while nobody rings.
const IDLE: Duration = Duration::from_secs(3600);
/// Segments given back in one go; files that expire meanwhile wait for so long.
const PASS_SEGMENTS: u32 = 64;
/// Segments looked at in vain before a pass ends: those behind them are younger and hold more.
const VAIN_LOOKS_MAX: u32 = 8;

/// Runs until the keeper stops.
pub(crate) fn run(keeper: &Arc<Keeper>) {
    let header = keeper.durable.board.header();
    let bell = &header.expirer_wake;
    if header.write_behind.is_on() {
        keeper.durable.board.use_huge_pages();
    }
    loop {
        // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
        let seen = bell.rung();
        if keeper.is_stopping() {
            return;
        }
        let is_needed = header.behind_files().get() != 0;
        let again = is_needed && pass(keeper);
        if !is_needed {
            keeper.reclaim_stuck.store(false, Ordering::SeqCst);
        } else {
            keeper.durable.drain_frames();
        }
        if !again {
            bell.sleep(seen, IDLE);
        }
    }
}

/// One pass. Returns whether another one is due at once.
fn pass(keeper: &Keeper) -> bool {
    let durable = &keeper.durable;
    let layout = &durable.superblock.layout;
    let total = layout.segment_count;
    let free = durable.count_free();
    let header = durable.board.header();
    if free > total / 2 {
        keeper.reclaim_stuck.store(false, Ordering::SeqCst);
        header.stay_quiet_for(free - total / 2);
        return false;
    }
    // The less space, the more may be copied for it.
    let copied_part = if free > total / 4 { 16 } else { 2 };
    let effort = Effort {
        free_goal: (total / 2 + 1).min(free + PASS_SEGMENTS),
        copy_bytes_max: layout.segment_bytes / copied_part,
        vain_looks_max: VAIN_LOOKS_MAX,
    };
    let reclaimed = durable.reclaim(effort);
    let falls_short = reclaimed.free < effort.free_goal;
    let goes_on = falls_short && keeper.spill_room() != SpillRoom::None;
    if goes_on && !keeper.spill_wanted.swap(true, Ordering::SeqCst) {
        durable.ring_expirer();
    }
    let is_stuck = reclaimed.free < total / 4 && falls_short && !goes_on;
    if keeper.reclaim_stuck.swap(is_stuck, Ordering::SeqCst) != is_stuck && is_stuck {
        durable.ring_expirer();
    }
    if !is_stuck {
        header.set_throttle(Duration::ZERO);
    }
    header.stay_quiet_for((reclaimed.free / 16).max(1));
    reclaimed.free >= effort.free_goal && reclaimed.free <= total / 2
}
