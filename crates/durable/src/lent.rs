//! Files whose program has lent us its own description, the only one there is (`--fence lease`):
//! nobody opens the file before we give the lease back.
//!
//! While it is lent, drains and syncs are made on it: a description of our own would break our own
//! lease. It is given back only when nothing of the file is live and its writers are kept out,
//! until we have a description of our own: so no error of the disk falls between the two (history
//! 18).

use std::io;

use holdfast_media::Nvm;

use super::file::ManagedFile;
use super::state::Durable;
use super::sync::Writers;
use super::upkeep::Upkeeps;
use holdfast_disk::Disk;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Settles a file and gives its program's description back. The caller keeps the file's writers
    /// out, and the file is not in state Behind any more.
    pub(super) fn end_lease(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        self.settle(file, Writers::KeptOut)?;
        self.exchange(file)
    }

    /// The program's description for one of our own, with nothing live.
    pub(super) fn exchange(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        file.meta().may_be_behind = false;
        file.give_back();
        file.description(self.board.row(file.slot)).map(|_| ())
    }
}
