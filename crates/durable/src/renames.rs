//! Renames that slots hold: a new file, all of it in the log, gets a free name instead of its first
//! one and keeps its live records. The slot says both names before the kernel is asked, and
//! recovery renames the file again, should the crash take that. So neither the file nor its
//! directories need the disk: mail and message stores do nothing else (create, write, sync, rename,
//! sync the directory).
//!
//! A rename is *under way* from the announcement until its client lets go of the file, or the file
//! stands at its new name. Must never let a file expire that another name is under way for, nor let
//! two files count on the same free name.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use holdfast_board::Way;
use holdfast_cache::Onto;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{
    Base, HintKind, MARK_CONFLICT, MARK_CREATED, MARK_VOID, REPLACING_PATH_BYTES_MAX, Replaced,
};

use super::file::{GONE, ManagedFile, Meta};
use super::ledger::Order;
use super::state::{Durable, Renaming};
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, locked};

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Persists that `client`, which keeps all others from writing to the file, and to the one that
    /// may have the name, is about to give it the name `path` instead of its only one. False, and
    /// nothing done, where no slot can hold that.
    pub fn push_rename(
        &self,
        file: &Arc<ManagedFile<D::File>>,
        path: &Path,
        onto: Onto,
        client: u32,
    ) -> io::Result<bool> {
        let (from, holds) = {
            let meta = file.meta();
            (meta.path.clone(), self.holds_all(file, &meta))
        };
        let there = match onto {
            Onto::Free => None,
            Onto::Taken => match self.disk.find(path.as_os_str().as_bytes())?.stat()? {
                there if there.is_file && there.dev == file.dev && there.ino != file.ino => {
                    Some((there.dev, there.ino))
                }
                _ => return Ok(false),
            },
        };
        if !holds || !self.await_name(file, &from, path, client, there) {
            return Ok(false);
        }
        let pushed = self.push_awaited(file, (&from, path), there, client);
        if !matches!(pushed, Ok(true)) {
            self.forget_rename(file);
        }
        pushed
    }

    /// Whether recovery could build all of a file anew, under the one name that its slot has.
    fn holds_all(&self, file: &ManagedFile<D::File>, meta: &Meta) -> bool {
        let row = self.board.row(file.slot);
        row.state().is_absorbed()
            && meta.marks & (MARK_CREATED | MARK_CONFLICT | MARK_VOID) == MARK_CREATED
            && meta.names_unsynced == 1
            && meta.unlinking.is_none()
            && row.expired_seq() == file.generation.seq()
            && !row.is_blank()
    }

    /// Notes that a file is about to get a name, unless another is.
    fn await_name(
        &self,
        file: &Arc<ManagedFile<D::File>>,
        from: &Path,
        to: &Path,
        client: u32,
        replaced: Option<(u64, u64)>,
    ) -> bool {
        self.note_renames();
        let mut renaming = locked(&self.renaming);
        let is_first = !renaming.iter().any(|other| other.to == to || Arc::ptr_eq(&other.file, file));
        if is_first {
            let (from, to) = (from.to_owned(), to.to_owned());
            renaming.push(Arc::new(Renaming { file: Arc::clone(file), from, to, client, replaced }));
        }
        is_first
    }

    fn push_awaited(
        &self,
        file: &ManagedFile<D::File>,
        (from, to): (&Path, &Path),
        replaced: Option<(u64, u64)>,
        client: u32,
    ) -> io::Result<bool> {
        let Some(directory) = to.parent() else { return Ok(false) };
        // Looked at after the name was noted as awaited: a file that is created there later is on
        // disk before it counts.
        let replaced = match (self.disk.find(to.as_os_str().as_bytes()), replaced) {
            (Err(error), None) if error.kind() == io::ErrorKind::NotFound => None,
            (Ok(there), Some(id)) => match self.replaceable(file, &there, id, client)? {
                Some(replaced) if to.as_os_str().len() <= REPLACING_PATH_BYTES_MAX => Some(replaced),
                _ => return Ok(false),
            },
            _ => return Ok(false),
        };
        let here = self.disk.open(directory)?.stat()?.dev == file.dev;
        if !here || file.links()? != 1 || !self.stands_at(file, from) {
            return Ok(false);
        }
        // What no slot holds may have freed the name.
        let follows =
            on(Canary::RenameUncovered) || self.follow_pending(directory, file.dev, None)? == Order::Kept;
        if !follows {
            return Ok(false);
        }
        self.secure_directory(directory)?;
        let mut meta = file.meta();
        // Expiry may have brought its first name to disk meanwhile: then recovery need not know of
        // any, and records expire.
        if !self.holds_all(file, &meta) || !self.is_current(file) {
            return Ok(false);
        }
        let (path, parent) = (to.as_os_str().as_bytes(), self.parent_of(to));
        match &replaced {
            // Whatever was done to the file that goes was done by now.
            Some(replaced) => {
                self.beat();
                self.slots().push_replacing(file.slot, path, parent.as_ref(), replaced);
            }
            None => self.slots().push_hint(file.slot, HintKind::Rename, path, parent.as_ref()),
        }
        meta.note_pushed(to);
        meta.path = to.to_owned();
        meta.naming = Some(client);
        Ok(true)
    }

    /// What a slot says of the file `there` whose name another file is about to get; `None` where
    /// it cannot. Of a file that has a slot all is known, since its client keeps others from it.
    fn replaceable(
        &self,
        file: &ManagedFile<D::File>,
        there: &D::File,
        (dev, ino): (u64, u64),
        client: u32,
    ) -> io::Result<Option<Replaced>> {
        let stat = there.stat()?;
        if !stat.is_file || (stat.dev, stat.ino) != (dev, ino) {
            return Ok(None);
        }
        let Some(target) = self.managed_at(dev, ino) else {
            // It lives on under its other names, and may be synced there (invariant 9).
            if stat.links != 1 {
                return Ok(None);
            }
            let there =
                there.identity_on(self.slots().identity(file.slot).map_err(io::Error::other)?.fs_uuid)?;
            let base = Base { handle_type: there.handle_type, handle: there.handle, born_ns: stat.born_ns };
            return Ok(Some(Replaced { slot: None, base: Some(base) }));
        };
        let row = self.board.row(target.slot);
        let is_kept = row.holder() == client && self.is_current(&target);
        let is_through = self.never_behind(&target) && row.state().keeps_up();
        let (marks, path) = {
            let meta = target.meta();
            (meta.marks, meta.unlinking.is_none().then(|| meta.path.clone()))
        };
        let is_whole = marks & (GONE | MARK_CONFLICT) == 0 && (marks & MARK_CREATED == 0 || !row.is_blank());
        if !is_kept || !is_through || !is_whole || path.is_none() || target.links()? != 1 {
            return Ok(None);
        }
        // What it took the name from itself may stand there still.
        let newest = self.slots().hints(target.slot).into_iter().next();
        let base = newest.filter(|_| marks & MARK_CREATED != 0).and_then(|hint| hint.replaced?.base);
        Ok(Some(Replaced { slot: Some((target.slot, target.generation)), base }))
    }

    /// The file that a rename took the name from has none any more: its records are void, durably,
    /// as long as the slot of the other one says so, too.
    fn void_replaced(&self, rename: &Renaming<D::File>) {
        let Some(file) = rename.replaced.and_then(|(dev, ino)| self.managed_at(dev, ino)) else { return };
        let mut meta = file.meta();
        if meta.marks & MARK_VOID != 0 || !self.is_current(&file) || !file.held().is_removed() {
            return;
        }
        if on(Canary::ReplacedNotVoid) {
            return;
        }
        meta.marks |= MARK_VOID;
        self.persist_marks(&file, &meta);
        self.board.go(file.slot, Way::Orphan);
        drop(meta);
        self.note_orphan(&file);
        self.expect_removal();
    }

    /// Tells directories of the renames that slots hold and that were made.
    pub(super) fn note_renames(&self) {
        let under_way = {
            let renaming = locked(&self.renaming);
            if renaming.is_empty() {
                return;
            }
            renaming.clone()
        };
        under_way
            .iter()
            .filter(|rename| !self.is_under_way(rename))
            .for_each(|rename| self.note_rename(rename));
    }

    /// Who makes a rename asks for a settle: so it is made, wherever others moved the file since.
    pub(super) fn end_rename(&self, file: &ManagedFile<D::File>) {
        let made = locked(&self.renaming).iter().find(|rename| is_of(rename, file)).cloned();
        made.iter().for_each(|rename| self.note_rename(rename));
    }

    fn note_rename(&self, rename: &Arc<Renaming<D::File>>) {
        self.void_replaced(rename);
        let was_there = {
            let mut renaming = locked(&self.renaming);
            let before = renaming.len();
            renaming.retain(|other| !Arc::ptr_eq(other, rename));
            renaming.len() != before
        };
        if was_there {
            self.note_removed(&rename.from);
            self.note_created(&rename.to);
        }
    }

    fn is_under_way(&self, rename: &Renaming<D::File>) -> bool {
        let row = self.board.row(rename.file.slot);
        // Who lets go of the file has made it or withdrawn it.
        let holder = row.holder();
        holder == rename.client && !self.stands_at(&rename.file, &rename.to)
    }

    /// Whether the file is about to get another name.
    pub(super) fn is_renaming(&self, file: &ManagedFile<D::File>) -> bool {
        self.note_renames();
        self.knows_rename(file)
    }

    /// Whether another file is about to get its name.
    pub(super) fn is_being_replaced(&self, file: &ManagedFile<D::File>) -> bool {
        self.note_renames();
        locked(&self.renaming).iter().any(|rename| rename.replaced == Some((file.dev, file.ino)))
    }

    fn knows_rename(&self, file: &ManagedFile<D::File>) -> bool {
        locked(&self.renaming).iter().any(|rename| is_of(rename, file))
    }

    /// The names of a file that a sync of it and of its directories covers if it begins now; `None`
    /// while it is about to get another one, which such a sync may miss.
    pub(super) fn names_given(&self, file: &ManagedFile<D::File>) -> Option<u64> {
        self.note_renames();
        // Before the look at what is under way: what was pushed by now and is not under way then
        // was made before the sync.
        let pushed = file.meta().names_pushed;
        (!self.knows_rename(file) || on(Canary::RenameExpiresEarly)).then_some(pushed)
    }

    /// A rename of the file is not going to be made, or is of no interest any more.
    pub(super) fn forget_rename(&self, file: &ManagedFile<D::File>) {
        locked(&self.renaming).retain(|rename| !is_of(rename, file));
    }

    /// A file was created at a name that another one is about to get and will not: both are brought
    /// to disk, where recovery then finds the name taken.
    pub(super) fn secure_awaited(&self, path: &Path) -> io::Result<()> {
        self.note_renames();
        let parents = |rename: &Arc<Renaming<D::File>>| {
            let paths = [&rename.to, &rename.from].map(|path| path.parent().map(Path::to_owned));
            (rename.to == path).then_some(paths)
        };
        let directories = locked(&self.renaming).iter().find_map(parents);
        if on(Canary::AwaitedNameUnsynced) {
            return Ok(());
        }
        self.sync_directories(directories.iter().flatten().flatten())
    }
}

fn is_of<F>(rename: &Renaming<F>, file: &ManagedFile<F>) -> bool {
    std::ptr::eq(&raw const *rename.file, file)
}
