//! Segment headers: a generation word, drawn from the seq counter and never used twice, and the
//! seal of a segment that nothing is appended to any more.
//!
//! A seal says where the records end, so that what is missing before that is told from the torn
//! record of a crash. It is bound to the generation: that of an older use says nothing.

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use crate::numbers::{Generation, Segment, Seq};
use crate::{Layout, decode, encode};

/// Bytes before the first record of a segment: the generation word, the bound, the seal; the rest
/// is zero.
pub const SEGMENT_HEADER_BYTES: u64 = 64;

const BOUND: u64 = 8;
const SEAL: u64 = 16;

/// One use of a segment: whatever is in it is of this use, or void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentUse {
    /// The segment.
    pub segment: Segment,
    /// Generation of the use.
    pub generation: Generation,
}

/// The generation of a segment, or `None` when it was never used or its word is damaged.
pub fn segment_generation(nvm: &impl Nvm, layout: &Layout, segment: Segment) -> Option<Generation> {
    let offset = layout.segment_offset(segment);
    decode(nvm.load_u64(offset), offset).map(Generation::new)
}

/// Gives a segment a new generation, durably, which voids every record in it at once (invariant 3),
/// and its seal.
pub fn set_segment_generation(nvm: &impl Nvm, layout: &Layout, segment: Segment, generation: Generation) {
    let offset = layout.segment_offset(segment);
    nvm.store_u64(offset, encode(generation.get(), offset));
    if !on(Canary::GenerationUnflushed) {
        nvm.flush(offset, 8);
    }
    nvm.fence();
}

/// What a segment's header says of its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seal {
    /// First byte behind the last record, if nothing is appended any more.
    pub end: Option<u32>,
    /// Every number in the segment is below this, if that is known.
    pub below: Option<Seq>,
}

/// Says durably that the records of a segment end at byte `end` and have numbers below `below`. All
/// of them are durable, and the caller has the segment.
pub fn seal_segment(
    nvm: &impl Nvm,
    layout: &Layout,
    uuid: &[u8; 16],
    SegmentUse { segment, generation }: SegmentUse,
    end: u32,
    below: Seq,
) {
    let offset = layout.segment_offset(segment);
    nvm.store_u64(offset + BOUND, encode(below.get(), offset + BOUND));
    nvm.store_u64(offset + SEAL, seal_word(segment_seed(uuid, segment, generation), end));
    nvm.flush(offset + BOUND, 16);
    nvm.fence();
}

/// Says durably that every number in a segment is below this.
pub fn bound_segment(nvm: &impl Nvm, layout: &Layout, segment: Segment, below: Seq) {
    let offset = layout.segment_offset(segment) + BOUND;
    nvm.store_u64(offset, encode(below.get(), offset));
    nvm.flush(offset, 8);
    nvm.fence();
}

/// The seal of a segment of which `bytes` are the header's, wherever they are now.
pub fn seal_of(
    bytes: &[u8],
    layout: &Layout,
    uuid: &[u8; 16],
    SegmentUse { segment, generation }: SegmentUse,
) -> Seal {
    let word = |at: u64| {
        let bytes = bytes.get(at as usize..).and_then(|bytes| bytes.first_chunk());
        u64::from_le_bytes(*bytes.unwrap_or(&[0; 8]))
    };
    let (sealed, bound_at) = (word(SEAL), layout.segment_offset(segment) + BOUND);
    let end = sealed as u32;
    let is_sealed = sealed == seal_word(segment_seed(uuid, segment, generation), end)
        && (SEGMENT_HEADER_BYTES..=layout.segment_bytes).contains(&u64::from(end));
    // A bound is of an older use if it is not above the generation, which was drawn first.
    let below = decode(word(BOUND), bound_at).map(Seq::new).filter(|&below| below > generation.seq());
    Seal { end: is_sealed.then_some(end), below }
}

/// Numbers that differ in 32 neighbouring bits never have the same checksum: no seal of another use
/// passes.
fn seal_word(seed: u32, end: u32) -> u64 {
    u64::from(crc32c::crc32c_append(seed, &end.to_le_bytes())) << 32 | u64::from(end)
}

/// Where the checksums of a segment's records start: no record is valid in another pool, segment or
/// generation.
pub fn segment_seed(uuid: &[u8; 16], segment: Segment, generation: Generation) -> u32 {
    let crc = crc32c::crc32c(uuid);
    let crc = crc32c::crc32c_append(crc, &segment.number().to_le_bytes());
    crc32c::crc32c_append(crc, &generation.get().to_le_bytes())
}
