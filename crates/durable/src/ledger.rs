//! What is pending on a file system ([`holdfast_board::LedgerRow`]) and its commits: before
//! anything is made durable at once that was done later (invariant 10), and for syncs that programs
//! ask for.
//!
//! A file system commits for one reason alone: a commit of its own, which began after the changes
//! (invariant 11). Must never call a change committed because somebody's file or directory was
//! synced.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use holdfast_board::{Commits, Epoch, FileRow, LedgerRow};
use holdfast_cache::Behind;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::file::ManagedFile;
use super::state::Durable;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, locked};

/// Whether a slot may hold a change now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Nothing earlier is pending.
    Kept,
    /// Something is, and the file system makes changes durable file by file: what the slot cannot
    /// hold the kernel makes durable as natively.
    Pending,
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Somebody changed something on a file system whom no client announced: it is pending there.
    pub(super) fn note_foreign(&self, file: &ManagedFile<D::File>) {
        // It was done while we lived: recovery is not to take it for a change after the crash.
        self.beat();
        // What is pending before it is committed with it.
        if let Some(ledger) = self.board.header().ledger(file.dev)
            && !ledger.has_pending()
        {
            ledger.note();
        }
    }

    pub(super) fn ledger(&self, device: u64) -> Option<&LedgerRow> {
        self.board.header().ledger(device)
    }

    /// A record of a file stays that its dead client did not tell of: its slot holds its creation.
    pub(super) fn note_recorded(&self, row: &FileRow) {
        let ledger = self.ledger(row.device());
        if let (Some(ledger), Some(noted)) = (ledger, row.note_recorded()) {
            ledger.hold(noted);
        }
    }

    /// The first managed file of a file system is in a directory there: how it makes changes
    /// durable is learned, and what was pending before anybody counted is committed. Where it
    /// fails, it stays pending, and so it does on btrfs until a commit behind somebody's sync.
    /// Without a journal, where a commit writes out all files, nothing orders names at all: there
    /// each directory is synced before a slot holds anything in it (`secure_directory`).
    pub(super) fn open_ledger(&self, directory: &Path, device: u64) {
        let Some(ledger) = self.ledger(device).filter(|ledger| ledger.commits() == Commits::Unknown) else {
            return;
        };
        // What somebody is making just now was perhaps announced before there was this ledger.
        let is_making = self.board.header().changing.is_making();
        let order = self.commit_beside(directory, device);
        if !ledger.commits_quickly() && order.is_ok_and(|order| order == Order::Pending) {
            let _turn = locked(&self.committing);
            ledger.begin();
            ledger.end(true);
        }
        if is_making {
            ledger.note();
        }
    }

    /// Before a slot holds a change in `directory`: nothing else is pending on its file system, but
    /// the creation that was noted in `noted`.
    pub(super) fn follow_pending(
        &self,
        directory: &Path,
        device: u64,
        noted: Option<Epoch>,
    ) -> io::Result<Order> {
        let ledger = self.ledger(device);
        if ledger.is_some_and(|ledger| ledger.is_clean() || ledger.is_clean_but(noted)) {
            return Ok(Order::Kept);
        }
        if on(Canary::PendingIgnored) {
            return Ok(Order::Kept);
        }
        self.commit_beside(directory, device)
    }

    /// Behind a client's own sync of a file: has a file system commit that makes changes durable
    /// file by file, if something is pending there and the last commit is a second ago. The client
    /// waits, and has nothing half done there that it wants to be durable: what it synced is, and
    /// what it did not sync it may lose natively at any commit.
    pub fn commit_behind_sync(&self, file: &ManagedFile<D::File>) {
        let is_due = || self.ledger(file.dev).is_some_and(|row| row.is_due_at(self.disk.monotonic_ns()));
        if !is_due() {
            return;
        }
        let row = self.board.row(file.slot);
        // It was synced already; a commit that fails leaves pending what is.
        if let Ok(description) = file.description(row) {
            let _ = self.commit_file_system(file.dev, &description, is_due);
        }
    }

    /// Behind a sync of the kernel's that a client made: has a journal commit what is pending, if
    /// the last one that wrote to it may be one of ours. What the client's sync was to take with
    /// it was in that one, so the kernel had nothing to commit, and what was changed since it would
    /// natively have made durable, too. A whole sync whose program asked for less is one of ours
    /// itself from then on.
    pub fn follow_sync(&self, device: u64, behind: Behind) -> io::Result<()> {
        let Some(ledger) = self.ledger(device) else { return Ok(()) };
        let mut failure = None;
        for directory in self.directories_on(device) {
            let own_sync = match behind {
                Behind::Sync if !ledger.may_leave_out() => return Ok(()),
                Behind::Sync => ledger.own_sync(),
                Behind::Whole { own_sync } => own_sync,
            };
            let open = self.disk.open(&directory).ok();
            let Some(open) = open.filter(|open| open.stat().is_ok_and(|stat| stat.dev == device)) else {
                continue;
            };
            let leaves_nothing_out = match behind {
                Behind::Sync => ledger.is_made_up_for(own_sync, open.journal_count()),
                Behind::Whole { .. } => {
                    own_sync == 0
                        || ledger.is_clean()
                        || ledger.is_made_up_for(own_sync, open.journal_count())
                }
            };
            if leaves_nothing_out {
                if behind != Behind::Sync {
                    self.note_own_sync(device, &open);
                }
                return Ok(());
            }
            match self.commit_file_system(device, &open, || true) {
                Ok(_) => return Ok(()),
                Err(error) => failure = Some(error),
            }
        }
        // Without a directory there is no file there that we would have synced.
        failure.map_or(Ok(()), Err)
    }

    /// Something was synced by us, which may have taken earlier changes of others with it.
    pub(super) fn note_own_sync(&self, device: u64, synced: &D::File) {
        if let Some(ledger) = self.ledger(device).filter(|ledger| ledger.commits() == Commits::InOrder) {
            ledger.note_own_sync(synced.journal_count());
        }
    }

    /// Whether nothing is pending on a file system.
    pub fn is_clean(&self, device: u64) -> bool {
        self.ledger(device).is_some_and(LedgerRow::is_clean) || on(Canary::PendingIgnored)
    }

    /// Whether a file's sync has all earlier changes of its file system be durable, its own name
    /// included.
    pub(super) fn commits_in_order(&self, device: u64) -> bool {
        self.ledger(device).is_some_and(|ledger| ledger.commits() == Commits::InOrder)
    }

    /// Whether a request would have to wait for a commit: somebody's changes are pending where they
    /// are made durable in order.
    pub fn has_pending(&self, noted: Option<Epoch>) -> bool {
        let commits = |row: &LedgerRow| row.commits() != Commits::ByFile;
        let is_pending = |row: &LedgerRow| !row.is_clean_but(noted) && commits(row);
        self.board.header().ledgers_in_use().any(|(_, row)| is_pending(row))
    }

    /// Has the file system of `directory` commit, if changes there are made durable in order.
    pub(super) fn commit_beside(&self, directory: &Path, device: u64) -> io::Result<Order> {
        let open = self.open_near(directory, device)?;
        if !self.learns_order(device, &open) {
            if let Some(ledger) = self.ledger(device) {
                self.board.header().want_commit(ledger);
            }
            return Ok(Order::Pending);
        }
        self.commit_file_system(device, &open, || true).map(|_| Order::Kept)
    }

    /// Whether the file system of an open directory makes changes durable in order.
    fn learns_order(&self, device: u64, directory: &D::File) -> bool {
        let known = self.ledger(device).map(LedgerRow::commits);
        if let Some(known @ (Commits::InOrder | Commits::ByFile)) = known {
            return known == Commits::InOrder;
        }
        let in_order = directory.orders_names();
        if let Some(ledger) = self.ledger(device) {
            ledger.set_commits_quickly(directory.commits_quickly());
            ledger.set_commits(if in_order { Commits::InOrder } else { Commits::ByFile });
        }
        in_order
    }

    /// Has the file system of an open directory commit, if it is to (`wants`) when its turn has
    /// come; false if not. One at a time: two would not know what the other covers.
    fn commit_file_system(
        &self,
        device: u64,
        directory: &D::File,
        wants: impl Fn() -> bool,
    ) -> io::Result<bool> {
        let _turn = locked(&self.committing);
        let commit = || self.having_committed(device, || directory.commit());
        let Some(ledger) = self.ledger(device) else {
            // Nobody counts: everything may be pending.
            self.syncs.fetch_add(1, Ordering::Relaxed);
            return commit().map(|()| true);
        };
        if !ledger.is_clean() && !wants() {
            return Ok(false);
        }
        if !ledger.begin() {
            // Somebody else's, for which we waited, covered it.
            return Ok(true);
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let (begun, moved) = (Instant::now(), ledger.moved().begin_commit());
        let committed = if on(Canary::CommitSkipped) { Ok(()) } else { commit() };
        self.note_own_sync(device, directory);
        ledger.end(committed.is_ok());
        if committed.is_ok() {
            ledger.moved().end_commit(moved);
        }
        if !self.board.header().taken.is_empty() {
            // Somebody who stood still is still to make its change, and nobody else notes it.
            ledger.note();
        }
        ledger.rest(begun.elapsed().as_nanos() as u64);
        ledger.committed_at(self.disk.monotonic_ns());
        if let Err(error) = &committed {
            self.events.trouble(format!("a file system cannot commit: {error}"));
        }
        committed.map(|()| true)
    }

    /// Has a file system commit. Where it logs what is synced until then, programs are told what
    /// that log has no more ([`holdfast_board::TreeLog`]).
    pub(super) fn having_committed<R>(&self, device: u64, commit: impl FnOnce() -> R) -> R {
        if self.commits_in_order(device) {
            return commit();
        }
        let log = &self.board.header().tree_log;
        log.begin_commit();
        let committed = commit();
        log.end_commit();
        committed
    }

    /// Has the file system of a managed file commit; [`io::ErrorKind::Unsupported`] where that is
    /// not its way.
    pub fn commit_for(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        let mut directories = vec![file.meta().path.clone()];
        directories.extend(file.held().path_now());
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for directory in directories.iter().filter_map(|path| path.parent()) {
            match self.commit_beside(directory, file.dev) {
                Ok(Order::Kept) => return Ok(()),
                Ok(Order::Pending) => return Err(io::ErrorKind::Unsupported.into()),
                Err(error) => failure = error,
            }
        }
        // Its own directory is gone, or elsewhere: any other one of the file system will do.
        for directory in self.directories_on(file.dev) {
            match self.commit_beside(&directory, file.dev) {
                Ok(Order::Kept) => return Ok(()),
                Ok(Order::Pending) => return Err(io::ErrorKind::Unsupported.into()),
                Err(error) => failure = error,
            }
        }
        // None of them is left: by the file itself.
        let row = self.board.row(file.slot);
        match file.description(row) {
            Ok(description) if self.learns_order(file.dev, &description) => {
                self.commit_file_system(file.dev, &description, || true).map(|_| ())
            }
            Ok(_) => Err(io::ErrorKind::Unsupported.into()),
            Err(_) => Err(failure),
        }
    }

    /// Directories of managed files on a device, and of those that were removed there.
    fn directories_on(&self, device: u64) -> Vec<PathBuf> {
        let on_it = self.managed().into_iter().filter(|file| file.dev == device);
        let mut found: Vec<PathBuf> =
            on_it.filter_map(|file| file.meta().path.parent().map(Path::to_owned)).collect();
        found.extend(self.directories_of_graves(device));
        found.sort();
        found.dedup();
        found
    }

    /// Whether a program's sync had to go around what is pending.
    pub fn wants_commit(&self) -> bool {
        self.next_commit_ns().is_some()
    }

    /// From when on, by the monotonic clock, that is to be committed.
    pub fn next_commit_ns(&self) -> Option<u64> {
        self.board.header().ledgers_in_use().filter_map(|(_, row)| row.wanted_from_ns()).min()
    }

    /// Commits, where changes are made durable file by file and commits write out all files, what
    /// programs' syncs had to go around: until then each of their syncs is the kernel's. Where
    /// nobody did so for a second.
    pub fn commit_wanted(&self) {
        let now_ns = self.disk.monotonic_ns();
        let is_wanted = |row: &LedgerRow| row.wanted_from_ns().is_some_and(|from_ns| from_ns <= now_ns);
        let ledgers = self.board.header().ledgers_in_use();
        let wanted: Vec<u64> = ledgers.filter(|(_, row)| is_wanted(row)).map(|(device, _)| device).collect();
        for device in wanted {
            let mut is_tried = false;
            for directory in self.directories_on(device) {
                let open = self.disk.open(&directory).ok();
                let open = open.filter(|open| open.stat().is_ok_and(|stat| stat.dev == device));
                let wants = || self.ledger(device).is_some_and(is_wanted);
                is_tried = open.is_some_and(|open| self.commit_file_system(device, &open, wants).is_ok());
                if is_tried {
                    break;
                }
            }
            if let Some(ledger) = self.ledger(device).filter(|_| !is_tried) {
                // Nor is there a way a moment later.
                ledger.committed_at(now_ns);
            }
        }
    }
}
