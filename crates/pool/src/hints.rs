//! Path hints: where a file was last seen, and which change of its names is under way.
//!
//! A slot has two, by turns, each with its checksum: should a crash tear the one that is written,
//! the name still stands in the other.

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::SLOT_BYTES;
use crate::numbers::{Generation, Slot};
use crate::slot::{HANDLE_BYTES_MAX, HINTS, Slots};
use crate::word::sum_at;

/// The longest path a slot can hint at, in bytes; longer ones are bypassed.
pub const PATH_BYTES_MAX: usize = 1504;
/// The longest path of a hint that says what the name is taken from ([`HintKind::Replace`]).
pub const REPLACING_PATH_BYTES_MAX: usize = PATH_BYTES_MAX - size_of::<RawReplaced>();

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

/// A directory, for its file system: type and bytes of the kernel's handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parent {
    /// Type word of the handle.
    pub handle_type: i32,
    /// Bytes of the handle, at most [`HANDLE_BYTES_MAX`].
    pub handle: Vec<u8>,
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

impl<N: Nvm> Slots<'_, N> {
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

    pub(crate) fn write_hint(&self, slot: Slot, copy: usize, generation: Generation, hint: &Hint) {
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
