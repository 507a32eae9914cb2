//! From bytes in a segment back to their record: for who knows where bytes are and not where their
//! record begins, and wants to know whether they are still what was written. Pure, it never writes.

use holdfast_media::Nvm;
use holdfast_pool::{Layout, SEGMENT_HEADER_BYTES, Segment, Zone, segment_generation, segment_seed};

use crate::record::{Header, RECORD_HEADER_BYTES};
use crate::scan::has_sum;

/// A record whose sum held when it was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Around {
    /// Its header.
    pub header: Header,
    /// Where its payload begins on the media.
    pub payload: u64,
}

impl Around {
    /// Whether these bytes of the media are among its payload, as the segment is used now.
    pub fn has(&self, nvm: &impl Nvm, layout: &Layout, offset: u64, bytes: u64) -> bool {
        is_within(&self.header, self.payload, offset, bytes)
            && segment_of(layout, offset).and_then(|segment| segment_generation(nvm, layout, segment))
                == Some(self.header.segment_generation)
    }
}

/// The valid record in whose payload these bytes of the media lie. `is_it` sees headers that may be
/// its, and which byte of its payload the first of them would be: what a program writes may look
/// like a header.
pub fn record_around(
    nvm: &impl Nvm,
    layout: &Layout,
    uuid: &[u8; 16],
    (offset, bytes): (u64, u64),
    is_it: impl Fn(&Header, u64) -> bool,
) -> Option<Around> {
    let segment = segment_of(layout, offset)?;
    let generation = segment_generation(nvm, layout, segment)?;
    let start = layout.segment_offset(segment);
    let seed = segment_seed(uuid, segment, generation);
    let mut line = (offset - start) / RECORD_HEADER_BYTES * RECORD_HEADER_BYTES;
    let mut raw = [0; RECORD_HEADER_BYTES as usize];
    while line > SEGMENT_HEADER_BYTES {
        line -= RECORD_HEADER_BYTES;
        nvm.read(start + line, &mut raw);
        let payload = start + line + RECORD_HEADER_BYTES;
        if let Some((header, crc)) = Header::decode(&raw)
            && header.segment_generation == generation
            && is_within(&header, payload, offset, bytes)
            && payload + u64::from(header.payload_bytes) <= start + layout.segment_bytes
            && is_it(&header, offset - payload)
            && has_sum(nvm, (start, line as u32), &header, crc, seed)
        {
            return Some(Around { header, payload });
        }
    }
    None
}

fn is_within(header: &Header, payload: u64, offset: u64, bytes: u64) -> bool {
    offset >= payload && offset - payload + bytes <= u64::from(header.payload_bytes)
}

fn segment_of(layout: &Layout, offset: u64) -> Option<Segment> {
    let within = offset.checked_sub(layout.offset(Zone::Segments))?;
    let segment = u32::try_from(within / layout.segment_bytes).ok()?;
    (segment < layout.segment_count).then_some(Segment::new(segment))
}
