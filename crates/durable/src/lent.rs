//! Files whose program has lent us its own description, the only one there is (`--fence lease`):
//! nobody opens the file before we give the lease back.
//!
//! While it is lent, drains and syncs are made on it: a description of our own would break our own
//! lease. It is given back only when nothing of the file is live and its writers are kept out,
//! until we have a description of our own: so no error of the disk falls between the two (history
//! 18).

use std::io;
use std::time::{Duration, Instant};

use holdfast_board::pause;
use holdfast_cache::Reason;
use holdfast_media::Nvm;

use super::file::ManagedFile;
use super::state::Durable;
use super::sync::Writers;
use super::upkeep::Upkeeps;
use holdfast_disk::Disk;

/// A client's sync that takes longer was abandoned by one that died in it.
const SYNC_MAX: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Settles a file and gives its program's description back. The caller keeps the file's writers
    /// out, and the file is not in state Behind any more.
    pub(super) fn end_lease(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        self.settle(file, Writers::KeptOut)?;
        self.exchange(file)
    }

    /// Somebody waits to open a file that is lent. `writes` tells, at the last moment, whether to
    /// write or to cut it: then the file is left to the kernel, and this is true.
    pub fn lease_breaks(&self, file: &ManagedFile<D::File>, writes: impl Fn() -> bool) -> io::Result<bool> {
        if !self.hold(file)? {
            return Ok(false);
        }
        let done = self.let_in(file, writes);
        self.let_go(file);
        done
    }

    fn let_in(&self, file: &ManagedFile<D::File>, writes: impl Fn() -> bool) -> io::Result<bool> {
        if !writes() {
            self.leave_behind_for_disk(file)?;
            self.settle(file, Writers::KeptOut)?;
        }
        if writes() {
            return self.bypass_held(file, Reason::Outsider).map(|()| true);
        }
        self.exchange(file).map(|()| false)
    }

    /// The program's description for one of our own, with nothing live.
    fn exchange(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        file.meta().may_be_behind = false;
        file.give_back();
        file.description(&self.board.row(file.slot).client_opens).map(|_| ())
    }

    /// Whether a sync of a lent file that succeeded may have done so because a client's sync took
    /// the notice of an error. Each of those is counted before it begins and, if it fails, once
    /// more before it is over.
    pub(super) fn may_have_told_others(&self, file: &ManagedFile<D::File>) -> bool {
        let row = self.board.row(file.slot);
        let until = Instant::now() + SYNC_MAX;
        let abandoned = file.meta().syncs_abandoned;
        let mut under_way = row.syncs_under_way();
        while under_way > abandoned && Instant::now() < until {
            pause(LOOK_AGAIN);
            under_way = row.syncs_under_way();
        }
        let mut meta = file.meta();
        if under_way > abandoned {
            meta.syncs_abandoned = under_way;
            return true;
        }
        row.sync_failures() != meta.client_failures
    }
}
