//! The lookout: notices what outsiders do to managed files without opening them. What it does about
//! it is `durable::looks`.
//!
//! The kernel queues a notice (inotify) before the outsider's call returns, and a thread here wakes
//! up at once. Names, links and modes are watched all the time. Changes of content are heard of
//! while nobody under Holdfast writes to the file in quick succession: else each of the program's
//! own writes would be told, too. Such a file is looked at in steps instead.
//!
//! Files younger than most journals get are not watched yet, but looked at when they are. Must
//! never keep a file's watch beyond its slot, and never wait for a file with its own lock held.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdfast_board::FileState;
use holdfast_canary::{Canary, on};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::disk::OsFile;
use crate::durable::{ManagedFile, locked};
use crate::keeper::Keeper;

/// Most journals and messages are gone, or have their last name, by then. Files come of age
/// together with those of as long afterwards.
const YOUTH: Duration = Duration::from_millis(2);
/// How often a file is looked at that is being written, and after how long without a write it is at
/// rest.
const STEP: Duration = Duration::from_millis(10);
/// Notices of changed content within a step, after which a file counts as being written.
const NOTICES_MAX: u32 = 8;
/// Looks take at most one part in so many of a processor's time.
const STEP_SHARE: u32 = 30;
const BUFFER_BYTES: usize = 16 * 1024;

/// A slot and its generation.
type Place = (u32, u64);

/// A file that is watched.
struct Watch {
    number: i32,
    /// Its newest seq at the last step.
    newest_seq: u64,
    /// When the last step began in which its content was told to have changed, and how often it was
    /// since.
    noticed: (Instant, u32),
    /// Looked at in steps; else its content is watched.
    steps: bool,
}

#[derive(Default)]
struct Inner {
    young: VecDeque<(Place, Instant)>,
    by_place: HashMap<Place, Watch>,
    by_number: HashMap<i32, Place>,
    /// The thread sleeps without a limit.
    idle: bool,
}

/// Watches of managed files.
pub(crate) struct Lookout {
    queue: OwnedFd,
    bell: OwnedFd,
    inner: Mutex<Inner>,
}

impl Lookout {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            inner: Mutex::default(),
        })
    }

    /// Has the thread look at something, or at whether it is to end.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The log stands for a file from now on.
    pub(crate) fn add(&self, place: Place) {
        let mut inner = locked(&self.inner);
        if inner.by_place.contains_key(&place) {
            return;
        }
        inner.young.push_back((place, Instant::now() + YOUTH));
        let was_idle = std::mem::replace(&mut inner.idle, false);
        drop(inner);
        if was_idle {
            self.ring();
        }
    }

    /// The slot of a file was given back.
    pub(crate) fn remove(&self, place: Place) {
        let mut inner = locked(&self.inner);
        if let Some(watch) = inner.by_place.remove(&place) {
            inner.by_number.remove(&watch.number);
            drop(inner);
            let _ = inotify::remove_watch(&self.queue, watch.number);
        }
    }

    /// Watches a file, its content only when it is not looked at in steps.
    fn watch(&self, file: &ManagedFile<OsFile>, steps: bool) {
        let mut mask = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF;
        if !steps && !on(Canary::CutUnheard) {
            mask |= WatchFlags::MODIFY;
        }
        let place = (file.slot, file.generation);
        // Under the lock, so that nobody meets a number that is not entered yet. Without a watch it
        // is looked at in steps for ever.
        let mut inner = locked(&self.inner);
        let number = inotify::add_watch(&self.queue, file.held().magic_path(), mask);
        let steps = steps || number.is_err();
        let number = number.unwrap_or(-1);
        if number >= 0 {
            inner.by_number.insert(number, place);
        }
        let newest_seq = inner.by_place.get(&place).map_or(0, |watch| watch.newest_seq);
        inner.by_place.insert(place, Watch { number, newest_seq, noticed: (Instant::now(), 0), steps });
    }

    /// Whether the content of a file changes so often that it is rather looked at in steps.
    fn changes_often(&self, place: Place) -> bool {
        let mut inner = locked(&self.inner);
        let Some(watch) = inner.by_place.get_mut(&place) else { return false };
        let now = Instant::now();
        if now - watch.noticed.0 > STEP {
            watch.noticed = (now, 0);
        }
        watch.noticed.1 += 1;
        watch.noticed.1 > NOTICES_MAX
    }

    /// Files that were young and are no more.
    fn grown(&self, now: Instant) -> Vec<Place> {
        let mut inner = locked(&self.inner);
        let count = inner.young.iter().take_while(|(_, at)| *at <= now).count();
        inner.young.drain(..count).map(|(place, _)| place).collect()
    }

    fn stepped(&self) -> Vec<(Place, u64)> {
        let inner = locked(&self.inner);
        let stepped = inner.by_place.iter().filter(|(_, watch)| watch.steps);
        stepped.map(|(place, watch)| (*place, watch.newest_seq)).collect()
    }

    /// Until something is due, if files came of age last at `grown`; `None`: for ever, which is
    /// noted.
    fn patience(&self, next_step: Instant, grown: Instant) -> Option<Duration> {
        let mut inner = locked(&self.inner);
        let stepped = inner.by_place.values().any(|watch| watch.steps).then_some(next_step);
        let grown = inner.young.front().map(|(_, at)| (*at).max(grown + YOUTH));
        let next = stepped.into_iter().chain(grown).min();
        inner.idle = next.is_none();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// What was noticed, by file; `None`: notices were lost.
    fn take_notices(&self) -> Option<HashMap<Place, ReadFlags>> {
        let mut noticed: HashMap<Place, ReadFlags> = HashMap::new();
        let mut buffer = [MaybeUninit::<u8>::uninit(); BUFFER_BYTES];
        let mut reader = Reader::new(&self.queue, &mut buffer);
        while let Ok(event) = reader.next() {
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                return None;
            }
            let number = event.wd();
            let mut inner = locked(&self.inner);
            if event.events().contains(ReadFlags::IGNORED) {
                inner.by_number.remove(&number);
            } else if let Some(place) = inner.by_number.get(&number) {
                noticed.entry(*place).or_insert(ReadFlags::empty()).insert(event.events());
            }
        }
        Some(noticed)
    }
}

/// Runs until the keeper stops.
pub(crate) fn run(keeper: &Arc<Keeper>, lookout: &Lookout) {
    let mut next_step = Instant::now();
    let mut grown = next_step;
    while !keeper.is_stopping() {
        let patience = lookout
            .patience(next_step, grown)
            .map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
        let mut fds = [PollFd::new(&lookout.queue, PollFlags::IN), PollFd::new(&lookout.bell, PollFlags::IN)];
        if poll(&mut fds, patience.as_ref()).is_err() {
            // A signal, or no memory: it is tried again.
            std::thread::sleep(Duration::from_micros(100));
        }
        let [queued, rung] = [!fds[0].revents().is_empty(), !fds[1].revents().is_empty()];
        if rung {
            let _ = rustix::io::read(&lookout.bell, &mut [0u8; 8]);
        }
        if queued {
            see(keeper, lookout);
        }
        let now = Instant::now();
        for place in lookout.grown(now) {
            grown = now;
            // Of a file that is gone by then nothing is live.
            let state = keeper.durable.board.files()[place.0 as usize].state();
            with_file(keeper, place, |file| {
                if state == FileState::Orphan {
                    return;
                }
                lookout.watch(file, false);
                look(keeper, file, ReadFlags::MOVE_SELF);
            });
        }
        if now >= next_step {
            step(keeper, lookout);
            next_step = now + STEP.max(now.elapsed() * STEP_SHARE);
        }
    }
}

/// Sees to what was noticed.
fn see(keeper: &Arc<Keeper>, lookout: &Lookout) {
    let Some(noticed) = lookout.take_notices() else {
        for file in keeper.durable.managed() {
            look(keeper, &file, ReadFlags::MOVE_SELF);
        }
        return;
    };
    for (place, events) in noticed {
        with_file(keeper, place, |file| {
            look(keeper, file, events);
            if events.contains(ReadFlags::MODIFY) && lookout.changes_often(place) {
                lookout.watch(file, true);
                look(keeper, file, ReadFlags::empty());
            }
        });
    }
}

/// Looks at the files that are being written; has the content of those watched that are no more.
fn step(keeper: &Arc<Keeper>, lookout: &Lookout) {
    for (place, seen) in lookout.stepped() {
        let row = &keeper.durable.board.files()[place.0 as usize];
        let newest_seq = row.newest_seq.load(Ordering::SeqCst);
        let found = with_file(keeper, place, |file| {
            if newest_seq == seen {
                // Before the look: what comes between is told.
                lookout.watch(file, false);
            } else if let Some(watch) = locked(&lookout.inner).by_place.get_mut(&place) {
                watch.newest_seq = newest_seq;
            }
            if !on(Canary::CutUnheard) {
                look(keeper, file, ReadFlags::empty());
            }
        });
        if found.is_none() {
            lookout.remove(place);
        }
    }
}

fn with_file(
    keeper: &Keeper,
    (slot, generation): Place,
    act: impl FnOnce(&ManagedFile<OsFile>),
) -> Option<()> {
    let file = keeper.durable.file(u64::from(slot), generation)?;
    act(&file);
    // It may have been given back meanwhile, before its watch was there to be taken away.
    if keeper.durable.file(u64::from(slot), generation).is_none() {
        keeper.notes.lookout.get()?.remove((slot, generation));
    }
    Some(())
}

fn look(keeper: &Keeper, file: &ManagedFile<OsFile>, events: ReadFlags) {
    let durable = &keeper.durable;
    let moved = if events.contains(ReadFlags::MOVE_SELF) { durable.look_at_name(file) } else { Ok(()) };
    if let Err(error) = moved.and_then(|()| durable.look(file, true)) {
        let path = file.meta().path.display().to_string();
        keeper.notes.once(format!("{path}: a process outside of Holdfast changed it: {error}"));
    }
}

impl Keeper {
    /// The log stands for the file of a slot: others are watched from now on.
    pub(crate) fn look_out_for(&self, slot: u32, generation: u64) {
        let Some(lookout) = self.notes.lookout.get() else { return };
        if self.durable.file(u64::from(slot), generation).is_some_and(|file| file.fenced) {
            lookout.add((slot, generation));
        }
    }
}
