//! What fits where, and for how long a lane waits for it: payloads in segments, writes in the pool.

use core::time::Duration;

use holdfast_board::GROUP_SEGMENTS_MAX;
use holdfast_log::RECORD_HEADER_BYTES;
use holdfast_pool::{Layout, SEGMENT_HEADER_BYTES};

/// How long to sleep before looking whether the keeper still lives.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Payloads of more than this part of a segment fill one up and go on in the next; shorter ones
/// leave its rest unused.
const SPLIT_FRACTION: u64 = 8;
/// A cancel record must always fit behind the last record of an operation.
pub(super) const CANCEL_BYTES: u64 = RECORD_HEADER_BYTES;
/// Bytes of a segment that no payload can have.
const OVERHEAD_BYTES: u64 = SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + CANCEL_BYTES;

/// The longest write of this pool that is all there or not at all after a crash, in bytes.
pub(crate) fn atomic_write_bytes_max(layout: &Layout) -> u64 {
    // Half of the segments: lanes keep a quarter, and the rest can always become free.
    let segments = (GROUP_SEGMENTS_MAX as u64).min(u64::from(layout.segment_count) / 2);
    (layout.pool_bytes / 8).min(segments * member_bytes_max(layout))
}

/// Whether a payload may lie in more than one segment.
pub(crate) fn is_split(layout: &Layout, bytes: u64) -> bool {
    bytes > layout.segment_bytes / SPLIT_FRACTION
}

/// Payload of a record that has a fresh segment for itself.
pub(super) fn member_bytes_max(layout: &Layout) -> u64 {
    layout.segment_bytes - OVERHEAD_BYTES
}
