//! What the fence is told within a deadline, although it takes longer: a process that is stopped in
//! the middle of a write keeps everybody from its file, and must not keep outsiders from it for
//! ever.
//!
//! What is late is done all the same, on a thread of its own, and so is what comes after it about
//! the same file, in order. Must never have two of these at work on one file.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_cache::FileRef;
use holdfast_canary::{Canary, on};

use holdfast_disk::locked;

/// How long an outsider's open waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What an outsider that may write did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Arrived,
    Left,
}

/// What is not done yet.
#[derive(Default)]
pub(crate) struct Late {
    /// The first of each is at work.
    changes: Mutex<HashMap<FileRef, VecDeque<Change>>>,
    /// Files that are being shown to readers, and whether that is late: then nobody waits for it.
    readers: Mutex<HashMap<FileRef, bool>>,
}

impl Late {
    /// Has `act` do what follows from a change. False when that is not done in time.
    pub(crate) fn change(
        self: &Arc<Self>,
        place: FileRef,
        change: Change,
        act: impl Fn(Change) + Send + 'static,
    ) -> bool {
        {
            let mut changes = locked(&self.changes);
            if let Some(waiting) = changes.get_mut(&place) {
                // Who has left and is back has never been away; the first one is at work already.
                if change == Change::Arrived && waiting.len() > 1 && waiting.back() == Some(&Change::Left) {
                    waiting.pop_back();
                } else {
                    waiting.push_back(change);
                }
                return false;
            }
            changes.insert(place, VecDeque::from([change]));
        }
        let late = Arc::clone(self);
        let in_time = in_time(move |done| late.work(place, &act, done));
        if in_time.is_none() {
            locked(&self.changes).remove(&place);
        }
        in_time == Some(true)
    }

    fn work(&self, place: FileRef, act: &dyn Fn(Change), done: impl FnOnce()) {
        let mut done = Some(done);
        let mut next = locked(&self.changes).get(&place).and_then(|waiting| waiting.front().copied());
        while let Some(change) = next {
            act(change);
            {
                let mut changes = locked(&self.changes);
                let waiting = changes.get_mut(&place);
                next = waiting.and_then(|waiting| {
                    waiting.pop_front();
                    waiting.front().copied()
                });
                if next.is_none() {
                    changes.remove(&place);
                }
            }
            if let Some(done) = done.take() {
                done();
            }
        }
    }

    /// Has `act` show readers everything. False when that is not done in time; who comes while it
    /// is not does not wait.
    pub(crate) fn show(self: &Arc<Self>, place: FileRef, act: impl FnOnce() + Send + 'static) -> bool {
        if *locked(&self.readers).entry(place).or_insert(false) {
            return false;
        }
        let late = Arc::clone(self);
        let shown = in_time(move |done| {
            act();
            locked(&late.readers).remove(&place);
            done();
        });
        if shown != Some(true)
            && let Some(is_late) = locked(&self.readers).get_mut(&place)
        {
            *is_late = shown.is_some();
        }
        shown == Some(true)
    }
}

/// Starts work on a thread of its own and waits for it, or for as long as an open may wait. `None`
/// when there is no thread to be had.
fn in_time(work: impl FnOnce(Box<dyn FnOnce() + Send>) + Send + 'static) -> Option<bool> {
    let (done, is_done) = channel();
    let done = Box::new(move || _ = done.send(()));
    std::thread::Builder::new().name("outsider".to_owned()).spawn(move || work(done)).ok()?;
    let patience = if on(Canary::StoppedWaitedFor) { Duration::from_secs(3600) } else { PATIENCE };
    Some(is_done.recv_timeout(patience).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_pool::{Generation, Slot};
    use std::sync::mpsc::{Receiver, Sender};

    /// Work that goes on when it is told to, and tells what it has done.
    fn stubborn(told: Sender<Change>, go_on: Receiver<()>) -> impl Fn(Change) + Send + 'static {
        let go_on = Mutex::new(go_on);
        move |change| {
            locked(&go_on).recv().unwrap();
            told.send(change).unwrap();
        }
    }

    #[test]
    fn what_is_late_is_done_in_order_and_what_cancels_out_is_not() {
        let late = Arc::new(Late::default());
        let (told, tells) = channel();
        let (go_on, goes) = channel();
        let place = FileRef { slot: Slot::new(3), generation: Generation::new(4) };
        assert!(!late.change(place, Change::Arrived, stubborn(told, goes)));
        let never = |change| panic!("{change:?} by another thread");
        assert!(!late.change(place, Change::Left, never));
        assert!(!late.change(place, Change::Arrived, never));
        assert!(!late.change(place, Change::Left, never));
        // Another file is not concerned.
        assert!(late.change(
            FileRef { slot: Slot::new(3), generation: Generation::new(5) },
            Change::Arrived,
            |_| {}
        ));
        for expected in [Change::Arrived, Change::Left] {
            go_on.send(()).unwrap();
            assert_eq!(tells.recv(), Ok(expected));
        }
        while locked(&late.changes).contains_key(&place) {
            std::thread::yield_now();
        }
        assert!(tells.recv().is_err(), "and that was all");
        assert!(late.change(place, Change::Arrived, |_| {}));
    }

    #[test]
    fn readers_wait_once() {
        let late = Arc::new(Late::default());
        let (go_on, goes) = channel::<()>();
        let shown = FileRef { slot: Slot::new(1), generation: Generation::new(2) };
        assert!(!late.show(shown, move || goes.recv().unwrap()));
        assert!(!late.show(shown, || panic!("it is being shown")));
        go_on.send(()).unwrap();
        while locked(&late.readers).contains_key(&shown) {
            std::thread::yield_now();
        }
        assert!(late.show(shown, || {}));
    }
}
