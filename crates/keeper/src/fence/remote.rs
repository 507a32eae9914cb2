//! The fanotify fence by way of root's watch, for keepers that are not root's.
//!
//! One thread hears what the watch asks. It answers at once who a thread is, and has everything
//! else done by threads of their own: an open of the keeper's is one of those that the watch asks
//! about. Without its watch a keeper knows nothing of opens any more, and the fence says so.

use holdfast_cache::FileRef;
use holdfast_pool::{Generation, Slot};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use holdfast_watch::protocol::{HELLO, Line, Place, Said, opener_out};
use holdfast_watch::{FenceError, FenceKind, Outsiders, server};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// How long the watch may take: it waits for nobody but the kernel.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is watched, by slot.
type Watched = Mutex<HashMap<Slot, Generation>>;

pub(super) struct Engine {
    line: Arc<Line>,
    watched: Arc<Watched>,
    is_lost: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

fn lock(watched: &Watched) -> MutexGuard<'_, HashMap<Slot, Generation>> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As the watch calls it.
fn sent(FileRef { slot, generation }: FileRef) -> Place {
    Place { slot: slot.number(), generation: generation.get() }
}

impl Engine {
    /// Connects to the watch that listens under a name.
    pub(super) fn start(name: &str, sink: Arc<dyn Outsiders>) -> Result<Engine, FenceError> {
        let os = |what| move |source| FenceError::Os { kind: FenceKind::Fanotify, what, source };
        let socket = server::connect(name.as_bytes()).map_err(os("connecting to root's watch"))?;
        let line = Arc::new(Line::new(socket));
        match line.hear() {
            Some((HELLO, Said::Answer(0), _)) => {}
            Some((HELLO, Said::Answer(errno), _)) => {
                return Err(match Errno::from_raw_os_error(errno as i32) {
                    Errno::PERM => FenceError::NotPermitted,
                    Errno::NOSYS => FenceError::Unsupported,
                    errno => os("asking root's watch")(errno.into()),
                });
            }
            _ => return Err(os("hearing root's watch")(io::ErrorKind::BrokenPipe.into())),
        }
        let watched = Arc::new(Watched::default());
        let is_lost = Arc::new(AtomicBool::new(false));
        let reader = {
            let (line, watched, is_lost) = (Arc::clone(&line), Arc::clone(&watched), Arc::clone(&is_lost));
            thread::Builder::new().name("fence-watch".into()).spawn(move || {
                while let Some((number, said, _)) = line.hear() {
                    obey(&line, &sink, number, said);
                }
                is_lost.store(true, Ordering::SeqCst);
                line.close();
                let files: Vec<(u32, u64)> = lock(&watched)
                    .drain()
                    .map(|(slot, generation)| (slot.number(), generation.get()))
                    .collect();
                sink.lost(&files);
            })
        };
        let reader = Some(reader.map_err(os("starting the reader"))?);
        Ok(Engine { line, watched, is_lost, reader })
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
    }

    pub(super) fn watch(&self, place: FileRef, file: BorrowedFd<'_>) -> io::Result<()> {
        // Before it is asked for: what is lost from then on concerns this file, too.
        lock(&self.watched).insert(place.slot, place.generation);
        let watched = self.ask(Said::Watch(sent(place)), Some(file));
        if watched.is_err() {
            self.forget(place);
        }
        watched
    }

    fn forget(&self, place: FileRef) -> bool {
        let mut watched = lock(&self.watched);
        let found = watched.get(&place.slot) == Some(&place.generation);
        if found {
            watched.remove(&place.slot);
        }
        found
    }

    pub(super) fn unwatch(&self, place: FileRef, via: Option<&Path>) {
        if self.forget(place) {
            let file = via.and_then(|via| path_descriptor(via).ok());
            // Without its watch there is nothing to take away.
            let _ = self.ask(Said::Unwatch(sent(place)), file.as_ref().map(AsFd::as_fd));
        }
    }

    pub(super) fn present(&self, place: FileRef, via: &Path) {
        let file = path_descriptor(via).ok();
        // Without its watch every file is told of as opened.
        let _ = self.ask(Said::Present(sent(place)), file.as_ref().map(AsFd::as_fd));
    }

    fn ask(&self, what: Said, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match self.line.ask(what, file, PATIENCE)? {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno as i32)),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        lock(&self.watched).clear();
        self.line.close();
        if let Some(reader) = self.reader.take() {
            // A panic of the reader has been reported by the panic hook.
            let _ = reader.join();
        }
    }
}

/// Leads to a file without opening it.
fn path_descriptor(via: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(via, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Does what the watch asks for.
fn obey(line: &Arc<Line>, sink: &Arc<dyn Outsiders>, number: u64, said: Said) {
    // The line may be closed by now: then nobody waits for the answer.
    let at_once = match said {
        Said::Opener(tid) => Some(opener_out(sink.opener(tid))),
        Said::IsOurs(pid) => Some(u64::from(sink.is_ours(pid))),
        _ => None,
    };
    if let Some(answer) = at_once {
        let _ = line.answer(number, answer);
        return;
    }
    let (answering, acting) = (Arc::clone(line), Arc::clone(sink));
    let act = move || {
        match said {
            Said::Past(pid) => acting.goes_past(pid),
            Said::Arrived(place) => acting.arrived(place.slot, place.generation),
            Said::Reads(place) => acting.reads(place.slot, place.generation),
            Said::Left(place, wrote) => acting.left(place.slot, place.generation, wrote),
            _ => {}
        }
        let _ = answering.answer(number, 0);
    };
    if thread::Builder::new().name("fence-asked".into()).spawn(act).is_err() {
        // Without threads nobody can be let in rightly: the watch ends, and each file is told of.
        line.close();
    }
}
