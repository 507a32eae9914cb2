//! Names: what of creations, removals and renames is held by slots, and what is pending in the
//! ledger.
//!
//! Held are creations of files with records (recovery builds them anew), the first rename of such a
//! file to a free name and removals of a last name (recovery repeats them). Everything else is the
//! file system's: the ledger counts it until the file system has committed it, and no later change
//! is made durable ahead of it (invariants 9 to 11). Files that are renamed in another way, or
//! linked, have no live records while it happens, so whichever state the crash leaves, nothing is
//! replayed into the wrong name.

use core::ffi::CStr;

use holdfast_board::{Commits, LedgerRow};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use crate::client::{Client, let_go_is_done};
use crate::errno::Errno;
use crate::file::FileRef;
use crate::reason::Reason;
use crate::request::{FileRequest, Onto, Refusal, Request};

/// What was announced about a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The slot holds it.
    Held,
    /// Other names stay, or the file is the kernel's: count the change when it is done.
    Counted,
}

/// A change by which a file gets a name.
#[derive(Clone, Copy, Debug)]
pub struct Renaming<'a> {
    /// The file, if the cache has it.
    pub named: Option<FileRef>,
    /// The file that has the name by now, if the cache has it.
    pub target: Option<FileRef>,
    /// The file system.
    pub device: u64,
    /// The name, relative to a directory of the program.
    pub to: (i32, &'a CStr),
    /// It is to be the file's name instead of another, and nothing was found at it.
    pub to_free: bool,
    /// It is to be the file's name instead of another, and another file was found at it.
    pub to_taken: bool,
    /// The name that the target gets in exchange.
    pub back: Option<(i32, &'a CStr)>,
}

/// Whether slots are told of the names before the call is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Naming {
    Told,
    /// They cannot hold them. If the call is made all the same, the files are left to the kernel.
    Untold,
}

/// What became of a change of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The slot holds it.
    Held,
    /// It is pending; nothing of the files was live while it was made.
    Settled,
}

/// Whether a call may take the name from another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// As the program asked.
    AsAsked,
    /// No: `EEXIST` then.
    Never,
}

impl<N: Nvm> Client<N> {
    /// Persists, before the call, that the name `path` is about to be removed (history 16).
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed; the call must not be made then.
    pub fn unlinking(&self, file: FileRef, dirfd: i32, path: &CStr) -> Result<Removal, Errno> {
        if !self.is_current(file) || !self.has_log(file) {
            return Ok(Removal::Counted);
        }
        // Who has it open reads on when no slot has it any more, so the keeper takes it out of
        // state Behind for good. Unless somebody has the file now, whom only we may wait for.
        let announce = || self.ask_about_name(file, FileRequest::Unlinking { dirfd }, path);
        let mut answer = announce();
        if answer == Err(Refusal::Held) {
            self.leave_behind(file, true)?;
            answer = announce();
        }
        match answer {
            Ok(_) => Ok(Removal::Held),
            Err(Refusal::NotHeld) => self.unlinking_among_others(file),
            Err(Refusal::NoName) => self.bypass(file, Reason::Unreachable).map(|()| Removal::Counted),
            Err(Refusal::Kernels) => Ok(Removal::Counted),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// As [`Client::unlinking`], of a file among others ([`Client::is_among_others`]): no slot is
    /// to hold the removal, for which a commit would be needed.
    ///
    /// # Errors
    /// As [`Client::unlinking`].
    pub fn unlinking_among_others(&self, file: FileRef) -> Result<Removal, Errno> {
        self.settle_if_live(file, false)?;
        Ok(Removal::Counted)
    }

    /// Reports how the announced removal went: a failed one is withdrawn before the program hears
    /// of it. Of success the keeper finds the traces itself, if the slot holds it; else the slot is
    /// given back with the last name, or it would take records of a file that recovery can only
    /// miss.
    pub fn unlinked(&self, file: FileRef, removal: Removal, ok: bool) {
        match removal {
            Removal::Held if self.board.header().taken.is_from(file.slot, self.id) => {
                // We stood still, and the slot does not hold it any more.
                if ok {
                    self.note_change(self.row(file).device());
                }
                self.board.header().taken.end(file.slot, self.id);
            }
            Removal::Held if !ok => self.withdraw(file),
            Removal::Counted
                if ok && !on(Canary::NamelessKept) && self.is_current(file) && self.has_log(file) =>
            {
                self.end_nameless(file)
            }
            _ => {}
        }
    }

    #[cold]
    fn end_nameless(&self, file: FileRef) {
        if !self.board.lock_file(file.slot, self.id) {
            return;
        }
        // What was written since the removal was announced. If the disk refuses it, or the keeper
        // is dead, its writers are told.
        if self.settle_if_live(file, true).is_ok() {
            let _ = self.ask_about(file, FileRequest::Replaced);
        }
        self.unlock_file(file);
    }

    fn withdraw(&self, file: FileRef) {
        if self.is_current(file) {
            // A dead keeper cannot be told; recovery then judges by what it finds at the names.
            let _ = self.ask_about(file, FileRequest::Withdraw);
        }
    }

    /// Makes a call that gives a file a name (rename, link), and takes that name from another.
    /// Where a slot can hold the change, it does; else both files are settled first and kept from
    /// being written meanwhile, and the change is counted.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed; the call was then not made.
    pub fn renaming(
        &self,
        renaming: Renaming<'_>,
        mut raw: impl FnMut(Replace) -> Result<(), Errno>,
    ) -> Result<Result<Named, Errno>, Errno> {
        match self.rename_locked(renaming, Naming::Told, &mut raw) {
            // Too long, or its directory is missing, for which the kernel has its own error.
            Err(Refusal::NoName) => {
                let done = self.rename_locked(renaming, Naming::Untold, &mut raw)?;
                if done.is_ok() {
                    let exchanged = renaming.target.filter(|_| renaming.back.is_some());
                    for file in [renaming.named, exchanged].into_iter().flatten() {
                        self.bypass(file, Reason::Unreachable)?;
                    }
                }
                Ok(done)
            }
            done => Ok(done?),
        }
    }

    fn rename_locked(
        &self,
        renaming: Renaming<'_>,
        naming: Naming,
        raw: &mut impl FnMut(Replace) -> Result<(), Errno>,
    ) -> Result<Result<Named, Errno>, Refusal> {
        // In the order of their slots: two renames never wait for each other.
        let mut files = [renaming.named, renaming.target];
        files.sort_by_key(|file| file.map(|file| file.slot));
        let mut locked = [None; 2];
        let mut result = Ok(());
        for (place, file) in locked.iter_mut().zip(files) {
            if let Some(file) = file
                && result.is_ok()
            {
                if self.board.lock_file(file.slot, self.id) {
                    *place = Some(file);
                } else {
                    result = Err(Refusal::Failed);
                }
            }
        }
        let done = result.and_then(|()| {
            let held = if naming == Naming::Told { self.rename_held(renaming, raw)? } else { None };
            match held {
                Some(done) => Ok(done.map(|()| Named::Held)),
                None => self.rename_settled(renaming, naming, raw).map(|done| done.map(|()| Named::Settled)),
            }
        });
        let locked = locked.into_iter().flatten();
        let is_taken = matches!(done, Ok(Ok(_))) && locked.clone().any(|file| self.is_taken(file));
        if is_taken && !on(Canary::NotedOnce) {
            // We stood still: no slot holds it, and what was noted before may be committed.
            self.note_change(renaming.device);
        }
        locked.for_each(|file| self.unlock_file(file));
        done
    }

    /// A rename that the slot holds; `None`, and nothing done, where it cannot.
    fn rename_held(
        &self,
        renaming: Renaming<'_>,
        raw: &mut impl FnMut(Replace) -> Result<(), Errno>,
    ) -> Result<Option<Result<(), Errno>>, Refusal> {
        let to_free = renaming.to_free && renaming.target.is_none();
        let Some(file) = renaming.named.filter(|_| to_free || renaming.to_taken) else { return Ok(None) };
        if renaming.target.is_some_and(|target| !self.is_managed(target)) {
            return Ok(None);
        }
        let row = self.row(file);
        // All of it must be in the log: the keeper knows what else.
        let is_whole = row.expired_seq() == file.generation.seq() && !row.is_blank();
        if !is_whole || !self.is_managed(file) {
            return Ok(None);
        }
        let ledger = self.board.header().ledger(renaming.device);
        let takings = ledger.and_then(LedgerRow::takings);
        if !to_free && takings.is_none() && !on(Canary::TakingsIgnored) {
            // Somebody may just be giving the name to a file of which the slot would not know.
            return Ok(None);
        }
        let (dirfd, path) = renaming.to;
        let onto = Some(if to_free { Onto::Free } else { Onto::Taken });
        match self.ask_about_name(file, FileRequest::Naming { dirfd, onto }, path) {
            Ok(_) => {}
            Err(Refusal::NotHeld | Refusal::Kernels) => return Ok(None),
            Err(refusal) => return Err(refusal),
        }
        match raw(if to_free { Replace::Never } else { Replace::AsAsked }) {
            Ok(()) if to_free => Ok(Some(Ok(()))),
            Ok(()) => {
                // Perhaps it took the name from another file than the slot says, or that one was
                // taken from us and is the kernel's by now.
                let is_certain = takings == ledger.and_then(LedgerRow::takings)
                    && !renaming.target.is_some_and(|target| self.is_taken(target));
                if !is_certain && !on(Canary::TakingsIgnored) {
                    self.settle(file, true)?;
                }
                Ok(Some(Ok(())))
            }
            // Recovery may have made it in our place.
            Err(_) if !self.board.header().keeper_alive() => Err(Refusal::Failed),
            Err(errno) => {
                self.withdraw(file);
                // Somebody took the name meanwhile, or this kernel cannot be asked to leave it to
                // them.
                let is_final = !to_free || !matches!(errno, Errno::EEXIST | Errno::EINVAL);
                Ok(is_final.then_some(Err(errno)))
            }
        }
    }

    /// A change of names that no slot holds: nothing of the files is live while it is made.
    fn rename_settled(
        &self,
        renaming: Renaming<'_>,
        naming: Naming,
        raw: &mut impl FnMut(Replace) -> Result<(), Errno>,
    ) -> Result<Result<(), Errno>, Refusal> {
        self.taking(Some(renaming.device), || self.rename_counted(renaming, naming, raw))
    }

    /// Makes a call that may take a name from a file on `device`, which no slot holds.
    pub fn taking<R>(&self, device: Option<u64>, call: impl FnOnce() -> R) -> R {
        let ledger = device.and_then(|device| self.board.header().ledger(device));
        if let Some(ledger) = ledger {
            ledger.begin_taking();
        }
        let result = call();
        if let Some(ledger) = ledger {
            ledger.end_taking();
        }
        result
    }

    fn rename_counted(
        &self,
        renaming: Renaming<'_>,
        naming: Naming,
        raw: &mut impl FnMut(Replace) -> Result<(), Errno>,
    ) -> Result<Result<(), Errno>, Refusal> {
        let noted = self.note_change(renaming.device);
        for file in [renaming.named, renaming.target].into_iter().flatten() {
            self.settle_if_live(file, true)?;
        }
        let exchanged = renaming.target.zip(renaming.back);
        let named = [renaming.named.zip(Some(renaming.to)), exchanged];
        if naming == Naming::Told {
            for (index, (file, (dirfd, path))) in named.into_iter().flatten().enumerate() {
                if !self.is_managed(file) {
                    continue;
                }
                let told = self.ask_about_name(file, FileRequest::Naming { dirfd, onto: None }, path);
                if let Err(refusal) = let_go_is_done(told) {
                    named.into_iter().flatten().take(index).for_each(|(file, _)| self.withdraw(file));
                    return Err(refusal);
                }
            }
        }
        let done = raw(Replace::AsAsked);
        if done.is_err() {
            if naming == Naming::Told {
                named.into_iter().flatten().for_each(|(file, _)| self.withdraw(file));
            }
            noted.into_iter().for_each(|epoch| self.withdraw_change(renaming.device, epoch));
        }
        if done.is_ok() {
            let replaced = renaming.target.filter(|_| exchanged.is_none());
            if let Some(file) = replaced.filter(|&file| self.is_current(file)) {
                let _ = self.ask_about(file, FileRequest::Replaced);
            }
            if !on(Canary::NotedOnce) {
                self.note_change(renaming.device);
            }
            // Where changes become durable file by file, its next record waits for that.
            let ledger = self.board.header().ledger(renaming.device);
            if ledger.is_none_or(|ledger| ledger.commits() != Commits::InOrder) {
                named.into_iter().flatten().for_each(|(file, _)| self.note_unlogged(file));
            }
        }
        Ok(done)
    }

    /// Tells that a directory was renamed, so that the slots of files below it hold their new
    /// names.
    pub fn directory_renamed(&self) {
        // A dead keeper cannot be told; recovery then looks for the files by their handles.
        let _ = self.ask(Request::Moved);
    }

    /// Whether the file's slot says what becomes of it.
    fn has_log(&self, file: FileRef) -> bool {
        self.row(file).state().has_log()
    }

    /// Whether the log has records of the file that its disk does not have yet.
    pub fn has_live(&self, file: FileRef) -> bool {
        self.row(file).has_live_records()
    }

    /// `held`: the caller keeps the file's writers out.
    pub(crate) fn settle_if_live(&self, file: FileRef, held: bool) -> Result<(), Refusal> {
        let live = self.has_live(file);
        if !on(Canary::RenameUnsettled) && live && self.is_current(file) && self.has_log(file) {
            self.settle(file, held)
        } else {
            Ok(())
        }
    }

    /// Answers the `fsync` of a directory on `device`: absorbed where slots hold all its changes
    /// and nothing else is pending, else made by the keeper or, as before, by `raw`.
    ///
    /// # Errors
    /// What the sync reported, or `EIO` when the keeper is dead.
    pub fn sync_directory(
        &self,
        fd: i32,
        device: u64,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let ledger = self.board.header().ledger(device);
        let is_clean = ledger.is_some_and(LedgerRow::is_clean) || on(Canary::PendingIgnored);
        match self.ask(Request::SyncDirectory { fd, really: !is_clean }) {
            Ok(_) => Ok(()),
            Err(Refusal::Kernels) => raw(),
            Err(refusal) => Err(refusal.into()),
        }
    }
}
