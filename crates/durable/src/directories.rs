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

use std::path::{Path, PathBuf};

use holdfast_board::Inode;
use holdfast_cache::{Errno, Refusal};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{MARK_CREATED, Slot};

use super::file::ManagedFile;
use super::state::Durable;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, locked};

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Takes off what slots hold by now. Not with the directories locked: who holds a file's meta
    /// may want them.
    fn note_held(&self) {
        self.forget_removed();
        self.note_renames();
    }

    /// The path of a directory whose changes are followed, if it still leads there.
    pub fn watched_path(&self, id: Inode) -> Option<PathBuf> {
        let path = {
            let watched = locked(&self.watched);
            watched.by_path.iter().find(|(_, watched)| watched.id == id).map(|(path, _)| path.clone())
        };
        let leads_there = |path: &PathBuf| {
            self.disk.look(path).is_ok_and(|stat| Inode { device: stat.dev, ino: stat.ino } == id)
        };
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
        let adds_up = watched.adds_up() || on(Canary::DirectorySyncUncounted);
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
