//! Names on btrfs behind a commit that the keeper asked for: the log of what was synced before it
//! does not follow them any more, and whoever changes one makes up for that
//! ([`holdfast_board::TreeLog`]).
//!
//! Natively the next sync of anything makes such a change durable (invariant 9). So every sync that
//! the kernel makes for a client is noted before it begins, and every change of a name is looked at
//! when it is made. Must never take a directory for one that is in the log because somebody synced
//! it: the kernel logs nothing of what has not changed since its last commit.

use core::ffi::CStr;
use core::time::Duration;

use holdfast_board::{Commits, LedgerRow, Moment, Note, TreeLog, pause};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use crate::ask::ask;
use crate::client::Client;
use crate::request::Request;
use holdfast_board::Inode;

/// How long a sync waits for names that others are having logged, and how often it looks.
const WAITS: u32 = 2000;
const PAUSE: Duration = Duration::from_micros(50);

impl<N: Nvm> Client<N> {
    fn tree_log(&self) -> &TreeLog {
        &self.board.header().tree_log
    }

    /// Whether a file system may keep a log of what was synced since its last commit: where names
    /// are made durable in order, or commits write out all files, nothing depends on it.
    #[inline]
    fn may_log_syncs(&self, device: u64) -> bool {
        let keeps_none = |ledger: &LedgerRow| match ledger.commits() {
            Commits::InOrder => true,
            Commits::ByFile => !ledger.commits_quickly(),
            Commits::Unknown => false,
        };
        !self.board.header().ledger(device).is_some_and(keeps_none)
    }

    /// The kernel is about to sync a file or directory for a program, or the keeper answers in its
    /// place.
    #[inline]
    pub fn note_sync(&self, inode: Inode) {
        if self.may_log_syncs(inode.device) {
            self.tree_log().note_sync(inode.device, inode.ino);
        }
    }

    /// Whether names that change on a file system have to be looked at.
    #[inline]
    pub fn may_miss_names(&self, device: u64) -> bool {
        self.tree_log().has_commits() && self.may_log_syncs(device) && !on(Canary::NamesUnlogged)
    }

    /// The thread is about to change a name there, within [`Client::changing`]: until the end of
    /// that the syncs of others wait.
    pub fn note_relogs(&self, thread: u64) {
        self.board.header().changing.note_relogs(self.id, thread);
    }

    /// A name of a file is about to change: unless the kernel's log has the file, which then
    /// follows its names, the keeper syncs it before it syncs a directory where it stands.
    pub fn note_move(&self, Inode { device, ino }: Inode) -> Option<Note> {
        if !self.may_log_syncs(device) || self.tree_log().has(device, ino) {
            return None;
        }
        self.board.header().ledger(device).map(|ledger| ledger.moved().note(ino))
    }

    /// It has.
    pub fn note_moved(&self, note: Note, Inode { device, ino }: Inode) {
        if let Some(ledger) = self.board.header().ledger(device) {
            ledger.moved().note_changed(note, ino);
        }
    }

    /// Now, unless a commit is under way.
    pub fn log_moment(&self) -> Option<Moment> {
        self.tree_log().moment()
    }

    /// Whether the kernel may have left a change of the names of a file, or of names in a
    /// directory, out of its log because of a commit before `moment`, which was taken behind the
    /// change.
    pub fn misses_names(&self, moment: Option<Moment>, inode: Inode) -> bool {
        self.tree_log().misses(moment, inode.device, inode.ino)
    }

    /// Whether a directory was synced so since the last commit.
    pub fn is_logged_again(&self, moment: Option<Moment>, inode: Inode) -> bool {
        self.tree_log().is_relogged(moment, inode.device, inode.ino)
    }

    /// Has the keeper sync what is at `path`, behind that change; false where it cannot: it is not
    /// what is there, or the keeper is dead. `path` is relative to a directory of the program. By
    /// the keeper, since a description that closes in this process would end its record locks.
    pub fn log_again(&self, moment: Option<Moment>, inode: Inode, (dirfd, path): (i32, &CStr)) -> bool {
        let request = Request::LogAgain { inode, dirfd };
        let is_synced = ask(&self.board, self.id, request, Some(path)).is_ok();
        if let Some(moment) = moment.filter(|_| is_synced) {
            self.tree_log().note_relogged(moment, inode.device, inode.ino);
        }
        is_synced
    }

    /// Behind a sync on a file system: what others have changed there by now is in the log and was
    /// synced, or false. Not with a lock held.
    #[inline]
    pub fn await_relogs(&self, device: u64) -> bool {
        let changing = &self.board.header().changing;
        if !changing.is_relogging() || !self.may_miss_names(device) {
            return true;
        }
        for _ in 0..WAITS {
            pause(PAUSE);
            if !changing.is_relogging() || !self.keeper_alive() {
                return true;
            }
        }
        false
    }

    /// Has a file system commit by a call of the program's own process.
    pub fn having_committed<R>(&self, commit: impl FnOnce() -> R) -> R {
        self.tree_log().begin_commit();
        let committed = commit();
        self.tree_log().end_commit();
        committed
    }
}
