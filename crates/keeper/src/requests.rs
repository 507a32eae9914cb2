//! The request server: answers what clients ask through the board's cells.
//!
//! Quick requests are answered here, one after the other, so that a client's intents keep their order. What
//! waits for the disk goes to the settlers.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use holdfast_board::{FileState, RequestCell, RequestState, wait, wake};
use holdfast_cache::{Ask, Errno, Reason};
use holdfast_pool::{HintKind, PATH_BYTES_MAX};

use crate::keeper::Keeper;

/// `AT_FDCWD`, as the low half of an argument.
const AT_FDCWD: i32 = -100;
/// An idle server only wakes when it is rung; the limit is there for the stop.
const IDLE: Duration = Duration::from_secs(3600);

/// Looks at the doorbell after a request, before going to sleep.
const SPINS: u32 = 1500;

/// Serves until the keeper stops. `settlers` takes the cells that wait for the disk, by index.
pub(crate) fn serve(keeper: &Arc<Keeper>, settlers: &Sender<usize>) {
    let doorbell = &keeper.board.header().request_wake.word;
    while !keeper.is_stopping() {
        let seen = doorbell.load(Ordering::SeqCst);
        let mut served = false;
        for (index, cell) in keeper.board.requests().iter().enumerate() {
            if cell.advance(RequestState::Posted, RequestState::Taken) {
                served = true;
                if absorbs(keeper, cell) {
                    finish(keeper, cell, Ok([0, 0]));
                } else if waits_for_disk(cell) {
                    let _ = settlers.send(index);
                } else {
                    answer(keeper, cell);
                }
            }
        }
        // A client that has its answer often has the next request at once; waking us costs more than a short look.
        let mut spins = if served { SPINS } else { 0 };
        while spins > 0 && doorbell.load(Ordering::Relaxed) == seen {
            std::hint::spin_loop();
            spins -= 1;
        }
        if spins == 0 {
            wait(doorbell, seen, IDLE);
        }
    }
}

/// Answers the cells sent by [`serve`] until the channel closes.
pub(crate) fn settle_requests(keeper: &Arc<Keeper>, cells: &std::sync::Mutex<Receiver<usize>>) {
    loop {
        let next = crate::keeper::locked(cells).recv();
        let Ok(index) = next else { return };
        answer(keeper, &keeper.board.requests()[index]);
    }
}

/// A directory sync that the slots answer.
fn absorbs(keeper: &Keeper, cell: &RequestCell) -> bool {
    Ask::from_u32(cell.kind.load(Ordering::Relaxed)) == Some(Ask::SyncDirectory)
        && cell.args[1].load(Ordering::Relaxed) == 0
        && keeper
            .absorb_directory_sync(cell.client.load(Ordering::Relaxed), cell.args[0].load(Ordering::Relaxed))
            .is_some()
}

fn waits_for_disk(cell: &RequestCell) -> bool {
    match Ask::from_u32(cell.kind.load(Ordering::Relaxed)) {
        Some(Ask::Settle | Ask::Bypass | Ask::SyncDirectory) => true,
        // Not the only description: all processes are looked through.
        Some(Ask::Sole) => cell.args[2].load(Ordering::Relaxed) == 0,
        _ => false,
    }
}

fn answer(keeper: &Keeper, cell: &RequestCell) {
    let result = perform(keeper, cell);
    finish(keeper, cell, result);
}

fn finish(keeper: &Keeper, cell: &RequestCell, result: Result<[u64; 2], Errno>) {
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

fn perform(keeper: &Keeper, cell: &RequestCell) -> Result<[u64; 2], Errno> {
    let args = [0, 1, 2, 3].map(|index| cell.args[index].load(Ordering::Relaxed));
    let client = cell.client.load(Ordering::Relaxed);
    let Some(ask) = Ask::from_u32(cell.kind.load(Ordering::Relaxed)) else { return Err(Errno::EINVAL) };
    match ask {
        Ask::Register => return keeper.register(client, args[0], args[1], None),
        Ask::Sole => return keeper.register(client, args[0], args[1], Some(args[2] != 0)),
        Ask::SyncDirectory => return keeper.sync_directory(client, args[0]).map(|()| [0, 0]),
        _ => {}
    }
    let Some(file) = keeper.file(args[0], args[1]) else { return Err(Errno::EOPNOTSUPP) };
    match ask {
        Ask::Settle => {
            keeper.board.header().settles.add(1);
            keeper.settle(&file).map_err(|_| Errno::EIO)?;
        }
        Ask::Bypass => keeper.bypass(&file, Reason::from_u64(args[2])).map_err(|_| Errno::EIO)?,
        Ask::Unlinking if keeper.has_other_names(&file) => return Err(Errno::EAGAIN),
        Ask::Unlinking | Ask::Naming => {
            if keeper.board.files()[file.slot as usize].state() != FileState::Through {
                return Err(Errno::EOPNOTSUPP);
            }
            let stored = match absolute(keeper, client, args[2] as i32, &cell.path()) {
                Some(path) if ask == Ask::Unlinking => keeper.push_removal(&file, &path, client),
                Some(path) => keeper.push_name(&file, HintKind::Name, &path),
                None => Err(std::io::Error::from(std::io::ErrorKind::InvalidFilename)),
            };
            if stored.is_err() {
                return Err(Errno::EIO);
            }
        }
        Ask::Replaced => keeper.drop_replaced(&file),
        Ask::Withdraw => keeper.withdraw_name(&file),
        Ask::Register | Ask::Sole | Ask::SyncDirectory => {}
    }
    Ok([0, 0])
}

/// The absolute path a client means by `path` relative to one of its descriptors, if a slot can hold it.
fn absolute(keeper: &Keeper, client: u32, dirfd: i32, path: &[u8]) -> Option<PathBuf> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let absolute = if path.is_absolute() {
        path.to_owned()
    } else {
        let pid = keeper.pid_of(client)?;
        let base = match dirfd {
            AT_FDCWD => format!("/proc/{pid}/cwd"),
            fd => format!("/proc/{pid}/fd/{fd}"),
        };
        std::fs::read_link(base).ok()?.join(path)
    };
    // Symbolic links and `..` on the way are resolved now: recovery follows none.
    let parent = absolute.parent()?.canonicalize().ok()?;
    let resolved = parent.join(absolute.file_name()?);
    (resolved.as_os_str().len() <= PATH_BYTES_MAX).then_some(resolved)
}
