//! Stamps: what the file system said of a file at a moment at which the keeper knew what the disk
//! has of it.
//!
//! A slot has two, by turns, each with its checksum: a crash while one is written leaves the other.

use holdfast_media::Nvm;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::numbers::{Generation, Slot};
use crate::slot::{HINTS, IdentityError, Ownership, STAMPS, Slots};
use crate::word::sum_at;

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

impl<N: Nvm> Slots<'_, N> {
    /// Mode and owner of a slot in use as they were known last, or why they cannot be read.
    pub fn ownership(&self, slot: Slot) -> Result<Ownership, IdentityError> {
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

    pub(crate) fn write_stamp(
        &self,
        slot: Slot,
        copy: usize,
        generation: Generation,
        version: u64,
        stamp: &Stamp,
    ) {
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
}
