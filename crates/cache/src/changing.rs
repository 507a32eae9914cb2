//! Calls that change what a journal has, around which a client says that it is in the midst of one:
//! should it die there, something is pending that nobody noted (invariant 10).

use holdfast_board::{Change, Epoch};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use rustix::time::ClockId;

use crate::client::Client;
use crate::clock::clock_ns;

/// An open that made a file returns so soon, nearly always.
const MADE_NS_MAX: u64 = 1_000_000_000;

impl<N: Nvm> Client<N> {
    /// Makes a change and all that notes it. `thread` tells the client's threads apart; each makes
    /// one at a time, so no other may be made within `work`.
    #[inline]
    pub fn changing<R>(&self, thread: u64, change: Change, work: impl FnOnce() -> R) -> R {
        let call = self.board.header().changing.begin(self.id, thread, change);
        let result = work();
        call.end();
        result
    }

    /// Makes a call that may make a file, which is pending before it is there: on each file system
    /// that has a ledger, since which one it will be on is not known. `make` gives the device on
    /// which it was made, if any: there it is noted, and the rest is taken back.
    pub fn making<R>(&self, thread: u64, make: impl FnOnce() -> (R, Option<u64>)) -> (R, Option<Epoch>) {
        self.changing(thread, Change::Making, || {
            let header = self.board.header();
            let announced = (!on(Canary::CreationUnannounced)).then(|| header.note_all_ledgers());
            let (result, device) = make();
            let noted = device.and_then(|device| self.note_change(device));
            announced.iter().for_each(|announced| header.withdraw_from_ledgers(announced));
            (result, noted)
        })
    }

    /// Notes a file that an open was allowed to make, and perhaps did: it is empty and was changed
    /// `changed_ns` after 1970. Somebody removed it just before, or a link led to where it was not.
    pub fn note_perhaps_made(&self, device: u64, changed_ns: u64) {
        if clock_ns(ClockId::Realtime) < changed_ns.saturating_add(MADE_NS_MAX) {
            self.note_change(device);
        }
    }
}
