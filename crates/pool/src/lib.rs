//! The on-media format of a pool: zones, superblock, file slots, segment headers, checksums.
//!
//! `docs/format.md` is the reference; a snapshot test holds both together. This crate contains no
//! unsafe code, knows nothing of records' contents, and never decides what a crash means: it only
//! says what is well-formed.
#![forbid(unsafe_code)]

mod hints;
mod layout;
mod left;
mod numbers;
mod segment;
mod slot;
mod spill;
mod stamps;
mod superblock;
mod take;
mod word;

pub use hints::{Base, Hint, HintKind, PATH_BYTES_MAX, Parent, REPLACING_PATH_BYTES_MAX, Replaced};
pub use layout::{FRAME_ENTRY_BYTES, Layout, LayoutError, POOL_BYTES_MIN, SEGMENT_BYTES, SLOT_BYTES, Zone};
pub use left::{Left, LeftAt, Life};
pub use numbers::{Generation, Segment, Seq, Slot};
pub use segment::{
    SEGMENT_HEADER_BYTES, Seal, SegmentUse, bound_segment, seal_of, seal_segment, segment_generation,
    segment_seed, set_segment_generation,
};
pub use slot::{
    HANDLE_BYTES_MAX, Identity, IdentityError, MARK_AHEAD, MARK_CONFLICT, MARK_CREATED, MARK_LOST,
    MARK_REMOVED, MARK_SET_ASIDE, MARK_SUPERSEDED, MARK_UNWATCHED, MARK_VOID, Ownership, Slots,
};
pub use spill::{DamagedEntry, Frame, Frames, Home, HomeError, SPILL_HEADER_BYTES, SpillHeader};
pub use stamps::{Mount, Stamp};
pub use superblock::{
    FormatError, MAGIC, Remains, SUPERBLOCK_COPY_OFFSET, Superblock, VERSION, Words, format, mend, open,
    owner, remains,
};
pub use take::Taken;
pub use word::{CHECKED_MAX, decode, encode};
