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

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use holdfast_cache::FileRef;
use holdfast_canary::{Canary, on};
use holdfast_pool::MARK_CREATED;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::above::Above;
use crate::keeper::Keeper;
use holdfast_disk::OsFile;
use holdfast_disk::locked;
use holdfast_durable::{ManagedFile, Tale};

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
/// New files that a directory's sync looks at.
const NEW_MAX: usize = 8;
const BUFFER_BYTES: usize = 16 * 1024;

/// A file that is watched.
#[derive(Clone, Copy)]
struct Watch {
    /// Of its marks; none where the user has no watch left.
    marks: Option<i32>,
    /// Of its content, while that is watched.
    content: Option<i32>,
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
    young: VecDeque<(FileRef, Instant)>,
    by_place: HashMap<FileRef, Watch>,
    by_marks: HashMap<i32, FileRef>,
    by_content: HashMap<i32, FileRef>,
    above: Above,
    /// What was heard, and is to be seen to.
    heard: HashMap<FileRef, ReadFlags>,
    /// The thread sleeps without a limit.
    idle: bool,
}

/// What is heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// What was told of files that are watched.
    Told,
    /// That, and what a look tells of a few new files, which are not watched yet: more of them at a
    /// time are messages or journals of a program in a hurry.
    New,
    /// That, and what a look tells of all files whose marks or content are not watched, or are told
    /// to have changed in content: the disk is about to have what others did.
    All,
}

/// Watches of managed files.
pub(crate) struct Lookout {
    /// Names, links and attributes.
    marks: OwnedFd,
    content: OwnedFd,
    /// Rung for `run`.
    bell: OwnedFd,
    /// Rung once, for the end of `listen`.
    end: OwnedFd,
    /// Who reads `marks` enters what it finds in the ledger before anybody else reads there.
    turn: Mutex<()>,
    inner: Mutex<Inner>,
}

fn read_all(queue: &OwnedFd, mut tell: impl FnMut(i32, ReadFlags)) {
    let mut buffer = [MaybeUninit::<u8>::uninit(); BUFFER_BYTES];
    let mut reader = Reader::new(queue, &mut buffer);
    while let Ok(event) = reader.next() {
        tell(event.wd(), event.events());
    }
}

fn queue() -> io::Result<OwnedFd> {
    Ok(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?)
}

fn bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

impl Lookout {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            marks: queue()?,
            content: queue()?,
            bell: bell()?,
            end: bell()?,
            turn: Mutex::default(),
            inner: Mutex::default(),
        })
    }

    /// Has both threads look whether they are to end.
    pub(crate) fn ring(&self) {
        ring(&self.bell);
        ring(&self.end);
    }

    /// The log stands for a file from now on.
    fn add(&self, file: &ManagedFile<OsFile>) {
        let place = file.place();
        if locked(&self.inner).by_place.contains_key(&place) {
            return;
        }
        if file.meta().marks & MARK_CREATED == 0 {
            self.watch_marks(file);
        }
        let mut inner = locked(&self.inner);
        inner.young.push_back((place, Instant::now() + YOUTH));
        let was_idle = std::mem::replace(&mut inner.idle, false);
        drop(inner);
        if was_idle {
            ring(&self.bell);
        }
    }

    /// The slot of a file was given back.
    pub(crate) fn remove(&self, place: FileRef) {
        let mut inner = locked(&self.inner);
        let Some(watch) = inner.by_place.remove(&place) else { return };
        if let Some(number) = watch.marks {
            inner.by_marks.remove(&number);
            let _ = inotify::remove_watch(&self.marks, number);
        }
        if let Some(number) = watch.content {
            inner.by_content.remove(&number);
            let _ = inotify::remove_watch(&self.content, number);
        }
    }

    /// Watches a file's marks from now on.
    fn watch_marks(&self, file: &ManagedFile<OsFile>) {
        let place = file.place();
        // Under the lock, so that nobody meets a number that is not entered yet.
        let mut inner = locked(&self.inner);
        if inner.by_place.get(&place).is_some_and(|watch| watch.marks.is_some()) {
            return;
        }
        let mask = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF;
        let marks = inotify::add_watch(&self.marks, file.held().magic_path(), mask).ok();
        marks.and_then(|number| inner.by_marks.insert(number, place));
        let noticed = (Instant::now(), 0);
        inner.by_place.insert(place, Watch { marks, content: None, newest_seq: 0, noticed, steps: false });
        drop(inner);
        self.watch_above(file);
    }

    /// Watches the directories above a file.
    fn watch_above(&self, file: &ManagedFile<OsFile>) {
        let path = file.meta().path.clone();
        locked(&self.inner).above.watch(&self.marks, &path, file.dev);
    }

    /// Gives up watches of directories that are of no use any more.
    fn sweep_above(&self, keeper: &Keeper) {
        if !locked(&self.inner).above.is_full() {
            return;
        }
        let managed = keeper.durable.managed();
        let files = managed.iter().filter(|file| file.fenced);
        let paths: Vec<_> = files.map(|file| (file.meta().path.clone(), file.dev)).collect();
        locked(&self.inner).above.sweep(&self.marks, paths.into_iter());
    }

    /// Enters what is to be heard of files below a directory that was moved.
    fn add_moved(&self, keeper: &Keeper, told: &mut HashMap<FileRef, (ReadFlags, Tale)>) {
        let places: Vec<FileRef> = {
            let mut inner = locked(&self.inner);
            if !inner.above.take_moved() {
                return;
            }
            let places: Vec<FileRef> = inner.by_place.keys().copied().collect();
            // All of them have other directories above them, perhaps.
            for place in &places {
                inner.heard.entry(*place).or_insert(ReadFlags::empty()).insert(ReadFlags::MOVE_SELF);
            }
            places
        };
        ring(&self.bell);
        for place in places {
            let file = keeper.durable.file(place);
            if file.is_some_and(|file| keeper.durable.is_elsewhere(&file)) {
                told.entry(place).or_default().1.of_name = true;
            }
        }
    }

    /// Watches a file's content, or looks at it in steps.
    fn watch_content(&self, file: &ManagedFile<OsFile>, steps: bool) {
        let place = file.place();
        let mut inner = locked(&self.inner);
        let Some(watch) = inner.by_place.get(&place).copied() else { return };
        let content = match watch.content {
            Some(number) if steps => {
                inner.by_content.remove(&number);
                let _ = inotify::remove_watch(&self.content, number);
                None
            }
            None if !steps && !on(Canary::CutUnheard) => {
                inotify::add_watch(&self.content, file.held().magic_path(), WatchFlags::MODIFY).ok()
            }
            content => content,
        };
        content.and_then(|number| inner.by_content.insert(number, place));
        // Without a watch it is looked at in steps for ever.
        let steps = steps || content.is_none() && !on(Canary::CutUnheard);
        inner.by_place.insert(place, Watch { content, steps, noticed: (Instant::now(), 0), ..watch });
    }

    /// Whether the content of a file changes so often that it is rather looked at in steps.
    fn changes_often(&self, place: FileRef) -> bool {
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
    fn grown(&self, now: Instant) -> Vec<FileRef> {
        let mut inner = locked(&self.inner);
        let count = inner.young.iter().take_while(|(_, at)| *at <= now).count();
        inner.young.drain(..count).map(|(place, _)| place).collect()
    }

    /// Enters what is to be heard of files whose marks or content are not watched, or whose content
    /// was told to have changed.
    fn add_unwatched(&self, scope: Scope, told: &mut HashMap<FileRef, (ReadFlags, Tale)>) {
        let changed = match scope {
            Scope::All => self.read(&self.content, |inner| &mut inner.by_content).unwrap_or_else(|| {
                // Notices were lost: any of them.
                locked(&self.inner).by_place.keys().map(|place| (*place, ReadFlags::MODIFY)).collect()
            }),
            Scope::Told | Scope::New => HashMap::new(),
        };
        for (place, events) in changed {
            let (known, tale) = told.entry(place).or_default();
            known.insert(events);
            tale.of_content = true;
        }
        let inner = locked(&self.inner);
        if scope == Scope::All {
            for (place, _) in inner.by_place.iter().filter(|(_, watch)| watch.steps) {
                told.entry(*place).or_default().1.of_content = true;
            }
        }
        let looks_at_new = scope == Scope::All || scope == Scope::New && inner.young.len() <= NEW_MAX;
        for (place, _) in inner.young.iter().filter(|_| looks_at_new) {
            let (_, tale) = told.entry(*place).or_default();
            (tale.of_name, tale.of_content) = (scope == Scope::All, scope == Scope::All);
        }
    }

    fn stepped(&self) -> Vec<(FileRef, u64)> {
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

    /// What was told of files, by the numbers of one queue; `None`: notices were lost.
    fn read(
        &self,
        queue: &OwnedFd,
        numbers: impl Fn(&mut Inner) -> &mut HashMap<i32, FileRef>,
    ) -> Option<HashMap<FileRef, ReadFlags>> {
        let (mut told, mut lost) = (HashMap::<FileRef, ReadFlags>::new(), false);
        read_all(queue, |number, events| {
            lost |= events.contains(ReadFlags::QUEUE_OVERFLOW);
            let mut inner = locked(&self.inner);
            let place = numbers(&mut inner).get(&number).copied();
            match place {
                Some(_) if events.contains(ReadFlags::IGNORED) => drop(numbers(&mut inner).remove(&number)),
                Some(place) => told.entry(place).or_insert(ReadFlags::empty()).insert(events),
                None if std::ptr::eq(queue, &raw const self.marks) => inner.above.tell(number, events),
                None => {}
            }
        });
        (!lost).then_some(told)
    }
}

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
        lookout.sweep_above(keeper);
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
        let newest_seq = row.newest_seq.load(Ordering::SeqCst);
        let found = with_file(keeper, place, |file| {
            if newest_seq == seen {
                // Before the look: what comes between is told.
                lookout.watch_content(file, false);
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
    if let Err(error) = moved.and_then(|()| durable.look(file, true)) {
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
        lookout.add_moved(self, &mut told);
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
