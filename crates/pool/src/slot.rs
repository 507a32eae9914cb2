//! File slots: who a file is, and up to which seq its records are void.
//!
//! A slot's identity is written once per use and never changed; paths (`hints`), and stamps of what
//! the disk has of the file (`stamps`), live in two alternating checksummed copies each, so that a
//! crash while one is written leaves the other; `expired_seq`, the in-use mark, the marks and the
//! time at which the keeper left the file (`left`) are self-checking words outside of them. Only
//! the keeper writes here (clients map this zone read-only).

use holdfast_media::Nvm;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::Layout;
use crate::numbers::{Generation, Seq, Slot};
use crate::word::sum_at;
use crate::{decode, encode};

/// The longest kernel file handle, in bytes (`MAX_HANDLE_SZ`).
pub const HANDLE_BYTES_MAX: usize = 128;

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

pub(crate) const IN_USE: u64 = 256;
const EXPIRED: u64 = 320;
pub(crate) const MARKS: u64 = 384;
pub(crate) const LEFT: u64 = 448;
pub(crate) const LIFE: u64 = 456;
pub(crate) const LIFE_BOOTED: u64 = 464;
pub(crate) const LEFT_MODIFIED: u64 = 472;
pub(crate) const HAND: u64 = 480;
pub(crate) const STAMPS: [u64; 2] = [512, 640];
pub(crate) const HINTS: [u64; 2] = [768, 768 + 1664];

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

/// Why a slot in use does not say who its file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It is damaged.
    #[error("the checksum of its identity does not hold")]
    Checksum,
    /// It is whole, and of another use of the slot.
    #[error("its identity belongs to another generation")]
    OtherGeneration,
    /// No file system has such a handle.
    #[error("its handle is too long")]
    HandleTooLong,
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

/// The slots of a pool.
pub struct Slots<'a, N> {
    /// The pool's media.
    pub nvm: &'a N,
    /// The pool's geometry.
    pub layout: &'a Layout,
}

impl<N: Nvm> Slots<'_, N> {
    pub(crate) fn word(&self, slot: Slot, field: u64) -> Option<u64> {
        let offset = self.layout.slot_offset(slot) + field;
        decode(self.nvm.load_u64(offset), offset)
    }

    pub(crate) fn set_word(&self, slot: Slot, field: u64, value: u64) {
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

    /// Gives a slot back. Its records are void from here on (rule 3 of liveness).
    pub fn release(&self, slot: Slot) {
        self.set_word(slot, IN_USE, 0);
    }

    /// Writes who the file is; what makes it count comes behind it, and a fence.
    pub(crate) fn write_identity(
        &self,
        slot: Slot,
        generation: Generation,
        identity: &Identity,
        ownership: Ownership,
    ) {
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
        self.nvm.write(base, raw.as_bytes());
        self.nvm.flush(base, size_of::<RawIdentity>() as u64);
    }

    /// The identity of a slot in use, or why it cannot be read.
    pub fn identity(&self, slot: Slot) -> Result<Identity, IdentityError> {
        self.read_identity(slot).map(|(identity, _)| identity)
    }

    pub(crate) fn read_identity(&self, slot: Slot) -> Result<(Identity, Ownership), IdentityError> {
        let mut bytes = [0u8; size_of::<RawIdentity>()];
        let offset = self.layout.slot_offset(slot);
        self.nvm.read(offset, &mut bytes);
        let raw = RawIdentity::read_from_bytes(&bytes).map_err(|_| IdentityError::Checksum)?;
        if raw.crc.get() != sum_at(offset, &bytes[4..]) {
            return Err(IdentityError::Checksum);
        }
        if Some(Generation::new(raw.generation.get())) != self.generation(slot) {
            return Err(IdentityError::OtherGeneration);
        }
        let handle =
            raw.handle.get(..usize::from(raw.handle_bytes.get())).ok_or(IdentityError::HandleTooLong)?;
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
}
