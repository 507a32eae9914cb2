//! Names of managed files: intents before the program's calls, and the directories that hold them (history 16).

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use holdfast_board::FileState;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{HintKind, MARK_VOID, PATH_BYTES_MAX};

use super::{Durable, KEEPER_ID, ManagedFile, REMOVED_FILES_MAX, locked};
use crate::disk::{Disk, DiskFile, Stat};

/// A slot holds two names; a third may be written only once the directory holds what the oldest said.
const NAMES_PER_SLOT: u32 = 2;
/// After this long every file system we manage has committed a new name by itself (the slowest, btrfs and xfs, do so
/// every 30 seconds).
const DIRECTORY_COMMITTED_S: i64 = 120;

impl<N: Nvm, D: Disk> Durable<N, D> {
    /// Persists a name intent before the program's call (history 16). With two names not yet in their
    /// directories, those are synced first, or no name might find the file after a crash.
    pub fn push_name(&self, file: &ManagedFile<D::File>, kind: HintKind, path: &Path) -> io::Result<()> {
        let mut meta = file.meta();
        if meta.names_unsynced >= NAMES_PER_SLOT {
            self.sync_directories(&meta.directories)?;
            meta.names_unsynced = 1;
            meta.directories = meta.path.parent().map(Path::to_owned).into_iter().collect();
        }
        if let (HintKind::Name, Some(directory)) = (kind, path.parent()) {
            self.secure_directory(directory)?;
        }
        if kind == HintKind::Name || !on(Canary::UnlinkUnannounced) {
            self.slots().push_hint(file.slot, kind, path.as_os_str().as_bytes());
        }
        meta.names_unsynced += 1;
        meta.directories.extend(path.parent().map(Path::to_owned));
        match kind {
            HintKind::Name => meta.path = path.to_owned(),
            HintKind::Unlink => meta.unlinking = Some(path.to_owned()),
        }
        Ok(())
    }

    /// Whether the file would stay when one of its names is removed.
    pub fn has_other_names(&self, file: &ManagedFile<D::File>) -> bool {
        file.links().is_ok_and(|links| links > 1) && !on(Canary::LinksUncounted)
    }

    /// Persists that `client` is about to remove the last name of the file.
    pub fn push_removal(&self, file: &Arc<ManagedFile<D::File>>, path: &Path, client: u32) -> io::Result<()> {
        self.push_name(file, HintKind::Unlink, path)?;
        file.meta().removing = Some(client);
        locked(&self.removing).push(Arc::clone(file));
        Ok(())
    }

    /// A client died: a removal or a name that it announced and did not make is not made any more.
    pub fn withdraw_announced(&self, client: u32) {
        for file in self.managed() {
            let (removes, names, path) = {
                let mut meta = file.meta();
                let names = meta.naming == Some(client);
                meta.naming = meta.naming.filter(|_| !names);
                (meta.removing == Some(client), names, meta.path.clone())
            };
            // A file whose last name is gone had every name that it was given, and lost them by calls that were made.
            let announced = removes || names;
            if announced && !file.held().is_removed() && (removes || !self.stands_at(&file, &path)) {
                self.withdraw_name(&file);
            }
        }
    }

    /// Gives the slots of files whose directories got other names the names that the files have now: a directory is renamed
    /// without a word about what is below it. Handles find a file under any name, but not for every user.
    pub fn follow_names(&self) {
        for file in self.managed() {
            let row = &self.board.files()[file.slot as usize];
            // Kept from being renamed itself meanwhile. Who has it is looked at in the next round.
            if row.state().is_absorbed()
                && self.moved_to(&file).is_some()
                && self.board.try_lock_file(file.slot, KEEPER_ID)
            {
                let followed = self.moved_to(&file).map(|path| self.push_name(&file, HintKind::Name, &path));
                row.unlock_exclusive(KEEPER_ID);
                if let Some(Err(error)) = followed {
                    let path = file.meta().path.display().to_string();
                    self.events
                        .trouble(format!("{path}: cannot follow the new name of its directory: {error}"));
                }
            }
        }
    }

    /// Where a file stands now, if that is not where it was last.
    pub(super) fn moved_to(&self, file: &ManagedFile<D::File>) -> Option<PathBuf> {
        let path = file.held().path_now()?;
        let moved = {
            let meta = file.meta();
            meta.path != path && meta.unlinking.is_none()
        };
        (moved && path.as_os_str().len() <= PATH_BYTES_MAX && self.stands_at(file, &path)).then_some(path)
    }

    fn stands_at(&self, file: &ManagedFile<D::File>, path: &Path) -> bool {
        let there = match self.disk.find(path.as_os_str().as_bytes()) {
            Ok(there) => there.stat(),
            Err(error) => return error.kind() != io::ErrorKind::NotFound,
        };
        // A file system that was shut down tells nothing of its files: then nothing speaks against the name.
        match (there, file.held().stat()) {
            (Ok(there), Ok(ours)) => (there.dev, there.ino) == (ours.dev, ours.ino),
            _ => true,
        }
    }

    /// A settled file was renamed over; its writers are kept out. Without a name left it needs no slot: nothing of it
    /// is live, and whether the crash brings it back is the file system's matter.
    pub fn drop_replaced(&self, file: &ManagedFile<D::File>) {
        if matches!(file.links(), Ok(0)) && !self.is_dirty(file) {
            self.release(file);
        }
    }

    /// The call announced by `push_name` failed: the name before it stands.
    pub fn withdraw_name(&self, file: &ManagedFile<D::File>) {
        let hints = self.slots().hints(file.slot);
        if on(Canary::RemovalNotWithdrawn) {
            return;
        }
        if let [newest, older, ..] = hints.as_slice() {
            let stands = if newest.kind == HintKind::Unlink { &newest.path } else { &older.path };
            // Over the withdrawn one: no file may ever be built at a name that it never got.
            self.slots().restore_hint(file.slot, stands);
            let mut meta = file.meta();
            meta.path = PathBuf::from(std::ffi::OsStr::from_bytes(stands));
            (meta.unlinking, meta.removing) = (None, None);
        }
    }

    /// Makes sure that recovery will find a file that is about to be managed, or what it needs to build it anew.
    pub(super) fn secure_names(&self, directory: &Path, created: bool, stat: &Stat) -> io::Result<()> {
        if created {
            self.secure_directory(directory)?;
        } else if self.is_recent(stat) {
            // Somebody made it a moment ago and let go of it, or died: no slot says so, and the crash may take it.
            self.sync_directories([&directory.to_owned()])?;
        }
        self.cover_names(directory, stat.dev)
    }

    /// Whether the file system may not have committed by itself what was made then.
    fn is_recent(&self, stat: &Stat) -> bool {
        let now = self.disk.now_unix_s() as i64;
        stat.born_unix_s.is_none_or(|born| now.saturating_sub(born) < DIRECTORY_COMMITTED_S)
    }

    /// Makes sure that the directory in which a name is about to matter is itself on disk: recovery can make a
    /// file again, but not the directories above it. Once per directory; old ones were committed long ago.
    pub fn secure_directory(&self, directory: &Path) -> io::Result<()> {
        let open = match self.disk.open(directory) {
            Ok(open) => open,
            // One that cannot be read was not made by this user just now.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            Err(error) => return Err(error),
        };
        let stat = open.stat()?;
        if !locked(&self.directories).contains(&(stat.dev, stat.ino)) {
            if self.is_recent(&stat) {
                self.syncs.fetch_add(1, Ordering::Relaxed);
                open.sync()?;
            }
            locked(&self.directories).insert((stat.dev, stat.ino));
        }
        Ok(())
    }

    /// Before a slot says that a file was created here: earlier changes of names in the directory that no slot holds
    /// reach the disk, or recovery could find what they removed where the new file belongs.
    pub fn cover_names(&self, directory: &Path, device: u64) -> io::Result<()> {
        let Some(names) = self.board.header().names(device) else {
            return self.sync_directories([&directory.to_owned()]);
        };
        let changed = match names.pending() {
            Some(changed) => changed,
            None if names.changed() == 0 => return Ok(()),
            // Syncs of files have covered them, where syncs of files cover names.
            None if self.disk.open(directory)?.orders_names() => return Ok(()),
            None => names.changed(),
        };
        if locked(&self.names_covered).get(directory) == Some(&changed) {
            return Ok(());
        }
        self.sync_directories([&directory.to_owned()])?;
        locked(&self.names_covered).insert(directory.to_owned(), changed);
        Ok(())
    }

    /// Syncs directories, so that creations, renames and removals in them are durable.
    pub fn sync_directories<'a>(&self, directories: impl IntoIterator<Item = &'a PathBuf>) -> io::Result<()> {
        for directory in directories {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            match self.disk.open(directory) {
                Ok(open) => open.sync()?,
                // A directory that is gone holds no names.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// If the last name of a file is gone, voids its records: nothing of it can be found after a crash, and
    /// a name that comes back is removed again by recovery (history 16). Returns whether it is so.
    pub fn void_if_unlinked(&self, file: &ManagedFile<D::File>) -> bool {
        let mut meta = file.meta();
        if meta.marks & MARK_VOID != 0 {
            return true;
        }
        let row = &self.board.files()[file.slot as usize];
        // A file leaves state Behind for good before its removal is announced: who has it open reads on in the page cache.
        if meta.unlinking.is_none() || !file.held().is_removed() || row.state() == FileState::Behind {
            return false;
        }
        meta.marks |= MARK_VOID;
        self.slots().set_marks(file.slot, meta.marks);
        self.board.files()[file.slot as usize].set_state(FileState::Orphan);
        if let Some(removed) = meta.unlinking.take() {
            self.note_removed(&removed);
        }
        if self.removed_files.fetch_add(1, Ordering::SeqCst) + 1 == REMOVED_FILES_MAX {
            self.ring_expirer();
        }
        true
    }
}
