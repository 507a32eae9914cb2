//! Lanes: private streams of log segments, and the note of what their present owner is doing.
//!
//! A writer owns a lane for one operation. Everything the keeper needs to repair the operation of a
//! dead client stands here, written before the step it describes.

use crate::numbers::{AtomicGeneration, AtomicSeq};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use holdfast_pool::{Seq, Slot};

/// Most segments one write can take beside the one its lane has.
pub const GROUP_SEGMENTS_MAX: usize = 64;

/// One lane. Only its owner writes to it; the keeper does when the owner is dead.
#[repr(C, align(256))]
pub struct LaneRow {
    /// Client that owns the lane, 0 when free.
    pub owner: AtomicU32,
    /// Slot of the file being changed; set before `announce`.
    pub slot: AtomicU32,
    /// The one after a lower bound of the seq about to be drawn; [`Seq::ZERO`] when no operation is
    /// under way.
    pub announce: AtomicSeq,
    /// The seq drawn, [`Seq::ZERO`] before.
    pub seq: AtomicSeq,
    /// First byte of the page locks that may be held.
    pub lock_offset: AtomicU64,
    /// Bytes of the page locks that may be held.
    pub lock_bytes: AtomicU64,
    /// Segment the lane appends to, plus one; 0 for none.
    pub segment: AtomicU32,
    /// Next byte within it.
    pub at: AtomicU32,
    /// Its generation.
    pub generation: AtomicGeneration,
    /// Its checksum seed.
    pub seed: AtomicU32,
    /// Writes acknowledged through this lane.
    pub writes: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
    /// Bytes of NVM written.
    pub nvm_bytes: AtomicU64,
    /// Cancel records.
    pub cancels: AtomicU64,
    /// Waits for log space.
    pub stalls: AtomicU64,
    /// Nanoseconds of these waits.
    pub stall_ns: AtomicU64,
    /// Segments reserved for the operation under way.
    pub reserved: [AtomicU32; GROUP_SEGMENTS_MAX],
}

impl Default for LaneRow {
    fn default() -> Self {
        Self {
            owner: AtomicU32::default(),
            slot: AtomicU32::default(),
            announce: AtomicSeq::default(),
            seq: AtomicSeq::default(),
            lock_offset: AtomicU64::default(),
            lock_bytes: AtomicU64::default(),
            segment: AtomicU32::default(),
            at: AtomicU32::default(),
            generation: AtomicGeneration::default(),
            seed: AtomicU32::default(),
            writes: AtomicU64::default(),
            bytes: AtomicU64::default(),
            nvm_bytes: AtomicU64::default(),
            cancels: AtomicU64::default(),
            stalls: AtomicU64::default(),
            stall_ns: AtomicU64::default(),
            reserved: core::array::from_fn(|_| AtomicU32::default()),
        }
    }
}

impl LaneRow {
    /// Takes the lane if it is free.
    #[inline]
    pub fn try_take(&self, client: u32) -> bool {
        self.owner.load(Ordering::Relaxed) == 0
            && self.owner.compare_exchange(0, client, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Adds to a counter that only the owner changes.
    #[inline]
    pub fn count(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// Whether an operation is under way here.
    #[inline]
    pub fn is_announced(&self) -> bool {
        self.announce.load(Ordering::SeqCst) != Seq::ZERO
    }

    /// Whether an operation on `slot` is under way here.
    ///
    /// `slot` is read after `announce`: if the lane went on to another file in between, the
    /// operation on the first one is over, which is what the caller waits for.
    #[inline]
    pub fn announces(&self, slot: Slot) -> Option<Seq> {
        let above = self.announce.load(Ordering::SeqCst);
        (above != Seq::ZERO && self.slot.load(Ordering::SeqCst) == slot.number()).then(|| above.before())
    }
}
