//! Settling and bypassing a file when somebody outside opens it, of whom a fence or a lease tells,
//! and taking it back when they have gone (docs/crash/others.md).

use std::io;

use holdfast_board::Way;
use holdfast_cache::Reason;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{MARK_CONFLICT, MARK_UNWATCHED};

use super::file::ManagedFile;
use super::state::Durable;
use super::sync::Writers;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile};

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// An outsider that may write opens the file. With `conflict` it does not wait for us: until
    /// the file is settled recovery must not replay over what it writes, and a mark in the slot
    /// says so.
    pub fn outsider_arrived(&self, file: &ManagedFile<D::File>, conflict: bool) -> io::Result<()> {
        if conflict {
            self.mark_conflict(file);
        }
        if on(Canary::OutsiderUnsettled) {
            return Ok(());
        }
        // A sync that fails orders a rewrite, after which the next one may succeed.
        let is_unwatched = file.meta().marks & MARK_UNWATCHED != 0;
        let reason = if is_unwatched { Reason::NoWatch } else { Reason::Outsider };
        self.bypass(file, reason).or_else(|_| self.bypass(file, reason))?;
        self.clear_conflict(file);
        // Behind the settle, whose commit does not cover what they are about to do.
        self.note_outsider(file);
        Ok(())
    }

    /// No outsider can write the file any more.
    pub fn outsider_left(&self, file: &ManagedFile<D::File>) {
        let conflict = file.meta().marks & MARK_CONFLICT != 0;
        let concerned = conflict || file.meta().bypass == Some(Reason::Outsider);
        if !concerned || !matches!(self.hold(file), Ok(true)) {
            return;
        }
        self.note_outsider(file);
        // It could not be settled when the outsider came. What was live then may cover what the
        // outsider wrote, and the mark stays until none of it is.
        if conflict && self.settle(file, Writers::KeptOut).is_ok() {
            self.clear_conflict(file);
        }
        // Another reason that came up meanwhile stands.
        if file.meta().bypass == Some(Reason::Outsider) {
            self.manage_again(file);
        }
        self.let_go(file);
    }

    /// Takes a file back that was left to the kernel, now that the reason is gone, unless `not`
    /// finds another one when its writers are kept out. Returns whether it is managed; never waits
    /// for who has the file.
    pub fn take_back(&self, file: &ManagedFile<D::File>, not: impl FnOnce() -> bool) -> bool {
        if !matches!(self.try_hold(file), Ok(true)) {
            return false;
        }
        let taken = !not() && self.manage_again(file);
        self.let_go(file);
        taken
    }

    fn manage_again(&self, file: &ManagedFile<D::File>) -> bool {
        let row = self.board.row(file.slot);
        if !row.state().is_bypassed() {
            return false;
        }
        // Somebody is writing to it by the kernel alone, and may not be done when the next sync
        // begins.
        if self.board.header().is_passed(row.inode().ino) {
            return false;
        }
        // Nobody announced what became of its names meanwhile. One that has none left would be
        // logged for nobody.
        let logs_on_sync = self.board.header().logs_on_sync.seems_on();
        let is_named = if logs_on_sync { !file.held().is_removed() } else { self.hold_name(file).is_ok() };
        if !is_named {
            return false;
        }
        // Its bytes, and ours written meanwhile, may be unsynced: the next sync is real (invariant
        // 9).
        row.note_unlogged();
        row.forget_end();
        if let Ok(stat) = file.held().stat() {
            row.set_end(stat.size);
        }
        file.meta().bypass = None;
        // Its name may not be on disk either, which is seen to when its durability is asked for.
        self.board.go(file.slot, if logs_on_sync { Way::TakeBackUnsynced } else { Way::TakeBack });
        true
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

    /// An outsider who may write has a file open, or had: what they do to it is not seen, and is
    /// pending like all that others do to managed files.
    fn note_outsider(&self, file: &ManagedFile<D::File>) {
        if !on(Canary::OutsidersUncounted) {
            self.note_foreign(file);
        }
    }
}
