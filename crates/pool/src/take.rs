//! A free slot is taken for a file: everything it says of the file, in the order that a crash
//! needs.

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use crate::hints::{Hint, HintKind, Parent};
use crate::left::Left;
use crate::numbers::{Generation, Slot};
use crate::slot::{IN_USE, Identity, LIFE, MARKS, Ownership, Slots};
use crate::stamps::Stamp;

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

impl<N: Nvm> Slots<'_, N> {
    /// Takes a free slot for a file. Durable when it returns; the in-use mark goes last, behind a
    /// fence.
    ///
    /// `expired_seq` starts at `generation`: nothing older than the slot's use can be live in it.
    pub fn take(&self, slot: Slot, generation: Generation, taken: &Taken<'_>) {
        let &Taken { identity, ownership, marks, path, parent, stamp } = taken;
        if on(Canary::InUseBeforeIdentity) {
            self.set_word(slot, IN_USE, generation.get());
        }
        self.write_identity(slot, generation, identity, ownership);
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
}
