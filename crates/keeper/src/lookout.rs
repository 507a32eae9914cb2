//! The lookout: notices what outsiders do to managed files without opening them. What it does about
//! it is `durable::looks`.
//!
//! The kernel queues a notice (inotify) before the outsider's call returns. There are two queues.
//!
//! In one are names, links and attributes, which are watched all the time. A thread (`listen`)
//! wakes up with each notice and enters it in the ledger ([`Keeper::hear`]). Requests have the same
//! done first if something is to become durable with them. What takes longer, such as the settling
//! of a file, is left to a second thread (`run`).
//!
//! In the other are changes of content. They are heard of while nobody under Holdfast writes to the
//! file in quick succession: else each of the program's own writes would be told, too. Such a file
//! is looked at in steps instead.
//!
//! New files younger than most journals get are not watched yet, but looked at when they are. Must
//! never keep a file's watch beyond its slot, and never wait for a file with a lock of its own
//! held.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_cache::FileRef;
use holdfast_canary::{Canary, on};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::ReadFlags;

use crate::keeper::Keeper;
use crate::watches::{Lookout, STEP, Scope, ring};
use holdfast_disk::OsFile;
use holdfast_disk::locked;
use holdfast_durable::{ManagedFile, Tale};

/// Looks take at most one part in so many of a processor's time.
const STEP_SHARE: u32 = 30;

/// Hears what others do until the keeper stops.
pub(crate) fn listen(keeper: &Keeper, lookout: &Lookout) {
    while !keeper.is_stopping() {
        let mut fds = [PollFd::new(&lookout.marks, PollFlags::IN), PollFd::new(&lookout.end, PollFlags::IN)];
        if poll(&mut fds, None).is_err() {
            std::thread::sleep(Duration::from_micros(100));
        }
        if !fds[0].revents().is_empty() {
            keeper.hear(Scope::Told);
        }
    }
}

/// Sees to what was heard until the keeper stops.
pub(crate) fn run(keeper: &Arc<Keeper>, lookout: &Lookout) {
    let mut next_step = Instant::now();
    let mut grown = next_step;
    while !keeper.is_stopping() {
        let patience = lookout
            .patience(next_step, grown)
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        let mut fds =
            [PollFd::new(&lookout.content, PollFlags::IN), PollFd::new(&lookout.bell, PollFlags::IN)];
        if poll(&mut fds, patience.as_ref()).is_err() {
            // A signal, or no memory: it is tried again.
            std::thread::sleep(Duration::from_micros(100));
        }
        let [queued, rung] = [!fds[0].revents().is_empty(), !fds[1].revents().is_empty()];
        if rung {
            let _ = rustix::io::read(&lookout.bell, &mut [0u8; 8]);
            let heard = std::mem::take(&mut locked(&lookout.inner).heard);
            heard.into_iter().for_each(|(place, events)| see(keeper, lookout, place, events));
        }
        if queued {
            let told = lookout.read(&lookout.content, |inner| &mut inner.by_content);
            match told {
                Some(told) => {
                    told.into_iter().for_each(|(place, events)| see(keeper, lookout, place, events))
                }
                None => {
                    keeper.durable.managed().iter().for_each(|file| look(keeper, file, ReadFlags::empty()))
                }
            }
        }
        let now = Instant::now();
        for place in lookout.grown(now) {
            grown = now;
            // Of a file that is gone by then nothing is live.
            let state = keeper.durable.board.row(place.slot).state();
            with_file(keeper, place, |file| {
                if state.is_orphan() {
                    return;
                }
                lookout.watch_marks(file);
                // What came before its watch is told by a look.
                keeper.durable.hear(file, Tale::default());
                keeper.durable.end_looks(file);
                lookout.watch_content(file, false);
                look(keeper, file, ReadFlags::MOVE_SELF);
            });
        }
        lookout.sweep_above(&keeper.durable);
        if now >= next_step {
            step(keeper, lookout);
            next_step = now + STEP.max(now.elapsed() * STEP_SHARE);
        }
    }
}

/// Sees to what was told of a file.
fn see(keeper: &Keeper, lookout: &Lookout, place: FileRef, events: ReadFlags) {
    with_file(keeper, place, |file| {
        look(keeper, file, events);
        if events.intersects(ReadFlags::ATTRIB | ReadFlags::MOVE_SELF) {
            lookout.watch_above(file);
        }
        if events.contains(ReadFlags::MODIFY) && lookout.changes_often(place) {
            lookout.watch_content(file, true);
            look(keeper, file, ReadFlags::empty());
        }
    });
}

/// Looks at the files that are being written; has the content of those watched that are no more.
fn step(keeper: &Arc<Keeper>, lookout: &Lookout) {
    for (place, seen) in lookout.stepped() {
        let row = keeper.durable.board.row(place.slot);
        let newest_seq = row.newest_seq();
        let found = with_file(keeper, place, |file| {
            if newest_seq == seen {
                // Before the look: what comes between is told.
                lookout.watch_content(file, false);
            } else if let Some(watch) = locked(&lookout.inner).by_place.get_mut(&place) {
                watch.newest_seq = newest_seq;
            }
            look(keeper, file, ReadFlags::empty());
        });
        if found.is_none() {
            lookout.remove(place);
        }
    }
}

fn with_file(keeper: &Keeper, place: FileRef, act: impl FnOnce(&ManagedFile<OsFile>)) -> Option<()> {
    let file = keeper.durable.file(place)?;
    act(&file);
    // It may have been given back meanwhile, before its watch was there to be taken away.
    if keeper.durable.file(place).is_none() {
        keeper.notes.lookout.get()?.remove(place);
    }
    Some(())
}

fn look(keeper: &Keeper, file: &ManagedFile<OsFile>, events: ReadFlags) {
    let durable = &keeper.durable;
    let moved = if events.contains(ReadFlags::MOVE_SELF) { durable.look_at_name(file) } else { Ok(()) };
    // The bug is in every look: one that a busy machine puts off till behind a cut would hear of
    // it.
    let look = || if on(Canary::CutUnheard) { Ok(()) } else { durable.look(file, true) };
    if let Err(error) = moved.and_then(|()| look()) {
        let path = file.meta().path.display().to_string();
        keeper.notes.once(format!("{path}: a process outside of Holdfast changed it: {error}"));
    }
}

impl Keeper {
    /// The log stands for the file of a slot: others are watched from now on.
    pub(crate) fn look_out_for(&self, place: FileRef) {
        let Some(lookout) = self.notes.lookout.get() else { return };
        if let Some(file) = self.durable.file(place).filter(|file| file.fenced) {
            lookout.add(&file);
            self.durable.begin_looks(&file);
        }
    }

    /// Enters in the ledger what outsiders did to names, links and attributes of managed files
    /// before this was called; of new files what a look tells. Waits for no file: who keeps one
    /// from its writers may call it.
    pub(crate) fn hear(&self, scope: Scope) {
        let Some(lookout) = self.notes.lookout.get() else { return };
        if scope == Scope::All {
            // What the disk is about to have bears no later time, but for what is done meanwhile.
            self.durable.beat();
        }
        let _turn = locked(&lookout.turn);
        let marks = lookout.read(&lookout.marks, |inner| &mut inner.by_marks).unwrap_or_else(|| {
            let lost = ReadFlags::ATTRIB | ReadFlags::MOVE_SELF;
            self.durable.managed().iter().map(|file| (file.place(), lost)).collect()
        });
        let tale_of = |events: ReadFlags| Tale {
            of_attributes: events.contains(ReadFlags::ATTRIB),
            of_name: events.contains(ReadFlags::MOVE_SELF),
            of_content: false,
        };
        let told = marks.into_iter().map(|(place, events)| (place, (events, tale_of(events))));
        let mut told: HashMap<FileRef, (ReadFlags, Tale)> = told.collect();
        lookout.add_moved(&self.durable, &mut told);
        lookout.add_unwatched(scope, &mut told);
        let mut unseen = Vec::new();
        for (place, (events, tale)) in told {
            let Some(file) = self.durable.file(place) else { continue };
            if self.durable.hear(&file, tale) || !events.is_empty() {
                unseen.push((place, events));
            }
        }
        if unseen.is_empty() {
            return;
        }
        let mut inner = locked(&lookout.inner);
        for (place, events) in unseen {
            inner.heard.entry(place).or_insert(ReadFlags::empty()).insert(events);
        }
        drop(inner);
        ring(&lookout.bell);
    }
}
