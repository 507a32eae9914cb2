//! Giving segments back, and the expirer's sleep while there is nothing to give back.

use core::time::Duration;
use holdfast_pool::{Seq, Slot};

use holdfast_canary::{Canary, on};

use crate::board::Board;
use crate::header::Header;
use crate::segments::SegmentState;
use crate::sync::{Ordering, wait, wake};

impl Board {
    /// Up to which seq the records of a slot are dead; those of one that is free or void all are,
    /// and none of one that does not exist, which only a stray store can have named (invariant 3).
    pub fn expired_seq(&self, slot: Slot) -> Seq {
        let Some(row) = self.files().get(slot.index()) else { return Seq::ZERO };
        let state = row.state();
        if state.is_in_use() && !state.is_orphan() {
            row.expired_seq.load(Ordering::SeqCst)
        } else {
            Seq::MAX
        }
    }

    /// Frees every sealed segment whose records are all dead (invariant 3), and wakes who waits for
    /// space.
    pub fn free_dead_segments(&self) {
        let collect = || -> Vec<_> {
            self.segments().iter().filter(|row| row.state() == SegmentState::Sealed).collect()
        };
        // Before the files are looked at: what is sealed by now raised its files' newest seqs
        // before.
        let sealed = collect();
        let rows = self.files();
        let expired = |slot: Slot| self.expired_seq(slot);
        let lowest = rows
            .iter()
            .filter(|row| row.state().is_in_use() && !row.state().is_orphan() && row.has_live_records())
            .map(|row| row.expired_seq.load(Ordering::SeqCst))
            .min();
        #[cfg(shuttle)]
        let sealed = match crate::model::mutated(crate::model::Mutation::FilesBeforeSegments) {
            true => collect(),
            false => sealed,
        };
        let mut freed = false;
        let newest = sealed.iter().map(|row| row.max_seq()).max().filter(|_| on(Canary::SelectiveDrain));
        for row in sealed {
            let emptied = newest == Some(row.max_seq());
            if emptied || row.is_dead(expired, lowest.unwrap_or(Seq::MAX)) || on(Canary::LiveSegmentFreed) {
                row.set_state(SegmentState::Free);
                freed = true;
            }
        }
        if freed {
            self.header().announce_free_segments();
        }
    }
}

impl Header {
    /// Tells whoever waits for log space that segments became free.
    pub fn announce_free_segments(&self) {
        self.segments_freed.ring_all();
    }

    /// A segment is full: rings the keeper, unless it said that it need not know yet.
    pub fn note_sealed(&self) {
        let quiet = &self.quiet_segments.word;
        let left = quiet.load(Ordering::Relaxed);
        if left > 1 {
            // Not exact when two do it at once: whoever finds no space rings in any case.
            quiet.store(left - 1, Ordering::Relaxed);
        } else {
            quiet.store(0, Ordering::Relaxed);
            self.ring_expirer();
        }
    }

    /// Makes the expirer look, whether it sleeps with or without a time limit.
    pub fn ring_expirer(&self) {
        self.expirer_wake.ring_all();
        self.wake_idle_expirer();
    }

    /// Wakes the expirer if it sleeps because nothing was dirty.
    #[inline]
    pub fn wake_idle_expirer(&self) {
        let idle = &self.expirer_idle.word;
        if idle.load(Ordering::SeqCst) != 0 && idle.swap(0, Ordering::SeqCst) != 0 {
            wake(idle, 1);
        }
    }

    /// The expirer's sleep while nothing is dirty: until the first writer, the bell (which read
    /// `rung`), or `limit`.
    ///
    /// Writers look at the idle word after they raised a file's newest seq; the files are looked at
    /// after it is set: one of the two sees the other.
    pub fn sleep_idle(&self, rung: u32, is_dirty: impl Fn() -> bool, limit: Duration) {
        let idle = &self.expirer_idle.word;
        idle.store(1, Ordering::SeqCst);
        if !is_dirty() && self.expirer_wake.rung() == rung {
            wait(idle, 1, limit);
        }
        idle.store(0, Ordering::SeqCst);
    }
}
