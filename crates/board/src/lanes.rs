//! Lanes: private streams of log segments, and the note of what their present owner is doing.
//!
//! A writer owns a lane for one operation. Everything the keeper needs to repair the operation of a
//! dead client stands here, written before the step it describes.

use crate::numbers::{AtomicGeneration, AtomicSeq};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use holdfast_pool::{Generation, Segment, Seq, Slot};

/// Most segments one write can take beside the one its lane has.
pub const GROUP_SEGMENTS_MAX: usize = 64;

/// Where a lane goes on. Its owner goes by what it has itself, and tells the row, which others and
/// its next owner look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneEnd {
    /// The segment.
    pub segment: Segment,
    /// The next byte within it.
    pub at: u32,
    /// The segment's generation.
    pub generation: Generation,
    /// Its checksum seed.
    pub seed: u32,
}

impl LaneEnd {
    fn check(&self) -> u32 {
        let place = u64::from(self.segment.word()) << 32 | u64::from(self.at);
        let mixed = (place ^ u64::from(self.seed).rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed.rotate_left(29) ^ self.generation.get()).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 32) as u32
    }
}

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
    /// Of the four words above: a stray store may have changed one.
    check: AtomicU32,
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
            check: AtomicU32::default(),
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

    /// Where the lane goes on, for its new owner. `None`: it has no segment, or what its row says
    /// was not said by an owner.
    #[inline]
    pub fn end(&self) -> Option<LaneEnd> {
        let end = LaneEnd {
            segment: Segment::from_word(self.segment.load(Ordering::Relaxed))?,
            at: self.at.load(Ordering::Relaxed),
            generation: self.generation.load(Ordering::Relaxed),
            seed: self.seed.load(Ordering::Relaxed),
        };
        (end.check() == self.check.load(Ordering::Relaxed)).then_some(end)
    }

    /// The lane goes on in another segment, of which everything must be seen with its number.
    pub fn set_end(&self, end: &LaneEnd) {
        self.generation.store(end.generation, Ordering::Relaxed);
        self.seed.store(end.seed, Ordering::Relaxed);
        self.at.store(end.at, Ordering::Relaxed);
        self.check.store(end.check(), Ordering::Relaxed);
        self.segment.store(end.segment.word(), Ordering::SeqCst);
    }

    /// It goes on further back in the same one: what is before is written.
    #[inline]
    pub fn move_end(&self, end: &LaneEnd) {
        self.at.store(end.at, Ordering::Release);
        self.check.store(end.check(), Ordering::Relaxed);
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
