//! Bringing a file to the disk and voiding its records, and what follows when the disk refuses.
//!
//! S from counter and announcements -> `fsync` of the keeper's own description -> `expired_seq`
//! persisted -> segments free of which every record is dead (invariants 2 and 3).

use std::io;
use std::sync::atomic::Ordering;

use holdfast_board::Way;
use holdfast_cache::Reason;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{MARK_AHEAD, MARK_CONFLICT, MARK_CREATED, MARK_VOID};

use super::file::{BYPASSED_FILE, ManagedFile, Meta};
use super::repair::keep_size;
use super::state::{Durable, KEEPER_ID};
use super::sync::{Pace, Synced, Writers};
use super::upkeep::Upkeeps;
use holdfast_disk::{Access, Disk, DiskFile, locked};

/// Tries of a failing sync before a file counts as failed and its writers get errors.
const FAILURES_MAX: u32 = 5;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// A description of a managed file that can be written to, for repair; the fence is told that
    /// it is ours.
    pub(super) fn open_for_writing(&self, file: &ManagedFile<D::File>) -> io::Result<D::File> {
        if let Some(lent) = file.lent() {
            return lent.try_clone();
        }
        self.board.row(file.slot).client_opens.fetch_add(1, Ordering::SeqCst);
        file.held().reopen(Access::Write)
    }

    /// Whether records of the file may be live, or something of it must still reach the disk.
    pub fn is_dirty(&self, file: &ManagedFile<D::File>) -> bool {
        let row = self.board.row(file.slot);
        if row.state().is_unsynced() {
            return false;
        }
        row.newest_seq.load(Ordering::SeqCst) > row.expired_seq.load(Ordering::SeqCst)
            || file.meta().marks & MARK_CREATED != 0
    }

    /// Brings a file, and a name that the disk may not have yet, to the disk and expires its
    /// records.
    pub fn settle(&self, file: &ManagedFile<D::File>, writers: Writers) -> io::Result<()> {
        loop {
            let synced = self.sync_file(file, writers, u64::MAX, Pace::Full)?;
            if file.meta().marks & MARK_CREATED != 0 && !on(Canary::CreatedExpiresEarly) {
                let (directories, names) = {
                    let meta = file.meta();
                    (meta.directories.clone(), meta.names_unsynced)
                };
                if names != 1 || !self.syncs_its_name(file)? {
                    self.sync_directories(&directories)?;
                }
            }
            if self.expire(file, synced) {
                return Ok(());
            }
            // It got another name since, or is about to: by whoever has it.
            if writers == Writers::MayBeIn {
                return Err(io::Error::from(io::ErrorKind::WouldBlock));
            }
        }
    }

    /// Whether a sync of a file covered its only name, which was made before: the journals of ext4
    /// and xfs cover all of them.
    fn syncs_its_name(&self, file: &ManagedFile<D::File>) -> io::Result<bool> {
        let opens = &self.board.row(file.slot).client_opens;
        Ok(file.description(opens)?.orders_names())
    }

    /// Brings the bytes of a file to the disk, in state Behind those of records up to `seq_max` and
    /// perhaps more. A failure expires nothing and orders a rewrite (invariant 4).
    pub fn sync_file(
        &self,
        file: &ManagedFile<D::File>,
        writers: Writers,
        seq_max: u64,
        pace: Pace,
    ) -> io::Result<Synced> {
        let mut seq_max = seq_max;
        if pace == Pace::Gentle {
            // Before its turn: an outsider whose open waits for a settle must not wait for this
            // one's pauses.
            seq_max = seq_max.min(self.board.settled_seq(file.slot));
            self.drain(file, seq_max, pace).inspect_err(|error| self.sync_failed(file, error))?;
        }
        loop {
            // The file is locked before its turn: who has it may ask for a settle, which waits for
            // that.
            let locks = writers != Writers::KeptOut && self.must_rewrite(file)?;
            if locks && !self.try_hold(file)? {
                return Ok(Synced::of(0));
            }
            let writers = if locks { Writers::KeptOut } else { writers };
            let synced = self.sync_in_turn(file, writers, seq_max);
            if locks {
                self.let_go(file);
            }
            if let Some(synced) = synced? {
                return Ok(synced);
            }
        }
    }

    /// Whether the live records of a file must be written to it again before a sync of it counts.
    fn must_rewrite(&self, file: &ManagedFile<D::File>) -> io::Result<bool> {
        let row = self.board.row(file.slot);
        let is_new = !file.is_described();
        file.description(&row.client_opens).inspect_err(|error| self.sync_failed(file, error))?;
        // A client's sync that failed before we had a description took the kernel's only notice of
        // it (history 18), and one that is under way may be about to say so.
        let unsure = is_new && row.syncs_under_way() != 0 && !on(Canary::SyncUnderWayForgotten);
        let client_failures = row.sync_failures();
        let mut meta = file.meta();
        meta.rewrite |=
            unsure || client_failures != meta.client_failures && !on(Canary::ClientFailureForgotten);
        meta.client_failures = client_failures;
        if meta.rewrite {
            self.set_ahead(file, &mut meta, true);
        }
        Ok(meta.rewrite)
    }

    /// One sync of a file at a time: the kernel tells of lost pages once, and a second sync that
    /// began before the first one's failure is noted here would succeed. `None`: writers have to be
    /// kept out first.
    fn sync_in_turn(
        &self,
        file: &ManagedFile<D::File>,
        writers: Writers,
        seq_max: u64,
    ) -> io::Result<Option<Synced>> {
        let row = self.board.row(file.slot);
        let _turn = (!on(Canary::SyncsTogether)).then(|| file.syncing.take());
        if self.must_rewrite(file)? {
            if writers != Writers::KeptOut {
                return Ok(None);
            }
            self.rewrite(file).inspect_err(|error| self.sync_failed(file, error))?;
        }
        let description =
            file.description(&row.client_opens).inspect_err(|error| self.sync_failed(file, error))?;
        // S, and what the sync will cover besides, are known before it begins (invariant 2).
        let unlogged = row.unlogged();
        let names = self.names_given(file);
        let settled = self.board.settled_seq(file.slot).min(seq_max);
        // State Behind: what the records up to S say comes to the page cache only now.
        if !on(Canary::DrainSkipped) {
            let drained = self.drain(file, settled, Pace::Full);
            drained
                .and_then(|target| self.hand_times_over(file, target, writers))
                .inspect_err(|error| self.sync_failed(file, error))?;
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        // Before the sync, which covers what is seen here; on lent descriptions, which have the
        // same file.
        let stat = description.stat().ok();
        if on(Canary::ExpireBeforeSync) {
            self.expire(file, Synced { settled, unlogged, names, stat });
        }
        // What this sync brings to the disk bears no later time, but for what is written meanwhile.
        self.beat();
        let done = description.sync().inspect_err(|error| self.sync_failed(file, error));
        self.note_own_sync(file.dev, &description);
        let all = on(Canary::SettledAfterSync) || on(Canary::PartTakenForWhole) && seq_max != u64::MAX;
        let settled = if all { self.board.settled_seq(file.slot) } else { settled };
        done.or_else(|error| if on(Canary::SyncErrorIgnored) { Ok(()) } else { Err(error) })?;
        let told =
            !on(Canary::LentNoticeForgotten) && description.is_lent() && self.may_have_told_others(file);
        if told {
            file.meta().rewrite = true;
            return Ok(None);
        }
        file.meta().failures = 0;
        Ok(Some(Synced { settled, unlogged, names, stat }))
    }

    /// Voids the records of a file that a successful sync covered. The names of a created file must
    /// be on disk by now: one that the crash takes back is built anew from all of its records or
    /// not at all. False, and nothing done, if such a file got another name since the sync began.
    pub fn expire(&self, file: &ManagedFile<D::File>, synced: Synced) -> bool {
        let _expiring = locked(&file.expiring);
        // The slot may have been given back while we waited for the disk, and have another file.
        if !self.is_current(file) {
            return true;
        }
        let row = self.board.row(file.slot);
        // Until all is said nobody gives it another name.
        let mut meta = file.meta();
        let is_created = meta.marks & MARK_CREATED != 0;
        if is_created && synced.names != Some(meta.names_pushed) && !on(Canary::RenameExpiresEarly) {
            return false;
        }
        if on(Canary::MarkBeforeExpiry) && is_created {
            meta.marks &= !MARK_CREATED;
            self.persist_marks(file, &meta);
        }
        // The disk is not older than this from now on. Before the records expire: those that stay
        // live tell what it may be besides.
        if let Some(stat) = synced.stat {
            self.slots().push_stamp(file.slot, &self.stamp_of(&stat, true));
        }
        let expired = row.expired_seq.load(Ordering::SeqCst);
        if on(Canary::SelectiveDrain) {
            return true;
        }
        if row.newest_seq.load(Ordering::SeqCst) > expired && synced.settled > expired {
            if !on(Canary::ExpiryUnpersisted) {
                self.slots().set_expired_seq(file.slot, synced.settled);
            }
            row.expired_seq.store(synced.settled, Ordering::SeqCst);
        }
        // Behind that: a file that another one was renamed over just now is on no disk any more,
        // and live records of it would be missed there.
        if is_created {
            meta.marks &= !MARK_CREATED;
            self.persist_marks(file, &meta);
        }
        drop(meta);
        row.note_synced(synced.unlogged);
        true
    }

    pub(super) fn drain_failed(&self, file: &ManagedFile<D::File>, error: &io::Error) {
        self.sync_failed(file, error);
    }

    fn sync_failed(&self, file: &ManagedFile<D::File>, error: &io::Error) {
        if !self.is_current(file) {
            return;
        }
        let row = self.board.row(file.slot);
        row.error_epoch.fetch_add(1, Ordering::SeqCst);
        let mut meta = file.meta();
        // Of what is damaged in the log the kernel has lost nothing.
        if error.kind() != io::ErrorKind::InvalidData {
            meta.rewrite = !on(Canary::NoRewrite);
            // A keeper that dies before the rewrite leaves a page cache that lacks bytes.
            self.set_ahead(file, &mut meta, true);
        }
        meta.failures += 1;
        self.events.trouble(format!("{}: cannot bring it to disk: {error}", meta.path.display()));
        if meta.failures == FAILURES_MAX {
            // Its page rows stay where readers find them.
            self.board.go(file.slot, Way::Fail);
            self.events.trouble(format!(
                "{}: given up after {FAILURES_MAX} tries; its writers get errors, the log keeps what was acknowledged",
                meta.path.display()
            ));
        }
    }

    /// Writes the live records of a file, whose writers are kept out, to it again: a failed sync
    /// may have dropped the pages (history 18).
    fn rewrite(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        self.forget_left(file);
        // First the rows: what the log says is then what the file says, with nothing newer above
        // it.
        self.drain_all(file)?;
        // Older bytes are back for a moment: nobody's look at the page cache counts until that is
        // over.
        let counts = [&self.board.header().behind_files.census, &self.board.row(file.slot).page_rows];
        counts.iter().for_each(|count| count.enter());
        let replayed = self.open_for_writing(file).and_then(|target| {
            self.unseen_in_times(file, &target, |_| {
                self.live_records(file)?.apply(&mut || target.try_clone())
            })
        });
        keep_size(self.board.row(file.slot), file);
        counts.iter().for_each(|count| count.leave());
        replayed?;
        let mut meta = file.meta();
        meta.rewrite = false;
        let is_behind = self.board.row(file.slot).state().lags();
        self.set_ahead(file, &mut meta, is_behind);
        Ok(())
    }

    /// Persists whether bytes of a file may be in the log and not in the page cache: if not, and
    /// the machine and its mount go on without us, recovery has only to sync it.
    pub(super) fn set_ahead(&self, file: &ManagedFile<D::File>, meta: &mut Meta, is_ahead: bool) {
        let is_ahead = is_ahead && !on(Canary::AheadForgotten);
        if (meta.marks & MARK_AHEAD != 0) != is_ahead {
            meta.marks ^= MARK_AHEAD;
            self.persist_marks(file, meta);
        }
    }

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

    /// Whether changes of the file are logged, or may be from the next sync on.
    pub fn is_absorbed(&self, file: &ManagedFile<D::File>) -> bool {
        self.is_current(file) && self.board.row(file.slot).state().is_managed()
    }

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
