//! File slots: who a file is, where it was last seen, and up to which seq its records are void.
//!
//! A slot's identity is written once per use and never changed; paths live in two alternating checksummed
//! copies, so that a crash while one is written leaves the other; `expired_seq`, the in-use mark and the marks
//! are self-checking words outside of both. Only the keeper writes here (clients map this zone read-only).

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Layout, decode, encode};

/// Size of a slot, in bytes.
pub const SLOT_BYTES: u64 = 4096;
/// The longest kernel file handle, in bytes (`MAX_HANDLE_SZ`).
pub const HANDLE_BYTES_MAX: usize = 128;
/// The longest path a slot can hint at, in bytes; longer ones are bypassed.
pub const PATH_BYTES_MAX: usize = 1768;

/// An outsider opened the file while records of it may be live: recovery must not replay by itself.
pub const MARK_CONFLICT: u64 = 1;
/// Recovery set the file's records aside; a person decides.
pub const MARK_SET_ASIDE: u64 = 2;
/// The last link is gone for good: all records are void and a name that comes back is removed again.
pub const MARK_VOID: u64 = 4;
/// The program created the file under the keeper's eyes and its name may not be on disk yet.
pub const MARK_CREATED: u64 = 8;
/// See [`Slots::mark_rebuilt`].
const MARK_REBUILT: u64 = 16;

const IN_USE: u64 = 256;
const EXPIRED: u64 = 320;
const MARKS: u64 = 384;
const HINTS: [u64; 2] = [512, 512 + 1792];

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
    path: [u8; PATH_BYTES_MAX],
}
const _: () = assert!(size_of::<RawHint>() == 1792 && HINTS[1] + 1792 <= SLOT_BYTES);

/// Who a file is, for the file system: the UUID and the kernel's handle (never only an inode number).
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

/// Mode and owner a file had when it became managed: what recovery gives one that it has to build anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Permission bits, as in `st_mode`.
    pub mode: u32,
    /// User id.
    pub owner: u32,
    /// Group id.
    pub group: u32,
}

/// What a path hint says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintKind {
    /// The file has this name, or is about to get it (create, rename, link).
    Name,
    /// The name is about to be removed, or was.
    Unlink,
    /// The file, whose only name the older copy says, is about to get this one instead, or did: until its names are on disk
    /// recovery renames it again.
    Rename,
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
}

/// The slots of a pool.
pub struct Slots<'a, N> {
    /// The pool's media.
    pub nvm: &'a N,
    /// The pool's geometry.
    pub layout: &'a Layout,
}

impl<N: Nvm> Slots<'_, N> {
    fn word(&self, slot: u32, field: u64) -> Option<u64> {
        decode(self.nvm.load_u64(self.layout.slot_offset(slot) + field))
    }

    fn set_word(&self, slot: u32, field: u64, word: u64) {
        let offset = self.layout.slot_offset(slot) + field;
        self.nvm.store_u64(offset, word);
        self.nvm.flush(offset, 8);
        self.nvm.fence();
    }

    /// The generation under which the slot is in use, or `None` when it is free.
    pub fn generation(&self, slot: u32) -> Option<u64> {
        self.word(slot, IN_USE).filter(|&generation| generation != 0)
    }

    /// Whether the in-use mark is neither blank nor whole: the slot's records cannot be judged.
    pub fn is_damaged(&self, slot: u32) -> bool {
        self.nvm.load_u64(self.layout.slot_offset(slot) + IN_USE) != 0 && self.word(slot, IN_USE).is_none()
    }

    /// Takes a free slot for a file. Durable when it returns; the in-use mark goes last, behind a fence.
    ///
    /// `expired_seq` starts at `generation`: nothing older than the slot's use can be live in it.
    pub fn take(
        &self,
        slot: u32,
        generation: u64,
        identity: &Identity,
        ownership: Ownership,
        marks: u64,
        path: &[u8],
    ) {
        let base = self.layout.slot_offset(slot);
        let mut raw = RawIdentity::new_zeroed();
        raw.handle_type = U32::new(identity.handle_type as u32);
        raw.generation = U64::new(generation);
        raw.fs_uuid = identity.fs_uuid;
        raw.inode = U64::new(identity.inode);
        raw.handle_bytes = U16::new(identity.handle.len() as u16);
        raw.handle[..identity.handle.len()].copy_from_slice(&identity.handle);
        raw.mode = U32::new(ownership.mode);
        raw.owner = U32::new(ownership.owner);
        raw.group = U32::new(ownership.group);
        raw.crc = U32::new(crc32c::crc32c(&raw.as_bytes()[4..]));
        if on(Canary::InUseBeforeIdentity) {
            self.set_word(slot, IN_USE, encode(generation));
        }
        self.nvm.write(base, raw.as_bytes());
        self.nvm.flush(base, size_of::<RawIdentity>() as u64);
        let older = if on(Canary::OlderUseLive) { self.expired_seq(slot) } else { None };
        self.set_word(slot, EXPIRED, encode(older.unwrap_or(generation)));
        self.set_word(slot, MARKS, encode(marks));
        self.write_hint(slot, 0, generation, &Hint { kind: HintKind::Name, version: 1, path: path.to_vec() });
        self.set_word(slot, IN_USE, encode(generation));
    }

    /// Gives a slot back. Its records are void from here on (rule 3 of liveness).
    pub fn release(&self, slot: u32) {
        self.set_word(slot, IN_USE, encode(0));
    }

    /// The identity of a slot in use, or why it cannot be read.
    pub fn identity(&self, slot: u32) -> Result<Identity, &'static str> {
        self.read_identity(slot).map(|(identity, _)| identity)
    }

    /// Mode and owner of a slot in use, or why they cannot be read.
    pub fn ownership(&self, slot: u32) -> Result<Ownership, &'static str> {
        self.read_identity(slot).map(|(_, ownership)| ownership)
    }

    fn read_identity(&self, slot: u32) -> Result<(Identity, Ownership), &'static str> {
        let mut bytes = [0u8; size_of::<RawIdentity>()];
        self.nvm.read(self.layout.slot_offset(slot), &mut bytes);
        let raw = RawIdentity::read_from_bytes(&bytes).map_err(|_| "short")?;
        if raw.crc.get() != crc32c::crc32c(&bytes[4..]) {
            return Err("the checksum of its identity does not hold");
        }
        if Some(raw.generation.get()) != self.generation(slot) {
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
    pub fn expired_seq(&self, slot: u32) -> Option<u64> {
        self.word(slot, EXPIRED)
    }

    /// Persists `expired_seq`. The caller upholds invariant 2.
    pub fn set_expired_seq(&self, slot: u32, seq: u64) {
        self.set_word(slot, EXPIRED, encode(seq));
    }

    /// The `MARK_*` bits of a slot; a damaged word reads as a conflict, so that nothing is replayed blindly.
    pub fn marks(&self, slot: u32) -> u64 {
        self.word(slot, MARKS).unwrap_or(MARK_CONFLICT)
    }

    /// Persists the marks.
    pub fn set_marks(&self, slot: u32, marks: u64) {
        self.set_word(slot, MARKS, encode(marks));
    }

    /// Adds a mark: recovery holds all of the lost file, synced, under a temporary name beside its newest path hint,
    /// and has only to give it that name. Cleared by [`Slots::set_marks`] with the other marks.
    pub fn mark_rebuilt(&self, slot: u32) {
        self.set_marks(slot, self.marks(slot) | MARK_REBUILT);
    }

    /// Whether [`Slots::mark_rebuilt`] was the last word on the file.
    pub fn is_rebuilt(&self, slot: u32) -> bool {
        self.marks(slot) & MARK_REBUILT != 0
    }

    /// The path hints that are whole, newest first.
    pub fn hints(&self, slot: u32) -> Vec<Hint> {
        let mut found: Vec<Hint> = (0..2).filter_map(|copy| self.hint(slot, copy)).collect();
        found.sort_by_key(|hint| std::cmp::Reverse(hint.version));
        found
    }

    /// Writes a hint over the older copy, durably; the newer copy stays as it is.
    pub fn push_hint(&self, slot: u32, kind: HintKind, path: &[u8]) {
        let generation = self.generation(slot).unwrap_or(0);
        let versions = [0, 1].map(|copy| self.hint(slot, copy).map_or(0, |hint| hint.version));
        let copy = usize::from((versions[1] < versions[0]) != on(Canary::HintInPlace));
        let version = versions[0].max(versions[1]) + 1;
        self.write_hint(slot, copy, generation, &Hint { kind, version, path: path.to_vec() });
    }

    /// Makes `path` the newest name, durably. A copy that says so already is not touched: should the other one be torn by
    /// a crash, the name still stands in it.
    pub fn restore_hint(&self, slot: u32, path: &[u8]) {
        let copies = [0, 1].map(|copy| self.hint(slot, copy));
        let says = |hint: &Option<Hint>| {
            hint.as_ref().is_some_and(|hint| hint.kind == HintKind::Name && hint.path == path)
        };
        let Some(kept) = copies.iter().position(says) else {
            return self.push_hint(slot, HintKind::Name, path);
        };
        let version = copies.iter().flatten().map(|hint| hint.version).max().unwrap_or(0) + 1;
        let generation = self.generation(slot).unwrap_or(0);
        self.write_hint(
            slot,
            1 - kept,
            generation,
            &Hint { kind: HintKind::Name, version, path: path.to_vec() },
        );
    }

    fn hint(&self, slot: u32, copy: usize) -> Option<Hint> {
        let mut bytes = [0u8; size_of::<RawHint>()];
        self.nvm.read(self.layout.slot_offset(slot) + HINTS[copy], &mut bytes);
        let raw = RawHint::read_from_bytes(&bytes).ok()?;
        if raw.crc.get() != crc32c::crc32c(&bytes[4..]) || Some(raw.generation.get()) != self.generation(slot)
        {
            return None;
        }
        let kind = match raw.kind.get() {
            1 => HintKind::Name,
            2 => HintKind::Unlink,
            3 => HintKind::Rename,
            _ => return None,
        };
        let path = raw.path.get(..usize::from(raw.path_bytes.get()))?.to_vec();
        Some(Hint { kind, version: raw.version.get(), path })
    }

    fn write_hint(&self, slot: u32, copy: usize, generation: u64, hint: &Hint) {
        assert!(hint.path.len() <= PATH_BYTES_MAX, "the caller bypasses longer paths");
        let mut raw = RawHint::new_zeroed();
        raw.kind = U16::new(match hint.kind {
            HintKind::Name => 1,
            HintKind::Unlink => 2,
            HintKind::Rename => 3,
        });
        raw.path_bytes = U16::new(hint.path.len() as u16);
        raw.version = U64::new(hint.version);
        raw.generation = U64::new(generation);
        raw.path[..hint.path.len()].copy_from_slice(&hint.path);
        raw.crc = U32::new(crc32c::crc32c(&raw.as_bytes()[4..]));
        let offset = self.layout.slot_offset(slot) + HINTS[copy];
        self.nvm.write(offset, raw.as_bytes());
        self.nvm.flush(offset, size_of::<RawHint>() as u64);
        self.nvm.fence();
    }
}
