//! Whoever unmounts a file system waits until nothing of the keeper's keeps it busy: the program
//! `umount` is watched, and waits for permission in its `execve`.
//!
//! The whole machine uses that program, so nothing may keep the answer: it is given by a thread
//! with a table of descriptors of its own. In the keeper's they may be short, and the kernel
//! refuses what it has no descriptor for to ask about. That thread must never do the keeper's work,
//! nor hold one of its files.
#![allow(unsafe_code)] // A table of its own has no safe wrapper.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::ledger::Ledger;
use super::opener;
use super::sys::{self, Mark};
use crate::late::PATIENCE;

/// The program that unmounts.
const UNMOUNT: &str = "umount";
const BUFFER_BYTES: usize = 1024;

/// A thread that is about to execute the program, and who is told when it may.
type Asked = (u32, Sender<()>);

/// Watches until this process ends. Without it the keeper lets go of files a little later.
pub(super) fn watch(ledger: &Arc<Ledger>) {
    let (asks, asked) = channel::<Asked>();
    let ledger = Arc::downgrade(ledger);
    let started = thread::Builder::new().name("unmounts".into()).spawn(move || {
        for (tid, done) in asked {
            let Some(ledger) = ledger.upgrade() else { continue };
            // `done` is dropped with the thread, or without one.
            let _ = thread::Builder::new().name("unmount".into()).spawn(move || {
                ledger.sink().unmounts(tid, opener::arguments(tid));
                drop(done);
            });
        }
    });
    if started.is_ok() {
        let _ = thread::Builder::new().name("unmount-events".into()).spawn(move || answer_all(&asks));
    }
}

fn answer_all(asks: &Sender<Asked>) {
    let Some(group) = group_of_its_own() else { return };
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        let _ = poll(&mut [PollFd::new(&group, PollFlags::IN)], None);
        let Ok(events) = sys::read_events(group.as_fd(), &mut buffer) else {
            thread::sleep(Duration::from_millis(1));
            continue;
        };
        let until = Instant::now() + PATIENCE;
        let waiting: Vec<(sys::Event, Receiver<()>)> = events
            .into_iter()
            .map(|event| {
                let (done, is_done) = channel();
                let _ = asks.send((event.tid, done));
                (event, is_done)
            })
            .collect();
        for (event, is_done) in waiting {
            let _ = is_done.recv_timeout(until.saturating_duration_since(Instant::now()));
            if let Some(file) = event.file {
                sys::allow(group.as_fd(), file.as_fd());
            }
        }
    }
}

/// The watch, in a table of descriptors that only this thread has, with nothing else in it.
fn group_of_its_own() -> Option<OwnedFd> {
    // SAFETY: this thread gets a copy of the table, and shares it with nobody.
    if unsafe { libc::unshare(libc::CLONE_FILES) } != 0 {
        return None;
    }
    // SAFETY: it closes what is in the copy, of which this thread has nothing.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) } != 0 {
        return None;
    }
    // What is said to the standard streams goes nowhere.
    for _ in 0..3 {
        std::mem::forget(File::options().read(true).write(true).open("/dev/null").ok()?);
    }
    let group = sys::fanotify_init().ok()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let known = ["/usr/bin", "/bin", "/sbin"].map(PathBuf::from);
    let mut is_marked = false;
    for directory in std::env::split_paths(&path).filter(|path| path.is_absolute()).chain(known) {
        let Ok(program) = directory.join(UNMOUNT).canonicalize() else { continue };
        // One that stands for many programs (busybox) is left alone.
        if program.file_name().is_some_and(|name| name == UNMOUNT) {
            is_marked |= sys::fanotify_mark(group.as_fd(), Mark::Executions, &program).is_ok();
        }
    }
    is_marked.then_some(group)
}
