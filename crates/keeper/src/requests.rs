//! Requests that were taken from the board's cells, and how each is answered.
//!
//! Nothing here may wait for a file that a client has: they may be waiting for the thread that
//! answers. Whoever may wait says so ([`Haste`]).

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use holdfast_board::{Inode, RequestCell, RequestState};
use holdfast_cache::{Answer, FileRef, FileRequest, Program, Refusal, Request};
use holdfast_pool::PATH_BYTES_MAX;

use crate::keeper::Keeper;
use crate::register::{Asked, Haste};
use crate::watches::Scope;
use holdfast_disk::{Disk, DiskFile};
use holdfast_durable::Unanswered;

/// `AT_FDCWD`, as the low half of an argument.
const AT_FDCWD: i32 = -100;
/// A request that was taken from its cell, as it was read then: its client may write over it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Index of the cell, which has the path yet and waits for the answer.
    pub cell: usize,
    /// The asker.
    pub client: u32,
    pub request: Request,
}

impl Taken {
    fn cell<'a>(&self, keeper: &'a Keeper) -> &'a RequestCell {
        &keeper.durable.board.requests()[self.cell]
    }

    fn path(&self, keeper: &Keeper) -> Vec<u8> {
        self.cell(keeper).path()
    }
}

/// No file system that is managed has longer names.
const NAME_BYTES_MAX: usize = 255;

/// Answers a request; false when somebody else has to act first, so that it must be tried again
/// later, by who is patient.
pub(crate) fn answer(keeper: &Keeper, taken: &Taken, haste: Haste) -> bool {
    let answer = match perform(keeper, taken, haste) {
        Ok(answer) => Ok(answer),
        Err(Unanswered::Refused(refusal)) => Err(refusal),
        Err(Unanswered::Later) => return false,
    };
    finish(keeper, taken, answer);
    true
}

pub(crate) fn finish(keeper: &Keeper, taken: &Taken, answer: Result<Answer, Refusal>) {
    put_answer(keeper, taken.cell(keeper), taken.client, answer);
}

pub(crate) fn put_answer(keeper: &Keeper, cell: &RequestCell, asker: u32, answer: Result<Answer, Refusal>) {
    cell.set_answer(Answer::encode(answer));
    let asker_lives = keeper.pid_of(asker).is_some();
    cell.set_state(if asker_lives { RequestState::Done } else { RequestState::Free });
    cell.wake();
    // If the asker died in between, its repair passed the cell by while we were at it.
    if asker_lives && keeper.pid_of(asker).is_none() && cell.client() == asker {
        cell.advance(RequestState::Done, RequestState::Free);
    }
}

fn perform(keeper: &Keeper, taken: &Taken, haste: Haste) -> Result<Answer, Unanswered> {
    let client = taken.client;
    match taken.request {
        Request::Register { fd, origin, noted, sole } => {
            let place = keeper.register(&Asked { client, fd, origin, sole, noted, haste })?;
            return Ok(Answer::Place(place));
        }
        Request::File(place, request) => return perform_on_file(keeper, taken, place, request),
        Request::Unseen { why, program } => {
            let named = taken.path(keeper);
            let program = if named.is_empty() && program != Program::Child { Program::Own } else { program };
            let path = program_of(keeper, client, program, &named).ok_or(Refusal::Malformed)?;
            if program == Program::Own {
                keeper.note_blind(client);
            }
            return Ok(Answer::News(keeper.notes.unseen(path, why)));
        }
        Request::Moved => keeper.durable.follow_names(),
        Request::Room { own } => {
            if !own {
                // What others removed, too. A full disk is no time to bring changes of content to
                // it.
                keeper.hear(Scope::Told);
                keeper.durable.see_removals();
            }
            return Ok(Answer::Room(keeper.durable.make_room(own)));
        }
        Request::LetGo => keeper.durable.let_go_unused(),
        Request::LogAgain { inode, dirfd } => {
            let path = absolute(keeper, client, dirfd, &taken.path(keeper)).ok_or(Refusal::Kernels)?;
            let logged = keeper.durable.log_again(&path, inode.device, inode.ino);
            logged.map_err(|_| Refusal::Kernels)?;
        }
        Request::Follow { device, behind } => {
            keeper.durable.follow_sync(device, behind).map_err(|_| Refusal::Failed)?;
        }
        Request::SyncDirectory { fd, .. } => {
            // The disk is about to have what others did.
            keeper.hear(Scope::All);
            let (directory, _) = keeper.directory_of(client, fd).ok_or(Refusal::Kernels)?;
            keeper.durable.sync_directory(&directory)?;
        }
    }
    Ok(Answer::Done)
}

fn perform_on_file(
    keeper: &Keeper,
    taken: &Taken,
    place: FileRef,
    request: FileRequest,
) -> Result<Answer, Unanswered> {
    let client = taken.client;
    if matches!(request, FileRequest::Bypass { .. }) {
        keeper.note_native_slot(client, place);
    }
    let path = || {
        let asked = taken.path(keeper);
        match request {
            FileRequest::Unlinking { dirfd } => {
                own_name(keeper, place, &asked).or_else(|| absolute(keeper, client, dirfd, &asked))
            }
            FileRequest::Naming { dirfd, .. } => absolute(keeper, client, dirfd, &asked),
            _ => None,
        }
    };
    let answer = keeper.durable.answer(client, place, request, path)?;
    if request == FileRequest::Log {
        // From its next state on, which its client is about to give it.
        keeper.look_out_for(place);
    }
    Ok(answer)
}

/// The path of the program that a client means.
fn program_of(keeper: &Keeper, client: u32, program: Program, named: &[u8]) -> Option<PathBuf> {
    match program {
        Program::Own | Program::Child => {
            std::fs::read_link(format!("/proc/{}/exe", keeper.pid_of(client)?)).ok()
        }
        Program::Named { dirfd } => absolute(keeper, client, dirfd, named)
            .or_else(|| Some(PathBuf::from(std::ffi::OsStr::from_bytes(named)))),
    }
}

/// The path by which a client calls a file, if the file stands at it and no link or `..` is on the
/// way: then it is the one that `absolute` would find.
fn own_name(keeper: &Keeper, place: FileRef, asked: &[u8]) -> Option<PathBuf> {
    let file = keeper.durable.file(place)?;
    let stat = keeper.durable.disk.find(asked).ok()?.stat().ok()?;
    let is_it = (stat.dev, stat.ino) == (file.dev, file.ino) && asked.len() <= PATH_BYTES_MAX;
    is_it.then(|| PathBuf::from(std::ffi::OsStr::from_bytes(asked)))
}

/// The absolute path a client means by `path` relative to one of its descriptors, if a slot can
/// hold it.
fn absolute(keeper: &Keeper, client: u32, dirfd: i32, path: &[u8]) -> Option<PathBuf> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let pid = keeper.pid_of(client)?;
    let base = match dirfd {
        _ if path.is_absolute() => format!("/proc/{pid}/root"),
        AT_FDCWD => format!("/proc/{pid}/cwd"),
        fd => format!("/proc/{pid}/fd/{fd}"),
    };
    let absolute = std::fs::read_link(base).ok()?.join(path.strip_prefix("/").unwrap_or(path));
    // Symbolic links and `..` on the way are resolved now: recovery follows none.
    let parent = absolute.parent()?.canonicalize().ok()?;
    let name = absolute.file_name()?;
    let resolved = parent.join(name);
    // The kernel refuses the others.
    let can_be = name.len() <= NAME_BYTES_MAX && resolved.as_os_str().len() <= PATH_BYTES_MAX;
    can_be.then_some(resolved)
}

impl Keeper {
    /// The path of a client's open directory, if it is reachable under it from here, and its device
    /// number.
    pub(crate) fn directory_of(&self, client: u32, fd: i32) -> Option<(PathBuf, u64)> {
        use std::os::unix::fs::MetadataExt;
        let known = self.borrow(client, fd).and_then(|directory| directory.metadata()).ok();
        let known = known.filter(|meta| meta.is_dir());
        let watched = known.and_then(|meta| {
            Some((self.durable.watched_path(Inode { device: meta.dev(), ino: meta.ino() })?, meta.dev()))
        });
        if watched.is_some() {
            return watched;
        }
        let via = format!("/proc/{}/fd/{}", self.pid_of(client)?, fd);
        let path = std::fs::read_link(&via).ok()?;
        let (theirs, ours) = (std::fs::metadata(&via).ok()?, std::fs::symlink_metadata(&path).ok()?);
        (ours.is_dir() && (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
            .then(|| (path, ours.dev()))
    }
}
