//! The inotify fence: the reader of notices. It needs no privilege, but an outsider is not made to
//! wait, and notices do not say who opened: opens are counted against those that clients announce.
//!
//! The reader must never block: a full queue loses notices, and then every file counts as opened.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::{FenceError, FenceKind};
use holdfast_watch::Key;
use holdfast_watch::Ledger;

/// Room for some hundred notices at once.
const BUFFER_BYTES: usize = 8 * 1024;

/// Kernel watch numbers and inodes, both ways. Numbers are never used twice by the kernel.
#[derive(Default)]
struct Watches {
    by_number: HashMap<i32, Key>,
    by_key: HashMap<Key, i32>,
}

pub(super) struct Engine {
    queue: Arc<OwnedFd>,
    stop: Arc<OwnedFd>,
    watches: Arc<Mutex<Watches>>,
    reader: Option<JoinHandle<()>>,
}

fn lock(watches: &Mutex<Watches>) -> MutexGuard<'_, Watches> {
    watches.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(super) fn start(ledger: &Arc<Ledger>) -> Result<Engine, FenceError> {
        let os = |what| move |source| FenceError::Os { kind: FenceKind::Inotify, what, source };
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        let queue = Arc::new(queue.map_err(|err| os("inotify_init")(err.into()))?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.map_err(|err| os("eventfd")(err.into()))?);
        let watches = Arc::new(Mutex::new(Watches::default()));
        let reader = {
            let (queue, stop) = (Arc::clone(&queue), Arc::clone(&stop));
            let (watches, ledger) = (Arc::clone(&watches), Arc::clone(ledger));
            thread::Builder::new()
                .name("fence-inotify".into())
                .spawn(move || read_all(&queue, &stop, &watches, &ledger))
        };
        let reader = Some(reader.map_err(os("starting the reader"))?);
        Ok(Engine { queue, stop, watches, reader })
    }

    pub(super) fn mark(&self, key: Key, via: &Path) -> io::Result<()> {
        let mask = WatchFlags::OPEN | WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        // Under the lock, so that the reader cannot meet a number that is not entered yet.
        let mut watches = lock(&self.watches);
        let number = inotify::add_watch(&*self.queue, via, mask).map_err(|err| match err {
            Errno::NOSPC => io::Error::other(
                "no inotify watch is left for this user (fs.inotify.max_user_watches): raise it, \
                 or run as root for the fanotify fence",
            ),
            other => other.into(),
        })?;
        watches.by_number.insert(number, key);
        watches.by_key.insert(key, number);
        Ok(())
    }

    pub(super) fn unmark(&self, key: Key) {
        let mut watches = lock(&self.watches);
        if let Some(number) = watches.by_key.remove(&key) {
            watches.by_number.remove(&number);
            // It may be gone with its inode already.
            let _ = inotify::remove_watch(&*self.queue, number);
        }
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

fn read_all(queue: &OwnedFd, stop: &OwnedFd, watches: &Mutex<Watches>, ledger: &Arc<Ledger>) {
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
    loop {
        let mut fds = [PollFd::new(queue, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of memory, at worst: try again.
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        let mut events = inotify::Reader::new(queue, &mut buffer);
        loop {
            match events.next() {
                Ok(event) => handle(watches, ledger, event.wd(), event.events()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    ledger.lost_events();
                    thread::sleep(Duration::from_millis(10));
                    break;
                }
            }
        }
    }
}

fn handle(watches: &Mutex<Watches>, ledger: &Arc<Ledger>, number: i32, events: ReadFlags) {
    if events.contains(ReadFlags::QUEUE_OVERFLOW) {
        ledger.lost_events();
        return;
    }
    let key = {
        let mut watches = lock(watches);
        let Some(&key) = watches.by_number.get(&number) else { return };
        if events.contains(ReadFlags::IGNORED) {
            // The inode is gone, and every description of it with it.
            watches.by_number.remove(&number);
            if watches.by_key.get(&key) == Some(&number) {
                watches.by_key.remove(&key);
            }
            return;
        }
        key
    };
    if events.contains(ReadFlags::OPEN) {
        ledger.opened_by_somebody(key);
    }
    if events.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::CLOSE_NOWRITE) {
        ledger.closed_by_somebody(key, events.contains(ReadFlags::CLOSE_WRITE));
    }
}
