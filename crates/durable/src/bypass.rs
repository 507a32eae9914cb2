//! Leaving a file to the kernel. Must never leave it one of which something is live.

use std::io;

use holdfast_board::Way;
use holdfast_cache::Reason;
use holdfast_canary::{Canary, on};
use holdfast_disk::Disk;
use holdfast_media::Nvm;
use holdfast_pool::{MARK_CONFLICT, MARK_CREATED, MARK_VOID};

use super::file::{BYPASSED_FILE, ManagedFile};
use super::state::Durable;
use super::sync::Writers;
use super::upkeep::Upkeeps;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Leaves a file to the kernel. Nothing of it is live when this returns.
    pub fn bypass(&self, file: &ManagedFile<D::File>, reason: Reason) -> io::Result<()> {
        if !self.hold(file)? {
            return Ok(());
        }
        let result = self.bypass_held(file, reason);
        self.let_go(file);
        result
    }

    /// As [`Durable::bypass`]; [`io::ErrorKind::WouldBlock`] and nothing done while somebody has
    /// the file.
    pub fn try_bypass(&self, file: &ManagedFile<D::File>, reason: Reason) -> io::Result<()> {
        if !self.try_hold(file)? {
            return Ok(());
        }
        let result = self.bypass_held(file, reason);
        self.let_go(file);
        result
    }

    /// As [`Durable::try_bypass`], and gives the slot and our description back, where nothing in
    /// the slot is still needed.
    pub fn try_let_go(&self, file: &ManagedFile<D::File>, reason: Reason) -> io::Result<()> {
        if !self.try_hold(file)? {
            return Ok(());
        }
        let result = self.bypass_held(file, reason);
        let needed = {
            let meta = file.meta();
            meta.marks & (MARK_CONFLICT | MARK_CREATED | MARK_VOID) != 0 || meta.unlinking.is_some()
        };
        let row = self.board.row(file.slot);
        if result.is_ok() && row.state().is_bypassed() && !needed {
            file.meta().written_natively = true;
            self.release(file);
        }
        self.let_go(file);
        result
    }

    pub(super) fn bypass_held(&self, file: &ManagedFile<D::File>, reason: Reason) -> io::Result<()> {
        if !self.is_current(file) {
            return Ok(());
        }
        let row = self.board.row(file.slot);
        self.leave_behind_for_disk(file)?;
        if row.state().keeps_up() && !on(Canary::BypassUnsettled) {
            self.settle(file, Writers::KeptOut)?;
        } else if row.state().is_unsynced() {
            self.disown(file);
        }
        if row.state().is_managed() {
            self.board.go(file.slot, Way::Bypass);
            row.note_unlogged();
        }
        file.give_back();
        let mut meta = file.meta();
        // What ends with an outsider's departure must not end a stronger reason.
        if meta.bypass.is_none_or(|old| old == Reason::Outsider) {
            meta.bypass = Some(reason);
        }
        meta.look_at = std::time::Instant::now() + BYPASSED_FILE;
        self.events.bypassed(&meta.path, reason);
        Ok(())
    }
}
