//! Appending one record at the tail of a segment. The caller owns the tail, the room and the fence.

use holdfast_media::{Bytes, Nvm};
use holdfast_pool::{Generation, Seq, Slot};
use zerocopy::IntoBytes;

use crate::record::{Header, Kind, RECORD_HEADER_BYTES, finish_crc, record_bytes};

/// Gathered payloads go through a buffer of this many bytes on the stack; it stays in the
/// first-level cache.
const GATHER_BYTES: usize = 4096;

/// Where the next record of a segment goes.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    /// First byte of the segment on the media.
    pub segment_offset: u64,
    /// Byte within the segment, a multiple of 64.
    pub at: u32,
    /// The segment's generation.
    pub generation: Generation,
    /// The segment's checksum seed.
    pub seed: u32,
}

/// What a record shall say; the log adds place and checksum.
#[derive(Clone, Copy, Debug)]
pub struct Draft {
    /// Kind of record.
    pub kind: Kind,
    /// File slot.
    pub slot: Slot,
    /// The slot's generation.
    pub slot_generation: Generation,
    /// Order.
    pub seq: Seq,
    /// See [`Header::file_offset`].
    pub file_offset: u64,
    /// See [`Header::extent`].
    pub extent: u64,
    /// See [`Header::unix_time_ns`].
    pub unix_time_ns: u64,
    /// Place within the group.
    pub group_index: u16,
    /// Members of the group.
    pub group_count: u16,
    /// See [`Header::is_called`].
    pub is_called: bool,
}

/// Streams a record to `tail` and returns the bytes it took. It is durable, and valid, after the
/// next fence.
///
/// The payload is `payload_bytes` of the gathered `parts` from byte `from` on, which must be there.
/// Every source byte is loaded once, so a buffer that another thread changes meanwhile still gets a
/// checksum that holds.
pub fn append(
    nvm: &impl Nvm,
    tail: &Tail,
    draft: &Draft,
    parts: &[Bytes<'_>],
    from: usize,
    payload_bytes: usize,
) -> u64 {
    let offset = tail.segment_offset + u64::from(tail.at);
    let payload_offset = offset + RECORD_HEADER_BYTES;
    let crc = match parts {
        _ if payload_bytes == 0 => tail.seed,
        [one] => nvm.write_streaming(payload_offset, one.slice(from, payload_bytes), tail.seed),
        many => gather(nvm, payload_offset, many, from, payload_bytes, tail.seed),
    };
    let header = Header {
        kind: draft.kind,
        payload_bytes: payload_bytes as u32,
        slot: draft.slot,
        slot_generation: draft.slot_generation,
        seq: draft.seq,
        file_offset: draft.file_offset,
        segment_generation: tail.generation,
        extent: draft.extent,
        unix_time_ns: draft.unix_time_ns,
        group_index: draft.group_index,
        group_count: draft.group_count,
        is_called: draft.is_called,
    };
    let mut raw = header.encode(0);
    raw.crc = finish_crc(crc, &raw, tail.at).into();
    nvm.write_streaming(offset, Bytes::from_slice(raw.as_bytes()), 0);
    record_bytes(payload_bytes as u64)
}

fn gather(
    nvm: &impl Nvm,
    mut offset: u64,
    parts: &[Bytes<'_>],
    mut skip: usize,
    mut left: usize,
    seed: u32,
) -> u32 {
    let mut buffer = [0u8; GATHER_BYTES];
    let (mut filled, mut crc) = (0, seed);
    for part in parts {
        let mut from = skip.min(part.len());
        skip -= from;
        while from < part.len() && left > 0 {
            let step = (part.len() - from).min(GATHER_BYTES - filled).min(left);
            part.slice(from, step).copy_to(&mut buffer[filled..filled + step]);
            (from, filled, left) = (from + step, filled + step, left - step);
            if filled == GATHER_BYTES {
                crc = nvm.write_streaming(offset, Bytes::from_slice(&buffer), crc);
                (offset, filled) = (offset + GATHER_BYTES as u64, 0);
            }
        }
    }
    if filled > 0 {
        crc = nvm.write_streaming(offset, Bytes::from_slice(&buffer[..filled]), crc);
    }
    crc
}
