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

use holdfast_board::{Epoch, RequestCell, RequestState, wait, wake};
use holdfast_cache::{Ask, Errno, Origin, Unseen};
use holdfast_media::Mapping;
use holdfast_pool::PATH_BYTES_MAX;

use crate::keeper::Keeper;
use crate::lookout::Scope;
use crate::register::Asked;
use crate::settlers::Queue;
use holdfast_disk::{Disk, DiskFile, OsDisk};
use holdfast_durable::Durable;

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

/// Serves until the keeper stops. `settlers` takes the cells that cannot be answered at once, by
/// index.
pub(crate) fn serve(keeper: &Arc<Keeper>, settlers: &Queue) {
    let doorbell = &keeper.durable.board.header().request_wake.word;
    let mut watch = WATCH_MAX;
    loop {
        // Before the look at whether we stop: a stop after it rings, and then we do not sleep.
        let seen = doorbell.load(Ordering::SeqCst);
        if keeper.is_stopping() {
            break;
        }
        let mut served = false;
        for (index, cell) in keeper.durable.board.requests().iter().enumerate() {
            // A look first, which leaves the cells of others where they are.
            if cell.state() == RequestState::Posted && cell.advance(RequestState::Posted, RequestState::Taken)
            {
                served = true;
                if let Some(scope) = follows_others(cell) {
                    keeper.hear(scope);
                }
                if absorbs(keeper, cell) {
                    finish(keeper, cell, Ok([0, 0]));
                } else if waits_for_disk(&keeper.durable, cell) || !answer(keeper, cell, Haste::Quick) {
                    settlers.put(index);
                }
            }
        }
        if !served {
            wait(doorbell, seen, IDLE);
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
fn follows_others(cell: &RequestCell) -> Option<Scope> {
    match Ask::from_u32(cell.kind.load(Ordering::Relaxed))? {
        Ask::Unlinking | Ask::Naming | Ask::Log => Some(Scope::Told),
        Ask::SyncDirectory => Some(Scope::New),
        Ask::Commit | Ask::Hear => Some(Scope::All),
        _ => None,
    }
}

/// A directory sync that the slots answer: nothing is pending, what was just heard of others
/// included.
fn absorbs(keeper: &Keeper, cell: &RequestCell) -> bool {
    Ask::from_u32(cell.kind.load(Ordering::Relaxed)) == Some(Ask::SyncDirectory)
        && cell.args[1].load(Ordering::Relaxed) == 0
        && keeper
            .directory_of(cell.client.load(Ordering::Relaxed), cell.args[0].load(Ordering::Relaxed))
            .filter(|(_, device)| keeper.durable.is_clean(*device))
            .and_then(|(directory, _)| keeper.durable.absorb_directory_sync(&directory))
            .is_some()
}

fn waits_for_disk(durable: &Durable<Mapping, OsDisk>, cell: &RequestCell) -> bool {
    match Ask::from_u32(cell.kind.load(Ordering::Relaxed)) {
        Some(
            Ask::Settle
            | Ask::Bypass
            | Ask::SyncDirectory
            | Ask::Drain
            | Ask::Left
            | Ask::Through
            | Ask::Moved
            | Ask::Commit
            | Ask::Room
            | Ask::LogAgain
            | Ask::Follow,
        ) => true,
        Some(Ask::Hear) => durable
            .file(cell.args[0].load(Ordering::Relaxed), cell.args[1].load(Ordering::Relaxed))
            .is_some_and(|file| durable.seems_changed(&file)),
        // Not the only description: all processes are looked through.
        Some(Ask::Sole) if cell.args[2].load(Ordering::Relaxed) == 0 => true,
        // A slot is to hold something, for which pending changes must be committed first.
        Some(Ask::Register | Ask::Sole) => {
            let noted = Epoch::from_raw(cell.args[3].load(Ordering::Relaxed));
            cell.args[1].load(Ordering::Relaxed) == Origin::Created as u64 && durable.has_pending(noted)
        }
        Some(Ask::Log) => {
            let file =
                durable.file(cell.args[0].load(Ordering::Relaxed), cell.args[1].load(Ordering::Relaxed));
            let noted = file.and_then(|file| durable.board.files()[file.slot as usize].noted());
            durable.has_pending(noted)
        }
        Some(Ask::Unlinking | Ask::Naming) => durable.has_pending(None),
        _ => false,
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

/// Answers a cell; false when somebody else has to act first, so that it must be tried again later,
/// by who is patient.
pub(crate) fn answer(keeper: &Keeper, cell: &RequestCell, haste: Haste) -> bool {
    let result = perform(keeper, cell, haste);
    if result == Err(Errno::EDEADLK) {
        return false;
    }
    finish(keeper, cell, result);
    true
}

pub(crate) fn finish(keeper: &Keeper, cell: &RequestCell, result: Result<[u64; 2], Errno>) {
    match result {
        Ok(reply) => {
            cell.reply[0].store(reply[0], Ordering::Relaxed);
            cell.reply[1].store(reply[1], Ordering::Relaxed);
            cell.result.store(0, Ordering::Relaxed);
        }
        Err(errno) => cell.result.store(errno.0, Ordering::Relaxed),
    }
    let asker = cell.client.load(Ordering::Relaxed);
    let asker_lives = keeper.pid_of(asker).is_some();
    cell.set_state(if asker_lives { RequestState::Done } else { RequestState::Free });
    wake(&cell.state, 1);
    // If the asker died in between, its repair passed the cell by while we were at it.
    if asker_lives && keeper.pid_of(asker).is_none() && cell.client.load(Ordering::Relaxed) == asker {
        cell.advance(RequestState::Done, RequestState::Free);
    }
}

fn perform(keeper: &Keeper, cell: &RequestCell, haste: Haste) -> Result<[u64; 2], Errno> {
    let args = [0, 1, 2, 3].map(|index| cell.args[index].load(Ordering::Relaxed));
    let client = cell.client.load(Ordering::Relaxed);
    let Some(ask) = Ask::from_u32(cell.kind.load(Ordering::Relaxed)) else { return Err(Errno::EINVAL) };
    match ask {
        Ask::Register | Ask::Sole => {
            let sole = (ask == Ask::Sole).then_some(args[2] != 0);
            let noted = Epoch::from_raw(args[3]);
            return keeper.register(&Asked { client, fd: args[0], origin: args[1], sole, noted, haste });
        }
        Ask::Bypass => keeper.note_native_slot(client, args[0], args[1]),
        Ask::Unseen => {
            let why = Unseen::from_u64(args[0]).ok_or(Errno::EINVAL)?;
            let program = program(keeper, client, args[2], cell).ok_or(Errno::EINVAL)?;
            let is_child = args[1] != 0;
            if cell.path().is_empty() && !is_child {
                keeper.note_blind(client);
            }
            return Ok([u64::from(keeper.notes.unseen(program, why)), 0]);
        }
        Ask::Moved => {
            keeper.durable.follow_names();
            return Ok([0, 0]);
        }
        Ask::Room => {
            let own = args[0] == 1;
            if !own {
                // What others removed, too. A full disk is no time to bring changes of content to
                // it.
                keeper.hear(Scope::Told);
                keeper.durable.see_removals();
            }
            return Ok([u64::from(keeper.durable.make_room(own)), 0]);
        }
        Ask::LogAgain => {
            let path = absolute(keeper, client, args[2] as i32, &cell.path()).ok_or(Errno::EOPNOTSUPP)?;
            return keeper
                .durable
                .log_again(&path, args[0], args[1])
                .map(|()| [0, 0])
                .map_err(|_| Errno::EOPNOTSUPP);
        }
        Ask::Follow => {
            return keeper.durable.follow_sync(args[0]).map(|()| [0, 0]).map_err(|_| Errno::EIO);
        }
        Ask::SyncDirectory => {
            // The disk is about to have what others did.
            keeper.hear(Scope::All);
            let (directory, _) = keeper.directory_of(client, args[0]).ok_or(Errno::EOPNOTSUPP)?;
            return keeper.durable.sync_directory(&directory).map(|()| [0, 0]);
        }
        _ => {}
    }
    let answer = keeper.durable.answer(client, ask, args, || {
        let asked = cell.path();
        let own = if ask == Ask::Unlinking { own_name(keeper, args, &asked) } else { None };
        own.or_else(|| absolute(keeper, client, args[2] as i32, &asked))
    })?;
    if ask == Ask::Log {
        // From its next state on, which its client is about to give it.
        keeper.look_out_for(args[0] as u32, args[1]);
    }
    Ok(answer)
}

/// The program that a client means: its own when it names none.
fn program(keeper: &Keeper, client: u32, dirfd: u64, cell: &RequestCell) -> Option<PathBuf> {
    let named = cell.path();
    if named.is_empty() {
        return std::fs::read_link(format!("/proc/{}/exe", keeper.pid_of(client)?)).ok();
    }
    let absolute = absolute(keeper, client, dirfd as i32, &named);
    absolute.or_else(|| Some(PathBuf::from(std::ffi::OsStr::from_bytes(&named))))
}

/// The path by which a client calls a file, if the file stands at it and no link or `..` is on the
/// way: then it is the one that `absolute` would find.
fn own_name(keeper: &Keeper, args: [u64; 4], asked: &[u8]) -> Option<PathBuf> {
    let file = keeper.durable.file(args[0], args[1])?;
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
    fn directory_of(&self, client: u32, fd: u64) -> Option<(PathBuf, u64)> {
        use std::os::unix::fs::MetadataExt;
        let known = self.borrow(client, fd).and_then(|directory| directory.metadata()).ok();
        let known = known.filter(|meta| meta.is_dir());
        let watched =
            known.and_then(|meta| Some((self.durable.watched_path((meta.dev(), meta.ino()))?, meta.dev())));
        if watched.is_some() {
            return watched;
        }
        let via = format!("/proc/{}/fd/{}", self.pid_of(client)?, fd as i32);
        let path = std::fs::read_link(&via).ok()?;
        let (theirs, ours) = (std::fs::metadata(&via).ok()?, std::fs::symlink_metadata(&path).ok()?);
        (ours.is_dir() && (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()))
            .then(|| (path, ours.dev()))
    }
}
