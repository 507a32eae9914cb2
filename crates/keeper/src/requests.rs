//! The request server: answers what clients ask through the board's cells.
//!
//! Quick requests are answered here, one after the other, so that a client's intents keep their
//! order. What waits for the disk, or for somebody else's request, goes to the settlers
//! ([`crate::settlers`]). Nothing here may wait for a file that a client has: they may be waiting
//! for this very thread.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use holdfast_board::{RequestCell, RequestState, wait, wake};
use holdfast_cache::{Answer, FileRef, FileRequest, Origin, Program, Refusal, Request};
use holdfast_media::Mapping;
use holdfast_pool::PATH_BYTES_MAX;

use crate::keeper::Keeper;
use crate::lookout::Scope;
use crate::register::Asked;
use crate::settlers::Queue;
use holdfast_disk::{Disk, DiskFile, OsDisk};
use holdfast_durable::{Durable, Unanswered};

/// `AT_FDCWD`, as the low half of an argument.
const AT_FDCWD: i32 = -100;
/// An idle server only wakes when it is rung; the limit is there for the stop.
const IDLE: Duration = Duration::from_secs(3600);

/// How long the server watches the doorbell before it sleeps, at most: what two wake-ups cost.
/// Watching pays while requests follow one another closely, as in a database that makes and removes
/// a journal for each transaction.
const WATCH_MAX: Duration = Duration::from_micros(120);
/// Below this it does not watch at all, until requests come closely again.
const WATCH_MIN: Duration = Duration::from_micros(8);
/// Looks at the doorbell between two looks at the clock.
const LOOKS: u32 = 64;

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

/// Serves until the keeper stops. `settlers` takes what cannot be answered at once.
pub(crate) fn serve(keeper: &Arc<Keeper>, settlers: &Queue) {
    let doorbell = &keeper.durable.board.header().request_wake.word;
    let mut watch = WATCH_MAX;
    loop {
        // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
        let seen = doorbell.load(Ordering::SeqCst);
        if keeper.is_stopping() {
            break;
        }
        // Who asks for that has the kernel sync meanwhile: it need not be watched for.
        let heard = keeper.durable.board.header().hearings.answer(|| keeper.hear(Scope::All));
        let mut served = false;
        for (index, cell) in keeper.durable.board.requests().iter().enumerate() {
            if cell.take() {
                served = true;
                let client = cell.client();
                match Request::decode(cell.asked()) {
                    Some(request) => begin(keeper, settlers, Taken { cell: index, client, request }),
                    None => put_answer(keeper, cell, client, Err(Refusal::Malformed)),
                }
            }
        }
        if !served {
            if !heard {
                wait(doorbell, seen, IDLE);
            }
            continue;
        }
        // A client that has its answer often has the next request soon. Where it does not, or has
        // no processor because of us, we watch for half as long the next time.
        let begun = Instant::now();
        let rung = watch >= WATCH_MIN && rings(doorbell, seen, begun, watch);
        if rung {
            watch = (watch * 2).min(WATCH_MAX);
            continue;
        }
        watch /= 2;
        wait(doorbell, seen, IDLE);
        if begun.elapsed() < WATCH_MAX {
            watch = WATCH_MAX;
        }
    }
}

/// Answers at once what can be, and leaves the rest to the settlers.
fn begin(keeper: &Keeper, settlers: &Queue, taken: Taken) {
    if let Some(scope) = follows_others(&taken.request) {
        keeper.hear(scope);
    }
    if absorbs(keeper, &taken) {
        finish(keeper, &taken, Ok(Answer::Done));
    } else if waits_for_disk(&keeper.durable, &taken.request) || !answer(keeper, &taken, Haste::Quick) {
        settlers.put(taken);
    }
}

/// Whether the doorbell is rung within `watch`.
fn rings(doorbell: &AtomicU32, seen: u32, begun: Instant, watch: Duration) -> bool {
    loop {
        for _ in 0..LOOKS {
            if doorbell.load(Ordering::Relaxed) != seen {
                return true;
            }
            std::hint::spin_loop();
        }
        if begun.elapsed() > watch {
            return false;
        }
    }
}

/// What of what outsiders did comes before what is asked, because that is to become durable at
/// once, or to count as that.
fn follows_others(request: &Request) -> Option<Scope> {
    match request {
        Request::File(_, FileRequest::Unlinking { .. } | FileRequest::Naming { .. } | FileRequest::Log) => {
            Some(Scope::Told)
        }
        Request::SyncDirectory { .. } => Some(Scope::New),
        Request::File(_, FileRequest::Commit { .. } | FileRequest::Hear) => Some(Scope::All),
        _ => None,
    }
}

/// A directory sync that the slots answer: nothing is pending, what was just heard of others
/// included.
fn absorbs(keeper: &Keeper, taken: &Taken) -> bool {
    let Request::SyncDirectory { fd, really: false } = taken.request else { return false };
    keeper
        .directory_of(taken.client, fd)
        .filter(|(_, device)| keeper.durable.is_clean(*device))
        .and_then(|(directory, _)| keeper.durable.absorb_directory_sync(&directory))
        .is_some()
}

fn waits_for_disk(durable: &Durable<Mapping, OsDisk>, request: &Request) -> bool {
    match *request {
        Request::SyncDirectory { .. }
        | Request::Moved
        | Request::Room { .. }
        | Request::LogAgain { .. }
        | Request::Follow { .. } => true,
        // Not the only description: all processes are looked through.
        Request::Register { sole: Some(false), .. } => true,
        // A slot is to hold something, for which pending changes must be committed first.
        Request::Register { origin, noted, .. } => origin == Origin::Created && durable.has_pending(noted),
        Request::Unseen { .. } => false,
        Request::File(place, request) => file_waits_for_disk(durable, place, &request),
    }
}

fn file_waits_for_disk(durable: &Durable<Mapping, OsDisk>, place: FileRef, request: &FileRequest) -> bool {
    let file = || durable.file(place);
    match request {
        FileRequest::Settle { .. }
        | FileRequest::Bypass { .. }
        | FileRequest::Drain { .. }
        | FileRequest::Left
        | FileRequest::Through { .. }
        | FileRequest::Commit { .. } => true,
        FileRequest::Hear => file().is_some_and(|file| durable.seems_changed(&file)),
        FileRequest::Log => {
            let noted = file().and_then(|file| durable.board.row(file.slot).noted());
            durable.has_pending(noted)
        }
        FileRequest::Unlinking { .. } | FileRequest::Naming { .. } => durable.has_pending(None),
        FileRequest::Withdraw | FileRequest::Replaced => false,
    }
}

/// No file system that is managed has longer names.
const NAME_BYTES_MAX: usize = 255;

/// How long the thread may take that answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// All clients wait for it: no disk, no look at other processes.
    Quick,
    /// Only this request does.
    Patient,
}

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

fn put_answer(keeper: &Keeper, cell: &RequestCell, asker: u32, answer: Result<Answer, Refusal>) {
    cell.set_answer(Answer::encode(answer));
    let asker_lives = keeper.pid_of(asker).is_some();
    cell.set_state(if asker_lives { RequestState::Done } else { RequestState::Free });
    wake(&cell.state, 1);
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
        Request::LogAgain { inode, dirfd } => {
            let path = absolute(keeper, client, dirfd, &taken.path(keeper)).ok_or(Refusal::Kernels)?;
            let logged = keeper.durable.log_again(&path, inode.device, inode.ino);
            logged.map_err(|_| Refusal::Kernels)?;
        }
        Request::Follow { device } => {
            keeper.durable.follow_sync(device).map_err(|_| Refusal::Failed)?;
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
    fn directory_of(&self, client: u32, fd: i32) -> Option<(PathBuf, u64)> {
        use std::os::unix::fs::MetadataExt;
        let known = self.borrow(client, fd).and_then(|directory| directory.metadata()).ok();
        let known = known.filter(|meta| meta.is_dir());
        let watched =
            known.and_then(|meta| Some((self.durable.watched_path((meta.dev(), meta.ino()))?, meta.dev())));
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
