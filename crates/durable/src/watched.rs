//! Directories whose changes are followed, and what happened to each of their names since its last
//! real sync. What that means for the next one is decided above.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use holdfast_board::Inode;
use holdfast_disk::{Change, Disk};

/// Directories watched at a time; syncs of others are the kernel's.
const WATCHED_MAX: usize = 512;
/// Names told apart between two real syncs of a directory.
const NAMES_MAX: usize = 65_536;

/// What happened to one name since the directory's last real sync: notices less our own changes.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Balance {
    pub(super) created: i64,
    pub(super) removed: i64,
}

/// One watched directory.
pub(super) struct Watched {
    watch: i32,
    pub(super) id: Inode,
    pub(super) names: HashMap<Vec<u8>, Balance>,
    /// Something happened that no slot can hold.
    pub(super) foreign: bool,
}

/// All watched directories, by path.
#[derive(Default)]
pub(super) struct Directories {
    pub(super) by_path: HashMap<PathBuf, Watched>,
    by_watch: HashMap<i32, PathBuf>,
}

impl Watched {
    /// Whether every change since the last real sync is one of ours.
    pub(super) fn adds_up(&self) -> bool {
        !self.foreign && self.names.values().all(|balance| *balance == Balance::default())
    }
}

impl Directories {
    pub(super) fn watch(&mut self, disk: &impl Disk, directory: &Path) -> bool {
        if self.by_path.contains_key(directory) {
            return true;
        }
        if self.by_path.len() >= WATCHED_MAX {
            return false;
        }
        let Some(watch) = disk.watch(directory) else { return false };
        // The same directory under another path would share the watch.
        if self.by_watch.insert(watch, directory.to_owned()).is_some() {
            self.forget(disk, watch);
            return false;
        }
        // Behind the watch: one that took its place meanwhile is told of as gone.
        let id = disk.look(directory).map_or(Inode::NONE, |stat| Inode { device: stat.dev, ino: stat.ino });
        // Foreign until its first real sync.
        let watched = Watched { watch, id, names: HashMap::new(), foreign: true };
        self.by_path.insert(directory.to_owned(), watched);
        true
    }

    fn forget(&mut self, disk: &impl Disk, watch: i32) {
        disk.unwatch(watch);
        self.by_watch.remove(&watch);
        self.by_path.retain(|_, watched| watched.watch != watch);
    }

    /// Takes in all notices that are queued by now.
    pub(super) fn take_notices(&mut self, disk: &impl Disk) {
        for notice in disk.take_notices() {
            let Some(watch) = notice.watch else {
                self.by_path.values_mut().for_each(|watched| watched.foreign = true);
                continue;
            };
            let Some(path) = self.by_watch.get(&watch) else { continue };
            let Some(watched) = self.by_path.get_mut(path) else { continue };
            let has_room = watched.names.len() < NAMES_MAX;
            match notice.change {
                Change::Created(name) if has_room => watched.names.entry(name).or_default().created += 1,
                Change::Removed(name) if has_room => watched.names.entry(name).or_default().removed += 1,
                Change::Gone => self.forget(disk, watch),
                _ => watched.foreign = true,
            }
        }
    }

    pub(super) fn note(&mut self, path: &Path, change: impl FnOnce(&mut Balance)) {
        if let (Some(directory), Some(name)) = (path.parent(), path.file_name())
            && let Some(watched) = self.by_path.get_mut(directory)
        {
            change(watched.names.entry(name.as_bytes().to_vec()).or_default());
        }
    }
}
