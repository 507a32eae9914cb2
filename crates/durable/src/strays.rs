//! Words of the board that a stray store left and that somebody waits for: who is told to look
//! finds them here, and opens what nobody has. Must never open what somebody has: that they name
//! nobody is seen many times before (`keeper/src/stalls.rs`).

use holdfast_board::{Ours, Stray};
use holdfast_disk::{Disk, locked};
use holdfast_media::Nvm;
use holdfast_pool::Slot;

use super::state::{Durable, KEEPER_ID, KEEPER_LANE};
use super::upkeep::Upkeeps;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Locks pages in the keeper's name, and notes that; false when the keeper is stopping.
    pub(super) fn lock_pages(&self, slot: Slot, offset: u64, bytes: u64) -> bool {
        let wanted = Ours { slot, offset, bytes, is_held: false };
        locked(&self.ours).push(wanted);
        let is_held = self.board.page_locks().lock(KEEPER_LANE, slot, offset, bytes);
        let mut ours = locked(&self.ours);
        let Some(at) = ours.iter().position(|of| *of == wanted) else { return is_held };
        if is_held {
            ours[at].is_held = true;
        } else {
            ours.swap_remove(at);
        }
        is_held
    }

    /// Opens them.
    pub(super) fn unlock_pages(&self, slot: Slot, offset: u64, bytes: u64) {
        self.board.page_locks().unlock(KEEPER_LANE, slot, offset, bytes);
        let was = Ours { slot, offset, bytes, is_held: true };
        let mut ours = locked(&self.ours);
        if let Some(at) = ours.iter().position(|of| *of == was) {
            ours.swap_remove(at);
        }
    }

    /// The words that name nobody who has what they are about, as far as one look tells.
    pub fn strays(&self, is_client: &dyn Fn(u32) -> bool) -> Vec<Stray> {
        let is_ours = |id| matches!(id, KEEPER_ID | holdfast_board::TAKER_ID);
        let ours = locked(&self.ours).clone();
        let held = locked(&self.held).clone();
        let has_file = |slot, id| if is_ours(id) { held.contains(&slot) } else { is_client(id) };
        let is_known = |id| is_ours(id) || is_client(id);
        let mut found = self.board.strays(KEEPER_LANE, &ours, &is_known, &has_file);
        found.extend(self.board.table_change());
        found
    }

    /// Opens such a word, which has said the same for a long time.
    pub fn open_stray(&self, stray: Stray) {
        match stray {
            // As if its owner had died: who was in an operation there has ended it long since.
            Stray::Owner(_, owner) => self.repair_lanes(owner),
            Stray::Table(_) => {
                // Who changes the table has these.
                let _files = locked(&self.files);
                self.board.end_table_change();
            }
            stray => self.board.open_stray(stray),
        }
    }
}
