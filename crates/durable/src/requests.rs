//! What clients ask about a file that has a slot: the decisions; cells, descriptors and paths are
//! the keeper's.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use holdfast_board::TAKER_ID;
use holdfast_cache::{Answer, FileRef, FileRequest, Onto, Refusal};
use holdfast_media::Nvm;
use holdfast_pool::{HintKind, MARK_CREATED};

use super::file::ManagedFile;
use super::state::Durable;
use super::sync::{Writers, is_held};
use super::upkeep::Upkeeps;
use holdfast_disk::Disk;

/// Why a request is not answered as its asker hopes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// It is refused, and the asker is told so.
    Refused(Refusal),
    /// Not now: somebody else has to act first. To be tried again, by who is patient; the asker
    /// never hears of this.
    Later,
}

impl From<Refusal> for Unanswered {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Answers a request of `client` about a file. `path` tells the absolute path of the name it is
    /// about, if a slot can hold it. Never waits for who has the file: they may wait for the thread
    /// that this is.
    ///
    /// # Errors
    /// What is refused, and what must be tried again.
    pub fn answer(
        &self,
        client: u32,
        place: FileRef,
        request: FileRequest,
        path: impl FnOnce() -> Option<PathBuf>,
    ) -> Result<Answer, Unanswered> {
        let Some(file) = self.file(place) else {
            return Err(Refusal::Kernels.into());
        };
        let holder = self.board.row(file.slot).holder();
        if holder == TAKER_ID {
            // It is being taken from who stood still. That is over soon.
            return Err(Unanswered::Later);
        }
        match request {
            // Its asker died, and the file is others' again.
            FileRequest::Drain { .. }
            | FileRequest::Left
            | FileRequest::Through { .. }
            | FileRequest::Log
                if holder != client =>
            {
                return Err(Refusal::Failed.into());
            }
            // An asker that died meanwhile keeps nobody out any more.
            FileRequest::Settle { held } => self.settle_for(&file, held && holder == client)?,
            FileRequest::Drain { for_call } => {
                self.drain_all(&file)
                    .inspect_err(|error| self.drain_failed(&file, error))
                    .map_err(|_| Refusal::Failed)?;
                if for_call {
                    self.forget_left(&file);
                }
            }
            FileRequest::Left => self.note_left(&file),
            FileRequest::Through { for_good } => {
                self.leave_behind(&file, for_good).map_err(|_| Refusal::Failed)?;
            }
            FileRequest::Bypass { reason, let_go: true } => {
                self.try_let_go(&file, reason).map_err(refused)?;
            }
            FileRequest::Bypass { reason, let_go: false } => {
                self.try_bypass(&file, reason).map_err(refused)?;
            }
            FileRequest::Unlinking { .. } => self.note_removal(&file, client, path)?,
            FileRequest::Naming { onto, .. } => self.note_name(&file, client, onto, path)?,
            FileRequest::Log => {
                let is_held = self.leave_unsynced(&file).map_err(unnamed)?;
                let was_created = file.meta().marks & MARK_CREATED != 0;
                return Ok(Answer::Logged { is_held, was_created });
            }
            FileRequest::Commit { behind_sync: true } => self.commit_behind_sync(&file),
            FileRequest::Commit { behind_sync: false } => self.commit_for(&file).map_err(unsupported)?,
            // Who has it now may be making what the asker saw.
            FileRequest::Hear => self.look(&file, false).map_err(refused)?,
            FileRequest::Replaced => self.drop_replaced(&file),
            FileRequest::Withdraw => self.withdraw_name(&file),
        }
        Ok(Answer::Done)
    }

    fn settle_for(&self, file: &ManagedFile<D::File>, kept_out: bool) -> Result<(), Unanswered> {
        self.board.header().settles.add(1);
        if kept_out {
            self.end_rename(file);
        }
        let writers = if kept_out { Writers::KeptOut } else { Writers::MayBeIn };
        self.settle(file, writers).map_err(refused)?;
        self.forget_left(file);
        Ok(())
    }

    fn note_removal(
        &self,
        file: &Arc<ManagedFile<D::File>>,
        client: u32,
        path: impl FnOnce() -> Option<PathBuf>,
    ) -> Result<(), Unanswered> {
        if self.has_other_names(file) {
            let is_found = path().is_none_or(|path| self.is_found_without(file, &path));
            return Err(if is_found { Refusal::NotHeld } else { Refusal::NoName }.into());
        }
        // Whoever renames it is waited for: which name goes is known then.
        if self.is_renaming(file) || self.is_being_replaced(file) {
            return Err(Unanswered::Later);
        }
        // Its data must be in the page cache for good before the last name goes.
        if !self.try_never_behind(file)? {
            return Err(Refusal::Held.into());
        }
        self.ensure_logged(file)?;
        let path = path().ok_or(Refusal::NoName)?;
        match self.push_removal(file, &path, client) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refusal::NotHeld.into()),
            Err(_) => Err(Refusal::Failed.into()),
        }
    }

    fn note_name(
        &self,
        file: &Arc<ManagedFile<D::File>>,
        client: u32,
        onto: Option<Onto>,
        path: impl FnOnce() -> Option<PathBuf>,
    ) -> Result<(), Unanswered> {
        self.ensure_logged(file)?;
        let path = path().ok_or(Refusal::NoName)?;
        if let Some(onto) = onto {
            // The slot is to hold the whole change.
            let held = self.push_rename(file, &path, onto, client);
            return if matches!(held, Ok(true)) { Ok(()) } else { Err(Refusal::NotHeld.into()) };
        }
        file.meta().naming = Some(client);
        // A new name that cannot be held is no fault of the disk: its directory may be missing or
        // elsewhere.
        self.push_name(file, HintKind::Name, &path).map_err(|_| Refusal::NoName.into())
    }

    fn ensure_logged(&self, file: &ManagedFile<D::File>) -> Result<(), Refusal> {
        let has_log = self.board.row(file.slot).state().has_log();
        if has_log { Ok(()) } else { Err(Refusal::Kernels) }
    }
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Keeps a file out of state Behind for good; false while somebody has it who would have to be
    /// waited for.
    pub fn try_never_behind(&self, file: &ManagedFile<D::File>) -> Result<bool, Refusal> {
        if self.never_behind(file) {
            return Ok(true);
        }
        match self.try_hold(file) {
            Ok(true) => {}
            // Its slot is another file's by now.
            Ok(false) => return Err(Refusal::Kernels),
            Err(_) => return Ok(false),
        }
        let left = self.leave_behind(file, true);
        self.let_go(file);
        left.map(|()| true).map_err(|_| Refusal::Failed)
    }
}

fn refused(error: io::Error) -> Unanswered {
    if is_held(&error) { Unanswered::Later } else { Refusal::Failed.into() }
}

/// As [`unsupported`], also where its path leads nowhere for now, since somebody moves a directory
/// above it.
fn unnamed(error: io::Error) -> Refusal {
    use io::ErrorKind::{NotADirectory, NotFound};
    if matches!(error.kind(), NotFound | NotADirectory) { Refusal::Kernels } else { unsupported(error) }
}

fn unsupported(error: io::Error) -> Refusal {
    if error.kind() == io::ErrorKind::Unsupported { Refusal::Kernels } else { Refusal::Failed }
}
