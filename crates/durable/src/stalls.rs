//! Taking a file from clients that stand still in the midst of a change of it: stopped, frozen, in
//! the hands of a debugger. Who waits for them goes on.
//!
//! The file is brought to the disk, its slot given back, and the file left to the kernel. That is
//! safe wherever they stand, and should they go on at any moment meanwhile:
//!
//! - a record that they are still to write bears a generation whose use has ended, so it is dead;
//! - the call that they are still to make is the kernel's, and nothing of the file is live under
//!   it;
//! - whoever makes it sees afterwards that the file was taken, and does not count it as durable;
//! - their lane, its segment and its announcement stay theirs, and no other file gets the slot
//!   while they may act on it (`Board::lingers`).
//!
//! Must never take a file from who works on it: not for safety, but because the log then stands for
//! it no more.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_board::{TAKER_ID, pause};
use holdfast_cache::Reason;
use holdfast_media::Nvm;

use super::file::{GONE, ManagedFile};
use super::state::{Durable, KEEPER_ID};
use super::sync::Synced;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, locked};

/// How long whoever works on the file may keep it from being taken.
const SEIZE_MAX: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_micros(200);
/// Between tries to bring it to a disk that refuses.
const TRY_AGAIN: Duration = Duration::from_millis(200);

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// The clients that keep others from a file: who has it for itself, and whose operations on it
    /// are under way.
    pub fn clients_in(&self, file: &ManagedFile<D::File>) -> Vec<u32> {
        let holder = self.board.row(file.slot).holder();
        let lanes = self.board.lanes_on(file.slot).map(|(_, client)| client);
        lanes.chain([holder]).filter(|&client| !matches!(client, 0 | KEEPER_ID | TAKER_ID)).collect()
    }

    /// Takes a file from those of its clients that stand still (`stands`). Returns whether it did.
    pub fn take_from(&self, file: &Arc<ManagedFile<D::File>>, stands: &dyn Fn(u32) -> bool) -> bool {
        let row = self.board.row(file.slot);
        row.set_wanted(true);
        let seized = self.seize(file, stands);
        row.set_wanted(false);
        if !seized {
            return false;
        }
        // Something may be changed from now on that nobody else notes.
        self.board.header().note_all_ledgers();
        while self.board.lanes_on(file.slot).any(|(_, client)| !stands(client)) {
            pause(LOOK_AGAIN);
        }
        let taken = !self.is_current(file) || self.end_taken(file, stands);
        self.let_go_as(file.slot, TAKER_ID);
        taken
    }

    /// Has the file for the taker, and so new writers kept out.
    fn seize(&self, file: &ManagedFile<D::File>, stands: &dyn Fn(u32) -> bool) -> bool {
        let row = self.board.row(file.slot);
        let begun = Instant::now();
        while self.is_current(file) && begun.elapsed() < SEIZE_MAX {
            let stops_lane = self.board.lanes_on(file.slot).any(|(_, client)| stands(client));
            // In state Behind an operation goes on in the page rows, which outlive the slot's use.
            // Of a file that failed the log keeps what it has.
            let state = row.state();
            if state.is_failed() || state.lags() && stops_lane {
                return false;
            }
            let holder = row.holder();
            let is_seized = match holder {
                0 if !stops_lane => return false,
                0 => self.board.seize_file(file.slot, 0),
                KEEPER_ID | TAKER_ID => false,
                client => stands(client) && self.board.seize_file(file.slot, client),
            };
            if is_seized {
                self.note_kept_out(file.slot);
                return true;
            }
            pause(LOOK_AGAIN);
        }
        false
    }

    /// Ends the use of the slot of a seized file, of which nobody works on it any more.
    fn end_taken(&self, file: &Arc<ManagedFile<D::File>>, stands: &dyn Fn(u32) -> bool) -> bool {
        let row = self.board.row(file.slot);
        self.end_announced(file, stands);
        if file.held().is_removed() || file.meta().marks & GONE != 0 {
            return self.end_removed(file);
        }
        while let Err(error) = self.bypass_held(file, Reason::StoodStill) {
            if row.state().is_failed() {
                return false;
            }
            self.events.trouble(format!("{}: {error}", file.meta().path.display()));
            pause(TRY_AGAIN);
        }
        self.clear_conflict(file);
        // All that was acknowledged was in the page cache when the sync began that this was about:
        // who goes on now sees that the file was taken. What their announcements bound is void.
        self.expire(file, Synced::of(self.board.next_seq().before()));
        locked(&self.stood).insert((file.dev, file.ino), file.slot);
        let lanes: Vec<_> = self.board.lanes_on(file.slot).map(|(lane, _)| lane).collect();
        file.meta().written_natively = true;
        self.release(file);
        lanes.into_iter().for_each(|lane| self.board.open_pages_of(lane, file.slot));
        true
    }

    /// A name that somebody announced who stands still is not given or removed by the slot: when
    /// they go on, it is the kernel's change.
    fn end_announced(&self, file: &ManagedFile<D::File>, stands: &dyn Fn(u32) -> bool) {
        let begun = Instant::now();
        loop {
            let (removing, path) = {
                let mut meta = file.meta();
                meta.naming = None;
                (meta.removing, meta.path.clone())
            };
            let Some(client) = removing.filter(|_| file.meta().unlinking.is_some()) else {
                if !file.held().is_removed() && !self.stands_at(file, &path) {
                    self.withdraw_name(file);
                }
                return self.forget_rename(file);
            };
            // Who works makes it in a moment.
            if file.held().is_removed() {
                return;
            }
            if stands(client) || begun.elapsed() > SEIZE_MAX {
                self.board.header().taken.note(file.slot, client);
                self.withdraw_name(file);
                let mut meta = file.meta();
                (meta.unlinking, meta.removing) = (None, None);
            }
            pause(LOOK_AGAIN);
        }
    }

    /// A removed file needs no more than that its slot says so.
    fn end_removed(&self, file: &Arc<ManagedFile<D::File>>) -> bool {
        self.forget_removed();
        if file.meta().marks & GONE != 0 {
            self.reap(file);
            return true;
        }
        false
    }

    /// Whether somebody who stands still is in the midst of a change of a file that was taken from
    /// them: until they have gone on nothing of it may be logged.
    pub fn is_stood_in(&self, dev: u64, ino: u64) -> bool {
        let mut stood = locked(&self.stood);
        stood.retain(|_, slot| self.board.lingers(*slot));
        stood.contains_key(&(dev, ino))
    }
}
