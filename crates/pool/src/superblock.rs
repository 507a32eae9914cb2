//! The superblock, written at format and copied behind the words, and the page of words that the
//! keeper changes.

use holdfast_media::Nvm;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::{Layout, PAGE_BYTES, Zone};
use crate::numbers::Seq;
use crate::segment::SEGMENT_HEADER_BYTES;
use crate::{SEGMENT_BYTES, Slots, decode, encode};

/// The format this code reads and writes.
pub const VERSION: u32 = 5;

/// What a superblock begins with, in every version.
pub const MAGIC: [u8; 8] = *b"HOLDFAST";
const RAW_BYTES: u64 = size_of::<Raw>() as u64;
/// Where the copy stands, in the page of words: media fail by whole pages, so it is in another page
/// than the superblock.
pub const SUPERBLOCK_COPY_OFFSET: u64 = PAGE_BYTES + 2048;
/// Every word of the words page stands alone in a cache line, so one flush never carries another.
const LINE_BYTES: u64 = 64;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    segment_bytes: U32,
    uuid: [u8; 16],
    pool_bytes: U64,
    slot_count: U32,
    segment_count: U32,
    slots_offset: U64,
    segments_offset: U64,
    created_unix_s: U64,
    reserved: [u8; 52],
    crc: U32,
}
const _: () = assert!(size_of::<Raw>() == 128);

/// A checked superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Names this formatting of the media; seeds every checksum.
    pub uuid: [u8; 16],
    /// Geometry.
    pub layout: Layout,
    /// When the pool was formatted, in seconds since 1970.
    pub created_unix_s: u64,
}

/// Why media is not a pool that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// No magic.
    #[error("it is not a Holdfast pool (no magic at its start)")]
    NotAPool,
    /// Written by another version.
    #[error("it has format version {found}, this program knows version {VERSION}")]
    Version {
        /// What stands there.
        found: u32,
    },
    /// Checksum or contents do not hold.
    #[error("its superblock is damaged ({0}), and so is the copy")]
    Damaged(&'static str),
    /// The media is shorter than the pool says.
    #[error("it is truncated: {found} bytes of {expected}")]
    Truncated {
        /// Bytes there.
        found: u64,
        /// Bytes the superblock names.
        expected: u64,
    },
}

/// Writes an empty pool. Segments are given no generation, so nothing in them is valid. What stood
/// here before is no pool any more from the moment on at which its superblock is gone, so the copy
/// goes first; of the new pool the superblock comes last but its copy.
pub fn format(nvm: &impl Nvm, layout: &Layout, uuid: [u8; 16], created_unix_s: u64) -> Superblock {
    put(nvm, SUPERBLOCK_COPY_OFFSET, &[0; RAW_BYTES as usize]);
    put(nvm, layout.offset(Zone::Superblock), &[0; RAW_BYTES as usize]);
    let zeros = [0u8; 4096];
    let mut at = layout.offset(Zone::Words);
    while at < layout.offset(Zone::Segments) {
        nvm.write(at, &zeros);
        nvm.flush(at, 4096);
        at += 4096;
    }
    for segment in layout.segments() {
        nvm.write(layout.segment_offset(segment), &zeros[..SEGMENT_HEADER_BYTES as usize]);
        nvm.flush(layout.segment_offset(segment), SEGMENT_HEADER_BYTES);
    }
    let words = Words { nvm, layout };
    words.set_counter_clean(Seq::new(1));
    nvm.fence();
    let superblock = Superblock { uuid, layout: *layout, created_unix_s };
    mend(nvm, &superblock);
    superblock
}

/// Reads and checks the superblock, or its copy if the superblock does not hold; writes nothing.
pub fn open(nvm: &impl Nvm) -> Result<Superblock, FormatError> {
    match open_at(nvm, 0) {
        Err(error @ (FormatError::NotAPool | FormatError::Damaged(_))) => {
            open_at(nvm, SUPERBLOCK_COPY_OFFSET).map_err(|of_copy| match of_copy {
                FormatError::Version { .. } | FormatError::Truncated { .. } => of_copy,
                FormatError::NotAPool | FormatError::Damaged(_) => error,
            })
        }
        opened => opened,
    }
}

/// Writes the superblock and its copy anew where they do not say what `superblock` says. True if
/// one of them was damaged: pools of old have nothing where the copy is.
pub fn mend(nvm: &impl Nvm, superblock: &Superblock) -> bool {
    let (raw, blank) = (superblock.encode(), [0u8; RAW_BYTES as usize]);
    let mut is_mended = false;
    for (at, may_be_blank) in [(0, false), (SUPERBLOCK_COPY_OFFSET, true)] {
        let mut found = blank;
        nvm.read(at, &mut found);
        if found != raw.as_bytes() {
            put(nvm, at, raw.as_bytes());
            is_mended |= !(may_be_blank && found == blank);
        }
    }
    is_mended
}

/// What media holds that is no pool by its superblocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// Both superblocks read as zeros, and slots of a pool stand behind them.
    Pool,
    /// Both superblocks read as zeros, and nothing tells that there was a pool.
    Blank,
    /// Something else.
    Other,
}

/// What is left of a pool whose superblocks are gone, as cleared errors of the media leave them.
pub fn remains(nvm: &impl Nvm) -> Remains {
    let is_blank = |at: u64| {
        let mut found = [0u8; RAW_BYTES as usize];
        nvm.len() < at + RAW_BYTES || {
            nvm.read(at, &mut found);
            found == [0; RAW_BYTES as usize]
        }
    };
    // What is too short for a superblock has none that could read as zeros.
    if nvm.len() < RAW_BYTES || !(is_blank(0) && is_blank(SUPERBLOCK_COPY_OFFSET)) {
        return Remains::Other;
    }
    let Ok(layout) = Layout::new(nvm.len()) else { return Remains::Blank };
    let slots = Slots { nvm, layout: &layout };
    if layout.slots().any(|slot| slots.was_used(slot)) { Remains::Pool } else { Remains::Blank }
}

fn put(nvm: &impl Nvm, at: u64, bytes: &[u8]) {
    nvm.write(at, bytes);
    nvm.flush(at, bytes.len() as u64);
    nvm.fence();
}

/// The superblock whose bytes begin at `at`.
fn open_at(nvm: &impl Nvm, at: u64) -> Result<Superblock, FormatError> {
    let mut bytes = [0u8; RAW_BYTES as usize];
    if nvm.len() < at + RAW_BYTES {
        return Err(FormatError::NotAPool);
    }
    nvm.read(at, &mut bytes);
    let raw = Raw::read_from_bytes(&bytes).map_err(|_| FormatError::NotAPool)?;
    if raw.magic != MAGIC {
        return Err(FormatError::NotAPool);
    }
    // Before the version: a damaged number is no other version, and every version has its checksum
    // here.
    if raw.crc.get() != crc32c::crc32c(&bytes[..124]) {
        return Err(FormatError::Damaged("its checksum does not hold"));
    }
    if raw.version.get() != VERSION {
        return Err(FormatError::Version { found: raw.version.get() });
    }
    if raw.reserved != [0; 52] || u64::from(raw.segment_bytes.get()) != SEGMENT_BYTES {
        return Err(FormatError::Damaged("a reserved field is used"));
    }
    let layout = Layout::new(raw.pool_bytes.get()).map_err(|_| FormatError::Damaged("impossible size"))?;
    if layout.slot_count != raw.slot_count.get()
        || layout.segment_count != raw.segment_count.get()
        || layout.offset(Zone::Slots) != raw.slots_offset.get()
        || layout.offset(Zone::Segments) != raw.segments_offset.get()
    {
        return Err(FormatError::Damaged("its geometry does not fit its size"));
    }
    if nvm.len() < layout.pool_bytes {
        return Err(FormatError::Truncated { found: nvm.len(), expected: layout.pool_bytes });
    }
    Ok(Superblock { uuid: raw.uuid, layout, created_unix_s: raw.created_unix_s.get() })
}

impl Superblock {
    fn encode(&self) -> Raw {
        let layout = &self.layout;
        let mut raw = Raw {
            magic: MAGIC,
            version: U32::new(VERSION),
            segment_bytes: U32::new(layout.segment_bytes as u32),
            uuid: self.uuid,
            pool_bytes: U64::new(layout.pool_bytes),
            slot_count: U32::new(layout.slot_count),
            segment_count: U32::new(layout.segment_count),
            slots_offset: U64::new(layout.offset(Zone::Slots)),
            segments_offset: U64::new(layout.offset(Zone::Segments)),
            created_unix_s: U64::new(self.created_unix_s),
            reserved: [0; 52],
            crc: U32::new(0),
        };
        raw.crc = U32::new(crc32c::crc32c(&raw.as_bytes()[..124]));
        raw
    }
}

/// Who opened a pool last, and where it takes connections: in every version of the format these
/// words stand at the same place and say by themselves whether they hold, so that programs of one
/// version can tell who serves a pool of another one.
pub fn owner(nvm: &impl Nvm) -> (Option<u64>, Option<Vec<u8>>) {
    let is_pool = matches!(open(nvm), Ok(_) | Err(FormatError::Version { .. }));
    let Some(layout) = Layout::new(nvm.len()).ok().filter(|_| is_pool) else { return (None, None) };
    let words = Words { nvm, layout: &layout };
    (words.owner_pid(), words.socket())
}

/// The line of the words page at which the socket's path begins.
const SOCKET: u64 = 16;
/// A socket's path and what ends it; the kernel takes no longer one.
const SOCKET_PATH_BYTES: usize = 108;
const SOCKET_BYTES: usize = SOCKET_PATH_BYTES + 4;

/// The words page: what the keeper persists about the pool as a whole.
pub struct Words<'a, N> {
    /// The pool's media.
    pub nvm: &'a N,
    /// The pool's geometry.
    pub layout: &'a Layout,
}

impl<N: Nvm> Words<'_, N> {
    fn at(&self, index: u64) -> u64 {
        self.layout.offset(Zone::Words) + index * LINE_BYTES
    }

    fn get(&self, index: u64) -> Option<u64> {
        decode(self.nvm.load_u64(self.at(index)), self.at(index))
    }

    fn set(&self, index: u64, value: u64) {
        self.store(index, encode(value, self.at(index)));
    }

    fn store(&self, index: u64, word: u64) {
        self.nvm.store_u64(self.at(index), word);
        self.nvm.flush(self.at(index), 8);
        self.nvm.fence();
    }

    /// The last moment, in microseconds since 1970, at which a keeper was known to be at work.
    pub fn heartbeat_unix_us(&self) -> Option<u64> {
        self.get(0)
    }

    /// Persists the heartbeat.
    pub fn set_heartbeat_unix_us(&self, unix_us: u64) {
        self.set(0, unix_us);
    }

    /// When the machine of that keeper was booted, in microseconds since 1970 by its clock at the
    /// last heartbeat: it moves only when that clock is set.
    pub fn booted_unix_us(&self) -> Option<u64> {
        self.get(3)
    }

    /// Persists it.
    pub fn set_booted_unix_us(&self, unix_us: u64) {
        self.set(3, unix_us);
    }

    /// The counter's value if the pool was closed cleanly: nothing is live and every number used is
    /// below it.
    pub fn counter_clean(&self) -> Option<Seq> {
        self.get(1).map(Seq::new)
    }

    /// Marks the pool as closed cleanly.
    pub fn set_counter_clean(&self, counter: Seq) {
        self.set(1, counter.get());
    }

    /// Marks the pool as in use; from here on only a scan knows what is in it.
    pub fn set_in_use(&self) {
        self.store(1, 0);
    }

    /// The process that opened the pool last; a hint for messages, the lock decides.
    pub fn owner_pid(&self) -> Option<u64> {
        self.get(2)
    }

    /// Stores the owner's process id.
    pub fn set_owner_pid(&self, pid: u64) {
        self.set(2, pid);
    }

    /// The path of the socket at which the last owner took connections, if that was said whole. It
    /// is where to ask; who answers there is told by the kernel.
    pub fn socket(&self) -> Option<Vec<u8>> {
        let mut raw = [0; SOCKET_BYTES];
        self.nvm.read(self.at(SOCKET), &mut raw);
        let (path, check) = raw.split_at(SOCKET_PATH_BYTES);
        let len = path.iter().position(|&byte| byte == 0)?;
        let is_whole = len > 0 && check == crc32c::crc32c(path).to_le_bytes();
        is_whole.then(|| path[..len].to_vec())
    }

    /// Says where connections are taken from now on. A path that is too long is said to be none.
    pub fn set_socket(&self, path: &[u8]) {
        let mut raw = [0; SOCKET_BYTES];
        if path.len() < SOCKET_PATH_BYTES {
            raw[..path.len()].copy_from_slice(path);
            let check = crc32c::crc32c(&raw[..SOCKET_PATH_BYTES]);
            raw[SOCKET_PATH_BYTES..].copy_from_slice(&check.to_le_bytes());
        }
        self.nvm.write(self.at(SOCKET), &raw);
        self.nvm.flush(self.at(SOCKET), SOCKET_BYTES as u64);
        self.nvm.fence();
    }
}
