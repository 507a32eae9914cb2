//! File slots: who a file is, where it was last seen, and up to which seq its records are void.
//!
//! A slot's identity is written once per use and never changed; paths, and stamps of what the disk
//! has of the file, live in two alternating checksummed copies each, so that a crash while one is
//! written leaves the other; `expired_seq`, the in-use mark, the marks and the time at which the
//! keeper left the file are self-checking words outside of them. Only the keeper writes here
//! (clients map this zone read-only).

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::{Layout, SLOT_BYTES};
use crate::numbers::{Generation, Seq, Slot};
use crate::word::sum_at;
use crate::{CHECKED_MAX, decode, encode};

/// The longest kernel file handle, in bytes (`MAX_HANDLE_SZ`).
pub const HANDLE_BYTES_MAX: usize = 128;
/// The longest path a slot can hint at, in bytes; longer ones are bypassed.
pub const PATH_BYTES_MAX: usize = 1504;
/// The longest path of a hint that says what the name is taken from ([`HintKind::Replace`]).
pub const REPLACING_PATH_BYTES_MAX: usize = PATH_BYTES_MAX - size_of::<RawReplaced>();

/// An outsider opened the file while records of it may be live: recovery must not replay by itself.
pub const MARK_CONFLICT: u64 = 1;
/// Recovery set the file's records aside; a person decides.
pub const MARK_SET_ASIDE: u64 = 2;
/// The last link is gone for good: all records are void and a name that comes back is removed
/// again.
pub const MARK_VOID: u64 = 4;
/// The program created the file under the keeper's eyes and its name may not be on disk yet.
pub const MARK_CREATED: u64 = 8;
/// See [`Slots::mark_rebuilt`].
const MARK_REBUILT: u64 = 16;
/// Bytes of the file may be in the log and not in the page cache: it is in state Behind, its disk
/// refused a sync, or a recovery is writing its records to it.
pub const MARK_AHEAD: u64 = 32;
/// The file of a slot that recovery set aside was given a newer slot: its old records would go over
/// newer bytes.
pub const MARK_SUPERSEDED: u64 = 64;
/// Its last name was removed by nobody under Holdfast. Where the crash has brought it back it is
/// the file that it was, with its records; where it has not, nothing is built anew.
pub const MARK_REMOVED: u64 = 128;
/// Records of it were lost, or may have been, where the log is damaged: what is left of them must
/// not be replayed without a person's word.
pub const MARK_LOST: u64 = 256;
/// Beside [`MARK_CONFLICT`]: nobody is known to have opened it; the watch that would have told had
/// ended.
pub const MARK_UNWATCHED: u64 = 512;

const IN_USE: u64 = 256;
const EXPIRED: u64 = 320;
const MARKS: u64 = 384;
const LEFT: u64 = 448;
const LIFE: u64 = 456;
const LIFE_BOOTED: u64 = 464;
const LEFT_MODIFIED: u64 = 472;
const HAND: u64 = 480;
const STAMPS: [u64; 2] = [512, 640];
const HINTS: [u64; 2] = [768, 768 + 1664];
/// In the word that says since when the keeper has the file in hand: whatever time that is.
const IN_HAND: u64 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawIdentity {
    crc: U32,
    handle_type: U32,
    generation: U64,
    fs_uuid: [u8; 16],
    inode: U64,
    handle_bytes: U16,
    reserved: [u8; 2],
    mode: U32,
    handle: [u8; HANDLE_BYTES_MAX],
    owner: U32,
    group: U32,
}
const _: () = assert!(size_of::<RawIdentity>() == 184 && size_of::<RawIdentity>() as u64 <= IN_USE);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHint {
    crc: U32,
    kind: U16,
    path_bytes: U16,
    version: U64,
    generation: U64,
    parent_type: U32,
    parent_bytes: U16,
    reserved: [u8; 2],
    parent: [u8; HANDLE_BYTES_MAX],
    path: [u8; PATH_BYTES_MAX],
}
const _: () = assert!(size_of::<RawHint>() == 1664 && HINTS[1] + 1664 <= SLOT_BYTES);

/// The end of a hint's path, where the hint says what the name is taken from.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawReplaced {
    generation: U64,
    born_ns: U64,
    slot: U32,
    handle_type: U32,
    handle_bytes: U16,
    reserved: [u8; 6],
    handle: [u8; HANDLE_BYTES_MAX],
}
const _: () = assert!(size_of::<RawReplaced>() == 160 && REPLACING_PATH_BYTES_MAX == 1344);

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawStamp {
    crc: U32,
    is_on_disk: U32,
    version: U64,
    generation: U64,
    size: U64,
    modified_ns: U64,
    changed_ns: U64,
    boot: [u8; 16],
    mount: U64,
    mode: U32,
    owner: U32,
    group: U32,
    reserved: [u8; 4],
    born_ns: U64,
    unused: [u8; 32],
}
const _: () = assert!(size_of::<RawStamp>() == 128 && STAMPS[0] + 128 <= STAMPS[1]);
const _: () = assert!(STAMPS[1] + 128 <= HINTS[0]);

/// Who a file is, for the file system: the UUID and the kernel's handle (never only an inode
/// number).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the file system.
    pub fs_uuid: [u8; 16],
    /// Type word of the handle.
    pub handle_type: i32,
    /// Bytes of the handle, at most [`HANDLE_BYTES_MAX`].
    pub handle: Vec<u8>,
    /// Inode number, for messages.
    pub inode: u64,
}

impl Identity {
    /// Whether both are the same file.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.fs_uuid, self.handle_type, &self.handle) == (other.fs_uuid, other.handle_type, &other.handle)
    }
}

/// Mode and owner a file had when it became managed: what recovery gives one that it has to build
/// anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Permission bits, as in `st_mode`.
    pub mode: u32,
    /// User id.
    pub owner: u32,
    /// Group id.
    pub group: u32,
}

/// A directory, for its file system: type and bytes of the kernel's handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Type word of the handle.
    pub handle_type: i32,
    /// Bytes of the handle, at most [`HANDLE_BYTES_MAX`].
    pub handle: Vec<u8>,
}

/// Where a file was mounted: a boot of the machine, and the mount's number, which is never given
/// out twice in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mount {
    /// The boot's id.
    pub boot: [u8; 16],
    /// The mount's number; 0 where the kernel does not tell.
    pub id: u64,
}

/// What the file system said of a file at a moment at which the keeper knew what the disk has of
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Whether a sync that began afterwards succeeded: the disk is never older than this.
    pub is_on_disk: bool,
    /// Size, in bytes.
    pub size: u64,
    /// Last change of its bytes, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Last change of any kind, in nanoseconds since 1970.
    pub changed_ns: i64,
    /// When the file was made, in nanoseconds since 1970, if the file system tells: with the handle
    /// it says who the file is, since a handle can be given again once a crash took its file.
    pub born_ns: Option<i64>,
    /// The mount through which the keeper had it.
    pub mount: Mount,
    /// Mode and owner then.
    pub ownership: Ownership,
}

impl Stamp {
    /// Whether a file with the handle of the stamp's, born at that moment, is the same one.
    pub fn is_of(&self, born_ns: Option<i64>) -> bool {
        self.born_ns.is_none() || born_ns.is_none() || self.born_ns == born_ns
    }
}

/// What the keeper said last of a file that it changes by itself (state Behind).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Unknown,
    /// It has the file in hand, and whatever happened to it was its doing: recovery says so.
    InHand,
    /// It began to change the file at this moment, in microseconds since 1970, and had left it so
    /// before, if that is known.
    InHandSince(u64, Option<LeftAt>),
    /// It left the file so.
    At(LeftAt),
}

/// The times of a file as they were when the keeper left it, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftAt {
    /// Its time of change.
    pub changed_us: u64,
    /// Its time of modification.
    pub modified_us: u64,
}

/// The last sign of life of the keeper that had a slot, by its clock, for a recovery that comes
/// after one which was kept from the file: the heartbeat has moved since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// When that was, in microseconds since 1970.
    pub last_us: u64,
    /// When its machine was booted, in microseconds since 1970, if that was known.
    pub booted_us: Option<u64>,
}

/// What a path hint says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintKind {
    /// The file has this name, or is about to get it (create, rename, link).
    Name,
    /// The name is about to be removed, or was.
    Unlink,
    /// The file, whose only name the older copy says, is about to get this one instead, or did:
    /// until its names are on disk recovery renames it again.
    Rename,
    /// As `Rename`, of a name that another file has: [`Hint::replaced`].
    Replace,
}

/// What has the name that a file is about to get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Slot and generation of the file that has it, if it has a slot: it is removed by that.
    pub slot: Option<(Slot, Generation)>,
    /// What may stand there on the disk, besides files that have slots.
    pub base: Option<Base>,
}

/// A file without a slot, by its handle on the file system of the file that takes its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// Type word of the handle.
    pub handle_type: i32,
    /// Bytes of the handle, at most [`HANDLE_BYTES_MAX`].
    pub handle: Vec<u8>,
    /// Its time of birth, nanoseconds since 1970, where the file system tells.
    pub born_ns: Option<i64>,
}

impl Base {
    /// Whether a file with that handle, born at that moment, is the same one.
    pub fn is_of(&self, born_ns: Option<i64>) -> bool {
        self.born_ns.is_none() || born_ns.is_none() || self.born_ns == born_ns
    }
}

impl Replaced {
    fn encode(&self) -> RawReplaced {
        let mut raw = RawReplaced::new_zeroed();
        if let Some((slot, generation)) = self.slot {
            (raw.slot, raw.generation) = (U32::new(slot.number()), U64::new(generation.get()));
        }
        if let Some(base) = &self.base {
            raw.handle_type = U32::new(base.handle_type as u32);
            raw.handle_bytes = U16::new(base.handle.len() as u16);
            raw.handle[..base.handle.len()].copy_from_slice(&base.handle);
            raw.born_ns = U64::new(base.born_ns.map_or(0, |born_ns| born_ns as u64));
        }
        raw
    }

    fn decode(raw: &RawReplaced) -> Option<Self> {
        let handle = raw.handle.get(..usize::from(raw.handle_bytes.get()))?.to_vec();
        let born_ns = Some(raw.born_ns.get() as i64).filter(|&born_ns| born_ns != 0);
        let base = Base { handle_type: raw.handle_type.get() as i32, handle, born_ns };
        let generation = Generation::new(raw.generation.get());
        Some(Self {
            slot: (!generation.is_none()).then_some((Slot::new(raw.slot.get()), generation)),
            base: (!base.handle.is_empty()).then_some(base),
        })
    }
}

/// One copy of a path hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// What the hint says.
    pub kind: HintKind,
    /// The newer copy has the higher version.
    pub version: u64,
    /// The absolute path as the keeper saw it.
    pub path: Vec<u8>,
    /// The directory in which the name is, where it was known.
    pub parent: Option<Parent>,
    /// What the name is taken from, if the kind is [`HintKind::Replace`].
    pub replaced: Option<Replaced>,
}

/// What a slot says of its file when it is taken.
#[derive(Clone, Copy)]
pub struct Taken<'a> {
    /// Who the file is.
    pub identity: &'a Identity,
    /// Mode and owner it has.
    pub ownership: Ownership,
    /// The `MARK_*` bits.
    pub marks: u64,
    /// Its path.
    pub path: &'a [u8],
    /// The directory of its name, where it is known.
    pub parent: Option<&'a Parent>,
    /// What the file system says of it.
    pub stamp: Option<Stamp>,
}

/// The slots of a pool.
pub struct Slots<'a, N> {
    /// The pool's media.
    pub nvm: &'a N,
    /// The pool's geometry.
    pub layout: &'a Layout,
}

impl<N: Nvm> Slots<'_, N> {
    fn word(&self, slot: Slot, field: u64) -> Option<u64> {
        let offset = self.layout.slot_offset(slot) + field;
        decode(self.nvm.load_u64(offset), offset)
    }

    fn set_word(&self, slot: Slot, field: u64, value: u64) {
        let offset = self.layout.slot_offset(slot) + field;
        self.nvm.store_u64(offset, encode(value, offset));
        self.nvm.flush(offset, 8);
        self.nvm.fence();
    }

    /// The generation under which the slot is in use, or `None` when it is free.
    pub fn generation(&self, slot: Slot) -> Option<Generation> {
        self.word(slot, IN_USE).map(Generation::new).filter(|generation| !generation.is_none())
    }

    /// Whether the in-use mark was never written: the slot was never used.
    pub fn is_blank(&self, slot: Slot) -> bool {
        self.nvm.load_u64(self.layout.slot_offset(slot) + IN_USE) == 0
    }

    /// Whether the in-use mark is neither blank nor whole: the slot's records cannot be judged.
    pub fn is_damaged(&self, slot: Slot) -> bool {
        !self.is_blank(slot) && self.word(slot, IN_USE).is_none()
    }

    /// Whether a file ever had the slot, by the checksum of its identity, which format versions
    /// before this one began elsewhere.
    pub(crate) fn was_used(&self, slot: Slot) -> bool {
        let (offset, mut bytes) = (self.layout.slot_offset(slot), [0u8; size_of::<RawIdentity>()]);
        self.nvm.read(offset, &mut bytes);
        let (sum, rest) = bytes.split_at(4);
        let is = |expected: u32| sum == expected.to_le_bytes();
        rest.iter().any(|&byte| byte != 0) && (is(sum_at(offset, rest)) || is(crc32c::crc32c(rest)))
    }

    /// Takes a free slot for a file. Durable when it returns; the in-use mark goes last, behind a
    /// fence.
    ///
    /// `expired_seq` starts at `generation`: nothing older than the slot's use can be live in it.
    pub fn take(&self, slot: Slot, generation: Generation, taken: &Taken<'_>) {
        let &Taken { identity, ownership, marks, path, parent, stamp } = taken;
        let base = self.layout.slot_offset(slot);
        let mut raw = RawIdentity::new_zeroed();
        raw.handle_type = U32::new(identity.handle_type as u32);
        raw.generation = U64::new(generation.get());
        raw.fs_uuid = identity.fs_uuid;
        raw.inode = U64::new(identity.inode);
        raw.handle_bytes = U16::new(identity.handle.len() as u16);
        raw.handle[..identity.handle.len()].copy_from_slice(&identity.handle);
        raw.mode = U32::new(ownership.mode);
        raw.owner = U32::new(ownership.owner);
        raw.group = U32::new(ownership.group);
        raw.crc = U32::new(sum_at(base, &raw.as_bytes()[4..]));
        if on(Canary::InUseBeforeIdentity) {
            self.set_word(slot, IN_USE, generation.get());
        }
        self.nvm.write(base, raw.as_bytes());
        self.nvm.flush(base, size_of::<RawIdentity>() as u64);
        let older = if on(Canary::OlderUseLive) { self.expired_seq(slot) } else { None };
        self.set_expired_seq(slot, older.unwrap_or(generation.seq()));
        self.set_word(slot, MARKS, marks);
        self.set_left(slot, Left::Unknown);
        self.set_word(slot, LIFE, 0);
        let parent = parent.cloned();
        let hint = Hint { kind: HintKind::Name, version: 1, path: path.to_vec(), parent, replaced: None };
        self.write_hint(slot, 0, generation, &hint);
        if let Some(stamp) = stamp {
            self.write_stamp(slot, 0, generation, 1, &stamp);
        }
        self.set_word(slot, IN_USE, generation.get());
    }

    /// Gives a slot back. Its records are void from here on (rule 3 of liveness).
    pub fn release(&self, slot: Slot) {
        self.set_word(slot, IN_USE, 0);
    }

    /// The identity of a slot in use, or why it cannot be read.
    pub fn identity(&self, slot: Slot) -> Result<Identity, &'static str> {
        self.read_identity(slot).map(|(identity, _)| identity)
    }

    /// Mode and owner of a slot in use as they were known last, or why they cannot be read.
    pub fn ownership(&self, slot: Slot) -> Result<Ownership, &'static str> {
        let first = self.read_identity(slot).map(|(_, ownership)| ownership);
        self.stamp(slot).map_or(first, |stamp| Ok(stamp.ownership))
    }

    /// The newest whole stamp of the slot's use.
    pub fn stamp(&self, slot: Slot) -> Option<Stamp> {
        let stamps = (0..2).filter_map(|copy| self.read_stamp(slot, copy));
        stamps.max_by_key(|(version, _)| *version).map(|(_, stamp)| stamp)
    }

    /// Writes a stamp over the older copy, durably.
    pub fn push_stamp(&self, slot: Slot, stamp: &Stamp) {
        let Some(generation) = self.generation(slot) else { return };
        let versions = [0, 1].map(|copy| self.read_stamp(slot, copy).map_or(0, |(version, _)| version));
        let copy = usize::from(versions[1] < versions[0]);
        self.write_stamp(slot, copy, generation, versions[0].max(versions[1]) + 1, stamp);
    }

    /// Mode and owner changed; what the disk has of the bytes did not.
    pub fn set_ownership(&self, slot: Slot, ownership: Ownership) {
        if let Some(stamp) = self.stamp(slot) {
            self.push_stamp(slot, &Stamp { ownership, ..stamp });
        }
    }

    fn read_stamp(&self, slot: Slot, copy: usize) -> Option<(u64, Stamp)> {
        let mut bytes = [0u8; size_of::<RawStamp>()];
        let offset = self.layout.slot_offset(slot) + STAMPS[copy];
        self.nvm.read(offset, &mut bytes);
        let raw = RawStamp::read_from_bytes(&bytes).ok()?;
        let is_whole = raw.crc.get() == sum_at(offset, &bytes[4..]);
        // Nobody counts so far: the next version has to be a higher one.
        let is_ours = Some(Generation::new(raw.generation.get())) == self.generation(slot)
            && raw.version.get() < u64::MAX;
        if !(is_whole && is_ours) {
            return None;
        }
        let stamp = Stamp {
            is_on_disk: raw.is_on_disk.get() != 0,
            size: raw.size.get(),
            modified_ns: raw.modified_ns.get() as i64,
            changed_ns: raw.changed_ns.get() as i64,
            born_ns: Some(raw.born_ns.get() as i64).filter(|&born_ns| born_ns != 0),
            mount: Mount { boot: raw.boot, id: raw.mount.get() },
            ownership: Ownership { mode: raw.mode.get(), owner: raw.owner.get(), group: raw.group.get() },
        };
        Some((raw.version.get(), stamp))
    }

    fn write_stamp(&self, slot: Slot, copy: usize, generation: Generation, version: u64, stamp: &Stamp) {
        let mut raw = RawStamp::new_zeroed();
        raw.is_on_disk = U32::new(u32::from(stamp.is_on_disk));
        raw.version = U64::new(version);
        raw.generation = U64::new(generation.get());
        raw.size = U64::new(stamp.size);
        raw.modified_ns = U64::new(stamp.modified_ns as u64);
        raw.changed_ns = U64::new(stamp.changed_ns as u64);
        raw.born_ns = U64::new(stamp.born_ns.unwrap_or(0) as u64);
        raw.boot = stamp.mount.boot;
        raw.mount = U64::new(stamp.mount.id);
        raw.mode = U32::new(stamp.ownership.mode);
        raw.owner = U32::new(stamp.ownership.owner);
        raw.group = U32::new(stamp.ownership.group);
        let offset = self.layout.slot_offset(slot) + STAMPS[copy];
        raw.crc = U32::new(sum_at(offset, &raw.as_bytes()[4..]));
        self.nvm.write(offset, raw.as_bytes());
        self.nvm.flush(offset, size_of::<RawStamp>() as u64);
        self.nvm.fence();
    }

    /// How the keeper left the file when it changed it by itself last; a damaged word says nothing.
    pub fn left(&self, slot: Slot) -> Left {
        let word = |field| self.word(slot, field).filter(|&value| value != 0);
        let left_at = word(LEFT).map(|changed_us| LeftAt {
            changed_us,
            modified_us: self.word(slot, LEFT_MODIFIED).unwrap_or(0),
        });
        match (word(HAND), left_at) {
            (Some(IN_HAND), _) => Left::InHand,
            (Some(since_us), before) => Left::InHandSince(since_us, before),
            (None, Some(left_at)) => Left::At(left_at),
            (None, None) => Left::Unknown,
        }
    }

    /// Persists that. A process that dies in it leaves the one or the other; a power cut may leave
    /// anything, and then nothing of it counts but [`Left::InHand`], which is one word.
    pub fn set_left(&self, slot: Slot, left: Left) {
        let offset = self.layout.slot_offset(slot);
        let store = |field: u64, value: u64| {
            self.nvm.store_u64(offset + field, encode(value.min(CHECKED_MAX), offset + field));
        };
        match left {
            Left::Unknown => store(LEFT, 0),
            Left::InHand => store(HAND, IN_HAND),
            Left::InHandSince(since_us, _) => store(HAND, since_us.max(IN_HAND + 1)),
            Left::At(LeftAt { changed_us, modified_us }) => {
                store(LEFT, changed_us.max(1));
                store(LEFT_MODIFIED, modified_us);
            }
        }
        if matches!(left, Left::Unknown | Left::At(_)) {
            store(HAND, 0);
        }
        self.nvm.flush(offset + LEFT, 64);
        self.nvm.fence();
    }

    /// The last sign of life that counts for this file, if it is not the pool's.
    pub fn life(&self, slot: Slot) -> Option<Life> {
        let last_us = self.word(slot, LIFE).filter(|&last_us| last_us != 0)?;
        Some(Life { last_us, booted_us: self.word(slot, LIFE_BOOTED).filter(|&booted_us| booted_us != 0) })
    }

    /// Persists that. Torn, a later sign of life stands beside an earlier boot: what was set
    /// between the two then leaves open what is not, and nothing else.
    pub fn set_life(&self, slot: Slot, life: &Life) {
        let last = (LIFE, life.last_us.clamp(1, CHECKED_MAX));
        let booted = (LIFE_BOOTED, life.booted_us.unwrap_or(0).min(CHECKED_MAX));
        let is_known = self.life(slot).is_some();
        for (field, value) in if is_known { [last, booted] } else { [booted, last] } {
            self.set_word(slot, field, value);
        }
    }

    fn read_identity(&self, slot: Slot) -> Result<(Identity, Ownership), &'static str> {
        let mut bytes = [0u8; size_of::<RawIdentity>()];
        let offset = self.layout.slot_offset(slot);
        self.nvm.read(offset, &mut bytes);
        let raw = RawIdentity::read_from_bytes(&bytes).map_err(|_| "short")?;
        if raw.crc.get() != sum_at(offset, &bytes[4..]) {
            return Err("the checksum of its identity does not hold");
        }
        if Some(Generation::new(raw.generation.get())) != self.generation(slot) {
            return Err("its identity belongs to another generation");
        }
        let handle = raw.handle.get(..usize::from(raw.handle_bytes.get())).ok_or("its handle is too long")?;
        let identity = Identity {
            fs_uuid: raw.fs_uuid,
            handle_type: raw.handle_type.get() as i32,
            handle: handle.to_vec(),
            inode: raw.inode.get(),
        };
        let ownership = Ownership { mode: raw.mode.get(), owner: raw.owner.get(), group: raw.group.get() };
        Ok((identity, ownership))
    }

    /// Records up to and with this seq are void; `None` when the word is damaged.
    pub fn expired_seq(&self, slot: Slot) -> Option<Seq> {
        self.word(slot, EXPIRED).map(Seq::new)
    }

    /// Persists `expired_seq`. The caller upholds invariant 2.
    pub fn set_expired_seq(&self, slot: Slot, seq: Seq) {
        self.set_word(slot, EXPIRED, seq.get());
    }

    /// Whether what the marks of a slot are can be read.
    pub fn has_marks(&self, slot: Slot) -> bool {
        self.word(slot, MARKS).is_some()
    }

    /// The `MARK_*` bits of a slot; a damaged word reads as a conflict, so that nothing is replayed
    /// blindly.
    pub fn marks(&self, slot: Slot) -> u64 {
        self.word(slot, MARKS).unwrap_or(MARK_CONFLICT)
    }

    /// Persists the marks.
    pub fn set_marks(&self, slot: Slot, marks: u64) {
        self.set_word(slot, MARKS, marks);
    }

    /// Adds a mark: recovery holds all of the lost file, synced, under a temporary name beside its
    /// newest path hint, and has only to give it that name. Cleared by [`Slots::set_marks`] with
    /// the other marks.
    pub fn mark_rebuilt(&self, slot: Slot) {
        self.set_marks(slot, self.marks(slot) | MARK_REBUILT);
    }

    /// Whether [`Slots::mark_rebuilt`] was the last word on the file.
    pub fn is_rebuilt(&self, slot: Slot) -> bool {
        self.marks(slot) & MARK_REBUILT != 0
    }

    /// The path hints that are whole, newest first.
    pub fn hints(&self, slot: Slot) -> Vec<Hint> {
        let mut found: Vec<Hint> = (0..2).filter_map(|copy| self.hint(slot, copy)).collect();
        found.sort_by_key(|hint| std::cmp::Reverse(hint.version));
        found
    }

    /// Writes a hint over the older copy, durably; the newer copy stays as it is.
    pub fn push_hint(&self, slot: Slot, kind: HintKind, path: &[u8], parent: Option<&Parent>) {
        self.push(slot, kind, path, parent, None);
    }

    /// As [`Slots::push_hint`], of a name that the file is about to take from another one. The path
    /// is not longer than [`REPLACING_PATH_BYTES_MAX`].
    pub fn push_replacing(&self, slot: Slot, path: &[u8], parent: Option<&Parent>, replaced: &Replaced) {
        self.push(slot, HintKind::Replace, path, parent, Some(replaced.clone()));
    }

    fn push(
        &self,
        slot: Slot,
        kind: HintKind,
        path: &[u8],
        parent: Option<&Parent>,
        replaced: Option<Replaced>,
    ) {
        let generation = self.generation(slot).unwrap_or_default();
        let versions = [0, 1].map(|copy| self.hint(slot, copy).map_or(0, |hint| hint.version));
        let copy = usize::from((versions[1] < versions[0]) != on(Canary::HintInPlace));
        let version = versions[0].max(versions[1]) + 1;
        let parent = parent.cloned();
        let hint = Hint { kind, version, path: path.to_vec(), parent, replaced };
        self.write_hint(slot, copy, generation, &hint);
    }

    /// Makes `path` the newest name, durably. A copy that says so already is not touched: should
    /// the other one be torn by a crash, the name still stands in it.
    pub fn restore_hint(&self, slot: Slot, path: &[u8]) {
        let copies = [0, 1].map(|copy| self.hint(slot, copy));
        let says = |hint: &Option<Hint>| {
            hint.as_ref().is_some_and(|hint| hint.kind == HintKind::Name && hint.path == path)
        };
        let parent = copies.iter().flatten().find(|hint| hint.path == path);
        let parent = parent.and_then(|hint| hint.parent.clone());
        let Some(kept) = copies.iter().position(says) else {
            return self.push_hint(slot, HintKind::Name, path, parent.as_ref());
        };
        let version = copies.iter().flatten().map(|hint| hint.version).max().unwrap_or(0) + 1;
        let generation = self.generation(slot).unwrap_or_default();
        let hint = Hint { kind: HintKind::Name, version, path: path.to_vec(), parent, replaced: None };
        self.write_hint(slot, 1 - kept, generation, &hint);
    }

    fn hint(&self, slot: Slot, copy: usize) -> Option<Hint> {
        let mut bytes = [0u8; size_of::<RawHint>()];
        let offset = self.layout.slot_offset(slot) + HINTS[copy];
        self.nvm.read(offset, &mut bytes);
        let raw = RawHint::read_from_bytes(&bytes).ok()?;
        let is_whole = raw.crc.get() == sum_at(offset, &bytes[4..]);
        let is_ours = Some(Generation::new(raw.generation.get())) == self.generation(slot)
            && raw.version.get() < u64::MAX;
        if !(is_whole && is_ours) {
            return None;
        }
        let kind = match raw.kind.get() {
            1 => HintKind::Name,
            2 => HintKind::Unlink,
            3 => HintKind::Rename,
            4 => HintKind::Replace,
            _ => return None,
        };
        let (path, end) = raw.path.split_at(REPLACING_PATH_BYTES_MAX);
        let (path, replaced) = match kind {
            HintKind::Replace => (path, Some(Replaced::decode(&RawReplaced::read_from_bytes(end).ok()?)?)),
            _ => (&raw.path[..], None),
        };
        let path = path.get(..usize::from(raw.path_bytes.get()))?.to_vec();
        let handle = raw.parent.get(..usize::from(raw.parent_bytes.get()))?.to_vec();
        let parent = Parent { handle_type: raw.parent_type.get() as i32, handle };
        let parent = (!parent.handle.is_empty()).then_some(parent);
        Some(Hint { kind, version: raw.version.get(), path, parent, replaced })
    }

    fn write_hint(&self, slot: Slot, copy: usize, generation: Generation, hint: &Hint) {
        assert!(hint.path.len() <= PATH_BYTES_MAX, "the caller bypasses longer paths");
        let mut raw = RawHint::new_zeroed();
        raw.kind = U16::new(match hint.kind {
            HintKind::Name => 1,
            HintKind::Unlink => 2,
            HintKind::Rename => 3,
            HintKind::Replace => 4,
        });
        raw.path_bytes = U16::new(hint.path.len() as u16);
        raw.version = U64::new(hint.version);
        raw.generation = U64::new(generation.get());
        raw.path[..hint.path.len()].copy_from_slice(&hint.path);
        if let Some(replaced) = &hint.replaced {
            assert!(hint.path.len() <= REPLACING_PATH_BYTES_MAX, "the caller settles longer ones");
            raw.path[REPLACING_PATH_BYTES_MAX..].copy_from_slice(replaced.encode().as_bytes());
        }
        if let Some(parent) = &hint.parent {
            raw.parent_type = U32::new(parent.handle_type as u32);
            raw.parent_bytes = U16::new(parent.handle.len() as u16);
            raw.parent[..parent.handle.len()].copy_from_slice(&parent.handle);
        }
        let offset = self.layout.slot_offset(slot) + HINTS[copy];
        raw.crc = U32::new(sum_at(offset, &raw.as_bytes()[4..]));
        self.nvm.write(offset, raw.as_bytes());
        self.nvm.flush(offset, size_of::<RawHint>() as u64);
        self.nvm.fence();
    }
}
