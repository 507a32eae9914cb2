//! Names of managed files: intents before the program's calls, and the directories that hold them
//! (history 16).

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_board::LedgerRow;
use holdfast_cache::Reason;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{Hint, HintKind};

use super::file::ManagedFile;
use super::ledger::Order;
use super::state::Durable;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, locked};

/// A slot holds two names; a third may be written only once the directory holds what the oldest
/// said.
const NAMES_PER_SLOT: u32 = 2;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Persists a name intent before the program's call (history 16). With two names not yet in
    /// their directories, those are synced first, or no name might find the file after a crash.
    pub fn push_name(&self, file: &ManagedFile<D::File>, kind: HintKind, path: &Path) -> io::Result<()> {
        // What the slot says of a file that this one replaced, that one's says from here on.
        self.note_renames();
        let mut meta = file.meta();
        if !self.is_current(file) {
            return Ok(());
        }
        if meta.names_unsynced >= NAMES_PER_SLOT {
            let mut directories = meta.directories.clone();
            if directories.iter().any(|directory| self.disk.open(directory).is_err()) {
                // Renamed themselves: this one is where they are, or its sync brings them to disk
                // too.
                directories.extend(path.parent().map(Path::to_owned));
            }
            self.sync_directories(&directories)?;
            meta.names_unsynced = 1;
            meta.directories = meta.path.parent().map(Path::to_owned).into_iter().collect();
        }
        if let (HintKind::Name, Some(directory)) = (kind, path.parent()) {
            self.secure_directory(directory)?;
        }
        if kind == HintKind::Name || !on(Canary::UnlinkUnannounced) {
            let parent = if kind == HintKind::Name { self.parent_of(path) } else { None };
            self.slots().push_hint(file.slot, kind, path.as_os_str().as_bytes(), parent.as_ref());
        }
        meta.note_pushed(path);
        match kind {
            HintKind::Name | HintKind::Rename | HintKind::Replace => meta.path = path.to_owned(),
            HintKind::Unlink => meta.unlinking = Some(path.to_owned()),
        }
        Ok(())
    }

    /// Whether the file would stay when one of its names is removed.
    pub fn has_other_names(&self, file: &ManagedFile<D::File>) -> bool {
        file.links().is_ok_and(|links| links > 1) && !on(Canary::LinksUncounted)
    }

    /// Whether recovery would still find the file once this name is gone, though others that the
    /// slot does not know stay: by one that it knows, or by its handle, which not every user may.
    pub fn is_found_without(&self, file: &ManagedFile<D::File>, gone: &Path) -> bool {
        let hints = self.slots().hints(file.slot);
        let known = hints.iter().map(|hint| Path::new(std::ffi::OsStr::from_bytes(&hint.path)));
        let is_named = known.into_iter().any(|path| path != gone && self.stands_at(file, path));
        let by_handle = || {
            let beside = gone.parent().and_then(|directory| self.disk.open(directory).ok())?;
            let identity = self.slots().identity(file.slot).ok()?;
            self.disk.find_by_identity(&beside, &identity).ok()
        };
        is_named || by_handle().is_some() || on(Canary::NameLossIgnored)
    }

    /// Persists that `client` is about to remove the last name of the file. False, and nothing
    /// done, where the slot cannot hold that: changes are pending, and nothing of the file is live
    /// that the removal would have to take along.
    pub fn push_removal(
        &self,
        file: &Arc<ManagedFile<D::File>>,
        path: &Path,
        client: u32,
    ) -> io::Result<bool> {
        let is_clean = self.board.header().ledger(file.dev).is_some_and(LedgerRow::is_clean);
        if !is_clean && !on(Canary::PendingIgnored) {
            let directory = path.parent().unwrap_or(Path::new("/"));
            if !self.is_dirty(file) || self.follow_pending(directory, file.dev, None)? == Order::Pending {
                return Ok(false);
            }
        }
        self.follow_before_removal(file, path)?;
        self.push_name(file, HintKind::Unlink, path)?;
        file.meta().removing = Some(client);
        locked(&self.removing).push(Arc::clone(file));
        self.expect_removal();
        Ok(true)
    }

    /// Brings the name that is about to be removed to the disk, if the slot does not hold it: a
    /// file was renamed before anybody asked for its durability. Else a crash that takes the rename
    /// back leaves the file where it was before, the removal is made there, and what it was renamed
    /// over is there again: an order of names that no program made.
    fn follow_before_removal(&self, file: &ManagedFile<D::File>, path: &Path) -> io::Result<()> {
        if file.meta().path == path {
            return Ok(());
        }
        let Some(now) = self.moved_to(file) else { return Ok(()) };
        let mut directories = file.meta().directories.clone();
        directories.extend(now.parent().map(Path::to_owned));
        self.sync_directories(&directories)?;
        file.meta().names_unsynced = 0;
        self.push_name(file, HintKind::Name, &now)
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
            // A file whose last name is gone had every name that it was given, and lost them by
            // calls that were made.
            let announced = removes || names;
            if announced && !file.held().is_removed() && (removes || !self.stands_at(&file, &path)) {
                self.withdraw_name(&file);
            }
        }
    }

    /// Gives the slots of files whose directories got other names the names that the files have
    /// now: a directory is renamed without a word about what is below it. Handles find a file under
    /// any name, but not for every user.
    pub fn follow_names(&self) {
        for file in self.managed() {
            let row = self.board.row(file.slot);
            // Kept from being renamed itself meanwhile. Who has it is looked at in the next round.
            if row.state().is_absorbed()
                && self.moved_to(&file).is_some()
                && matches!(self.try_hold(&file), Ok(true))
            {
                let followed = self.moved_to(&file).map(|path| self.follow_name(&file, &path));
                self.let_go(&file);
                if let Some(Err(error)) = followed {
                    let path = file.meta().path.display().to_string();
                    self.events
                        .trouble(format!("{path}: cannot follow the new name of its directory: {error}"));
                }
            }
        }
    }

    /// The slot of a file whose names nobody announced has the one that it has now. Returns whether
    /// that is another than it had; [`io::ErrorKind::Unsupported`]: it has none by which it would
    /// be found.
    pub(super) fn hold_name(&self, file: &ManagedFile<D::File>) -> io::Result<bool> {
        let moved = self.moved_to(file);
        if let Some(path) = &moved {
            self.follow_name(file, path)?;
        }
        let path = file.meta().path.clone();
        if self.stands_at(file, &path) { Ok(moved.is_some()) } else { Err(io::ErrorKind::Unsupported.into()) }
    }

    /// Gives the slot of a file the name that it has now. Perhaps nobody has heard yet of who gave
    /// it that name: it is pending before the slot hides that it is another one.
    pub(super) fn follow_name(&self, file: &ManagedFile<D::File>, path: &Path) -> io::Result<()> {
        if !on(Canary::MovesUncounted) {
            self.note_foreign(file);
        }
        self.push_name(file, HintKind::Name, path)
    }

    /// A settled file was renamed over; its writers are kept out. Without a name left it needs no
    /// slot: nothing of it is live, and whether the crash brings it back is the file system's
    /// matter. With names left by which recovery would not find it, it is left to the kernel.
    pub fn drop_replaced(&self, file: &ManagedFile<D::File>) {
        let path = file.meta().path.clone();
        match file.links() {
            Ok(0) if !self.is_dirty(file) => self.release(file),
            Ok(1..) if !self.stands_at(file, &path) && !self.is_found_without(file, &path) => {
                if let Err(error) = self.bypass_held(file, Reason::Unreachable) {
                    self.events.trouble(format!("{}: cannot be left to the kernel: {error}", path.display()));
                }
            }
            _ => {}
        }
    }

    /// The call announced by `push_name` or `push_rename` failed: the name before it stands.
    pub fn withdraw_name(&self, file: &ManagedFile<D::File>) {
        let hints = self.slots().hints(file.slot);
        if on(Canary::RemovalNotWithdrawn) {
            return;
        }
        if let [newest, older, ..] = hints.as_slice() {
            let path = |hint: &Hint| PathBuf::from(std::ffi::OsStr::from_bytes(&hint.path));
            let (newest, older, removal) = (path(newest), path(older), newest.kind == HintKind::Unlink);
            let (before, other) = if removal { (newest, older) } else { (older, newest) };
            // Another call may have given it the other name meanwhile.
            let moved = !self.stands_at(file, &before) && self.stands_at(file, &other);
            let stands = if moved { other } else { before };
            self.forget_rename(file);
            let mut meta = file.meta();
            if self.is_current(file) {
                // Over the withdrawn one: no file may ever be built at a name that it never got.
                self.slots().restore_hint(file.slot, stands.as_os_str().as_bytes());
            }
            (meta.path, meta.unlinking, meta.removing) = (stands, None, None);
        }
    }
}
