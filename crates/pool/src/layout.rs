//! Where the zones of a pool lie. One enum lists them in order; every offset derives from it.

use crate::numbers::{Segment, Slot};

/// Size and alignment of a segment, in bytes: one huge page. (The model checker fills many: small
/// ones.)
pub const SEGMENT_BYTES: u64 = if cfg!(shuttle) { 4096 } else { 2 << 20 };
/// The smallest pool, in bytes: enough segments for a few lanes and for draining behind them.
pub const POOL_BYTES_MIN: u64 = 16 << 20;
/// Size of a slot, in bytes.
pub const SLOT_BYTES: u64 = 4096;
/// Bytes of a frame's entry: two self-checking words.
pub const FRAME_ENTRY_BYTES: u64 = 16;
/// Bytes of the page that says where the spill file is.
pub(crate) const HOME_BYTES: u64 = 4096;

pub(crate) const PAGE_BYTES: u64 = 4096;
/// One slot for this much pool, in bytes.
const POOL_BYTES_PER_SLOT: u64 = 128 << 10;
const SLOT_COUNT_MIN: u64 = 256;
const SLOT_COUNT_MAX: u64 = 65_536;
/// Frames of a spill file that the pool can keep account of, for each segment's worth of pool.
const FRAMES_PER_SEGMENT: u64 = 16;
const FRAME_COUNT_MIN: u64 = 4096;
const FRAME_COUNT_MAX: u64 = 1 << 20;

/// The zones of a pool, in the order they lie on the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Zone {
    /// One page, written at format.
    Superblock,
    /// One page of self-checking words, each alone in its cache line, and the superblock's copy.
    Words,
    /// The file slots.
    Slots,
    /// Where the spill file is, and which segment each of its frames holds.
    Frames,
    /// The segments, aligned to their size.
    Segments,
}

/// The geometry of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the whole pool.
    pub pool_bytes: u64,
    /// Number of file slots.
    pub slot_count: u32,
    /// Number of segments.
    pub segment_count: u32,
    /// Most frames that a spill file of this pool can have.
    pub frame_count: u32,
    /// Bytes of a segment: [`SEGMENT_BYTES`], but in simulations.
    pub segment_bytes: u64,
}

/// A size no pool can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pool needs at least {POOL_BYTES_MIN} bytes (16 MiB); {0} were given")]
pub struct LayoutError(pub u64);

impl Layout {
    /// The geometry of a pool of `pool_bytes`; a rest smaller than a segment stays unused.
    pub fn new(pool_bytes: u64) -> Result<Self, LayoutError> {
        if pool_bytes < POOL_BYTES_MIN {
            return Err(LayoutError(pool_bytes));
        }
        let slot_count = (pool_bytes / POOL_BYTES_PER_SLOT).clamp(SLOT_COUNT_MIN, SLOT_COUNT_MAX);
        let slot_count = slot_count as u32;
        let frame_count = pool_bytes / SEGMENT_BYTES * FRAMES_PER_SEGMENT;
        let frame_count = frame_count.clamp(FRAME_COUNT_MIN, FRAME_COUNT_MAX) as u32;
        let mut layout =
            Self { pool_bytes, slot_count, segment_count: 0, frame_count, segment_bytes: SEGMENT_BYTES };
        let room = pool_bytes - layout.offset(Zone::Segments);
        layout.segment_count = u32::try_from(room / SEGMENT_BYTES).unwrap_or(u32::MAX);
        Ok(layout)
    }

    /// A geometry no pool on media has: small enough that a simulator reaches every corner of it.
    /// `segment_bytes` is a power of two of at least a page.
    pub fn miniature(slot_count: u32, segment_count: u32, segment_bytes: u64) -> Self {
        Self { pool_bytes: 0, slot_count, segment_count, frame_count: 0, segment_bytes }.with_frames(0)
    }

    /// A miniature with an index for so many frames; with none it has no room for a spill file at
    /// all.
    pub fn with_frames(mut self, frame_count: u32) -> Self {
        self.frame_count = frame_count;
        self.pool_bytes = self.offset(Zone::Segments) + u64::from(self.segment_count) * self.segment_bytes;
        self
    }

    /// Bytes of all segments together.
    pub fn log_bytes(&self) -> u64 {
        u64::from(self.segment_count) * self.segment_bytes
    }

    /// Bytes of all frames that a spill file of this pool can have.
    pub fn spill_bytes_max(&self) -> u64 {
        u64::from(self.frame_count) * self.segment_bytes
    }

    /// The first byte of a zone.
    pub fn offset(&self, zone: Zone) -> u64 {
        match zone {
            Zone::Superblock => 0,
            Zone::Words => PAGE_BYTES,
            Zone::Slots => 2 * PAGE_BYTES,
            Zone::Frames => self.offset(Zone::Slots) + u64::from(self.slot_count) * SLOT_BYTES,
            Zone::Segments if self.frame_count == 0 => {
                self.offset(Zone::Frames).next_multiple_of(self.segment_bytes)
            }
            Zone::Segments => (self.frame_offset(0) + u64::from(self.frame_count) * FRAME_ENTRY_BYTES)
                .next_multiple_of(self.segment_bytes.max(PAGE_BYTES)),
        }
    }

    /// All slots.
    pub fn slots(&self) -> impl DoubleEndedIterator<Item = Slot> + ExactSizeIterator + Clone + use<> {
        Slot::first(self.slot_count)
    }

    /// All segments.
    pub fn segments(&self) -> impl DoubleEndedIterator<Item = Segment> + ExactSizeIterator + Clone + use<> {
        Segment::first(self.segment_count)
    }

    /// The first byte of a segment.
    pub fn segment_offset(&self, segment: Segment) -> u64 {
        assert!(segment.number() < self.segment_count, "segment out of range");
        self.offset(Zone::Segments) + u64::from(segment) * self.segment_bytes
    }

    /// The first byte of a slot.
    pub fn slot_offset(&self, slot: Slot) -> u64 {
        assert!(slot.number() < self.slot_count, "slot out of range");
        self.offset(Zone::Slots) + u64::from(slot) * SLOT_BYTES
    }

    /// The first byte of the entry of a frame.
    pub fn frame_offset(&self, frame: u32) -> u64 {
        assert!(frame < self.frame_count, "frame out of range");
        self.offset(Zone::Frames) + HOME_BYTES + u64::from(frame) * FRAME_ENTRY_BYTES
    }

    /// The largest write that is all there or not at all after a crash, in bytes: an eighth of the
    /// pool.
    pub fn atomic_write_bytes_max(&self) -> u64 {
        self.pool_bytes / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_follow_each_other_and_end_within_the_pool() {
        for pool_bytes in [POOL_BYTES_MIN, 64 << 20, (256 << 20) + 12_345, 1 << 40] {
            let layout = Layout::new(pool_bytes).unwrap();
            assert!(layout.offset(Zone::Words) > layout.offset(Zone::Superblock));
            assert_eq!(
                layout.slot_offset(Slot::new(layout.slot_count - 1)) + SLOT_BYTES,
                layout.offset(Zone::Frames)
            );
            let frames_end = layout.frame_offset(layout.frame_count - 1) + FRAME_ENTRY_BYTES;
            assert!(frames_end <= layout.offset(Zone::Segments));
            assert_eq!(layout.offset(Zone::Segments) % SEGMENT_BYTES, 0);
            assert!(
                layout.segment_offset(Segment::new(layout.segment_count - 1)) + SEGMENT_BYTES <= pool_bytes
            );
            assert!(layout.segment_count >= 6);
        }
        assert!(Layout::new(POOL_BYTES_MIN - 1).is_err());
    }
}
