//! One slot of an unrecovered pool, read once: what the pool knows of a file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{
    Generation, Hint, HintKind, Identity, IdentityError, Left, Life, MARK_CREATED, MARK_VOID, Replaced, Slot,
    Stamp,
};

use super::slots::SlotState;
use super::source::Source;
use holdfast_disk::Stat;

/// Why a slot does not say who its file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoIdentity {
    #[error("its slot is blank, and the log has records of it")]
    Blank,
    #[error("a word of its slot is damaged")]
    Damaged,
    #[error(transparent)]
    Unreadable(IdentityError),
}

/// What a slot says of its file.
pub(super) struct SlotFile {
    pub(super) slot: Slot,
    /// Order in which slots were taken; 0 when damaged.
    pub(super) generation: Generation,
    /// Who the file is, or why that cannot be read.
    pub(super) identity: Result<Identity, NoIdentity>,
    pub(super) marks: u64,
    pub(super) rebuilt: bool,
    /// Newest first.
    pub(super) hints: Vec<Hint>,
    /// What was known of it last.
    pub(super) stamp: Option<Stamp>,
    pub(super) left: Left,
    /// Earlier recoveries were kept from it, and the first of them found this last sign of life.
    pub(super) life: Option<Life>,
    /// Nothing of it was ever expired: all that was written is in the log.
    pub(super) never_expired: bool,
    /// Slots of files that were given its only name, as they say.
    pub(super) takers: Vec<Slot>,
    /// The file without a slot stands at its newest name from which that is to be taken: whether it
    /// is as it was. `None`: it does not.
    pub(super) takes_name: Option<bool>,
}

impl SlotFile {
    /// Reads a slot that is in use or damaged; `None` when it is free. One that was never used is
    /// damaged if the log has records of it.
    pub(super) fn read(
        source: &Source<'_, impl Nvm>,
        slot: Slot,
        state: SlotState,
        has_records: bool,
    ) -> Option<Self> {
        let slots = source.slots();
        let (generation, identity, never_expired) = match state {
            SlotState::Free => return None,
            SlotState::Blank if !has_records => return None,
            SlotState::Blank => (Generation::NONE, Err(NoIdentity::Blank), false),
            SlotState::InUse { generation, expired_seq } => {
                let identity = slots.identity(slot).map_err(NoIdentity::Unreadable);
                (generation, identity, expired_seq == generation.seq())
            }
            SlotState::Damaged => (Generation::NONE, Err(NoIdentity::Damaged), false),
        };
        Some(Self {
            slot,
            generation,
            identity,
            marks: slots.marks(slot),
            rebuilt: slots.is_rebuilt(slot),
            hints: slots.hints(slot),
            stamp: slots.stamp(slot),
            left: slots.left(slot),
            life: slots.life(slot),
            never_expired,
            takers: Vec::new(),
            takes_name: None,
        })
    }

    /// Whether slot words, identity and a path are whole.
    pub(super) fn is_sound(&self) -> bool {
        self.identity.is_ok() && !self.hints.is_empty()
    }

    /// Whether the newest hint says that a name was being removed, the last one as far as the link
    /// count told.
    pub(super) fn is_unlinking(&self) -> bool {
        self.hints.first().is_some_and(|newest| newest.kind == HintKind::Unlink)
    }

    /// The name that a rename took the file from and the one it gave it, while the disk may not
    /// have it.
    pub(super) fn rename(&self) -> Option<(&[u8], &[u8])> {
        let [to, from] = self.hints.as_slice() else { return None };
        let is_rename = matches!(to.kind, HintKind::Rename | HintKind::Replace);
        let is_held = is_rename && self.marks & MARK_CREATED != 0 && self.is_sound();
        is_held.then_some((&from.path, &to.path))
    }

    /// What that rename takes the name from.
    pub(super) fn replaced(&self) -> Option<&Replaced> {
        self.rename().and_then(|_| self.hints.first()?.replaced.as_ref())
    }

    /// Whether this is the file without a slot that stood at the name which a rename gave `other`.
    pub(super) fn is_base_of(&self, other: &SlotFile) -> bool {
        let (Ok(identity), Ok(others)) = (&self.identity, &other.identity) else { return false };
        let base = other.replaced().and_then(|replaced| replaced.base.as_ref());
        base.is_some_and(|base| {
            identity.fs_uuid == others.fs_uuid
                && (identity.handle_type, &identity.handle) == (base.handle_type, &base.handle)
                && self.stamp.is_none_or(|stamp| base.is_of(stamp.born_ns))
        })
    }

    /// Whether the program removed the file. An announced removal that was not withdrawn counts as
    /// made: its call had not returned if it was not, and then it may still happen. A file with
    /// another name may have got that at the same moment; whether it did is seen at the name.
    pub(super) fn is_void(&self) -> bool {
        let known = |hint: &Hint| hint.kind != HintKind::Unlink && hint.path != self.hints[0].path;
        !self.takers.is_empty()
            || self.marks & MARK_VOID != 0
            || self.is_unlinking() && !self.hints.iter().any(known)
    }

    /// Whether a file with the slot's handle is the slot's file. A file system may give the handle
    /// of a file that a crash took to another one: xfs does, when its log brings an earlier life of
    /// the inode to its end.
    pub(super) fn is_born(&self, stat: &Stat) -> bool {
        self.stamp.is_none_or(|stamp| stamp.is_of(stat.born_ns)) || on(Canary::BirthIgnored)
    }

    /// The newest path, or the slot's number when there is none.
    pub(super) fn shown(&self) -> String {
        match self.hints.first() {
            Some(hint) => String::from_utf8_lossy(&hint.path).into_owned(),
            None => self.number(),
        }
    }

    /// The slot's number, as a person may name it.
    pub(super) fn number(&self) -> String {
        format!("#{}", self.slot)
    }

    /// Whether a person's `wanted` means this file.
    pub(super) fn is_meant(&self, wanted: &Path) -> bool {
        wanted.as_os_str() == OsStr::new(&self.number()) || self.has_name(&absolute(wanted))
    }

    /// Whether the slot knows this name of it.
    pub(super) fn has_name(&self, path: &Path) -> bool {
        self.hints.iter().any(|hint| hint.path == path.as_os_str().as_bytes())
    }
}

/// An absolute path without links, even if the file itself is not there.
fn absolute(path: &Path) -> std::path::PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    match (whole.parent().and_then(|parent| parent.canonicalize().ok()), whole.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => whole,
    }
}
