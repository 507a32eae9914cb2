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
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{HintKind, MARK_CONFLICT, MARK_CREATED, MARK_VOID};

use super::file::Meta;
use super::ledger::Order;
use super::{Durable, KEEPER_ID, ManagedFile, Upkeeps, locked};
use holdfast_disk::{Disk, DiskFile};

/// A rename that a slot holds and of which the directories are not told yet.
pub(super) struct Renaming<F> {
    file: Arc<ManagedFile<F>>,
    from: PathBuf,
    to: PathBuf,
    /// Who makes it, and has the file meanwhile.
    client: u32,
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Persists that `client`, which keeps all others from writing to the file, is about to give it
    /// the free name `path` instead of its only one. False, and nothing done, where no slot can
    /// hold that.
    pub fn push_rename(
        &self,
        file: &Arc<ManagedFile<D::File>>,
        path: &Path,
        client: u32,
    ) -> io::Result<bool> {
        let (from, holds) = {
            let meta = file.meta();
            (meta.path.clone(), self.holds_all(file, &meta))
        };
        if !holds || !self.await_name(file, &from, path, client) {
            return Ok(false);
        }
        let pushed = self.push_awaited(file, &from, path, client);
        if !matches!(pushed, Ok(true)) {
            self.forget_rename(file);
        }
        pushed
    }

    /// Whether recovery could build all of a file anew, under the one name that its slot has.
    fn holds_all(&self, file: &ManagedFile<D::File>, meta: &Meta) -> bool {
        let row = &self.board.files()[file.slot as usize];
        row.state().is_absorbed()
            && meta.marks & (MARK_CREATED | MARK_CONFLICT | MARK_VOID) == MARK_CREATED
            && meta.names_unsynced == 1
            && meta.unlinking.is_none()
            && row.expired_seq.load(Ordering::SeqCst) == file.generation
            && !row.is_blank()
    }

    /// Notes that a file is about to get a name, unless another is.
    fn await_name(&self, file: &Arc<ManagedFile<D::File>>, from: &Path, to: &Path, client: u32) -> bool {
        self.note_renames();
        let mut renaming = locked(&self.renaming);
        let is_first = !renaming.iter().any(|other| other.to == to || Arc::ptr_eq(&other.file, file));
        if is_first {
            let (from, to) = (from.to_owned(), to.to_owned());
            renaming.push(Arc::new(Renaming { file: Arc::clone(file), from, to, client }));
        }
        is_first
    }

    fn push_awaited(
        &self,
        file: &ManagedFile<D::File>,
        from: &Path,
        to: &Path,
        client: u32,
    ) -> io::Result<bool> {
        let Some(directory) = to.parent() else { return Ok(false) };
        // Looked at after the name was noted as awaited: a file that is created there later is on
        // disk before it counts.
        let is_free = matches!(
            self.disk.find(to.as_os_str().as_bytes()),
            Err(error) if error.kind() == io::ErrorKind::NotFound
        );
        let here = self.disk.open(directory)?.stat()?.dev == file.dev;
        if !is_free || !here || file.links()? != 1 || !self.stands_at(file, from) {
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
        let parent = self.parent_of(to);
        self.slots().push_hint(file.slot, HintKind::Rename, to.as_os_str().as_bytes(), parent.as_ref());
        meta.note_pushed(to);
        meta.path = to.to_owned();
        meta.naming = Some(client);
        Ok(true)
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
        for rename in under_way.iter().filter(|rename| !self.is_under_way(rename)) {
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
    }

    fn is_under_way(&self, rename: &Renaming<D::File>) -> bool {
        let row = &self.board.files()[rename.file.slot as usize];
        // Who lets go of the file has made it or withdrawn it.
        let holder = row.exclusive.load(Ordering::SeqCst) & KEEPER_ID;
        holder == rename.client && !self.stands_at(&rename.file, &rename.to)
    }

    /// Whether the file is about to get another name.
    pub(super) fn is_renaming(&self, file: &ManagedFile<D::File>) -> bool {
        self.note_renames();
        self.knows_rename(file)
    }

    fn knows_rename(&self, file: &ManagedFile<D::File>) -> bool {
        locked(&self.renaming).iter().any(|rename| std::ptr::eq(&raw const *rename.file, file))
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
        locked(&self.renaming).retain(|rename| !std::ptr::eq(&raw const *rename.file, file));
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
