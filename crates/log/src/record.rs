//! The record header: 64 bytes, one cache line, little-endian. `docs/format.md` is the reference.

use holdfast_pool::{Generation, Seq, Slot};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a record header and alignment of records, in bytes.
pub const RECORD_HEADER_BYTES: u64 = 64;

/// The unit of a record's time within its second, in nanoseconds: three bytes count up to a whole
/// second of them.
pub const TICK_NS: u64 = 64;
const SECOND_NS: u64 = 1_000_000_000;
/// Beside the kind: see [`Header::is_called`].
const CALLED: u8 = 0x80;
const _: () = assert!(SECOND_NS.is_multiple_of(TICK_NS) && SECOND_NS / TICK_NS < 1 << 24);

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes at a file offset.
    Write,
    /// The file's size becomes `file_offset`.
    Truncate,
    /// `extent` bytes from `file_offset` read as zero; the size stays.
    Punch,
    /// Of the record with seq `file_offset` only the first `extent` bytes count (0: none of it).
    Cancel,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Self::Write => 1,
            Self::Truncate => 2,
            Self::Punch => 3,
            Self::Cancel => 4,
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        [Self::Write, Self::Truncate, Self::Punch, Self::Cancel].into_iter().find(|kind| kind.code() == code)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawHeader {
    pub(crate) crc: U32,
    kind: u8,
    unix_time_ticks: [u8; 3],
    payload_bytes: U32,
    slot: U32,
    slot_generation: U64,
    seq: U64,
    file_offset: U64,
    segment_generation: U64,
    extent: U64,
    unix_time_s: U32,
    group_index: U16,
    group_count: U16,
}
const _: () = assert!(size_of::<RawHeader>() as u64 == RECORD_HEADER_BYTES);

/// A decoded header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the record says.
    pub kind: Kind,
    /// Bytes that follow the header, before padding.
    pub payload_bytes: u32,
    /// File slot.
    pub slot: Slot,
    /// Generation under which the slot was in use.
    pub slot_generation: Generation,
    /// Place in the order of all writes; members of a group share it.
    pub seq: Seq,
    /// Write, punch: byte offset in the file. Truncate: the new size. Cancel: the seq that is
    /// cancelled.
    pub file_offset: u64,
    /// Generation of the segment the record stands in.
    pub segment_generation: Generation,
    /// Write: bytes of the whole write over all members. Punch: bytes. Cancel: bytes that stay
    /// valid.
    pub extent: u64,
    /// When it was written, in nanoseconds since 1970 by the clock that stamps files, rounded up to
    /// [`TICK_NS`]: tells later changes by others from our own.
    pub unix_time_ns: u64,
    /// Place within the group.
    pub group_index: u16,
    /// Members of the group; 1 for a record of its own.
    pub group_count: u16,
    /// Write: its bytes go to the page cache by a call of the writer's own, not by the keeper.
    pub is_called: bool,
}

impl Header {
    /// Which records it cancels, if it cancels any.
    pub fn cancels(&self) -> Option<Seq> {
        (self.kind == Kind::Cancel).then_some(Seq::new(self.file_offset))
    }

    pub(crate) fn encode(&self, crc: u32) -> RawHeader {
        let (seconds, ns) = (self.unix_time_ns / SECOND_NS, self.unix_time_ns % SECOND_NS);
        // Up to and with a whole second of ticks.
        let ticks = (ns.div_ceil(TICK_NS) as u32).to_le_bytes();
        RawHeader {
            crc: U32::new(crc),
            kind: self.kind.code() | if self.is_called { CALLED } else { 0 },
            unix_time_ticks: [ticks[0], ticks[1], ticks[2]],
            payload_bytes: U32::new(self.payload_bytes),
            slot: U32::new(self.slot.number()),
            slot_generation: U64::new(self.slot_generation.get()),
            seq: U64::new(self.seq.get()),
            file_offset: U64::new(self.file_offset),
            segment_generation: U64::new(self.segment_generation.get()),
            extent: U64::new(self.extent),
            unix_time_s: U32::new(seconds as u32),
            group_index: U16::new(self.group_index),
            group_count: U16::new(self.group_count),
        }
    }

    /// Decodes 64 bytes into a header and its stored checksum; `None` when a field is impossible.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, u32)> {
        let raw = RawHeader::read_from_bytes(bytes).ok()?;
        let kind = Kind::from_code(raw.kind & !CALLED)?;
        let ticks = u64::from(u32::from_le_bytes([
            raw.unix_time_ticks[0],
            raw.unix_time_ticks[1],
            raw.unix_time_ticks[2],
            0,
        ]));
        if ticks > SECOND_NS / TICK_NS || raw.group_count.get() == 0 || raw.group_index >= raw.group_count {
            return None;
        }
        let header = Self {
            kind,
            payload_bytes: raw.payload_bytes.get(),
            slot: Slot::new(raw.slot.get()),
            slot_generation: Generation::new(raw.slot_generation.get()),
            seq: Seq::new(raw.seq.get()),
            file_offset: raw.file_offset.get(),
            segment_generation: Generation::new(raw.segment_generation.get()),
            extent: raw.extent.get(),
            unix_time_ns: u64::from(raw.unix_time_s.get()) * SECOND_NS + ticks * TICK_NS,
            group_index: raw.group_index.get(),
            group_count: raw.group_count.get(),
            is_called: raw.kind & CALLED != 0,
        };
        Some((header, raw.crc.get()))
    }
}

/// Bytes a record with this payload takes in a segment.
pub const fn record_bytes(payload_bytes: u64) -> u64 {
    RECORD_HEADER_BYTES + payload_bytes.next_multiple_of(RECORD_HEADER_BYTES)
}

/// The checksum that commits a record: payload first (it is summed while it is copied), then header
/// and place.
pub(crate) fn finish_crc(payload_crc: u32, raw: &RawHeader, at: u32) -> u32 {
    // In one piece of aligned words: the odd ends of two would take as long as their middles.
    #[repr(align(8))]
    struct Words([u8; RECORD_HEADER_BYTES as usize]);
    let mut words = Words([0; RECORD_HEADER_BYTES as usize]);
    let (fields, place) = words.0.split_at_mut(RECORD_HEADER_BYTES as usize - 4);
    fields.copy_from_slice(&raw.as_bytes()[4..]);
    place.copy_from_slice(&at.to_le_bytes());
    crc32c::crc32c_append(payload_crc, &words.0)
}
