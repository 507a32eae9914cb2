//! How a file becomes the log's: somebody else's client had it there, or the keeper is asked.

use core::sync::atomic::Ordering;

use holdfast_board::Epoch;
use holdfast_cache::{Client, Errno, FileRef, Origin};
use holdfast_media::Nvm;

use crate::backing::{Backing, Stat};
use crate::description::{Description, State};
use crate::leave::{drop_file, give_up};

/// Settles of a pending description what its file is; `register`: if nobody knows yet, the keeper
/// is asked. `None`: the kernel's.
///
/// # Errors
/// `EIO` when the keeper is dead, or what it says.
#[cold]
pub(crate) fn settle<N: Nvm, B: Backing>(
    client: &Client<N>,
    description: &Description,
    backing: &B,
    origin: Origin,
    register: bool,
) -> Result<Option<FileRef>, Errno> {
    backing.section(|| {
        description.locked(|| match description.state() {
            State::Managed(file) => Ok(Some(file)),
            State::Plain => Ok(None),
            State::Pending(_) => settle_locked(client, description, backing, origin, register),
        })
    })
}

fn settle_locked<N: Nvm, B: Backing>(
    client: &Client<N>,
    description: &Description,
    backing: &B,
    origin: Origin,
    register: bool,
) -> Result<Option<FileRef>, Errno> {
    if let Some(reason) = backing.bypasses_all() {
        give_up(client, description, backing, reason);
        return Ok(None);
    }
    // Nearly always nobody has it, and the kernel need not be asked.
    if !register
        && let Some((device, ino)) = description.file()
        && client.find(device, ino).is_none()
    {
        return Ok(None);
    }
    let stat = backing.stat();
    if let Ok(stat) = &stat
        && let Some(reason) = backing.writes_unseen(stat)
    {
        give_up(client, description, backing, reason);
        return Ok(None);
    }
    if let Some(seen) = stat.as_ref().ok().and_then(|stat| client.find(stat.dev, stat.ino))
        && (!seen.state.is_bypassed() || origin == Origin::Unknown)
    {
        adopt(client, description, seen.file);
        return Ok(Some(seen.file));
    }
    // One that is left to the kernel may be managed again: the reason may be gone.
    if !register {
        return Ok(None);
    }
    // What it holds by now is read back before the log stands for it, and what else was done to it
    // is looked at.
    let is_born = |stat: &Stat| description.is_as_born(stat);
    let changed = !client.logs_on_sync() && !stat.as_ref().is_ok_and(is_born);
    let is_held = origin == Origin::Created && !changed;
    let noted = description.take_noted().filter(|_| is_held);
    let origin = if is_held || origin != Origin::Created { origin } else { Origin::Opened };
    let file = ask(client, backing, origin, noted)?;
    match file {
        Some(file) => adopt(client, description, file),
        None => description.set_state(State::Plain),
    }
    if let (Some(file), Ok(stat)) = (file, stat) {
        if let Some(reason) = backing.writes_unseen(&stat) {
            // Another thread does so since a moment ago.
            drop_file(client, file, reason);
        }
        backing.adopted(file, &stat);
    }
    Ok(file)
}

/// Asks the keeper to manage a file; `None` leaves it to the kernel.
///
/// # Errors
/// `EIO` when the keeper is dead, or what it says.
pub fn ask<N: Nvm, B: Backing>(
    client: &Client<N>,
    backing: &B,
    origin: Origin,
    noted: Option<Epoch>,
) -> Result<Option<FileRef>, Errno> {
    client.register(backing.fd(), origin, noted, || backing.is_sole()).or_else(|errno| {
        // A keeper that died kept nothing of what it would never have managed: what has no place in
        // the board, which changes no more, has no record.
        let may_be_managed = !origin.is_never_managed() && backing.may_be_managed();
        if client.keeper_alive() || may_be_managed { Err(errno) } else { Ok(None) }
    })
}

/// Makes a file that the cache has already the one behind a description.
pub fn adopt<N: Nvm>(client: &Client<N>, description: &Description, file: FileRef) {
    // What was reported to others before this open is none of its business.
    if let Some(row) = client.board().files().get(file.slot.index()) {
        description.seen_error.store(row.error_epoch(), Ordering::SeqCst);
        description.synced_seq.store(row.newest_seq(), Ordering::SeqCst);
    }
    description.set_state(State::Managed(file));
}
