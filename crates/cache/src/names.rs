//! Names: what of creations, removals and renames is held by slots, and what makes the next sync real.
//!
//! Held are creations of files with records (recovery builds them anew) and removals of a last name (recovery
//! repeats them). Everything else is the file system's, made durable by the next sync, which is then real
//! (invariant 9). Files that are renamed or linked have no live records while it happens, so whichever state the
//! crash leaves, nothing is replayed into the wrong name.

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use holdfast_board::FileState;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use crate::ask::{Ask, Reason, ask};
use crate::client::{Client, Errno, FileRef};

/// What was announced about a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The slot holds it.
    Held,
    /// Other names stay, or the file is the kernel's: count the change when it is done.
    Counted,
}

impl<N: Nvm> Client<N> {
    /// Counts a change of names on a file system that no slot holds: the next sync there is real. Called before the
    /// change is made and once more when it is.
    pub fn note_names(&self, device: u64) {
        if let Some(names) = self.board.header().names(device) {
            names.note();
        }
    }

    /// Persists, before the call, that the name `path` is about to be removed (history 16).
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed; the call must not be made then.
    pub fn unlinking(&self, file: FileRef, dirfd: i32, path: &CStr) -> Result<Removal, Errno> {
        if !self.is_current(file) || !self.has_log(file) {
            return Ok(Removal::Counted);
        }
        // Who has it open reads on when no slot has it any more, so the keeper takes it out of state Behind for good. At EBUSY
        // somebody has the file now, whom only we may wait for.
        let ask = |board, id, kind, args, path| match ask(board, id, kind, args, path) {
            Err(Errno::EBUSY) => {
                self.leave_behind(file, true).and_then(|()| ask(board, id, kind, args, path))
            }
            answer => answer,
        };
        match ask(&self.board, self.id, Ask::Unlinking, name_args(file, dirfd), Some(path)) {
            Ok(_) => Ok(Removal::Held),
            Err(Errno::EAGAIN) => self.settle_if_live(file, false).map(|()| Removal::Counted),
            Err(Errno::ENAMETOOLONG) => self.bypass(file, Reason::Unreachable).map(|()| Removal::Counted),
            Err(Errno::EOPNOTSUPP) => Ok(Removal::Counted),
            Err(errno) => Err(errno),
        }
    }

    /// Reports how the announced removal went: a failed one is withdrawn before the program hears of it. Of
    /// success the keeper finds the traces itself.
    pub fn unlinked(&self, file: FileRef, removal: Removal, ok: bool) {
        if removal == Removal::Held && !ok {
            self.withdraw(file);
        }
    }

    fn withdraw(&self, file: FileRef) {
        if self.is_current(file) {
            // A dead keeper cannot be told; recovery then judges by what it finds at the names.
            let _ = ask(&self.board, self.id, Ask::Withdraw, name_args(file, 0), None);
        }
    }

    /// Makes a call that gives `named` the new name `path` (rename, link), and takes that name from `target`.
    /// Both are settled first and kept from being written meanwhile. The caller counts the change.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed; the call was then not made.
    pub fn renaming(
        &self,
        named: Option<FileRef>,
        target: Option<FileRef>,
        dirfd: i32,
        path: &CStr,
        mut raw: impl FnMut() -> Result<(), Errno>,
    ) -> Result<Result<(), Errno>, Errno> {
        match self.rename_held(named, target, (dirfd, path), &mut raw) {
            // No slot can hold the name: too long, or its directory is missing, for which the kernel has its own error.
            Err(Errno::ENAMETOOLONG) => {
                if let Some(file) = named {
                    self.bypass(file, Reason::Unreachable)?;
                }
                self.rename_held(named, target, (dirfd, path), &mut raw)
            }
            done => done,
        }
    }

    fn rename_held(
        &self,
        named: Option<FileRef>,
        target: Option<FileRef>,
        (dirfd, path): (i32, &CStr),
        raw: &mut impl FnMut() -> Result<(), Errno>,
    ) -> Result<Result<(), Errno>, Errno> {
        // In the order of their slots: two renames never wait for each other.
        let mut held = [named, target];
        held.sort_by_key(|file| file.map(|file| file.slot));
        let mut result = Ok(());
        let mut locked = [None; 2];
        for (place, file) in locked.iter_mut().zip(held) {
            if let Some(file) = file
                && result.is_ok()
            {
                if self.board.lock_file(file.slot, self.id) {
                    *place = Some(file);
                    result = self.settle_if_live(file, true);
                } else {
                    result = Err(Errno::EIO);
                }
            }
        }
        let done = match (result, named) {
            (Err(errno), _) => Err(errno),
            (Ok(()), Some(file)) if self.is_managed(file) => {
                match ask(&self.board, self.id, Ask::Naming, name_args(file, dirfd), Some(path)) {
                    Ok(_) | Err(Errno::EOPNOTSUPP) => Ok(raw()),
                    Err(errno) => Err(errno),
                }
            }
            (Ok(()), _) => Ok(raw()),
        };
        match (&done, named, target) {
            (Ok(Err(_)), Some(file), _) => self.withdraw(file),
            (Ok(Ok(())), _, Some(file)) if self.is_current(file) => {
                let _ = ask(&self.board, self.id, Ask::Replaced, name_args(file, 0), None);
            }
            _ => {}
        }
        for file in locked.into_iter().flatten() {
            self.row(file).unlock_exclusive(self.id);
        }
        done
    }

    /// Tells that a directory was renamed, so that the slots of files below it hold their new names.
    pub fn directory_renamed(&self) {
        // A dead keeper cannot be told; recovery then looks for the files by their handles.
        let _ = ask(&self.board, self.id, Ask::Moved, [0; 4], None);
    }

    /// Whether the file's slot says what becomes of it.
    fn has_log(&self, file: FileRef) -> bool {
        let state = self.row(file).state();
        state.is_absorbed() || matches!(state, FileState::Failed | FileState::Unsynced)
    }

    /// `held`: the caller keeps the file's writers out.
    fn settle_if_live(&self, file: FileRef, held: bool) -> Result<(), Errno> {
        let row = self.row(file);
        let live = row.newest_seq.load(Ordering::SeqCst) > row.expired_seq.load(Ordering::SeqCst);
        if !on(Canary::RenameUnsettled) && live && self.is_current(file) && self.has_log(file) {
            self.settle(file, held)
        } else {
            Ok(())
        }
    }

    /// Answers the `fsync` of a directory on `device`: absorbed where slots hold all its changes, else made by the
    /// keeper or, as before, by `raw`.
    ///
    /// # Errors
    /// What the sync reported, or `EIO` when the keeper is dead.
    pub fn sync_directory(
        &self,
        fd: i32,
        device: u64,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let names = self.board.header().names(device);
        let covered = names.and_then(|names| names.pending());
        let real = names.is_none() || covered.is_some();
        match ask(&self.board, self.id, Ask::SyncDirectory, [fd as u64, u64::from(real), 0, 0], None) {
            Ok(_) => {}
            Err(Errno::EOPNOTSUPP) => raw()?,
            Err(errno) => return Err(errno),
        }
        if let (Some(names), Some(covered)) = (names, covered) {
            names.cover(covered);
        }
        Ok(())
    }
}

fn name_args(file: FileRef, dirfd: i32) -> [u64; 4] {
    [u64::from(file.slot), file.generation, dirfd as u64, 0]
}
