//! Keeping a file's writers out, in the keeper's name. A file whose slot was given back meanwhile
//! must never be taken for held: the slot may be another one's.

use std::io;

use holdfast_canary::{Canary, on};
use holdfast_disk::Disk;
use holdfast_media::Nvm;

use super::file::ManagedFile;
use super::state::{Durable, KEEPER_ID};
use super::upkeep::Upkeeps;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Keeps a file's writers out, waiting for whoever does. Not for threads that serve requests: a
    /// client that has the file may wait for them. False, and nobody is kept out, if its slot was
    /// given back: it may be another file's by now.
    pub(super) fn hold(&self, file: &ManagedFile<D::File>) -> io::Result<bool> {
        let held = self.board.lock_file(file.slot, KEEPER_ID);
        held.then(|| self.keeps_held(file)).ok_or_else(|| io::Error::other("the keeper is stopping"))
    }

    /// As `hold`, unless somebody has the file.
    pub(super) fn try_hold(&self, file: &ManagedFile<D::File>) -> io::Result<bool> {
        let held = self.board.try_lock_file(file.slot, KEEPER_ID);
        held.then(|| self.keeps_held(file)).ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))
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
        self.board.row(file.slot).unlock_exclusive(KEEPER_ID);
    }
}
