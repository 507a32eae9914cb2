//! Calls of the program that change what a journal has: the keeper can tell while one is under way,
//! so that a process which ends outside of any leaves nothing pending.
//!
//! Signal handlers wait for the end, since one that jumped out of the call would leave its row
//! taken. So must never hold a call that waits for somebody else, such as the open of a pipe.

use holdfast_board::{Change, Epoch};
use holdfast_cache::Client;

use crate::{critical, process, tls};

/// Tells this thread from the process' others, and from none that lived before it in its memory.
fn own_thread() -> u64 {
    tls::with(|thread| core::ptr::from_ref(thread) as u64)
}

/// Makes a change and all that notes it.
#[inline]
pub fn changing<R>(client: &Client, change: Change, work: impl FnOnce() -> R) -> R {
    critical::section(|| client.changing(own_thread(), change, work))
}

/// Within [`changing`]: what is changed is a name that others' syncs have to wait for.
#[inline]
pub fn note_relogs(client: &Client) {
    client.note_relogs(own_thread());
}

/// As [`changing`], where this process may be no client.
#[inline]
pub fn amid<R>(change: Change, work: impl FnOnce() -> R) -> R {
    match process::client() {
        Some(client) => changing(client, change, work),
        None => work(),
    }
}

/// Makes a call that makes a new file or fails, and gives the device on which it made one: the
/// file is pending before it is there. When it was noted.
#[inline]
pub fn making<R>(client: &Client, make: impl FnOnce() -> (R, Option<u64>)) -> (R, Option<Epoch>) {
    critical::section(|| client.making(own_thread(), make))
}
