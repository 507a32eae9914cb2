//! Directory syncs answered from the slots: absorbed when nothing is pending in the ledger and
//! every change of the directory since its last real sync is one that recovery would bring back or
//! repeat.
//!
//! Such changes are a managed file that was created and has records (recovery builds it anew), such
//! a file that was renamed to a free name (recovery renames it again), and one whose last name was
//! removed (its slot is void: recovery removes it again). An inotify watch counts all changes by
//! name, whoever makes them; the kernel queues the notice before the call returns. Whatever is not
//! one of ours, or does not add up, makes the sync real. Nothing here may call a change durable
//! that no slot holds.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use holdfast_cache::{Errno, Refusal};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{MARK_CREATED, Slot};

use super::{Durable, ManagedFile, Upkeeps, locked};
use holdfast_disk::{Change, Disk, DiskFile};

/// Directories watched at a time; syncs of others are the kernel's.
const WATCHED_MAX: usize = 512;
/// Names told apart between two real syncs of a directory.
const NAMES_MAX: usize = 65_536;

/// What happened to one name since the directory's last real sync: notices less our own changes.
#[derive(Default, PartialEq, Eq)]
struct Balance {
    created: i64,
    removed: i64,
}

/// One watched directory.
struct Watched {
    watch: i32,
    /// Device and inode.
    id: (u64, u64),
    names: HashMap<Vec<u8>, Balance>,
    /// Something happened that no slot can hold.
    foreign: bool,
}

/// All watched directories, by path.
#[derive(Default)]
pub(super) struct Directories {
    by_path: HashMap<PathBuf, Watched>,
    by_watch: HashMap<i32, PathBuf>,
}

impl Directories {
    fn watch(&mut self, disk: &impl Disk, directory: &Path) -> bool {
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
        let id = disk.look(directory).map_or((0, 0), |stat| (stat.dev, stat.ino));
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
    fn take_notices(&mut self, disk: &impl Disk) {
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

    fn note(&mut self, path: &Path, change: impl FnOnce(&mut Balance)) {
        if let (Some(directory), Some(name)) = (path.parent(), path.file_name())
            && let Some(watched) = self.by_path.get_mut(directory)
        {
            change(watched.names.entry(name.as_bytes().to_vec()).or_default());
        }
    }
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// A managed file was created here; its slot says so durably.
    pub(super) fn note_created(&self, path: &Path) {
        let mut watched = locked(&self.watched);
        watched.take_notices(&self.disk);
        // Of one that was made before the directory's last real sync no notice is left.
        watched.note(path, |balance| balance.created -= i64::from(balance.created > 0));
    }

    /// No slot holds the creation of that file any more.
    pub(super) fn forget_created(&self, path: &Path) {
        locked(&self.watched).note(path, |balance| balance.created += 1);
    }

    /// The last name of a managed file was removed here; its slot is void.
    pub(super) fn note_removed(&self, path: &Path) {
        let mut watched = locked(&self.watched);
        watched.take_notices(&self.disk);
        // As above: what is taken off without a notice would hide somebody else's removal later.
        watched.note(path, |balance| balance.removed -= i64::from(balance.removed > 0));
    }

    /// Whether the notice of a removal that was made is there: the kernel queues it after the name
    /// is gone, and before the call returns. True where none is to come.
    pub(super) fn is_noticed(&self, path: &Path) -> bool {
        let mut watched = locked(&self.watched);
        watched.take_notices(&self.disk);
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return true };
        watched
            .by_path
            .get(directory)
            .is_none_or(|watched| watched.names.get(name.as_bytes()).is_some_and(|name| name.removed > 0))
    }

    /// Takes off what slots hold by now. Not with the directories locked: who holds a file's meta
    /// may want them.
    fn note_held(&self) {
        self.forget_removed();
        self.note_renames();
    }

    /// The path of a directory whose changes are followed, if it still leads there.
    pub fn watched_path(&self, id: (u64, u64)) -> Option<PathBuf> {
        let path = {
            let watched = locked(&self.watched);
            watched.by_path.iter().find(|(_, watched)| watched.id == id).map(|(path, _)| path.clone())
        };
        let leads_there = |path: &PathBuf| self.disk.look(path).is_ok_and(|stat| (stat.dev, stat.ino) == id);
        path.filter(leads_there)
    }

    /// Answers a directory sync from the slots. `None`: it has to be real (see
    /// [`Self::sync_directory`]).
    pub fn absorb_directory_sync(&self, directory: &Path) -> Option<()> {
        self.note_held();
        let is_blank = |file: &ManagedFile<D::File>| {
            let row = self.board.row(file.slot);
            row.state().is_managed()
                && row.generation() == file.generation
                && row.is_blank()
                && file.meta().marks & MARK_CREATED != 0
        };
        let rebuildable = {
            let mut fresh = locked(&self.fresh);
            fresh.retain(|file| is_blank(file));
            !fresh.iter().any(|file| file.meta().directories.contains(directory))
        };
        let mut watched_directories = locked(&self.watched);
        watched_directories.take_notices(&self.disk);
        let watched = watched_directories.by_path.get_mut(directory)?;
        let adds_up =
            !watched.foreign && watched.names.values().all(|balance| *balance == Balance::default());
        let adds_up = adds_up || on(Canary::DirectorySyncUncounted);
        let rebuildable = rebuildable || on(Canary::DirectorySyncBlank);
        if !adds_up || !rebuildable {
            return None;
        }
        watched.names.clear();
        self.board.header().count_absorbed(None, Slot::new(0));
        Some(())
    }

    /// A real directory sync, after which later ones may be absorbed.
    ///
    /// # Errors
    /// [`Refusal::Kernels`] leaves it to the client.
    pub fn sync_directory(&self, directory: &Path) -> Result<(), Refusal> {
        let has_files = self.managed().iter().any(|file| file.meta().directories.contains(directory));
        if !has_files || !locked(&self.watched).watch(&self.disk, directory) {
            return Err(Refusal::Kernels);
        }
        let open = self.disk.open(directory).map_err(|_| Refusal::Kernels)?;
        self.note_held();
        {
            let mut watched_directories = locked(&self.watched);
            // What is known by now happened before the sync begins; what comes later is counted
            // anew.
            watched_directories.take_notices(&self.disk);
            if let Some(watched) = watched_directories.by_path.get_mut(directory) {
                watched.names.clear();
                watched.foreign = false;
            }
        }
        self.board.header().syncs_real.add(1);
        // A journal has all names that changed before in one commit; the directory's own sync would
        // commit none if it has not changed since the last one.
        let device = open.stat().map_err(|_| Refusal::Failed)?.dev;
        let synced = self.commit_beside(directory, device).and_then(|_| open.sync());
        self.note_own_sync(device, &open);
        if synced.is_err()
            && let Some(watched) = locked(&self.watched).by_path.get_mut(directory)
        {
            watched.foreign = true;
        }
        synced
            .map_err(|error| error.raw_os_error().map_or(Refusal::Failed, |errno| Refusal::Os(Errno(errno))))
    }
}
