//! Taking the library out of a process that is about to give up rights: a filter of system calls,
//! another user, fewer capabilities, Landlock, a user namespace, another root directory.
//!
//! Nothing of ours may be killed or refused by what the program takes from itself, and nothing of
//! before may be reachable afterwards. So all of it happens before the program's call: other
//! threads leave the hooks, files are settled and left to the kernel, handlers are the program's
//! again, libc's functions are whole again, exported names lead to them, and the pool is unmapped.
//! A call that the kernel then refuses has cost the program no more than its absorption.
#![allow(unsafe_code)] // Arrays of C strings.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use holdfast_cache::{Client, Reason, Unseen};
use holdfast_canary::{Canary, on};

use crate::descriptions::{DSYNC, Description, SYNC, State};
use crate::raw::{self, call};
use crate::{
    critical, fds, gate, golang, inherit, locks, own_process, patch, process, reopen, signals, tls, uncovered,
};

/// What this process starts could not live with the library.
static STRIPS: AtomicBool = AtomicBool::new(false);

/// Gives the exported names back to libc, whose own functions are whole again, or not. Hooks do it,
/// which are above this.
pub type GiveNamesBack = fn(is_libc_whole: bool);

/// Null before the start, when nobody knows yet where libc's own functions are.
static GIVE_NAMES_BACK: AtomicPtr<GiveNamesBack> = AtomicPtr::new(core::ptr::null_mut());

/// Tells how names are given back. Only the constructor calls it.
pub fn set_give_names_back(function: &'static GiveNamesBack) {
    GIVE_NAMES_BACK.store(core::ptr::from_ref(function).cast_mut(), Ordering::Release);
}

fn give_names_back(is_libc_whole: bool) {
    // SAFETY: null, or what was set, which lives for ever.
    if let Some(function) = unsafe { GIVE_NAMES_BACK.load(Ordering::Acquire).as_ref() } {
        function(is_libc_whole);
    }
}

/// What a thread block's `quiet` says: a child in our memory gave up rights.
const QUIET: u32 = 1;
/// And what it starts could not live with the library.
const QUIET_AND_STRIPS: u32 = 2;

/// Whether a program that is started under this could not be a client, nor be one that is turned
/// away: what the library does then would be killed, or its file not be found.
fn outlives_exec(why: Unseen) -> bool {
    matches!(why, Unseen::Filter | Unseen::Landlock | Unseen::Namespace | Unseen::RootWithout)
}

/// Takes the library out of this process, which is about to give up rights.
#[cold]
pub fn part(why: Unseen) {
    if own_process::runs_in_parents_memory() {
        if let Some(client) = process::parents_client() {
            // What it starts has no way to tell the keeper, or may have none.
            client.note_unseen_child(why);
        }
        // The memory is the parent's, and so is all that is in it.
        let quiet = if outlives_exec(why) { QUIET_AND_STRIPS } else { QUIET };
        tls::with(|thread| thread.quiet.set(thread.quiet.get().max(quiet)));
        return;
    }
    if gate::is_open() {
        // No handler may run half way.
        let mask = raw::block_signals();
        if gate::close() {
            part_behind_gate(why);
        }
        raw::restore_signals(mask);
    }
    if outlives_exec(why) && !STRIPS.swap(true, Ordering::SeqCst) {
        inherit::strip_own();
    }
}

fn part_behind_gate(why: Unseen) {
    let all_out = gate::others_have_left();
    if let Some(client) = process::client() {
        settle(client, why);
    }
    signals::give_back();
    golang::release();
    let whole = patch::unpatch();
    give_names_back(whole);
    process::detach(all_out);
    gate::open_to_libc();
}

/// Nothing that was acknowledged depends on this process any more, and nothing that it does from
/// now on is covered by an older record.
fn settle(client: &'static Client, why: Unseen) {
    if !on(Canary::PartedUnsettled) {
        uncovered::leave_all_to_kernel(Reason::GaveUp, why);
        if !client.hears_opens() {
            // What it has closed and opens again is nobody's to tell.
            critical::section(|| client.settle_all());
        }
    }
    for (fd, description) in fds::described(0, c_int::MAX) {
        if let State::Managed(file) = description.state()
            && client.is_managed(file)
            && !on(Canary::PartedUnsettled)
        {
            // The keeper is dead, or the disk refuses the data: what recovery will write over must
            // not be written to, as before.
            reopen::close_to_writes(fd);
        } else if description.flags() & DSYNC != 0 {
            restore_sync(fd, description);
        }
    }
}

/// Gives a description the flags that the program asked for, once for all of its numbers.
fn restore_sync(fd: c_int, description: &'static Description) {
    let sync = if description.flags() & SYNC != 0 { libc::O_SYNC } else { libc::O_DSYNC };
    // A lock of the program's would end with the description.
    if locks::reopening(fd, || reopen::restore_sync(fd, sync)) != Some(true) {
        return;
    }
    description.remove_flags(DSYNC | SYNC);
    for (other, of) in fds::described(0, c_int::MAX) {
        if other != fd && core::ptr::eq(of, description) {
            let close_on_exec = raw::fcntl(other, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize != 0;
            let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
            // SAFETY: touches no memory.
            unsafe { call!(libc::SYS_dup3, fd, other, flags) };
        }
    }
}

/// Whether what is started now goes without the library.
pub fn strips() -> bool {
    STRIPS.load(Ordering::Relaxed)
        || own_process::runs_in_parents_memory() && tls::with(|thread| thread.quiet.get() == QUIET_AND_STRIPS)
}

/// Starts a program with the environment that it shall have, of which the library is no part. Has a
/// large frame.
///
/// # Safety
/// `environment` is the one that the program passes on.
#[cold]
#[inline(never)]
pub unsafe fn without_library<R>(
    environment: *const *const c_char,
    start: impl FnOnce(*const *const c_char) -> R,
) -> R {
    let mut room = inherit::Stripped::new();
    // SAFETY: the caller's promise.
    let stripped = if environment.is_null() { None } else { unsafe { room.strip(environment) } };
    start(stripped.unwrap_or(environment))
}
