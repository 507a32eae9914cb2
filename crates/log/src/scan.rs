//! Reading a segment back: pure, it never writes.
//!
//! Records are valid from the first on until one is not. What follows the first invalid place is
//! searched for records that would be valid: one such is damage in the middle of the log, not a
//! torn tail.

use holdfast_media::Nvm;
use holdfast_pool::{
    Generation, Layout, SEGMENT_HEADER_BYTES, Segment, SegmentUse, Seq, segment_generation, segment_seed,
};

use crate::range::Sums;
use crate::record::{Header, RECORD_HEADER_BYTES, finish_crc, record_bytes};

/// How far ahead a scan of headers fetches them.
const HEADER_PAIRS_AHEAD: u64 = 4;
/// Read at once by who only sums: a piece that the nearest cache holds.
const SUM_BYTES: u64 = 4096;

/// A valid record in a segment.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Segment it stands in.
    pub segment: Segment,
    /// Byte within the segment.
    pub at: u32,
    /// Its header.
    pub header: Header,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Why a scan ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The segment is full.
    Full,
    /// No valid record follows: the end of what was written, or a torn last record.
    Tail,
    /// A valid record stands behind an invalid one: the media lost or changed bytes.
    Damaged {
        /// Where the valid record stands.
        valid_at: u32,
    },
}

/// What a segment holds.
#[derive(Clone, Copy, Debug)]
pub struct SegmentScan {
    /// The segment's generation; `None` when it was never used (or its header is damaged).
    pub generation: Option<Generation>,
    /// First byte behind the last valid record.
    pub end: u32,
    /// Why the scan ended.
    pub stop: Stop,
}

/// Visits the valid records of `segment` in order. `buffer` is scratch space, resized to a segment.
pub fn scan_segment(
    nvm: &impl Nvm,
    layout: &Layout,
    uuid: &[u8; 16],
    segment: Segment,
    buffer: &mut Vec<u8>,
    visit: impl FnMut(Record<'_>),
) -> SegmentScan {
    let Some(generation) = segment_generation(nvm, layout, segment) else {
        return SegmentScan { generation: None, end: SEGMENT_HEADER_BYTES as u32, stop: Stop::Tail };
    };
    buffer.resize(layout.segment_bytes as usize, 0);
    nvm.read(layout.segment_offset(segment), buffer);
    scan_bytes(buffer, uuid, SegmentUse { segment, generation }, visit)
}

/// As [`scan_segment`], of the bytes of a whole segment, wherever they are now, and the generation
/// it had.
pub fn scan_bytes(
    bytes: &[u8],
    uuid: &[u8; 16],
    SegmentUse { segment, generation }: SegmentUse,
    mut visit: impl FnMut(Record<'_>),
) -> SegmentScan {
    let seed = segment_seed(uuid, segment, generation);
    let next = |at| {
        let (header, payload) = record_at(bytes, at, generation, seed)?;
        visit(Record { segment, at, header, payload });
        Some(header)
    };
    walk(bytes.len() as u64, generation, next, |at| stop_at(&bytes[at as usize..], at, generation, seed))
}

/// Bytes of a segment in which there were records and are none that are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Its first byte.
    pub from: u32,
    /// The first byte behind it: that of a valid record, or where the records are to end.
    pub to: u32,
}

/// Visits all valid records of a segment, those behind damage too, and says where there were
/// others: where a valid one stands behind, or before `end`, which is where its seal says that the
/// records end. Returns where the last one ends.
pub fn survey(
    bytes: &[u8],
    uuid: &[u8; 16],
    SegmentUse { segment, generation }: SegmentUse,
    end: Option<u32>,
    mut visit: impl FnMut(Record<'_>),
    mut lost: impl FnMut(Gap),
) -> u32 {
    let seed = segment_seed(uuid, segment, generation);
    let (mut at, mut sums) = (SEGMENT_HEADER_BYTES as u32, None);
    loop {
        while at as usize + RECORD_HEADER_BYTES as usize <= bytes.len()
            && let Some((header, payload)) = record_at(bytes, at, generation, seed)
        {
            visit(Record { segment, at, header, payload });
            at += record_bytes(u64::from(header.payload_bytes)) as u32;
        }
        if at as usize >= bytes.len() {
            return at;
        }
        let sums = sums.get_or_insert_with(|| Sums::new(bytes));
        match valid_after(sums, bytes, (at, 0), generation, seed) {
            Some(to) => {
                lost(Gap { from: at, to });
                at = to;
            }
            None => {
                let to = end.unwrap_or_else(|| end_of_headers(bytes, generation, at));
                if to > at {
                    lost(Gap { from: at, to });
                }
                return at;
            }
        }
    }
}

/// Where what stands at a byte ends if it is more than a record that a crash tore: nothing was
/// begun behind that, so no header of this generation stands there, whole or not.
fn end_of_headers(bytes: &[u8], generation: Generation, from: u32) -> u32 {
    let (mut at, mut headers) = (from, 0);
    while let Some((header, ..)) = candidate(bytes, at, generation) {
        at += record_bytes(u64::from(header.payload_bytes)) as u32;
        headers += 1;
    }
    if headers > 1 { at } else { from }
}

/// The generation of a segment whose header is lost, told by its records: that of the first one
/// which is valid under the generation that it names itself.
pub fn generation_of_records(bytes: &[u8], uuid: &[u8; 16], segment: Segment) -> Option<Generation> {
    let mut sums = Sums::new(bytes);
    let mut lines = (SEGMENT_HEADER_BYTES as u32..bytes.len() as u32).step_by(RECORD_HEADER_BYTES as usize);
    lines.find_map(|line| {
        let head = bytes[line as usize..].get(..RECORD_HEADER_BYTES as usize)?;
        let generation = Header::decode(head)?.0.segment_generation;
        let (header, crc, payload) = candidate(bytes, line, generation)?;
        let from = line as usize + RECORD_HEADER_BYTES as usize;
        let payload_crc = sums.append(segment_seed(uuid, segment, generation), from, payload.len());
        (finish_crc(payload_crc, &header.encode(crc), line) == crc).then_some(generation)
    })
}

/// The headers of the records that stood in a gap: all of them if they lead from one to the next up
/// to its end, else none. A part of them may be what is damaged.
pub fn headers_in_gap(bytes: &[u8], generation: Generation, gap: Gap) -> Option<Vec<Header>> {
    let (mut at, mut found) = (gap.from, Vec::new());
    while at < gap.to {
        let head = bytes.get(at as usize..at as usize + RECORD_HEADER_BYTES as usize)?;
        let (header, _) = Header::decode(head)?;
        let bytes = record_bytes(u64::from(header.payload_bytes));
        if header.segment_generation != generation || u64::from(at) + bytes > u64::from(gap.to) {
            return None;
        }
        found.push(header);
        at += bytes as u32;
    }
    Some(found)
}

/// As [`scan_segment`], for who needs no payloads: records are summed piece by piece where they
/// stand, so that no segment is copied. Visits the headers of valid records.
pub fn sum_segment(
    nvm: &impl Nvm,
    layout: &Layout,
    uuid: &[u8; 16],
    segment: Segment,
    mut visit: impl FnMut(&Header),
) -> SegmentScan {
    let Some(generation) = segment_generation(nvm, layout, segment) else {
        return SegmentScan { generation: None, end: SEGMENT_HEADER_BYTES as u32, stop: Stop::Tail };
    };
    let seed = segment_seed(uuid, segment, generation);
    let start = layout.segment_offset(segment);
    let next = |at: u32| {
        let mut raw = [0; RECORD_HEADER_BYTES as usize];
        nvm.read(start + u64::from(at), &mut raw);
        let (header, crc) = Header::decode(&raw)?;
        let (from, bytes) = (u64::from(at) + RECORD_HEADER_BYTES, u64::from(header.payload_bytes));
        if header.segment_generation != generation || bytes > layout.segment_bytes - from {
            return None;
        }
        has_sum(nvm, (start, at), &header, crc, seed).then(|| {
            visit(&header);
            header
        })
    };
    walk(layout.segment_bytes, generation, next, |at| {
        let mut tail = vec![0; layout.segment_bytes as usize - at as usize];
        nvm.read(start + u64::from(at), &mut tail);
        stop_at(&tail, at, generation, seed)
    })
}

/// Goes from record to record: `next` says what is valid at a byte, `stop` why nothing is.
fn walk(
    segment_bytes: u64,
    generation: Generation,
    mut next: impl FnMut(u32) -> Option<Header>,
    stop: impl FnOnce(u32) -> Stop,
) -> SegmentScan {
    let mut at = SEGMENT_HEADER_BYTES as u32;
    while u64::from(at) + RECORD_HEADER_BYTES <= segment_bytes {
        let Some(header) = next(at) else {
            return SegmentScan { generation: Some(generation), end: at, stop: stop(at) };
        };
        at += record_bytes(u64::from(header.payload_bytes)) as u32;
    }
    SegmentScan { generation: Some(generation), end: at, stop: Stop::Full }
}

/// Whether the record at byte `at` of the segment that starts at `start` has the sum `crc`. Its
/// payload lies within the segment.
pub(crate) fn has_sum(nvm: &impl Nvm, (start, at): (u64, u32), header: &Header, crc: u32, seed: u32) -> bool {
    let from = start + u64::from(at) + RECORD_HEADER_BYTES;
    let payload_crc = sum(nvm, from, header.payload_bytes.into(), seed);
    finish_crc(payload_crc, &header.encode(crc), at) == crc
}

/// The checksum `crc`, continued with bytes of the media.
fn sum(nvm: &impl Nvm, offset: u64, bytes: u64, crc: u32) -> u32 {
    let mut piece = [0; SUM_BYTES as usize];
    (0..bytes).step_by(SUM_BYTES as usize).fold(crc, |crc, from| {
        let piece = &mut piece[..(bytes - from).min(SUM_BYTES) as usize];
        nvm.read(offset + from, piece);
        crc32c::crc32c_append(crc, piece)
    })
}

/// Visits the headers of `segment` in order, without looking at payloads or checksums: what it
/// visits is all that a scan can find valid, and perhaps more. Returns the segment's generation.
pub fn scan_headers(
    nvm: &impl Nvm,
    layout: &Layout,
    segment: Segment,
    mut visit: impl FnMut(u32, &Header),
) -> Option<Generation> {
    let generation = segment_generation(nvm, layout, segment)?;
    let mut at = SEGMENT_HEADER_BYTES;
    let mut raw = [0; RECORD_HEADER_BYTES as usize];
    // No cache has any of them, and where one begins only the one before it says. Most programs
    // write records of one size or, as write-ahead logs do, of two in turn: the next ones are
    // fetched from where they are likely to be.
    let mut last = [0; 2];
    while at + RECORD_HEADER_BYTES <= layout.segment_bytes {
        let ahead = at + HEADER_PAIRS_AHEAD * (last[0] + last[1]);
        if ahead < layout.segment_bytes {
            nvm.prefetch(layout.segment_offset(segment) + ahead);
        }
        nvm.read(layout.segment_offset(segment) + at, &mut raw);
        match Header::decode(&raw) {
            Some((header, _)) if header.segment_generation == generation => {
                visit(at as u32, &header);
                last = [last[1], record_bytes(u64::from(header.payload_bytes))];
                at += last[1];
            }
            _ => break,
        }
    }
    Some(generation)
}

/// Reads the record at byte `at` of `segment` if it is valid; its bytes, header included, are left
/// in `buffer`.
pub fn read_record(
    nvm: &impl Nvm,
    layout: &Layout,
    uuid: &[u8; 16],
    (segment, at): (Segment, u32),
    buffer: &mut Vec<u8>,
) -> Option<Header> {
    let generation = segment_generation(nvm, layout, segment)?;
    let offset = layout.segment_offset(segment) + u64::from(at);
    let rest = layout.segment_bytes.checked_sub(u64::from(at))?;
    buffer.resize(RECORD_HEADER_BYTES as usize, 0);
    nvm.read(offset, buffer);
    let (header, _) = Header::decode(buffer)?;
    let bytes = RECORD_HEADER_BYTES + u64::from(header.payload_bytes);
    if bytes > rest {
        return None;
    }
    buffer.resize(bytes as usize, 0);
    nvm.read(offset, buffer);
    let (head, payload) = buffer.split_at_checked(RECORD_HEADER_BYTES as usize)?;
    let (header, crc) = Header::decode(head)?;
    let payload_crc = crc32c::crc32c_append(segment_seed(uuid, segment, generation), payload);
    let is_valid = header.segment_generation == generation
        && payload.len() == header.payload_bytes as usize
        && finish_crc(payload_crc, &header.encode(crc), at) == crc;
    is_valid.then_some(header)
}

/// The members of the write (or other change) with `seq`, in order, if all of them are in
/// `segments` and no cancel record names it; else nothing. What a dead client's operation left is
/// told by this. `found` sees each record of it, whether whole or not.
pub fn whole_write(
    nvm: &impl Nvm,
    layout: &Layout,
    uuid: &[u8; 16],
    segments: &[Segment],
    seq: Seq,
    mut found: impl FnMut(&Record<'_>),
) -> Vec<(Header, Vec<u8>)> {
    let (mut members, mut cancelled, mut buffer) = (Vec::new(), false, Vec::new());
    for &segment in segments {
        scan_segment(nvm, layout, uuid, segment, &mut buffer, |record| {
            if record.header.cancels() == Some(seq) {
                found(&record);
                cancelled = true;
            } else if record.header.seq == seq {
                found(&record);
                members.push((record.header, record.payload.to_vec()));
            }
        });
    }
    members.sort_by_key(|(header, _)| header.group_index);
    let count = members.first().map_or(0, |(header, _)| usize::from(header.group_count));
    if cancelled || members.len() != count { Vec::new() } else { members }
}

fn record_at(segment: &[u8], at: u32, generation: Generation, seed: u32) -> Option<(Header, &[u8])> {
    let (header, crc, payload) = candidate(segment, at, generation)?;
    let payload_crc = crc32c::crc32c_append(seed, payload);
    (finish_crc(payload_crc, &header.encode(crc), at) == crc).then_some((header, payload))
}

/// What stands at `at` if it can be a record of this generation: header, stored checksum, payload.
fn candidate(segment: &[u8], at: u32, generation: Generation) -> Option<(Header, u32, &[u8])> {
    let (head, tail) = segment.get(at as usize..)?.split_at_checked(RECORD_HEADER_BYTES as usize)?;
    let (header, crc) = Header::decode(head)?;
    if header.segment_generation != generation {
        return None;
    }
    Some((header, crc, tail.get(..header.payload_bytes as usize)?))
}

/// Why a scan ended at byte `at` of a segment, whose bytes from there on are `tail`.
fn stop_at(tail: &[u8], at: u32, generation: Generation, seed: u32) -> Stop {
    match valid_after(&mut Sums::new(tail), tail, (0, at), generation, seed) {
        Some(valid_at) => Stop::Damaged { valid_at },
        None => Stop::Tail,
    }
}

/// The first valid record behind byte `from` of `bytes`, which begin at byte `base` of the segment,
/// as a byte of the segment.
///
/// Bytes that a forged segment may claim over and over are summed once: each line of it could hold
/// a header whose payload is all that follows.
fn valid_after(
    sums: &mut Sums<'_>,
    bytes: &[u8],
    (from, base): (u32, u32),
    generation: Generation,
    seed: u32,
) -> Option<u32> {
    let first = from + RECORD_HEADER_BYTES as u32;
    let mut lines = (first..bytes.len() as u32).step_by(RECORD_HEADER_BYTES as usize);
    let valid = lines.find(|&line| {
        candidate(bytes, line, generation).is_some_and(|(header, crc, payload)| {
            let payload_crc = sums.append(seed, line as usize + RECORD_HEADER_BYTES as usize, payload.len());
            finish_crc(payload_crc, &header.encode(crc), base + line) == crc
        })
    });
    valid.map(|line| base + line)
}
