//! Syncs by the keeper that take directories along, which on btrfs must not part a file from one of
//! its names.
//!
//! There the sync of a directory has what was moved into it since the last commit stand there, and
//! leaves it where it was, too, unless the log has that file. So what was moved into it is synced
//! first ([`holdfast_board::LedgerRow::moved`]): then it stands at its new name alone.

use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use holdfast_board::{Commits, LedgerRow};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::file::ManagedFile;
use super::state::Durable;
use super::upkeep::Upkeeps;
use holdfast_disk::{Access, Disk, DiskFile, locked};

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Syncs an open directory because something of ours is to be durable in it.
    pub(super) fn sync_open_directory(&self, open: &D::File) -> io::Result<()> {
        let device = open.stat()?.dev;
        let ledger = self.ledger_with_moves(device, open);
        let sync_moved = || ledger.map_or(Ok(()), |ledger| self.sync_moved(device, ledger, open));
        sync_moved()?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        open.sync()?;
        self.note_own_sync(device, open);
        // What came in between: of the others there is nothing left to be synced.
        sync_moved()
    }

    /// Before and behind a sync of a file: one that got or lost names takes the directories along
    /// in which they are.
    pub(super) fn sync_moved_beside(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        if self.ledger(file.dev).is_none_or(|ledger| ledger.moved().is_empty()) {
            return Ok(());
        }
        let mut directories = file.meta().directories.clone();
        directories.extend(file.held().path_now().and_then(|path| path.parent().map(Path::to_owned)));
        for open in directories.iter().filter_map(|directory| self.disk.open(directory).ok()) {
            let ledger = self.ledger_with_moves(file.dev, &open);
            if let Some(ledger) = ledger.filter(|_| open.stat().is_ok_and(|stat| stat.dev == file.dev)) {
                self.sync_moved(file.dev, ledger, &open)?;
            }
        }
        Ok(())
    }

    /// The ledger of the file system of an open directory, if that keeps a log of syncs and names
    /// were changed that are perhaps not in it.
    fn ledger_with_moves(&self, device: u64, open: &D::File) -> Option<&LedgerRow> {
        let keeps_log = |ledger: &&LedgerRow| match ledger.commits() {
            Commits::InOrder => false,
            Commits::ByFile => ledger.commits_quickly(),
            Commits::Unknown => open.commits_quickly(),
        };
        self.ledger(device).filter(|ledger| !ledger.moved().is_empty()).filter(keeps_log)
    }

    /// Syncs the files of an open directory whose names were changed and are perhaps not in the
    /// log. Where that cannot be, everything is committed, with the bytes of files, so that none of
    /// them is found cut off that was written again since.
    fn sync_moved(&self, device: u64, ledger: &LedgerRow, open: &D::File) -> io::Result<()> {
        let mut moved = Vec::new();
        let all_known = ledger.moved().inodes(|ino| moved.push(ino));
        if on(Canary::MovesSplit) || all_known && self.sync_entries(open, &moved).is_ok() {
            return Ok(());
        }
        self.sync_everything(device, open)
    }

    /// Has everything on a file system be durable, the bytes of files included.
    pub(super) fn sync_everything(&self, device: u64, open: &D::File) -> io::Result<()> {
        let _turn = locked(&self.committing);
        let ledger = self.ledger(device);
        let begun = ledger.map(|ledger| ledger.moved().begin_commit());
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.having_committed(device, || open.sync_all())?;
        if let Some((ledger, begun)) = ledger.zip(begun) {
            ledger.moved().end_commit(begun);
        }
        Ok(())
    }

    fn sync_entries(&self, open: &D::File, moved: &[u64]) -> io::Result<()> {
        if moved.is_empty() {
            return Ok(());
        }
        for entry in open.held_entries(&|ino| moved.contains(&ino))? {
            let stat = entry.stat()?;
            if !stat.is_file {
                // It cannot be synced.
                return Err(io::ErrorKind::Unsupported.into());
            }
            if self.board.find(stat.dev, stat.ino).is_some() {
                // Its slot has both names, or who changed them has it logged again; it has a turn
                // and a description of its own for what a sync tells.
                continue;
            }
            self.syncs.fetch_add(1, Ordering::Relaxed);
            entry.reopen(Access::Read)?.sync()?;
        }
        Ok(())
    }
}
