//! The lease fence: as inotify, and files of which a program has the only description are leased.
//! Who opens such a file waits until the keeper gives the lease back.
//!
//! The kernel tells one thread by a queued signal, which no other thread and no program ever gets.
//! That thread never acts on a file: each lease that somebody waits for has a thread of its own for
//! the moment. A signal may name a descriptor that is closed by now, or come before its file is
//! known: what counts is what the lease says.

use holdfast_cache::FileRef;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::{FenceError, FenceKind, inotify};
use holdfast_disk::OsFile;
use holdfast_disk::lease;
use holdfast_watch::Ledger;

/// A file's bytes must be on the disk long before the kernel lets others in by force.
const BREAK_TIME_MIN: Duration = Duration::from_secs(10);

/// Leased files, by the number of the descriptor.
type Leased = Mutex<HashMap<RawFd, FileRef>>;

pub(super) struct Engine {
    pub notices: inotify::Engine,
    ledger: Arc<Ledger>,
    leased: Arc<Leased>,
    /// Who is told.
    tid: i32,
    stop: Arc<OwnedFd>,
    reader: Option<JoinHandle<()>>,
}

fn lock(leased: &Leased) -> MutexGuard<'_, HashMap<RawFd, FileRef>> {
    leased.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(super) fn start(ledger: &Arc<Ledger>) -> Result<Engine, FenceError> {
        let os = |what| move |source| FenceError::Os { kind: FenceKind::Lease, what, source };
        let refused = |why: &str| io::Error::other(why.to_owned());
        if let Some(obstacle) = obstacle() {
            return Err(os("looking at the kernel")(refused(obstacle)));
        }
        let notices = inotify::Engine::start(ledger)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|err| os("eventfd")(err.into()))?);
        let leased = Arc::new(Leased::default());
        let (told, hears) = mpsc::channel();
        let reader = {
            let (stop, leased, ledger) = (Arc::clone(&stop), Arc::clone(&leased), Arc::clone(ledger));
            thread::Builder::new().name("fence-lease".into()).spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                let signals = lease::signals();
                let begun = signals.as_ref().map(|_| tid).map_err(|err| io::Error::from(err.kind()));
                if told.send(begun).is_ok()
                    && let Ok(signals) = signals
                {
                    read_all(&signals, &stop, &leased, &ledger);
                }
            })
        };
        let reader = Some(reader.map_err(os("starting the reader"))?);
        let tid = hears.recv().unwrap_or_else(|_| Err(refused("it ended")));
        let tid = tid.map_err(os("watching for signals"))?;
        Ok(Engine { notices, ledger: Arc::clone(ledger), leased, tid, stop, reader })
    }

    /// Takes the lease on a description; granted only when it is the file's only one.
    pub(super) fn take(&self, file: File) -> io::Result<OsFile> {
        lease::take(file.as_fd(), self.tid)?;
        Ok(OsFile::leased(file))
    }

    /// From now on the sink hears when somebody waits for this lease, and at once if somebody does
    /// already.
    pub(super) fn follow(&self, fd: RawFd, place: FileRef, is_whole: bool) {
        lock(&self.leased).insert(fd, place);
        if !is_whole {
            broken(&self.ledger, place);
        }
    }

    pub(super) fn forget(&self, place: FileRef) {
        lock(&self.leased).retain(|_, leased| *leased != place);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(reader) = self.reader.take() {
            // A panic of the reader has been reported by the panic hook.
            let _ = reader.join();
        }
    }
}

/// What this kernel lacks for the fence, and what to do about it.
pub fn obstacle() -> Option<&'static str> {
    if !lease::writes_in_place() {
        return Some("it needs Linux 6.9 or newer (RWF_NOAPPEND)");
    }
    (lease::break_time() < BREAK_TIME_MIN)
        .then_some("leases are broken by force too early: sysctl fs.lease-break-time=45")
}

fn read_all(signals: &OwnedFd, stop: &OwnedFd, leased: &Leased, ledger: &Arc<Ledger>) {
    loop {
        let mut fds = [PollFd::new(signals, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            // Interrupted, or out of memory at worst: try again.
            thread::sleep(Duration::from_millis(1));
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        while let Some(which) = lease::next(signals) {
            // Told without a name when too many signals were queued: each file is looked at.
            let files: Vec<FileRef> = match which {
                Some(fd) => lock(leased).get(&fd).copied().into_iter().collect(),
                None => lock(leased).values().copied().collect(),
            };
            for place in files {
                broken(ledger, place);
            }
        }
    }
}

/// Has the sink act, without waiting for it.
fn broken(ledger: &Arc<Ledger>, place: FileRef) {
    let (acting, slot, generation) = (Arc::clone(ledger), place.slot.number(), place.generation.get());
    let act = move || acting.sink().lease_breaks(slot, generation);
    if thread::Builder::new().name("fence-lease-break".into()).spawn(act).is_err() {
        ledger.sink().lease_breaks(slot, generation);
    }
}
