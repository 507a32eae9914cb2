//! What the slots of an unrecovered pool say of themselves.

use holdfast_media::Nvm;
use holdfast_pool::{Generation, Seq};

use super::source::Source;

/// What the scan needs to know of a slot to drop dead records at once (rules 3 and 4 of liveness).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// Not in use: all records are void.
    Free,
    /// Never used, by what it says, so that no record can name it. If one does, the slot's memory
    /// was lost, as a cleared error of the media leaves it.
    Blank,
    /// In use.
    InUse {
        /// Only records of this generation count.
        generation: Generation,
        /// Only records above this seq count.
        expired_seq: Seq,
    },
    /// A word of it is damaged: every record that names it is kept, to be set aside.
    Damaged,
}

/// The state of every slot of the pool.
pub(super) fn slot_states(source: &Source<'_, impl Nvm>) -> Vec<SlotState> {
    let slots = source.slots();
    source
        .layout()
        .slots()
        .map(|slot| match (slots.generation(slot), slots.expired_seq(slot)) {
            // An identity of another slot, or of another use, says that so are the words.
            (Some(_), _) if slots.identity(slot).is_err() || !slots.has_marks(slot) => SlotState::Damaged,
            (Some(generation), Some(expired_seq)) => SlotState::InUse { generation, expired_seq },
            (Some(_), None) => SlotState::Damaged,
            (None, _) if slots.is_blank(slot) => SlotState::Blank,
            (None, _) if slots.is_damaged(slot) => SlotState::Damaged,
            (None, _) => SlotState::Free,
        })
        .collect()
}
