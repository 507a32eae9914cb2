//! Files whose durability nobody has asked for yet (durability = sync), as calls on a descriptor
//! find them; and what is pending in the journal.

use core::ffi::c_int;

use holdfast_cache::Client;
use holdfast_session::Description;

use crate::descriptor::Descriptor;
use crate::fds::{self, Row};
use crate::{process, raw};

/// Whether a sync through `fd` is better left to the kernel.
pub fn leaves_sync(client: &Client, fd: c_int) -> bool {
    let Row::Described(description) = fds::look(fd) else { return false };
    holdfast_session::leaves_sync(client, description, &Descriptor(fd))
}

/// Makes a call that changes the content behind `fd` without the log, if nobody has asked for the
/// file's durability yet and it has no row, and leaves the cursor alone. `None`: it must be made
/// otherwise.
#[inline]
pub fn pass(fd: c_int, raw: impl FnOnce() -> isize) -> Option<isize> {
    let (client, description) = unsynced(fd)?;
    holdfast_session::pass(client, description, &Descriptor(fd), raw)
}

/// As [`pass`], for a call that moves the cursor.
#[inline]
pub fn pass_moving_cursor(fd: c_int, raw: impl FnOnce() -> isize) -> Option<isize> {
    let (client, description) = unsynced(fd)?;
    holdfast_session::pass_moving_cursor(client, description, &Descriptor(fd), raw)
}

/// What changes may go past the log by, where files are logged from their first sync on.
#[inline]
fn unsynced(fd: c_int) -> Option<(&'static Client, &'static Description)> {
    let client = process::client().filter(|client| client.logs_on_sync())?;
    match fds::look(fd) {
        Row::Described(description) => Some((client, description)),
        _ => None,
    }
}

/// Something was done to the file behind `fd` that no slot will hold, a new file's creation
/// neither: it is pending.
pub fn note_change(fd: c_int) {
    if let Row::Described(description) = fds::look(fd) {
        holdfast_session::note_change(description);
    }
    note_pending(fd);
}

/// Makes a call that may set the attributes of the file behind `fd`, if that is new and nothing but
/// that is done to it. `None`: it is not new.
pub fn as_born(fd: c_int, call: impl FnOnce() -> isize) -> Option<isize> {
    let client = process::client().filter(|client| !client.logs_on_sync())?;
    let Row::Described(description) = fds::look(fd) else { return None };
    holdfast_session::as_born(client, description, &Descriptor(fd), call)
}

/// The journal has something of the file behind `fd` that no record holds.
pub fn note_pending(fd: c_int) {
    let Some(client) = process::client() else { return };
    let known = match fds::look(fd) {
        Row::Described(description) => description.file().map(|(device, _)| device),
        _ => None,
    };
    if let Some(device) = known.or_else(|| raw::fstat(fd).ok().map(|stat| stat.dev)) {
        client.note_change(device);
    }
}
