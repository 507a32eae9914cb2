//! The stage on which a history plays: points at which the power may fail or another thread may go
//! on. NVM and disk announce theirs here, so it knows neither of them; whoever wants to know what
//! the machine is at each point ([`crate::recorder`]) has itself called.
//!
//! Everything here belongs to one thread of the simulator, which plays one history at a time.
#![allow(unsafe_code)] // Coroutines find the way back to their scheduler through a pointer.

use std::cell::Cell;
use std::ptr;

use corosensei::Yielder;

/// What is about to happen, or has just happened, at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A store to NVM is about to be made.
    Store,
    /// A fence is about to be made.
    Fence,
    /// A fence was made.
    Fenced,
    /// A client is about to read NVM.
    Load,
    /// A change of the file system is about to be made or was made.
    Disk,
    /// The keeper is about to write to a file.
    FileWrite,
    /// A sync of a file is about to be made or was made.
    FileSync,
    /// The program's own system call is about to be made or was made.
    Raw,
    /// An operation was acknowledged.
    Acknowledged,
    /// A step of the history is over.
    Step,
}

/// Why an actor gave way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It waits for somebody.
    Blocked,
    /// The point at which it was to be interrupted has come.
    Interrupted,
    /// So much has happened that it will never end.
    Endless,
}

/// Points that a step of a history, or a recovery, passes at most: a thousand times what the
/// longest ones pass. More never end.
const POINTS_MAX: u64 = 1 << 16;

thread_local! {
    static YIELDER: Cell<*const Yielder<(), Pause>> = const { Cell::new(ptr::null()) };
    static ROLE: Cell<Role> = const { Cell::new(Role::Extra) };
    static POINTS: Cell<usize> = const { Cell::new(0) };
    static INTERRUPT_AT: Cell<usize> = const { Cell::new(usize::MAX) };
    static EVENTS: Cell<u64> = const { Cell::new(0) };
    static EVENTS_MAX: Cell<u64> = const { Cell::new(u64::MAX) };
    static WATCHER: Cell<Option<fn(Kind)>> = const { Cell::new(None) };
    static FINE: Cell<bool> = const { Cell::new(false) };
}

/// Whose points count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client that may be interrupted anywhere.
    Client,
    /// The keeper: it holds locks of its own process and gives way only around syncs of files, and
    /// before it writes to one.
    Keeper,
    /// Somebody who is not interrupted.
    Extra,
}

/// Whether a process is interrupted also where only the board changes between its stores and its
/// reads (state Behind).
pub fn set_fine(fine: bool) {
    FINE.set(fine);
}

/// Has this function called at each point at which something durable may have changed, or nobody.
pub fn set_watcher(watcher: Option<fn(Kind)>) {
    WATCHER.set(watcher);
}

/// The power may fail here, and others may go on.
pub fn point(kind: Kind) {
    if matches!(kind, Kind::Load | Kind::Fenced) && (!FINE.get() || ROLE.get() != Role::Client) {
        return;
    }
    EVENTS.set(EVENTS.get() + 1);
    if EVENTS.get() > EVENTS_MAX.get() {
        // Whoever plays it does not come back to it.
        let ended = pause(Pause::Endless);
        panic!("a recovery never ends (ended: {ended})");
    }
    if !matches!(kind, Kind::Store | Kind::Load) {
        WATCHER.get().into_iter().for_each(|watcher| watcher(kind));
    }
    let counts = match ROLE.get() {
        Role::Client => true,
        Role::Keeper => matches!(kind, Kind::FileSync | Kind::FileWrite),
        Role::Extra => false,
    };
    if counts && !YIELDER.get().is_null() {
        POINTS.set(POINTS.get() + 1);
        if POINTS.get() == INTERRUPT_AT.get() {
            pause(Pause::Interrupted);
        }
    }
}

/// Gives way to the scheduler; does nothing outside of an actor.
pub fn pause(why: Pause) -> bool {
    let yielder = YIELDER.get();
    if yielder.is_null() {
        return false;
    }
    let role = ROLE.get();
    // SAFETY: `enter` was called by the coroutine that runs now, with its own yielder, which lives
    // as long as the coroutine does; the scheduler clears the pointer whenever no coroutine runs.
    unsafe { (*yielder).suspend(why) };
    YIELDER.set(yielder);
    ROLE.set(role);
    true
}

/// What the board calls instead of sleeping.
pub fn sleep() -> bool {
    pause(Pause::Blocked)
}

/// Called first in every coroutine.
pub fn enter(yielder: &Yielder<(), Pause>, role: Role) {
    YIELDER.set(yielder);
    ROLE.set(role);
}

/// Called by the scheduler whenever a coroutine gave way.
pub fn leave() {
    YIELDER.set(ptr::null());
    ROLE.set(Role::Extra);
}

/// A step or a recovery begins: what happens from now on must come to an end.
pub fn begin() {
    EVENTS_MAX.set(EVENTS.get() + POINTS_MAX);
}

/// From now on the points of client or keeper are counted, and it is interrupted at the given one
/// (from 1 on).
pub fn interrupt_at(point: usize) {
    POINTS.set(0);
    INTERRUPT_AT.set(point);
}

/// Points counted since.
pub fn points() -> usize {
    POINTS.get()
}

/// Grows with everything that happens.
pub fn events() -> u64 {
    EVENTS.get()
}
