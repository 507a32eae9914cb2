//! Segment headers: one generation word, drawn from the seq counter and never used twice.

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use crate::{Layout, decode, encode};

/// Bytes before the first record of a segment; only the generation word is used, the rest is zero.
pub const SEGMENT_HEADER_BYTES: u64 = 64;

/// The generation of a segment, or `None` when it was never used or its word is damaged.
pub fn segment_generation(nvm: &impl Nvm, layout: &Layout, segment: u32) -> Option<u64> {
    decode(nvm.load_u64(layout.segment_offset(segment)))
}

/// Gives a segment a new generation, durably, which voids every record in it at once (invariant 3).
pub fn set_segment_generation(nvm: &impl Nvm, layout: &Layout, segment: u32, generation: u64) {
    let offset = layout.segment_offset(segment);
    nvm.store_u64(offset, encode(generation));
    if !on(Canary::GenerationUnflushed) {
        nvm.flush(offset, 8);
    }
    nvm.fence();
}

/// Where the checksums of a segment's records start: no record is valid in another pool, segment or
/// generation.
pub fn segment_seed(uuid: &[u8; 16], segment: u32, generation: u64) -> u32 {
    let crc = crc32c::crc32c(uuid);
    let crc = crc32c::crc32c_append(crc, &segment.to_le_bytes());
    crc32c::crc32c_append(crc, &generation.to_le_bytes())
}
