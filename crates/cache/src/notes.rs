//! Changes that no record holds are noted: the sync that follows them must be a real one, and a
//! record that is made after them must not look older than they are.
//!
//! Nothing here makes a change, or waits for the keeper.

use holdfast_board::{Epoch, LedgerRow};
use holdfast_media::Nvm;

use crate::client::Client;
use crate::file::FileRef;

impl<N: Nvm> Client<N> {
    /// Notes a change on a file system that no slot and no record holds: of a name, of a file's
    /// attributes, or of the size of a file that is not logged. Called before the change is made
    /// and once more when it is.
    pub fn note_change(&self, device: u64) -> Option<Epoch> {
        self.note_time();
        self.board.header().ledger(device).map(LedgerRow::note)
    }

    /// Takes a change back that was noted in `epoch` and then not made.
    pub fn withdraw_change(&self, device: u64, epoch: Epoch) {
        if let Some(ledger) = self.board.header().ledger(device) {
            ledger.hold(epoch);
        }
    }

    /// Notes a change of a file's content that the log does not hold: the next sync is real
    /// (invariant 9).
    pub fn note_unlogged(&self, file: FileRef) {
        if self.is_current(file) {
            self.row(file).note_unlogged();
        }
    }

    /// Notes a change of a file that is the journal's (mode, owner, times, attributes, allocation):
    /// it is pending in the ledger. Where changes become durable file by file, the file's next sync
    /// is real.
    pub fn note_attributes(&self, file: FileRef) {
        self.note_time();
        if self.is_current(file) {
            let row = self.row(file);
            row.note_unlogged();
            // What it is now the keeper sees when it hears of this.
            row.set_ownership(0);
            if let Some(ledger) = self.ledger(row) {
                ledger.note();
            }
        }
    }

    /// A call is being made that moves a file's time of change and nothing else. What others did is
    /// told by that time and by the same notices: so it is heard of before the call and behind it
    /// ([`Client::hear_all`]).
    pub fn note_touched(&self, file: FileRef) {
        if self.is_current(file) {
            self.row(file).note_touched();
        }
    }

    /// The keeper has heard of that call.
    pub fn end_touched(&self, file: FileRef) {
        if self.is_current(file) {
            self.row(file).take_touched();
        }
    }
}
