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

mod inotify;
mod lease;
mod remote;

use holdfast_cache::FileRef;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use holdfast_watch::{Key, Ledger, fanotify};

use crate::config::FenceChoice;
use holdfast_disk::OsFile;
use holdfast_disk::lease::Lease;

pub use holdfast_watch::{FenceError, FenceKind, Holder, Outsiders, Scan, scan_holders, writers_outside};
pub use lease::obstacle as lease_obstacle;

enum Engine {
    Fanotify(fanotify::Engine),
    Remote(remote::Engine),
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
    /// Starts the fence. `Auto` takes fanotify if the kernel permits it, else inotify. With `watch`
    /// fanotify is what root's watch of that name does.
    pub fn start(
        choice: FenceChoice,
        watch: Option<&str>,
        sink: Arc<dyn Outsiders>,
    ) -> Result<Fence, FenceError> {
        let ledger = Ledger::new(Arc::clone(&sink));
        if let (FenceChoice::Auto | FenceChoice::Fanotify, Some(name)) = (choice, watch) {
            match remote::Engine::start(name, sink) {
                Ok(engine) => return Ok(Fence { engine: Engine::Remote(engine), ledger }),
                Err(error) if choice == FenceChoice::Fanotify => return Err(error),
                Err(_) => {}
            }
        }
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
            Engine::Remote(ref remote) if remote.is_lost() => FenceKind::Lost,
            Engine::Remote(_) => FenceKind::Fanotify,
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
    pub fn watch(&self, place: FileRef, via: &Path) -> io::Result<()> {
        match &self.engine {
            Engine::None => return Ok(()),
            // The watch believes a descriptor, and a path leads to none but by an open.
            Engine::Remote(_) => return Err(io::ErrorKind::Unsupported.into()),
            _ => {}
        }
        let key = Key::of(via)?;
        self.ledger.add(key, place.slot.number(), place.generation.get());
        let marked = match &self.engine {
            Engine::Fanotify(engine) => engine.mark(via),
            Engine::Inotify(engine) => engine.mark(key, via),
            Engine::Lease(engine) => engine.notices.mark(key, via),
            Engine::Remote(_) | Engine::None => Ok(()),
        };
        // The descriptor may have been closed and its number reused meanwhile: then another inode
        // is marked, which is harmless (its events are allowed), but ours is not.
        let checked = marked.and_then(|()| match Key::of(via) {
            Ok(again) if again == key => Ok(()),
            Ok(_) => Err(io::Error::other("the descriptor was replaced while its file was being watched")),
            Err(err) => Err(err),
        });
        if checked.is_err() {
            self.ledger.remove(key, place.slot.number(), place.generation.get());
        }
        checked
    }

    /// As [`Fence::watch`], of an open file.
    pub fn watch_open(&self, place: FileRef, file: BorrowedFd<'_>) -> io::Result<()> {
        let engine = match &self.engine {
            Engine::Fanotify(engine) => engine,
            Engine::Remote(remote) => return remote.watch(place, file),
            _ => {
                let via = format!("/proc/self/fd/{}", file.as_raw_fd());
                return self.watch(place, Path::new(&via));
            }
        };
        let key = Key::of_fd(file)?;
        self.ledger.add(key, place.slot.number(), place.generation.get());
        let marked = engine.mark_open(file);
        if marked.is_err() {
            self.ledger.remove(key, place.slot.number(), place.generation.get());
        }
        marked
    }

    /// Ends the watch. `via`: `/proc/self/fd/<n>` of the keeper's own description; none where the
    /// last name of the file is gone: the kernel drops its mark with the inode. Does nothing if
    /// the slot has been watched anew under another generation.
    pub fn unwatch(&self, place: FileRef, via: Option<&Path>) {
        if let Engine::Remote(remote) = &self.engine {
            return remote.unwatch(place, via);
        }
        let Some(key) = self.ledger.find(place.slot.number(), place.generation.get()) else { return };
        // A later slot may have the same inode: its mark stays.
        if !self.ledger.remove(key, place.slot.number(), place.generation.get()) {
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
                engine.forget(place);
                engine.notices.unmark(key);
            }
            Engine::Remote(_) | Engine::None => {}
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
    pub(crate) fn follow(&self, place: FileRef, leased: &OsFile) {
        if let Engine::Lease(engine) = &self.engine {
            let is_whole = leased.lease() == Lease::Whole;
            engine.follow(leased.as_fd().as_raw_fd(), place, is_whole);
        }
    }

    /// The keeper found an outsider that has the file open for writing though it was not seen to
    /// open it (it was there before the watch). `arrived` follows, and `left` once no such outsider
    /// is left. `via`: as for [`Fence::unwatch`].
    pub fn present(&self, place: FileRef, via: &Path) {
        if let Engine::Remote(remote) = &self.engine {
            remote.present(place, via);
        } else if let Some(key) = self.ledger.find(place.slot.number(), place.generation.get()) {
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
