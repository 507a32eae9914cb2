//! Syncs of programs, and what has to be committed before a record.
//!
//! A sync is absorbed here, unless something changed that the log does not hold: of the file
//! (`FileRow::unlogged`), which its own sync brings to the disk, or of its file system (the
//! ledger), which a commit of the keeper's does (invariant 9).

use core::sync::atomic::{AtomicU32, Ordering};

use holdfast_board::{Commits, Inode, LedgerRow};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use crate::client::Client;
use crate::clock::now_ns;
use crate::design::{Designs, ToSync};
use crate::errno::Errno;
use crate::file::FileRef;
use crate::request::{Behind, FileRequest, Refusal, Request};
use crate::stock::Stock;

/// What a program asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// `fsync`.
    Whole,
    /// `fdatasync`, which natively may commit nothing; the log makes a whole one in its place.
    Data,
}

impl<N: Nvm> Client<N> {
    /// The kernel alone is about to answer a sync of this file; for
    /// [`Client::note_kernels_sync_took`].
    pub fn note_kernels_sync(&self, file: Inode) -> u64 {
        let header = self.board.header();
        header.syncs_real.add(1);
        header.synced_by_kernel.note(file);
        now_ns()
    }

    /// The next one is the kernel's because something of others is pending on the file system.
    #[cold]
    pub fn note_crowded_sync(&self) {
        self.board.header().syncs_crowded.add(1);
    }

    /// It has answered one that began then.
    pub fn note_kernels_sync_took(&self, begun_ns: u64) {
        self.board.header().syncs_took.note(now_ns().saturating_sub(begun_ns));
    }

    /// A sync was answered by bringing the file to the disk.
    #[cold]
    pub fn note_settled_sync(&self, file: FileRef) {
        let row = self.row(file);
        self.note_kernels_sync(row.inode());
    }

    /// Has the file system commit what is pending. False where that is not the way of the file
    /// system.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the file system cannot commit.
    fn commit_pending(&self, file: FileRef) -> Result<bool, Errno> {
        let ledger = self.ledger(self.row(file));
        let is_clean = ledger.is_some_and(LedgerRow::is_clean) || on(Canary::PendingIgnored);
        if is_clean { Ok(true) } else { self.commit(file, ledger) }
    }

    /// Before a record of `file` becomes durable: nothing earlier on its file system is pending any
    /// more but its own creation, which the slot holds with that record (invariant 10). Not with a
    /// lock held.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the file system cannot commit.
    #[inline]
    pub(crate) fn follow_pending(&self, file: FileRef) -> Result<(), Errno> {
        let row = self.row(file);
        let ledger = self.ledger(row);
        let is_clean = ledger.is_some_and(|ledger| ledger.is_clean() || ledger.is_clean_but(row.noted()));
        if is_clean || !row.state().is_absorbed() || on(Canary::PendingIgnored) {
            return Ok(());
        }
        self.follow_by_commit(file, ledger)
    }

    #[cold]
    fn follow_by_commit(&self, file: FileRef, ledger: Option<&LedgerRow>) -> Result<(), Errno> {
        let is_committed = self.commit(file, ledger)?;
        // File by file: what is pending of this very file comes first.
        if !is_committed && self.row(file).needs_real_sync() && !on(Canary::OwnPendingIgnored) {
            self.settle(file, false)?;
        }
        Ok(())
    }

    #[cold]
    fn commit(&self, file: FileRef, ledger: Option<&LedgerRow>) -> Result<bool, Errno> {
        if let Some(ledger) = ledger.filter(|ledger| ledger.commits() == Commits::ByFile) {
            self.board.header().want_commit(ledger);
            return Ok(false);
        }
        match self.ask_about(file, FileRequest::Commit { behind_sync: false }) {
            Ok(_) => Ok(true),
            Err(Refusal::Kernels) => Ok(false),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// For [`Client::sync`] by a description that reports what fails from now on.
    pub fn errors_until_now(&self, file: FileRef) -> AtomicU32 {
        AtomicU32::new(self.row(file).error_epoch())
    }

    /// Answers a program's `fsync` or `fdatasync`, or ends a write that it asked to be synchronous.
    ///
    /// Every managed byte is durable already, so only changes that the log does not hold need the
    /// disk (invariant 9): those of the file by `raw`, which must be a whole `fsync` whatever the
    /// program asked for, as it counts for attributes, too; and those that are pending on its file
    /// system by a commit, since a sync by the program need not commit anything (invariant 11). A
    /// failure met in the background is reported once per description.
    ///
    /// # Errors
    /// What the sync reported, or `EIO` when the keeper is dead.
    pub fn sync(
        &self,
        file: FileRef,
        seen_error: &AtomicU32,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.sync_by::<Stock>(file, seen_error, raw)
    }

    /// [`Client::sync`], with a set of designs.
    ///
    /// # Errors
    /// What the sync reported, or `EIO` when the keeper is dead.
    pub fn sync_by<D: Designs>(
        &self,
        file: FileRef,
        seen_error: &AtomicU32,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        if !self.keeper_alive() {
            return Err(Errno::EIO);
        }
        let row = self.row(file);
        let state = row.state();
        let inode = row.inode();
        let is_current = self.is_current(file);
        if !is_current || !(state.is_absorbed() || state.is_failed()) {
            let begun_ns = self.note_kernels_sync(if is_current { inode } else { Inode::NONE });
            let synced = raw();
            self.note_kernels_sync_took(begun_ns);
            return synced;
        }
        let epoch = row.error_epoch();
        let has_news =
            seen_error.load(Ordering::SeqCst) != epoch && seen_error.swap(epoch, Ordering::SeqCst) != epoch;
        if has_news || state.is_failed() {
            return Err(Errno::EIO);
        }
        // A file without a single record cannot be built anew by recovery: its existence is the
        // kernel's to sync.
        let is_blank = row.is_blank();
        let is_committed = on(Canary::NamesUncounted) || self.commit_pending(file)?;
        // Who keeps the writers out may be in the middle of a change around the log that is seen
        // already.
        let is_logged = (!row.needs_real_sync() || on(Canary::UnloggedIgnored)) && !row.is_exclusive();
        if is_logged && !is_blank && is_committed {
            D::dispatch(state, ToSync(self, file)).unwrap_or(Ok(()))?;
            self.board.header().count_absorbed(self.ledger(row), file.slot);
            return if self.keeper_alive() { Ok(()) } else { Err(Errno::EIO) };
        }
        // The disk is about to have what others did: nothing may be replayed over that.
        self.hear_all(file)?;
        let covered = row.unlogged();
        let begun_ns = self.note_kernels_sync(inode);
        row.begin_sync();
        let synced = raw();
        row.end_sync(synced.is_err());
        self.note_kernels_sync_took(begun_ns);
        synced?;
        let covered = if on(Canary::SyncCoversLater) { row.unlogged() } else { covered };
        row.note_synced(covered);
        self.commit_behind_sync(file);
        Ok(())
    }

    /// A sync of a file by the kernel is over: where changes are made durable file by file, the
    /// file system is had commit what else is pending, once a second. Not with a lock held.
    #[inline]
    pub fn commit_behind_sync(&self, file: FileRef) {
        if self.ledger(self.row(file)).is_some_and(LedgerRow::is_due) {
            // The sync is over; a commit that fails leaves pending what is.
            let _ = self.ask_about(file, FileRequest::Commit { behind_sync: true });
        }
    }

    /// A sync by the kernel is over: where the keeper's own last one may have left it nothing to
    /// commit, what is pending is committed (invariant 9).
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the file system cannot commit.
    #[inline]
    pub fn follow_sync(&self, device: u64) -> Result<(), Errno> {
        let may_leave_out = self.board.header().ledger(device).is_some_and(LedgerRow::may_leave_out);
        if !may_leave_out || on(Canary::OwnSyncUnmatched) {
            return Ok(());
        }
        self.ask(Request::Follow { device, behind: Behind::Sync })?;
        Ok(())
    }

    /// Before a whole sync of a file on `device` where the program asked for less: it counts as one
    /// of the keeper's, because what it takes along of others would natively not be committed yet
    /// (invariant 9). From before it begins, so that nobody builds on it unseen. For
    /// [`Client::follow_whole_sync`].
    pub fn begin_whole_sync(&self, device: u64) -> Option<u64> {
        let ledger = self.board.header().ledger(device);
        let ledger = ledger.filter(|ledger| ledger.commits() == Commits::InOrder)?;
        if on(Canary::OwnSyncUnmatched) {
            return None;
        }
        let before = ledger.own_sync();
        // Nobody knows the journal's count then.
        ledger.note_own_sync(None);
        Some(before)
    }

    /// It is over: as [`Client::follow_sync`], for what one of the keeper's before it took along.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the file system cannot commit.
    pub fn follow_whole_sync(&self, device: u64, begun: Option<u64>) -> Result<(), Errno> {
        let Some(own_sync) = begun else { return self.follow_sync(device) };
        self.ask(Request::Follow { device, behind: Behind::Whole { own_sync } })?;
        Ok(())
    }

    /// Whether a sync of a file without a row, which is over, had better be followed so: the file
    /// gets a row then.
    pub fn is_commit_due(&self, device: u64) -> bool {
        let is_wanted = |ledger: &LedgerRow| ledger.is_due() || ledger.is_to_begin();
        self.board.header().ledger(device).is_some_and(is_wanted)
    }
}
