//! How the keeper left a file that it changes by itself, and its last sign of life: by these
//! recovery tells the keeper's changes from those of others.

use holdfast_media::Nvm;

use crate::numbers::Slot;
use crate::slot::{HAND, LEFT, LEFT_MODIFIED, LIFE, LIFE_BOOTED, Slots};
use crate::{CHECKED_MAX, encode};

/// In the word that says since when the keeper has the file in hand: whatever time that is.
const IN_HAND: u64 = 1;

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

impl<N: Nvm> Slots<'_, N> {
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
}
