//! The stage on which a history plays: points at which the power may fail or another thread may go
//! on, and the recorder that keeps what the machine was at each of them.
//!
//! Everything here belongs to one thread of the simulator, which plays one history at a time.
#![allow(unsafe_code)] // Coroutines find the way back to their scheduler through a pointer.

use std::cell::{Cell, RefCell};
use std::ptr;

use corosensei::Yielder;

use crate::disk::{DiskState, SimDisk};
use crate::model::Model;
use crate::nvm::{NvmState, SimNvm};

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

/// The machine at one point, and what must be true if the power fails there.
#[derive(Clone)]
pub struct Snapshot {
    /// NVM.
    pub nvm: NvmState,
    /// Disk.
    pub disk: DiskState,
    /// What was acknowledged.
    pub model: Model,
    /// What was about to happen.
    pub kind: Kind,
}

/// Keeps snapshots.
struct Recorder {
    nvm: SimNvm,
    disk: SimDisk,
    last: Option<(u64, u64, u64)>,
    taken: Vec<Snapshot>,
}

/// Points that a step of a history, or a recovery, passes at most: a thousand times what the
/// longest ones pass. More never end.
const POINTS_MAX: u64 = 1 << 16;

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
    static MODEL: RefCell<Model> = RefCell::new(Model::default());
    static WANTED: Cell<bool> = const { Cell::new(false) };
    static YIELDER: Cell<*const Yielder<(), Pause>> = const { Cell::new(ptr::null()) };
    static ROLE: Cell<Role> = const { Cell::new(Role::Extra) };
    static POINTS: Cell<usize> = const { Cell::new(0) };
    static INTERRUPT_AT: Cell<usize> = const { Cell::new(usize::MAX) };
    static EVENTS: Cell<u64> = const { Cell::new(0) };
    static EVENTS_MAX: Cell<u64> = const { Cell::new(u64::MAX) };
    static FINE: Cell<bool> = const { Cell::new(false) };
    static WRONG: RefCell<Option<String>> = const { RefCell::new(None) };
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

/// Lets `with` look at or change what must be true.
pub fn model<T>(with: impl FnOnce(&mut Model) -> T) -> T {
    MODEL.with_borrow_mut(with)
}

/// Begins to record.
pub fn record(nvm: &SimNvm, disk: &SimDisk) {
    let recorder = Recorder { nvm: nvm.clone(), disk: disk.clone(), last: None, taken: Vec::new() };
    RECORDER.set(Some(recorder));
}

/// The recovery that begins next is recorded: [`attach`] tells on what it works.
pub fn record_next() {
    WANTED.set(true);
}

/// Recovery works on these from now on.
pub fn attach(nvm: &SimNvm, disk: &SimDisk) {
    if WANTED.take() {
        record(nvm, disk);
    }
}

/// Ends recording and gives what was recorded.
pub fn recorded() -> Vec<Snapshot> {
    RECORDER.take().map_or_else(Vec::new, |recorder| recorder.taken)
}

/// Whether a process is interrupted also where only the board changes between its stores and its
/// reads (state Behind).
pub fn set_fine(fine: bool) {
    FINE.set(fine);
}

/// Notes that a program saw what it must not.
pub fn complain(what: String) {
    WRONG.with_borrow_mut(|wrong| _ = wrong.get_or_insert(what));
}

/// What was noted since the last call.
pub fn complaint() -> Option<String> {
    WRONG.take()
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
        RECORDER.with_borrow_mut(|recorder| {
            if let Some(recorder) = recorder {
                recorder.observe(kind);
            }
        });
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

impl Recorder {
    fn observe(&mut self, kind: Kind) {
        let versions = (self.nvm.state().version, self.disk.state().version, model(|model| model.version));
        if self.last == Some(versions) {
            return;
        }
        self.last = Some(versions);
        self.taken.push(Snapshot {
            nvm: self.nvm.state().clone(),
            disk: self.disk.state().clone(),
            model: model(|model| model.clone()),
            kind,
        });
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
