//! Bringing a file to the disk and voiding its records.
//!
//! S from counter and announcements -> `fsync` of the keeper's own description -> `expired_seq`
//! persisted -> segments free of which every record is dead (invariants 2 and 3).

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_board::pause;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{MARK_CREATED, Seq};

use super::file::ManagedFile;
use super::state::Durable;
use super::sync::{Pace, Synced, Writers};
use super::table::keep_size;
use super::upkeep::Upkeeps;
use holdfast_disk::{Access, Disk, DiskFile, locked};

/// A client's sync that takes longer was abandoned by one that died in it.
const SYNC_MAX: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Brings a file, and a name that the disk may not have yet, to the disk and expires its
    /// records.
    pub fn settle(&self, file: &ManagedFile<D::File>, writers: Writers) -> io::Result<()> {
        loop {
            let synced = self.sync_file(file, writers, Seq::MAX, Pace::Full)?;
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
        let row = self.board.row(file.slot);
        Ok(file.description(row)?.orders_names())
    }

    /// Brings the bytes of a file to the disk, in state Behind those of records up to `seq_max` and
    /// perhaps more. A failure expires nothing and orders a rewrite (invariant 4).
    pub fn sync_file(
        &self,
        file: &ManagedFile<D::File>,
        writers: Writers,
        seq_max: Seq,
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
                return Ok(Synced::of(Seq::ZERO));
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
        file.description(row).inspect_err(|error| self.sync_failed(file, error))?;
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
        seq_max: Seq,
    ) -> io::Result<Option<Synced>> {
        let row = self.board.row(file.slot);
        let _turn = (!on(Canary::SyncsTogether)).then(|| file.syncing.take());
        if self.must_rewrite(file)? {
            if writers != Writers::KeptOut {
                return Ok(None);
            }
            self.rewrite(file).inspect_err(|error| self.sync_failed(file, error))?;
        }
        let description = file.description(row).inspect_err(|error| self.sync_failed(file, error))?;
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
        self.sync_moved_beside(file)?;
        let done = description.sync().inspect_err(|error| self.sync_failed(file, error));
        self.sync_moved_beside(file)?;
        self.note_own_sync(file.dev, &description);
        let all = on(Canary::SettledAfterSync) || on(Canary::PartTakenForWhole) && seq_max != Seq::MAX;
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
        let expired = row.expired_seq();
        if on(Canary::SelectiveDrain) {
            return true;
        }
        if row.newest_seq() > expired && synced.settled > expired {
            if !on(Canary::ExpiryUnpersisted) {
                self.slots().set_expired_seq(file.slot, synced.settled);
            }
            row.set_expired_seq(synced.settled);
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

    /// Writes the live records of a file, whose writers are kept out, to it again: a failed sync
    /// may have dropped the pages (history 18).
    fn rewrite(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        self.forget_left(file);
        // First the rows: what the log says is then what the file says, with nothing newer above
        // it.
        self.drain_all(file)?;
        // Older bytes are back for a moment: nobody's look at the page cache counts until that is
        // over.
        let counts = [self.board.header().behind_files(), self.board.row(file.slot).page_rows()];
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

    /// Whether a sync of a lent file that succeeded may have done so because a client's sync took
    /// the notice of an error. Each of those is counted before it begins and, if it fails, once
    /// more before it is over.
    fn may_have_told_others(&self, file: &ManagedFile<D::File>) -> bool {
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

    /// Syncs the file or directory with an inode number that stands at a path: a name of it was
    /// changed, which the file system does not log by itself because of a commit of ours.
    pub fn log_again(&self, path: &Path, device: u64, ino: u64) -> io::Result<()> {
        let slot = self.board.find(device, ino);
        if let Some(file) = slot.and_then(|slot| self.file_now(slot)) {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            return self.sync_file(&file, Writers::MayBeIn, Seq::MAX, Pace::Full).map(drop);
        }
        let found = self.disk.find(path.as_os_str().as_bytes())?;
        let stat = found.stat()?;
        if (stat.dev, stat.ino) != (device, ino) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let synced = found.reopen(Access::Read)?;
        if !stat.is_file {
            return self.sync_open_directory(&synced);
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        synced.sync()?;
        self.note_own_sync(device, &synced);
        Ok(())
    }
}
