//! Notices that somebody starts the program `umount`, lets go of files of which nothing is pending,
//! and then of those of which it first has to bring something to the disk.
//!
//! A notice, not a permission: everybody on the machine uses that program, and nobody may have to
//! wait for a keeper, which may stand still. So it is a race. Where nothing is pending the keeper
//! wins it, since the program has to be loaded before it unmounts anything; else the program is
//! told `EBUSY` for as long as the disk takes. The file system may be another one, and some
//! machines unmount all the time: must bring things to the disk no more often than the default
//! limit of their age does. (A program under this keeper that unmounts asks for it:
//! `Request::LetGo`.)

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::inotify::{self, WatchFlags};

use crate::fence::FenceKind;
use crate::keeper::Keeper;

/// The program that unmounts.
const UNMOUNT: &str = "umount";
/// So long after the last time nothing is brought to the disk for who unmounts.
const PAUSE: Duration = Duration::from_secs(1);

/// When something was last brought to the disk for who unmounts.
#[derive(Default)]
pub(crate) struct Unmounts {
    brought: Option<Instant>,
}

impl Unmounts {
    /// That program was started; which file system it is about, nobody tells.
    pub(crate) fn heard(&mut self, keeper: &Keeper) {
        keeper.durable.retire_unused();
        // Nobody can say whether a leased file is open in its program still, and it would lose its
        // lease each time.
        let leases = keeper.notes.fence.get().is_some_and(|fence| fence.kind() == FenceKind::Lease);
        if !leases && self.brought.is_none_or(|at| at.elapsed() >= PAUSE) {
            self.brought = Some(Instant::now());
            keeper.durable.let_go_unused();
        }
    }
}

/// Has the queue tell of the openings of that program, which its `execve` is one of.
pub(crate) fn watch(queue: &OwnedFd) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let known = ["/usr/bin", "/bin", "/sbin"].map(PathBuf::from);
    for directory in std::env::split_paths(&path).filter(|path| path.is_absolute()).chain(known) {
        let Ok(program) = directory.join(UNMOUNT).canonicalize() else { continue };
        // One that stands for many programs (busybox) is left alone.
        if program.file_name().is_some_and(|name| name == UNMOUNT) {
            // Without it the keeper lets go of files a little later.
            let _ = inotify::add_watch(queue, &program, WatchFlags::OPEN);
        }
    }
}
