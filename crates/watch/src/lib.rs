//! The watch: who outside a keeper opens the files that it manages, and the permission events that
//! have them wait until the file is ready.
//!
//! A keeper of root uses it as a library. For any other user it is a program of its own, the only
//! part of Holdfast that root runs ([`server`]): it opens no file, and a keeper talks to it
//! ([`protocol`]).
//!
//! It must never call its sink with one of its own locks held, never open a file it watches, and
//! never leave an open unanswered: an opening that is dropped for whatever reason is allowed.

mod account;
pub mod fanotify;
mod holders;
mod key;
mod ledger;
mod opener;
mod peer;
pub mod protocol;
pub mod server;
mod sys;

use std::fmt;
use std::io;
use std::path::Path;

pub use holders::{Holder, Scan, scan_holders, writers_outside};
pub use key::Key;
pub use ledger::Ledger;
pub use peer::peer;

/// The kinds of the file systems whose files are managed, as `statfs` tells them: ext4, xfs and
/// btrfs, local ones that keep what they synced.
pub const FILE_SYSTEMS: [u32; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// Which fence is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceKind {
    /// Permission events: an outsider's open waits until the file is ready for it.
    Fanotify,
    /// Notices: an outsider is seen at once, but it does not wait.
    Inotify,
    /// As inotify; who opens a file that a program has alone waits.
    Lease,
    /// Root's watch was lost: opens are not even noticed any more.
    Lost,
    /// No fence.
    None,
}

impl FenceKind {
    /// Whether outsiders are only noticed after they opened a file, where no lease holds them back.
    pub fn only_notices(self) -> bool {
        matches!(self, FenceKind::Inotify | FenceKind::Lease)
    }
}

impl fmt::Display for FenceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FenceKind::Fanotify => "fanotify",
            FenceKind::Inotify => "inotify",
            FenceKind::Lease => "lease",
            FenceKind::Lost => "lost",
            FenceKind::None => "none",
        })
    }
}

/// Who opens or closes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// The keeper itself, or one of ours that announced it.
    Ours,
    /// One of ours, whose library knows nothing of it; its number.
    Client(u32),
    /// None of ours; its number, if that could be told, else its thread's.
    Outsider(u32),
}

/// What the fence tells the keeper. Called from the fence's own threads, never with a lock of the
/// fence held.
///
/// For one watched file the calls never overlap and alternate: `arrived`, `left`, `arrived`, ...
/// starting with `arrived`. They may come late, after a fence is taken away: compare the
/// generation.
pub trait Outsiders: Send + Sync + 'static {
    /// Whether this process is one of ours (a client, a registered child, the keeper itself).
    /// Called from the thread that answers all opens: it must not block and must take no lock of
    /// the board.
    fn is_ours(&self, pid: u32) -> bool;

    /// fanotify only: whether this thread of one of ours stands in an open of the library's, or is
    /// no client's. Must not block.
    fn is_announced(&self, _tid: u32) -> bool {
        true
    }

    /// fanotify only: who the thread is that opens or closes. Not remembered from one event to the
    /// next: ids are reused, and a stranger must not inherit trust.
    fn opener(&self, tid: u32) -> Opener {
        if tid == 0 {
            return Opener::Outsider(0);
        }
        if tid == std::process::id() || Path::new(&format!("/proc/self/task/{tid}")).exists() {
            return Opener::Ours;
        }
        let client = |pid| if self.is_announced(tid) { Opener::Ours } else { Opener::Client(pid) };
        if self.is_ours(tid) {
            return client(tid);
        }
        match opener::process_of(tid) {
            Some(pid) if pid != tid && self.is_ours(pid) => client(pid),
            Some(pid) => Opener::Outsider(pid),
            None => Opener::Outsider(tid),
        }
    }

    /// fanotify only: this process is one of ours, and its library knows nothing of an open for
    /// writing that it is about to make. From now on it is none of ours.
    fn goes_past(&self, _pid: u32) {}

    /// An outsider that may write is about to open the file (fanotify: the open waits for this
    /// call) or has just opened it (inotify). Must leave the file settled and bypassed. For inotify
    /// the conflict mark is persisted first of all.
    fn arrived(&self, slot: u32, generation: u64);

    /// fanotify only: an outsider that only reads is about to open the file; the open waits for
    /// this call. It must leave the page cache with everything in it, for as long as the file is
    /// watched. It may come at any time.
    fn reads(&self, _slot: u32, _generation: u64) {}

    /// lease only: somebody waits to open the file, or to cut it; or nobody does any more. Must
    /// give the lease back, with everything in the file. Calls may overlap.
    fn lease_breaks(&self, _slot: u32, _generation: u64) {}

    /// Root's watch was lost, which watched these files (slot, generation): outsiders may be in
    /// each of them, and nobody will be seen to leave.
    fn lost(&self, files: &[(u32, u64)]) {
        files.iter().for_each(|&(slot, generation)| self.arrived(slot, generation));
    }

    /// No outsider that can write has the file open any more. With `wrote`, its bytes may be
    /// unsynced: the next sync must be real.
    fn left(&self, slot: u32, generation: u64, wrote: bool);

    /// inotify only: how many opens of this file clients have announced so far, to tell theirs from
    /// others; `ino` is its inode number. Each is announced before it is made. Must not block.
    fn client_opens(&self, slot: u32, ino: u64) -> u64;

    /// inotify only: as many of them as are known to be over: those of which no notice can come any
    /// more.
    fn client_opens_over(&self, slot: u32, ino: u64) -> u64 {
        self.client_opens(slot, ino)
    }
}

/// Why a fence could not be started.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    /// The kernel does not let this process use permission events.
    #[error(
        "the fanotify fence is not permitted to this process (it needs CAP_SYS_ADMIN): run as root, \
         or use --fence inotify, or --exclusive DIR for directories nobody else touches"
    )]
    NotPermitted,
    /// The kernel has no permission events.
    #[error(
        "this kernel has no fanotify permission events (CONFIG_FANOTIFY_ACCESS_PERMISSIONS): \
         use --fence inotify, or --exclusive DIR for directories nobody else touches"
    )]
    Unsupported,
    /// Something else failed.
    #[error(
        "the {kind} fence could not be started: {what}: {source}; use another --fence or --exclusive DIR"
    )]
    Os {
        /// Which fence.
        kind: FenceKind,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}
