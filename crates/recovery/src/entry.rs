//! Records as a scan finds them.

use holdfast_log::{Kind, RECORD_HEADER_BYTES};
use holdfast_pool::{CHECKED_MAX, SEGMENT_BYTES, Segment, Seq, Slot};

/// Numbers above this cannot come from the counter: at a million a second it is reached after a
/// century.
pub(super) const SEQ_MAX: Seq = Seq::new(CHECKED_MAX - (1 << 40));

/// Where a record stands and what its header says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) seq: Seq,
    pub(super) file_offset: u64,
    pub(super) extent: u64,
    /// The segment, or behind the numbers of all segments the frame of the spill file.
    pub(super) segment: Segment,
    /// Payload bytes that count: all of them until a cancel record is applied.
    pub(super) bytes: u32,
    pub(super) slot: Slot,
    pub(super) unix_time_ns: u64,
    /// Where the record begins, in lines of 64 bytes from the start of the segment.
    pub(super) line: u16,
    pub(super) group_index: u16,
    pub(super) group_count: u16,
    pub(super) kind: Kind,
    /// Its change was made by a call of its own.
    pub(super) is_called: bool,
    /// No valid record stands behind it in its segment: its writer may have died before it made the
    /// call.
    pub(super) is_last: bool,
}
const _: () = assert!(size_of::<Entry>() == 56);
const _: () = assert!(SEGMENT_BYTES / RECORD_HEADER_BYTES <= 1 << 16);

impl Entry {
    /// Where the record begins, in bytes from the start of the segment.
    pub(super) fn at(&self) -> u32 {
        u32::from(self.line) * RECORD_HEADER_BYTES as u32
    }

    /// Which records it cancels, if it cancels any: earlier ones.
    pub(super) fn cancels(&self) -> Option<Seq> {
        let seq = Seq::new(self.file_offset);
        (self.kind == Kind::Cancel && seq < self.seq).then_some(seq)
    }

    /// Sorts the members of a write together, and writes by file and time.
    pub(super) fn order(&self) -> (Slot, Seq, u16, Segment, u16) {
        (self.slot, self.seq, self.group_index, self.segment, self.line)
    }
}
