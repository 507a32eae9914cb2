//! Keeping a file's writers out, in the keeper's name. A file whose slot was given back meanwhile
//! must never be taken for held: the slot may be another one's.

use std::io;

use holdfast_canary::{Canary, on};
use holdfast_disk::{Disk, locked};
use holdfast_media::Nvm;
use holdfast_pool::Slot;

use super::file::ManagedFile;
use super::state::{Durable, KEEPER_ID};
use super::upkeep::Upkeeps;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Keeps a file's writers out, waiting for whoever does. Not for threads that serve requests: a
    /// client that has the file may wait for them. False, and nobody is kept out, if its slot was
    /// given back: it may be another file's by now.
    pub(super) fn hold(&self, file: &ManagedFile<D::File>) -> io::Result<bool> {
        let held = self.board.lock_file(file.slot, KEEPER_ID);
        if !held {
            return Err(io::Error::other("the keeper is stopping"));
        }
        self.note_kept_out(file.slot);
        Ok(self.keeps_held(file))
    }

    /// As `hold`, unless somebody has the file.
    pub(super) fn try_hold(&self, file: &ManagedFile<D::File>) -> io::Result<bool> {
        if !self.try_hold_slot(file.slot) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(self.keeps_held(file))
    }

    /// As `try_hold`, of whatever file has the slot.
    pub(super) fn try_hold_slot(&self, slot: Slot) -> bool {
        let held = self.board.try_lock_file(slot, KEEPER_ID);
        if held {
            self.note_kept_out(slot);
        }
        held
    }

    /// Has whoever wants a file for itself wait, unless somebody has it; its writers go on.
    pub(super) fn try_claim(&self, file: &ManagedFile<D::File>) -> bool {
        let claimed = self.board.try_claim_file(file.slot, KEEPER_ID);
        if claimed {
            self.note_kept_out(file.slot);
        }
        claimed
    }

    /// Remembers that the keeper has a slot: what the board says of it a stray store may have left.
    pub(super) fn note_kept_out(&self, slot: Slot) {
        locked(&self.held).insert(slot);
    }

    /// Lets go of the slot of a file that has it no more.
    fn keeps_held(&self, file: &ManagedFile<D::File>) -> bool {
        let keeps = self.is_current(file) || on(Canary::GivenBackTwice);
        if !keeps {
            self.let_go(file);
        }
        keeps
    }

    pub(super) fn let_go(&self, file: &ManagedFile<D::File>) {
        self.let_go_as(file.slot, KEEPER_ID);
    }

    /// Lets go of a slot that the keeper has by this name.
    pub(super) fn let_go_as(&self, slot: Slot, name: u32) {
        locked(&self.held).remove(&slot);
        self.board.row(slot).unlock_exclusive(name);
    }
}
