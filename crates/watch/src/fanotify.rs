//! The fanotify fence: the reader of permission events.
//!
//! The reader answers opens by our own processes at once and hands all others to the ledger's
//! workers. It must never block, never take a lock of the board, and never open a watched file:
//! nobody else would answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::account::Gate;
use crate::key::Key;
use crate::ledger::Ledger;
use crate::sys::Mark;
use crate::{FenceError, FenceKind, Opener, sys};

/// Room for some hundred events at once.
const BUFFER_BYTES: usize = 8 * 1024;

/// A group of permission events and who reads it.
pub struct Engine {
    group: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    reader: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the reader, which enters what it hears into `ledger`.
    pub fn start(ledger: &Arc<Ledger>) -> Result<Engine, FenceError> {
        let os = |what| move |source| FenceError::Os { kind: FenceKind::Fanotify, what, source };
        let group = sys::fanotify_init().map_err(|err| match Errno::from_io_error(&err) {
            Some(Errno::PERM) => FenceError::NotPermitted,
            Some(Errno::NOSYS | Errno::INVAL) => FenceError::Unsupported,
            _ => os("fanotify_init")(err),
        })?;
        probe(&group)?;
        let group = Arc::new(group);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|err| os("eventfd")(err.into()))?);
        let reader = {
            let (group, stop, ledger) = (Arc::clone(&group), Arc::clone(&stop), Arc::clone(ledger));
            thread::Builder::new()
                .name("fence-fanotify".into())
                .spawn(move || read_all(&group, &stop, &ledger))
        };
        let reader = Some(reader.map_err(os("starting the reader"))?);
        Ok(Engine { group, stop, reader })
    }

    /// Has opens of the file that `via` leads to wait for permission; it is not opened.
    pub fn mark(&self, via: &Path) -> io::Result<()> {
        sys::fanotify_mark(self.group.as_fd(), Mark::Opens, via)
    }

    /// The same of an open file.
    pub fn mark_open(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        sys::fanotify_mark_open(self.group.as_fd(), Mark::Opens, file)
    }

    /// Has closes of the file told, too.
    pub fn ask_closes(&self, via: &Path) -> io::Result<()> {
        sys::fanotify_mark(self.group.as_fd(), Mark::Closes, via)
    }

    /// Takes the mark away.
    pub fn unmark(&self, via: &Path) {
        // Without the mark's file there is no mark; its events would be allowed anyway.
        let _ = sys::fanotify_mark(self.group.as_fd(), Mark::Nothing, via);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(reader) = self.reader.take() {
            // A panic of the reader has been reported by the panic hook.
            let _ = reader.join();
        }
        // The group's last descriptor closes with the last gate: the kernel then allows whatever
        // still waits.
    }
}

/// Tries the events on a file of our own: kernels may lack permission events.
fn probe(group: &OwnedFd) -> Result<(), FenceError> {
    let failed = |what| move |source| FenceError::Os { kind: FenceKind::Fanotify, what, source };
    let file = memfd_create("holdfast-fence-probe", MemfdFlags::CLOEXEC)
        .map_err(|err| failed("memfd_create")(err.into()))?;
    let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
    sys::fanotify_mark(group.as_fd(), Mark::Opens, &path).map_err(|err| {
        match Errno::from_io_error(&err) {
            Some(Errno::PERM) => FenceError::NotPermitted,
            Some(Errno::INVAL) => FenceError::Unsupported,
            _ => failed("fanotify_mark")(err),
        }
    })?;
    sys::fanotify_mark(group.as_fd(), Mark::Nothing, &path).map_err(failed("fanotify_mark"))
}

fn read_all(group: &Arc<OwnedFd>, stop: &OwnedFd, ledger: &Arc<Ledger>) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let mut fds = [PollFd::new(&**group, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory, at worst: try again.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match sys::read_events(group.as_fd(), &mut buffer) {
            Ok(events) => events.into_iter().for_each(|event| handle(group, ledger, event)),
            Err(err) => match Errno::from_io_error(&err) {
                Some(Errno::AGAIN | Errno::INTR) => {}
                // The kernel could not make a descriptor for an event: it refused that open, or the
                // event was a close and is lost.
                _ => {
                    ledger.lost_events();
                    thread::sleep(Duration::from_millis(10));
                }
            },
        }
    }
}

fn handle(group: &Arc<OwnedFd>, ledger: &Arc<Ledger>, event: sys::Event) {
    let sys::Event { mask, file, tid } = event;
    if mask & libc::FAN_Q_OVERFLOW != 0 {
        ledger.lost_events();
    }
    let Some(file) = file else { return };
    if mask & libc::FAN_OPEN_PERM != 0 {
        // From here on, whatever happens, the open is allowed when the gate is dropped.
        let gate = Gate { group: Arc::clone(group), file };
        let opener = ledger.sink().opener(tid);
        if opener != Opener::Ours
            && let Ok(key) = Key::of_fd(&gate.file)
        {
            ledger.opening(key, tid, opener, gate);
        }
        return;
    }
    let wrote = mask & libc::FAN_CLOSE_WRITE != 0;
    if let Ok(key) = Key::of_fd(&file)
        && ledger.wants_closes(key)
        && let Opener::Outsider(pid) = ledger.sink().opener(tid)
    {
        ledger.closed_by(key, tid, pid, wrote);
    }
}
