//! How large the tables of a board are.
//!
//! It must never know where they lie.

use crate::loaded::LOADED_WAYS;

const LANES_MAX: u32 = 64;
/// Page locks, and sets of page rows, at least and at most.
const SETS_MIN: u32 = 4096;
const SETS_MAX: u32 = 1 << 20;
const REQUESTS: u32 = 64;

/// Why a board cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoardError {
    /// A system call failed with this errno.
    Os(i32),
    /// The memory does not hold a board this code knows.
    Unknown,
}

/// Sizes of a board's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// File rows.
    pub slot_count: u32,
    /// Segment rows.
    pub segment_count: u32,
    /// Lanes.
    pub lane_count: u32,
    /// Frames of DRAM for page rows.
    pub frame_count: u32,
    /// Frames of DRAM for loaded pages.
    pub loaded_count: u32,
    pub(crate) lock_count: u32,
    pub(crate) bucket_count: u32,
    pub(crate) request_count: u32,
}

impl Plan {
    /// The tables a pool of this geometry needs. A quarter of the segments at most sits in lanes.
    pub fn new(slot_count: u32, segment_count: u32) -> Self {
        Self {
            slot_count,
            segment_count,
            lane_count: (segment_count / 4).clamp(1, LANES_MAX),
            frame_count: 0,
            loaded_count: 0,
            lock_count: sets(segment_count),
            bucket_count: (slot_count * 4).next_power_of_two(),
            request_count: REQUESTS,
        }
    }

    /// With this many frames.
    pub fn with_frames(self, frame_count: u32) -> Self {
        Self { frame_count, ..self }
    }

    /// With room for this many loaded pages, rounded down to whole sets.
    pub fn with_loaded(self, pages: u32) -> Self {
        Self { loaded_count: pages - pages % LOADED_WAYS as u32, ..self }
    }

    /// With this many pages of DRAM in all: most of them for loaded pages, a quarter for page rows.
    /// Of the default, half of that quarter holds a write-ahead log of 4 MiB, as sqlite3 writes it
    /// over and over, whose pages need not be drained then.
    pub fn with_read_cache(self, pages: u32) -> Self {
        let plan = self.with_loaded(pages - pages.div_ceil(4));
        plan.with_frames(pages - plan.loaded_count)
    }
}

/// A set of page rows for every [`WAYS`](crate::WAYS) pages of the pool, or nearly.
fn sets(segment_count: u32) -> u32 {
    const SETS_PER_SEGMENT: u32 = 64;
    // Three quarters, rounded up to a power of two: between 3/4 and 3/2 of the pool's pages.
    segment_count.saturating_mul(SETS_PER_SEGMENT / 4 * 3).next_power_of_two().clamp(SETS_MIN, SETS_MAX)
}
