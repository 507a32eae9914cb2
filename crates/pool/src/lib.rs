//! The on-media format of a pool: zones, superblock, file slots, segment headers, checksums.
//!
//! `docs/format.md` is the reference; a snapshot test holds both together. This crate contains no
//! unsafe code, knows nothing of records' contents, and never decides what a crash means: it only
//! says what is well-formed.
#![forbid(unsafe_code)]

mod layout;
mod numbers;
mod segment;
mod slot;
mod spill;
mod superblock;
mod word;

pub use layout::{FRAME_ENTRY_BYTES, Layout, LayoutError, POOL_BYTES_MIN, SEGMENT_BYTES, SLOT_BYTES, Zone};
pub use numbers::{Generation, Segment, Seq, Slot};
pub use segment::{
    SEGMENT_HEADER_BYTES, Seal, SegmentUse, bound_segment, seal_of, seal_segment, segment_generation,
    segment_seed, set_segment_generation,
};
pub use slot::{
    Base, HANDLE_BYTES_MAX, Hint, HintKind, Identity, Left, LeftAt, Life, MARK_AHEAD, MARK_CONFLICT,
    MARK_CREATED, MARK_LOST, MARK_REMOVED, MARK_SET_ASIDE, MARK_SUPERSEDED, MARK_UNWATCHED, MARK_VOID, Mount,
    Ownership, PATH_BYTES_MAX, Parent, REPLACING_PATH_BYTES_MAX, Replaced, Slots, Stamp, Taken,
};
pub use spill::{DamagedEntry, Frame, Frames, Home, HomeError, SPILL_HEADER_BYTES, SpillHeader};
pub use superblock::{
    FormatError, MAGIC, Remains, SUPERBLOCK_COPY_OFFSET, Superblock, VERSION, Words, format, mend, open,
    owner, remains,
};
pub use word::{CHECKED_MAX, decode, encode};
