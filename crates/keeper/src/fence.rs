//! The fence: notices processes that are no clients of this keeper when they open a managed file.
//!
//! In state Through the page cache is always right, so outsiders that read are harmless. An
//! outsider that writes must never meet live log records (history 10): before its open takes effect
//! the file is settled and bypassed, and stays so until no outsider can write it any more. Whatever
//! the fence cannot tell counts as a writer that is still there: the file is slower then, never
//! wrong.
//!
//! The fence must never call its sink with one of its own locks held, never open a file it watches,
//! and never leave an open unanswered: an opening that is dropped for whatever reason is allowed.
//!
//! What it cannot see: what is done without an open (`crate::lookout` does, afterwards), and opens
//! through another layer of an overlay that reach the same blocks by another inode.

mod account;
mod fanotify;
mod inotify;
mod lease;
mod ledger;
mod opener;
mod outsiders;
mod sys;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use crate::config::FenceChoice;
use crate::disk::OsFile;
use crate::lease::Lease;
use account::Key;
use ledger::Ledger;

pub use lease::obstacle as lease_obstacle;
pub use outsiders::{Holder, Scan, scan_holders, writers_outside};

/// Which fence is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceKind {
    /// Permission events: an outsider's open waits until the file is ready for it.
    Fanotify,
    /// Notices: an outsider is seen at once, but it does not wait.
    Inotify,
    /// As inotify; who opens a file that a program has alone waits.
    Lease,
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
            FenceKind::None => "none",
        })
    }
}

/// What the fence tells the keeper. Called from the fence's own threads, never with a lock of the
/// fence held.
///
/// For one watched file the calls never overlap and alternate: `arrived`, `left`, `arrived`, ...
/// starting with `arrived`. They may come late, after [`Fence::unwatch`]: compare the generation.
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

enum Engine {
    Fanotify(fanotify::Engine),
    Inotify(inotify::Engine),
    Lease(lease::Engine),
    None,
}

/// A running fence. Dropping it takes all watches away and allows every open that still waits.
pub struct Fence {
    engine: Engine,
    ledger: Arc<Ledger>,
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("kind", &self.kind()).finish_non_exhaustive()
    }
}

impl Fence {
    /// Starts the fence. `Auto` takes fanotify if the kernel permits it, else inotify.
    pub fn start(choice: FenceChoice, sink: Arc<dyn Outsiders>) -> Result<Fence, FenceError> {
        let ledger = Ledger::new(sink);
        let engine = match choice {
            FenceChoice::None => Engine::None,
            FenceChoice::Inotify => Engine::Inotify(inotify::Engine::start(&ledger)?),
            FenceChoice::Lease => Engine::Lease(lease::Engine::start(&ledger)?),
            FenceChoice::Fanotify => Engine::Fanotify(fanotify::Engine::start(&ledger)?),
            FenceChoice::Auto => match fanotify::Engine::start(&ledger) {
                Ok(engine) => Engine::Fanotify(engine),
                Err(FenceError::NotPermitted | FenceError::Unsupported) => {
                    Engine::Inotify(inotify::Engine::start(&ledger)?)
                }
                Err(other) => return Err(other),
            },
        };
        Ok(Fence { engine, ledger })
    }

    /// Which fence this is.
    pub fn kind(&self) -> FenceKind {
        match self.engine {
            Engine::Fanotify(_) => FenceKind::Fanotify,
            Engine::Inotify(_) => FenceKind::Inotify,
            Engine::Lease(_) => FenceKind::Lease,
            Engine::None => FenceKind::None,
        }
    }

    /// Watches the inode behind `via` (`/proc/<pid>/fd/<n>`: the link is followed, the file is not
    /// opened). After it returns, no open by an outsider goes unseen. Outsiders that already had
    /// the file open are not its matter: look with [`writers_outside`] afterwards and report what
    /// is found with [`Fence::present`]. A slot watched before under an older generation is
    /// replaced.
    pub fn watch(&self, slot: u32, generation: u64, via: &Path) -> io::Result<()> {
        if matches!(self.engine, Engine::None) {
            return Ok(());
        }
        let key = Key::of(via)?;
        self.ledger.add(key, slot, generation);
        let marked = match &self.engine {
            Engine::Fanotify(engine) => engine.mark(via),
            Engine::Inotify(engine) => engine.mark(key, via),
            Engine::Lease(engine) => engine.notices.mark(key, via),
            Engine::None => Ok(()),
        };
        // The descriptor may have been closed and its number reused meanwhile: then another inode
        // is marked, which is harmless (its events are allowed), but ours is not.
        let checked = marked.and_then(|()| match Key::of(via) {
            Ok(again) if again == key => Ok(()),
            Ok(_) => Err(io::Error::other("the descriptor was replaced while its file was being watched")),
            Err(err) => Err(err),
        });
        if checked.is_err() {
            self.ledger.remove(key, slot, generation);
        }
        checked
    }

    /// As [`Fence::watch`], of an open file.
    pub(crate) fn watch_open(&self, slot: u32, generation: u64, file: BorrowedFd<'_>) -> io::Result<()> {
        let Engine::Fanotify(engine) = &self.engine else {
            return self.watch(slot, generation, Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
        };
        let key = Key::of_fd(file)?;
        self.ledger.add(key, slot, generation);
        let marked = engine.mark_open(file);
        if marked.is_err() {
            self.ledger.remove(key, slot, generation);
        }
        marked
    }

    /// Ends the watch. `via`: `/proc/self/fd/<n>` of the keeper's own description; none where the
    /// last name of the file is gone: the kernel drops its mark with the inode. Does nothing if
    /// the slot has been watched anew under another generation.
    pub fn unwatch(&self, slot: u32, generation: u64, via: Option<&Path>) {
        let Some(key) = self.ledger.find(slot, generation) else { return };
        // A later slot may have the same inode: its mark stays.
        if !self.ledger.remove(key, slot, generation) {
            return;
        }
        match &self.engine {
            Engine::Fanotify(engine) => {
                if let Some(via) = via.filter(|via| Key::of(via).is_ok_and(|now| now == key)) {
                    engine.unmark(via);
                }
            }
            Engine::Inotify(engine) => engine.unmark(key),
            Engine::Lease(engine) => {
                engine.forget(slot, generation);
                engine.notices.unmark(key);
            }
            Engine::None => {}
        }
    }

    /// Takes a lease on a program's description of a watched file, which must be the only one there
    /// is: who opens it from now on waits until the result is dropped. Tell of it by
    /// [`Fence::follow`] as soon as its file can be acted on.
    pub(crate) fn lease(&self, description: File) -> io::Result<OsFile> {
        match &self.engine {
            Engine::Lease(engine) => engine.take(description),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// The file of a slot is leased: from now on the sink hears who waits for it.
    pub(crate) fn follow(&self, slot: u32, generation: u64, leased: &OsFile) {
        if let Engine::Lease(engine) = &self.engine {
            let is_whole = leased.lease() == Lease::Whole;
            engine.follow(leased.as_fd().as_raw_fd(), slot, generation, is_whole);
        }
    }

    /// The keeper found an outsider that has the file open for writing though it was not seen to
    /// open it (it was there before the watch). `arrived` follows, and `left` once no such outsider
    /// is left. `via`: as for [`Fence::unwatch`].
    pub fn present(&self, slot: u32, generation: u64, via: &Path) {
        if let Some(key) = self.ledger.find(slot, generation) {
            // Before it is looked who is there: whoever is seen then is seen to close, too.
            if let Engine::Fanotify(engine) = &self.engine
                && Key::of(via).is_ok_and(|now| now == key)
            {
                let _ = engine.ask_closes(via);
            }
            self.ledger.present(key);
        }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // First the readers, so that nothing new comes in; then the workers are told to end.
        self.engine = Engine::None;
        self.ledger.stop();
    }
}
