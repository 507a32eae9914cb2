//! What is known of the history that plays: the model of what must be true, the machine at each
//! point of the stage, and what programs saw that they must not.
//!
//! Like the stage, everything here belongs to one thread of the simulator. It looks on, and must
//! never change the machine.

use std::cell::{Cell, RefCell};

use crate::disk::{DiskState, SimDisk};
use crate::model::Model;
use crate::nvm::{NvmState, SimNvm};
use crate::stage::{self, Kind};

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

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
    static MODEL: RefCell<Model> = RefCell::new(Model::default());
    static WANTED: Cell<bool> = const { Cell::new(false) };
    static WRONG: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Lets `with` look at or change what must be true.
pub fn model<T>(with: impl FnOnce(&mut Model) -> T) -> T {
    MODEL.with_borrow_mut(with)
}

/// Begins to record.
pub fn record(nvm: &SimNvm, disk: &SimDisk) {
    let recorder = Recorder { nvm: nvm.clone(), disk: disk.clone(), last: None, taken: Vec::new() };
    RECORDER.set(Some(recorder));
    stage::set_watcher(Some(observe));
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
    stage::set_watcher(None);
    RECORDER.take().map_or_else(Vec::new, |recorder| recorder.taken)
}

/// Notes that a program saw what it must not.
pub fn complain(what: String) {
    WRONG.with_borrow_mut(|wrong| _ = wrong.get_or_insert(what));
}

/// What was noted since the last call.
pub fn complaint() -> Option<String> {
    WRONG.take()
}

/// A point of the stage is passed.
fn observe(kind: Kind) {
    RECORDER.with_borrow_mut(|recorder| recorder.iter_mut().for_each(|recorder| recorder.observe(kind)));
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
