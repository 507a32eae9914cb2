//! Notices that somebody starts the program `umount`, or `sync` before it, and lets go of files
//! that nobody has open for writing: at once where nothing is pending, else once that is on the
//! disk.
//!
//! A notice, not a permission: everybody on the machine uses these programs, and nobody may have to
//! wait for a keeper, which may stand still. So it is a race. The keeper wins it where nothing is
//! pending: the program has to be loaded before it unmounts anything. Where something is, the disk
//! decides. It must not bring the same to the disk again and again: on some machines other file
//! systems are unmounted all the time.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use crate::keeper::Keeper;

/// The program that unmounts, and the one that whoever is careful starts before it.
const PROGRAMS: [&str; 2] = ["umount", "sync"];
/// Not more often is anything brought to the disk on their behalf.
const SETTLES_APART: Duration = Duration::from_millis(100);

/// Watches until this process ends. Without it the keeper lets go of files a little later.
pub(crate) fn watch(keeper: &Arc<Keeper>) {
    let Some(notices) = watched() else { return };
    let keeper = Arc::downgrade(keeper);
    let _ = std::thread::Builder::new().name("unmounts".to_owned()).spawn(move || run(&keeper, &notices));
}

fn run(keeper: &Weak<Keeper>, notices: &OwnedFd) {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut reader = Reader::new(notices, &mut buffer);
    let mut settled: Option<Instant> = None;
    loop {
        // Which file system it is about, nobody tells.
        let heard = reader.next().is_ok();
        while heard && !reader.is_buffer_empty() && reader.next().is_ok() {}
        let Some(keeper) = keeper.upgrade().filter(|keeper| heard && !keeper.is_stopping()) else { return };
        keeper.durable.retire_unused();
        if settled.is_none_or(|at| at.elapsed() >= SETTLES_APART) {
            keeper.durable.let_go_unused();
            settled = Some(Instant::now());
        }
    }
}

/// A queue of the openings of these programs, which their `execve` is one of.
fn watched() -> Option<OwnedFd> {
    let notices = inotify::init(CreateFlags::CLOEXEC).ok()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let known = ["/usr/bin", "/bin", "/sbin"].map(PathBuf::from);
    let mut is_watched = false;
    for directory in std::env::split_paths(&path).filter(|path| path.is_absolute()).chain(known) {
        for name in PROGRAMS {
            let Ok(program) = directory.join(name).canonicalize() else { continue };
            // One that stands for many programs (busybox, coreutils) is left alone.
            if program.file_name().is_some_and(|known| known == name) {
                is_watched |= inotify::add_watch(&notices, &program, WatchFlags::OPEN).is_ok();
            }
        }
    }
    is_watched.then_some(notices)
}
