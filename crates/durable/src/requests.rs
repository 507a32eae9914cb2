//! What clients ask about a file that has a slot: the decisions; cells, descriptors and paths are
//! the keeper's.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use holdfast_board::TAKER_ID;
use holdfast_cache::{Ask, Errno, Reason};
use holdfast_media::Nvm;
use holdfast_pool::{HintKind, MARK_CREATED};

use super::renames::Onto;
use super::{Durable, KEEPER_ID, ManagedFile, Upkeeps, Writers, is_held};
use holdfast_disk::Disk;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Answers a request of `client` about slot `args[0]` of generation `args[1]`. `path` tells the
    /// absolute path of the name it is about, if a slot can hold it. Never waits for who has the
    /// file: they may wait for the thread that this is; `EDEADLK` says that it must be tried again.
    pub fn answer(
        &self,
        client: u32,
        ask: Ask,
        args: [u64; 4],
        path: impl FnOnce() -> Option<PathBuf>,
    ) -> Result<[u64; 2], Errno> {
        let Some(file) = self.file(args[0], args[1]) else { return Err(Errno::EOPNOTSUPP) };
        let holder = self.board.files()[file.slot as usize].exclusive.load(Ordering::SeqCst) & KEEPER_ID;
        if holder == TAKER_ID {
            // It is being taken from who stood still. That is over soon.
            return Err(Errno::EDEADLK);
        }
        match ask {
            // Its asker died, and the file is others' again.
            Ask::Drain | Ask::Through | Ask::Left if holder != client => return Err(Errno::EIO),
            Ask::Settle => {
                self.board.header().settles.add(1);
                // An asker that died meanwhile keeps nobody out any more.
                let kept_out = args[2] == 1 && holder == client;
                let writers = if kept_out { Writers::KeptOut } else { Writers::MayBeIn };
                if kept_out {
                    self.end_rename(&file);
                }
                self.settle(&file, writers).map_err(refused)?;
                self.forget_left(&file);
            }
            Ask::Drain => {
                self.drain_all(&file)
                    .inspect_err(|error| self.drain_failed(&file, error))
                    .map_err(|_| Errno::EIO)?;
                if args[2] == 1 {
                    self.forget_left(&file);
                }
            }
            Ask::Left => self.note_left(&file),
            Ask::Through => self.leave_behind(&file, args[2] != 0).map_err(|_| Errno::EIO)?,
            Ask::Bypass if args[3] == 1 => {
                self.try_let_go(&file, Reason::from_u64(args[2])).map_err(refused)?;
            }
            Ask::Bypass => self.try_bypass(&file, Reason::from_u64(args[2])).map_err(refused)?,
            Ask::Unlinking if self.has_other_names(&file) => {
                let is_found = path().is_none_or(|path| self.is_found_without(&file, &path));
                return Err(if is_found { Errno::EAGAIN } else { Errno::ENAMETOOLONG });
            }
            // Whoever renames it is waited for: which name goes is known then.
            Ask::Unlinking if self.is_renaming(&file) || self.is_being_replaced(&file) => {
                return Err(Errno::EDEADLK);
            }
            // Its data must be in the page cache for good before the last name goes.
            Ask::Unlinking if !self.try_never_behind(&file)? => return Err(Errno::EBUSY),
            Ask::Unlinking | Ask::Naming => {
                let state = self.board.files()[file.slot as usize].state();
                if !state.has_log() {
                    return Err(Errno::EOPNOTSUPP);
                }
                // Whether the slot is to hold the whole change.
                let onto = match args[3] {
                    1 => Some(Onto::Free),
                    2 => Some(Onto::Taken),
                    _ => None,
                };
                let stored = match path() {
                    Some(path) if let Some(onto) = onto.filter(|_| ask == Ask::Naming) => {
                        let held = self.push_rename(&file, &path, onto, client);
                        return if matches!(held, Ok(true)) { Ok([0, 0]) } else { Err(Errno::EAGAIN) };
                    }
                    Some(path) if ask == Ask::Unlinking => match self.push_removal(&file, &path, client) {
                        Ok(false) => return Err(Errno::EAGAIN),
                        pushed => pushed.map(drop),
                    },
                    Some(path) => {
                        file.meta().naming = Some(client);
                        self.push_name(&file, HintKind::Name, &path)
                    }
                    None => return Err(Errno::ENAMETOOLONG),
                };
                // A new name that cannot be held is no fault of the disk: its directory may be
                // missing or elsewhere.
                stored.map_err(|_| if ask == Ask::Naming { Errno::ENAMETOOLONG } else { Errno::EIO })?;
            }
            Ask::Log if holder != client => return Err(Errno::EIO),
            Ask::Log => {
                let is_held = self.leave_unsynced(&file).map_err(|error| match error.kind() {
                    io::ErrorKind::Unsupported => Errno::EOPNOTSUPP,
                    _ => Errno::EIO,
                })?;
                let was_created = file.meta().marks & MARK_CREATED != 0;
                return Ok([u64::from(is_held), u64::from(was_created)]);
            }
            Ask::Commit if args[2] == 1 => self.commit_behind_sync(&file),
            Ask::Commit => {
                self.commit_for(&file).map_err(|error| match error.kind() {
                    io::ErrorKind::Unsupported => Errno::EOPNOTSUPP,
                    _ => Errno::EIO,
                })?;
            }
            // Who has it now may be making what the asker saw.
            Ask::Hear => self.look(&file, false).map_err(refused)?,
            Ask::Replaced => self.drop_replaced(&file),
            Ask::Withdraw => self.withdraw_name(&file),
            // Not about a file that has a slot.
            Ask::Register
            | Ask::Sole
            | Ask::Moved
            | Ask::SyncDirectory
            | Ask::Unseen
            | Ask::Room
            | Ask::LogAgain
            | Ask::Follow => return Err(Errno::EINVAL),
        }
        Ok([0, 0])
    }
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// Keeps a file out of state Behind for good; false while somebody has it who would have to be
    /// waited for.
    pub fn try_never_behind(&self, file: &ManagedFile<D::File>) -> Result<bool, Errno> {
        if self.never_behind(file) {
            return Ok(true);
        }
        match self.try_hold(file) {
            Ok(true) => {}
            // Its slot is another file's by now.
            Ok(false) => return Err(Errno::EOPNOTSUPP),
            Err(_) => return Ok(false),
        }
        let left = self.leave_behind(file, true);
        self.let_go(file);
        left.map(|()| true).map_err(|_| Errno::EIO)
    }
}

fn refused(error: io::Error) -> Errno {
    if is_held(&error) { Errno::EDEADLK } else { Errno::EIO }
}
