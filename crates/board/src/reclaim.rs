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

/// The longest pause that the keeper asks for of a writer, so that its pace is the disk's. More
/// than that no keeper has said.
const THROTTLE_MAX: Duration = Duration::from_millis(50);

impl Header {
    /// How long a writer waits that takes so many segments.
    pub fn throttle(&self, segments: u32) -> Duration {
        Duration::from_nanos(self.throttle_ns.get().saturating_mul(segments.into())).min(THROTTLE_MAX)
    }

    /// Has writers wait so long for each segment, within bounds, because space is short
    /// (throttling). The keeper's alone.
    pub fn set_throttle(&self, per_segment: Duration) {
        self.throttle_ns.set(per_segment.min(THROTTLE_MAX).as_nanos() as u64);
    }

    /// What a program's stray store leaves there, in nanoseconds.
    #[cfg(feature = "testing")]
    pub fn scribble_throttle(&self, per_segment_ns: u64) {
        self.throttle_ns.set(per_segment_ns);
    }

    /// A round of expiry is over: everything that was live when the one before it was over has been
    /// tried, or only dead segments were looked for.
    pub fn end_round(&self) {
        self.rounds.add(1);
    }

    /// How many rounds are over.
    pub fn rounds(&self) -> u64 {
        self.rounds.get()
    }

    /// So many segments may fill up before the keeper is rung; with 0 it hears of each one.
    pub fn stay_quiet_for(&self, segments: u32) {
        self.quiet_segments.set_level(segments);
    }

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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_stray_store_has_no_writer_wait_for_long() {
        let header = Header::default();
        header.set_throttle(Duration::from_micros(70));
        assert_eq!(header.throttle(3), Duration::from_micros(210));
        header.throttle_ns.set(u64::MAX);
        assert_eq!(header.throttle(3), THROTTLE_MAX);
    }
}
