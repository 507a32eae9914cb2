//! Lanes: private streams of log segments, and the note of what their present owner is doing.
//!
//! A writer owns a lane for one operation. Everything the keeper needs to repair the operation of a
//! dead client stands here, written before the step it describes.
//!
//! What an owner reads of its own lane are its own stores, so these loads are relaxed. What others
//! read is `SeqCst`: they compare it with other words of the board, and look seldom.

use crate::mix::{mix, upper};
use crate::numbers::{AtomicGeneration, AtomicSeq};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use holdfast_pool::{Generation, Segment, Seq, Slot};

/// Most segments one write can take beside the one its lane has.
pub const GROUP_SEGMENTS_MAX: usize = 64;

/// A range of bytes of which a lane may hold the page locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locked {
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

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
        upper(mix(place, self.seed.into(), self.generation.get()))
    }
}

/// What a lane has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// Writes acknowledged through it.
    pub writes: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of NVM written.
    pub nvm_bytes: u64,
    /// Cancel records.
    pub cancels: u64,
    /// Waits for log space.
    pub stalls: u64,
    /// Nanoseconds of these waits.
    pub stall_ns: u64,
}

/// One lane. Only its owner writes to it; the keeper does when the owner is dead.
#[repr(C, align(256))]
pub struct LaneRow {
    /// Client that owns the lane, 0 when free.
    owner: AtomicU32,
    /// Slot of the file being changed; set before `announce`.
    slot: AtomicU32,
    /// The one after a lower bound of the seq about to be drawn; [`Seq::ZERO`] when no operation is
    /// under way.
    announce: AtomicSeq,
    /// The seq drawn, [`Seq::ZERO`] before.
    seq: AtomicSeq,
    /// First byte of the page locks that may be held.
    lock_offset: AtomicU64,
    /// Bytes of the page locks that may be held; 0: none are.
    lock_bytes: AtomicU64,
    /// Segment the lane appends to, plus one; 0 for none.
    segment: AtomicU32,
    /// See [`LaneEnd`].
    at: AtomicU32,
    generation: AtomicGeneration,
    seed: AtomicU32,
    /// Of the four words above: a stray store may have changed one.
    check: AtomicU32,
    /// See [`LaneCounts`].
    writes: AtomicU64,
    bytes: AtomicU64,
    nvm_bytes: AtomicU64,
    cancels: AtomicU64,
    stalls: AtomicU64,
    stall_ns: AtomicU64,
    /// Segments reserved for the operation under way.
    reserved: [AtomicU32; GROUP_SEGMENTS_MAX],
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

/// Adds to a counter that only the owner changes: no exchange is needed for that.
#[inline]
fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// Owning the lane, and announcing an operation.
impl LaneRow {
    /// Takes the lane if it is free. Acquire, for the release of [`LaneRow::let_go`]: what its last
    /// owner stored here is there. The look before spares the others the line.
    #[inline]
    pub fn try_take(&self, client: u32) -> bool {
        self.owner.load(Ordering::Relaxed) == 0
            && self.owner.compare_exchange(0, client, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Lets the lane go. An exchange, as no plain store is a barrier: its owner looks next whether
    /// somebody waits for a lane, and who waits says so and then looks here. Were that look to
    /// overtake this, the waiter would sleep on.
    #[inline]
    pub fn let_go(&self) {
        self.owner.swap(0, Ordering::AcqRel);
    }

    /// Who owns the lane, 0 when nobody does.
    pub fn owner(&self) -> u32 {
        self.owner.load(Ordering::SeqCst)
    }

    /// The slot of the file that it was used for last.
    pub fn slot(&self) -> Slot {
        Slot::new(self.slot.load(Ordering::SeqCst))
    }

    /// Announces an operation on a file whose seq will be `above` or a later one, less one.
    ///
    /// The announcement is a full barrier (`SeqCst`): its owner looks next whether writers are kept
    /// out, and who keeps them out says so and then looks here, so one of the two sees the other.
    /// It also comes before the seq is drawn, as [`crate::Board::settled_seq`] needs. The slot is
    /// stored before it with release: whoever sees the announcement sees the slot.
    #[inline]
    pub fn announce(&self, slot: Slot, above: Seq) {
        self.slot.store(slot.number(), Ordering::Release);
        self.announce.store(above, Ordering::SeqCst);
    }

    /// Ends the announcement. Release: what was done under it is visible to whoever sees its end.
    #[inline]
    pub fn end_announcement(&self) {
        self.announce.store(Seq::ZERO, Ordering::Release);
    }

    /// Whether an operation is under way here.
    #[inline]
    pub fn is_announced(&self) -> bool {
        self.announced() != Seq::ZERO
    }

    /// The one after the bound that is announced, or [`Seq::ZERO`].
    #[inline]
    pub(crate) fn announced(&self) -> Seq {
        self.announce.load(Ordering::SeqCst)
    }

    /// Whether an operation on `slot` is under way here.
    ///
    /// `slot` is read after `announce`: if the lane went on to another file in between, the
    /// operation on the first one is over, which is what the caller waits for.
    #[inline]
    pub fn announces(&self, slot: Slot) -> Option<Seq> {
        let above = self.announced();
        (above != Seq::ZERO && self.slot() == slot).then(|| above.before())
    }
}

/// What tells the keeper how far the owner came, should it die.
impl LaneRow {
    /// A seq was drawn. Release: whoever repairs by it finds the announcement before it.
    #[inline]
    pub fn note_seq(&self, seq: Seq) {
        self.seq.store(seq, Ordering::Release);
    }

    /// The operation is settled: from here on a dead owner's write must not be rolled forward any
    /// more, or it would land on top of what somebody else writes to its pages (history 15).
    /// Release, so that the record and what followed it come before, and, as locks are opened with
    /// release, before these.
    #[inline]
    pub fn settle_seq(&self) {
        self.seq.store(Seq::ZERO, Ordering::Release);
    }

    /// The seq of the operation under way, or [`Seq::ZERO`].
    pub(crate) fn seq(&self) -> Seq {
        self.seq.load(Ordering::SeqCst)
    }

    /// Page locks of this range may be held from here on. The bytes with release: whoever sees them
    /// sees the offset.
    #[inline]
    pub fn note_locks(&self, Locked { offset, bytes }: Locked) {
        self.lock_offset.store(offset, Ordering::Relaxed);
        self.lock_bytes.store(bytes, Ordering::Release);
    }

    /// None is held any more. Release: all of them were opened before.
    #[inline]
    pub fn clear_locks(&self) {
        self.lock_bytes.store(0, Ordering::Release);
    }

    /// Which page locks may be held, for the owner.
    #[inline]
    pub fn own_locks(&self) -> Option<Locked> {
        let bytes = self.lock_bytes.load(Ordering::Relaxed);
        (bytes > 0).then(|| Locked { offset: self.lock_offset.load(Ordering::Relaxed), bytes })
    }

    /// Which page locks may be held, for others: the bytes first, which bring the offset with them.
    pub fn locks(&self) -> Option<Locked> {
        let bytes = self.lock_bytes.load(Ordering::SeqCst);
        (bytes > 0).then(|| Locked { offset: self.lock_offset.load(Ordering::SeqCst), bytes })
    }

    /// What a dead owner did is finished. The keeper's stores are `SeqCst`: it does not come here
    /// often enough to argue less.
    pub(crate) fn forget_operation(&self) {
        self.lock_bytes.store(0, Ordering::SeqCst);
        self.seq.store(Seq::ZERO, Ordering::SeqCst);
    }

    /// The lane is nobody's: the announcement ends before it can be taken.
    pub(crate) fn free(&self) {
        self.announce.store(Seq::ZERO, Ordering::SeqCst);
        self.owner.store(0, Ordering::SeqCst);
    }
}

/// Where the owner appends.
impl LaneRow {
    /// Where the lane goes on, for its new owner, to whom [`LaneRow::try_take`] hands these words
    /// over. `None`: it has no segment, or what its row says was not said by an owner.
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

    /// Whether the row says that it has a segment.
    #[inline]
    pub fn has_segment(&self) -> bool {
        self.segment.load(Ordering::Relaxed) != 0
    }

    /// How far that one is filled. For the owner; others only show it.
    pub fn filled_bytes(&self) -> Option<u32> {
        self.has_segment().then(|| self.at.load(Ordering::Relaxed))
    }

    /// Nothing is appended to the segment any more. `SeqCst`, before the next one is told: nobody
    /// finds the old segment with the numbers of the new one.
    pub fn leave_segment(&self) {
        self.segment.store(0, Ordering::SeqCst);
    }

    /// The lane goes on in another segment. That is stored last and brings the others with it
    /// (`SeqCst`); before it nobody looks at them, so they are relaxed.
    pub fn set_end(&self, end: &LaneEnd) {
        self.generation.store(end.generation, Ordering::Relaxed);
        self.seed.store(end.seed, Ordering::Relaxed);
        self.at.store(end.at, Ordering::Relaxed);
        self.check.store(end.check(), Ordering::Relaxed);
        self.segment.store(end.segment.word(), Ordering::SeqCst);
    }

    /// It goes on further back in the same one. Release: what is before was written before. The
    /// check is the next owner's alone.
    #[inline]
    pub fn move_end(&self, end: &LaneEnd) {
        self.at.store(end.at, Ordering::Release);
        self.check.store(end.check(), Ordering::Relaxed);
    }

    /// What a program's stray stores leave there: the words without their check.
    #[cfg(feature = "testing")]
    pub fn scribble_end(&self, end: &LaneEnd) {
        self.generation.store(end.generation, Ordering::SeqCst);
        self.seed.store(end.seed, Ordering::SeqCst);
        self.at.store(end.at, Ordering::SeqCst);
        self.segment.store(end.segment.word(), Ordering::SeqCst);
    }

    /// Remembers a segment that was reserved. Relaxed: the owner alone reads it, and the keeper
    /// knows the lane's segments by their rows.
    #[inline]
    pub fn reserve(&self, place: usize, segment: Segment) {
        self.reserved[place].store(segment.number(), Ordering::Relaxed);
    }

    /// The segment reserved at a place.
    #[inline]
    pub fn reserved(&self, place: usize) -> Segment {
        Segment::new(self.reserved[place].load(Ordering::Relaxed))
    }
}

/// Counting. Relaxed all of it: people look at these numbers, nothing is ordered by them.
impl LaneRow {
    /// A write of `bytes` was acknowledged.
    #[inline]
    pub fn count_write(&self, bytes: u64) {
        count(&self.writes, 1);
        count(&self.bytes, bytes);
    }

    /// So many bytes of NVM were written.
    #[inline]
    pub fn count_nvm(&self, bytes: u64) {
        count(&self.nvm_bytes, bytes);
    }

    /// A record was cancelled.
    pub fn count_cancel(&self) {
        count(&self.cancels, 1);
    }

    /// The owner waited for log space.
    pub fn count_stall(&self, waited_ns: u64) {
        count(&self.stalls, 1);
        count(&self.stall_ns, waited_ns);
    }

    /// What was counted so far.
    pub fn counts(&self) -> LaneCounts {
        LaneCounts {
            writes: self.writes.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            nvm_bytes: self.nvm_bytes.load(Ordering::Relaxed),
            cancels: self.cancels.load(Ordering::Relaxed),
            stalls: self.stalls.load(Ordering::Relaxed),
            stall_ns: self.stall_ns.load(Ordering::Relaxed),
        }
    }
}
