//! Directories above managed files: a move of one moves every file below it, and no notice of these
//! files tells. So each is watched (inotify), up to the root of its mount, in the queue of the
//! lookout's marks.
//!
//! What a directory is called may change; its watch stays with the directory. Must never take one
//! that stands at a known path for the one that stood there before a move.

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use holdfast_canary::{Canary, on};
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};

/// Watches are looked through for those of no use any more when there are so many, and then when
/// there are twice as many as were left.
const SWEPT_MIN: usize = 1024;

/// Which directories are watched.
pub(crate) struct Above {
    numbers: HashSet<i32>,
    /// Device and path of those that are watched with all above them.
    known: HashSet<(u64, PathBuf)>,
    sweep_at: usize,
    /// One was moved since this was asked last.
    is_moved: bool,
}

impl Default for Above {
    fn default() -> Self {
        Self { numbers: HashSet::new(), known: HashSet::new(), sweep_at: SWEPT_MIN, is_moved: false }
    }
}

impl Above {
    /// Watches the directories above a file on a device.
    pub(crate) fn watch(&mut self, queue: &OwnedFd, path: &Path, device: u64) {
        for directory in path.ancestors().skip(1) {
            let key = (device, directory.to_owned());
            if self.known.contains(&key) || on(Canary::DirectoryMovesUnheard) {
                return;
            }
            // The mount's root is not moved; what is above it is another file system.
            if !rustix::fs::lstat(directory).is_ok_and(|stat| stat.st_dev == device) {
                return;
            }
            let mask = WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
            // Where the user has no watch left it goes unnoticed.
            let Ok(number) = inotify::add_watch(queue, directory, mask) else { return };
            self.numbers.insert(number);
            self.known.insert(key);
        }
    }

    /// Takes in what was told of a number that is no file's.
    pub(crate) fn tell(&mut self, number: i32, events: ReadFlags) {
        if events.contains(ReadFlags::IGNORED) && self.numbers.remove(&number)
            || events.contains(ReadFlags::MOVE_SELF) && self.numbers.contains(&number)
        {
            // Another directory may stand at its path, or at one below it.
            self.known.clear();
            self.is_moved |= events.contains(ReadFlags::MOVE_SELF);
        }
    }

    /// Whether any was moved since this was asked last.
    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.is_moved)
    }

    /// Whether there are so many watches that they are to be begun anew with [`Self::sweep`].
    pub(crate) fn is_full(&self) -> bool {
        self.numbers.len() >= self.sweep_at
    }

    /// Watches the directories above these files, by path and device, and no others.
    pub(crate) fn sweep(&mut self, queue: &OwnedFd, files: impl Iterator<Item = (PathBuf, u64)>) {
        let before = std::mem::take(&mut self.numbers);
        self.known.clear();
        // What stays keeps its number, and with it what is queued.
        files.for_each(|(path, device)| self.watch(queue, &path, device));
        for number in before.difference(&self.numbers) {
            let _ = inotify::remove_watch(queue, *number);
        }
        self.sweep_at = SWEPT_MIN.max(2 * self.numbers.len());
    }
}
