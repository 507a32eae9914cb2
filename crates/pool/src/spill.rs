//! The pool's account of its spill file: where the file is, and which segment each of its frames
//! holds.
//!
//! A frame is a segment's bytes, copied one by one; its entry says which segment and generation it
//! was, so that its records are checked as they were there. An entry counts from the store of its
//! generation word on: whatever it needs is durable before. The spill file's own header is here,
//! too. Nothing here touches the file.

use holdfast_media::Nvm;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::{HOME_BYTES, Layout, Zone};
use crate::numbers::{Generation, Segment};
use crate::segment::SegmentUse;
use crate::{decode, encode};

/// Bytes at the start of the spill file, before its first frame.
pub const SPILL_HEADER_BYTES: u64 = 4096;

const HOME_HEADER_BYTES: usize = 32;
const PATH_BYTES_MAX: usize = HOME_BYTES as usize - HOME_HEADER_BYTES;
const MAGIC: [u8; 8] = *b"HFSPILL1";
/// Records begin at multiples of this many bytes, and so they end.
const LINE_BYTES: u32 = 64;
/// Bits of a place word that say where the records end, in lines.
const END_BITS: u32 = 16;

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The segment whose bytes these are.
    pub segment: Segment,
    /// Its generation when it was copied.
    pub generation: Generation,
    /// First byte behind its last valid record.
    pub end: u32,
}

impl Frame {
    /// Which use of a segment its records are of.
    pub fn place(&self) -> SegmentUse {
        SegmentUse { segment: self.segment, generation: self.generation }
    }
}

/// Where the spill file is and what it is called by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// Its absolute path.
    pub path: Vec<u8>,
    /// Drawn when it was made; its header has the same.
    pub id: [u8; 16],
    /// Frames it has.
    pub frame_count: u32,
}

/// A frame's entry that is neither blank nor possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its entry in the pool is damaged")]
pub struct DamagedEntry;

/// A path that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the path of a spill file has at most {PATH_BYTES_MAX} bytes, and the file at most {frames_max} frames"
)]
pub struct HomeError {
    frames_max: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHome {
    crc: U32,
    path_bytes: U32,
    frame_count: U32,
    reserved: [u8; 4],
    id: [u8; 16],
}
const _: () = assert!(size_of::<RawHome>() == HOME_HEADER_BYTES);

/// The account of one pool.
pub struct Frames<'a, N> {
    /// The pool's media.
    pub nvm: &'a N,
    /// The pool's geometry.
    pub layout: &'a Layout,
}

impl<N: Nvm> Frames<'_, N> {
    /// Where the spill file is; `None` when there never was one, or what stands there was never
    /// finished.
    pub fn home(&self) -> Option<Home> {
        if self.layout.frame_count == 0 {
            return None;
        }
        let mut page = [0; HOME_BYTES as usize];
        self.nvm.read(self.layout.offset(Zone::Frames), &mut page);
        let (raw, path) = page.split_at(HOME_HEADER_BYTES);
        let raw = RawHome::read_from_bytes(raw).ok()?;
        let path = path.get(..raw.path_bytes.get() as usize)?;
        let frame_count = raw.frame_count.get();
        let is_sound = raw.crc.get() == crc32c::crc32c(&page[4..])
            && raw.reserved == [0; 4]
            && (1..=self.layout.frame_count).contains(&frame_count)
            && path.first() == Some(&b'/');
        is_sound.then(|| Home { path: path.to_vec(), id: raw.id, frame_count })
    }

    /// Persists where the spill file is. No frame may be in use: a crash in between leaves no home
    /// at all.
    pub fn set_home(&self, home: &Home) -> Result<(), HomeError> {
        let frames_max = self.layout.frame_count;
        if home.path.len() > PATH_BYTES_MAX || home.frame_count > frames_max {
            return Err(HomeError { frames_max });
        }
        let mut page = [0; HOME_BYTES as usize];
        let mut raw = RawHome {
            crc: U32::new(0),
            path_bytes: U32::new(home.path.len() as u32),
            frame_count: U32::new(home.frame_count),
            reserved: [0; 4],
            id: home.id,
        };
        page[..HOME_HEADER_BYTES].copy_from_slice(raw.as_bytes());
        page[HOME_HEADER_BYTES..HOME_HEADER_BYTES + home.path.len()].copy_from_slice(&home.path);
        raw.crc = U32::new(crc32c::crc32c(&page[4..]));
        page[..HOME_HEADER_BYTES].copy_from_slice(raw.as_bytes());
        let at = self.layout.offset(Zone::Frames);
        self.nvm.write(at, &page);
        self.nvm.flush(at, HOME_BYTES);
        self.nvm.fence();
        Ok(())
    }

    /// What a frame holds; `Ok(None)` when it is free, an error when its entry is damaged.
    pub fn get(&self, frame: u32) -> Result<Option<Frame>, DamagedEntry> {
        let at = self.layout.frame_offset(frame);
        let word = self.nvm.load_u64(at);
        if word == 0 {
            return Ok(None);
        }
        let generation = Generation::new(decode(word, at).ok_or(DamagedEntry)?);
        let place = decode(self.nvm.load_u64(at + 8), at + 8).ok_or(DamagedEntry)?;
        let segment = u32::try_from(place >> END_BITS).map_err(|_| DamagedEntry)?;
        let segment = Segment::new(segment);
        let end = (place & ((1 << END_BITS) - 1)) as u32 * LINE_BYTES;
        let is_possible =
            segment.number() < self.layout.segment_count && u64::from(end) <= self.layout.segment_bytes;
        if is_possible { Ok(Some(Frame { segment, generation, end })) } else { Err(DamagedEntry) }
    }

    /// Persists what frames hold, whose bytes are durable in the file: first all that is needed,
    /// then the words that make it count.
    pub fn put(&self, frames: &[(u32, Frame)]) {
        for (frame, held) in frames {
            let at = self.layout.frame_offset(*frame) + 8;
            let end = u64::from(held.end.div_ceil(LINE_BYTES));
            self.nvm.store_u64(at, encode(u64::from(held.segment) << END_BITS | end, at));
            self.nvm.flush(at, 8);
        }
        self.nvm.fence();
        for (frame, held) in frames {
            let at = self.layout.frame_offset(*frame);
            self.nvm.store_u64(at, encode(held.generation.get(), at));
            self.nvm.flush(at, 8);
        }
        self.nvm.fence();
    }

    /// Gives frames back, durably: only then may they be written to.
    pub fn clear(&self, frames: &[u32]) {
        for &frame in frames {
            let at = self.layout.frame_offset(frame);
            self.nvm.store_u64(at, 0);
            self.nvm.flush(at, 8);
        }
        self.nvm.fence();
    }

    /// Frames whose entries are not blank.
    pub fn in_use(&self) -> Vec<u32> {
        (0..self.layout.frame_count)
            .filter(|&frame| self.nvm.load_u64(self.layout.frame_offset(frame)) != 0)
            .collect()
    }

    /// Where the bytes of a frame begin in the file.
    pub fn file_offset(&self, frame: u32) -> u64 {
        SPILL_HEADER_BYTES + u64::from(frame) * self.layout.segment_bytes
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    pool: [u8; 16],
    id: [u8; 16],
    segment_bytes: U64,
    frame_count: U32,
    reserved: [u8; 8],
    crc: U32,
}
const _: () = assert!(size_of::<RawHeader>() == 64);

/// What a spill file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillHeader {
    /// UUID of the pool it belongs to.
    pub pool: [u8; 16],
    /// As in [`Home`].
    pub id: [u8; 16],
    /// Bytes of a frame.
    pub segment_bytes: u64,
    /// Frames it has room for.
    pub frame_count: u32,
}

impl SpillHeader {
    /// The first bytes of the file.
    pub fn encode(&self) -> [u8; SPILL_HEADER_BYTES as usize] {
        let mut raw = RawHeader {
            magic: MAGIC,
            pool: self.pool,
            id: self.id,
            segment_bytes: U64::new(self.segment_bytes),
            frame_count: U32::new(self.frame_count),
            reserved: [0; 8],
            crc: U32::new(0),
        };
        raw.crc = U32::new(crc32c::crc32c(&raw.as_bytes()[..60]));
        let mut page = [0; SPILL_HEADER_BYTES as usize];
        page[..64].copy_from_slice(raw.as_bytes());
        page
    }

    /// What the first bytes of a file say, if it is a spill file.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let raw = RawHeader::read_from_bytes(bytes.get(..64)?).ok()?;
        let is_sound = raw.magic == MAGIC
            && raw.reserved == [0; 8]
            && raw.crc.get() == crc32c::crc32c(&raw.as_bytes()[..60]);
        is_sound.then(|| Self {
            pool: raw.pool,
            id: raw.id,
            segment_bytes: raw.segment_bytes.get(),
            frame_count: raw.frame_count.get(),
        })
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        SPILL_HEADER_BYTES + u64::from(self.frame_count) * self.segment_bytes
    }
}
