//! The watches of the lookout: which files are watched, for what, and what was told of them.
//!
//! There are two queues of notices (inotify): one for names, links and attributes, one for content.
//! What is to be done about a notice is for the lookout to say. Must never keep a file's watch
//! beyond its slot.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use holdfast_cache::FileRef;
use holdfast_canary::{Canary, on};
use holdfast_media::Mapping;
use holdfast_pool::{MARK_CREATED, Seq};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use crate::above::Above;
use holdfast_disk::locked;
use holdfast_disk::{OsDisk, OsFile};
use holdfast_durable::{Durable, ManagedFile, Tale};

/// Most journals and messages are gone, or have their last name, by then. Files come of age
/// together with those of as long afterwards.
const YOUTH: Duration = Duration::from_millis(2);
/// How often a file is looked at that is being written, and after how long without a write it is at
/// rest.
pub(crate) const STEP: Duration = Duration::from_millis(10);
/// Notices of changed content within a step, after which a file counts as being written.
const NOTICES_MAX: u32 = 8;
/// New files that a directory's sync looks at.
const NEW_MAX: usize = 8;
const BUFFER_BYTES: usize = 16 * 1024;

/// A file that is watched.
#[derive(Clone, Copy)]
pub(crate) struct Watch {
    /// Of its marks; none where the user has no watch left.
    pub(crate) marks: Option<i32>,
    /// Of its content, while that is watched.
    pub(crate) content: Option<i32>,
    /// Its newest seq at the last step.
    pub(crate) newest_seq: Seq,
    /// When the last step began in which its content was told to have changed, and how often it was
    /// since.
    pub(crate) noticed: (Instant, u32),
    /// Looked at in steps; else its content is watched.
    pub(crate) steps: bool,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) young: VecDeque<(FileRef, Instant)>,
    pub(crate) by_place: HashMap<FileRef, Watch>,
    pub(crate) by_marks: HashMap<i32, FileRef>,
    pub(crate) by_content: HashMap<i32, FileRef>,
    pub(crate) above: Above,
    /// What was heard, and is to be seen to.
    pub(crate) heard: HashMap<FileRef, ReadFlags>,
    /// The thread sleeps without a limit.
    pub(crate) idle: bool,
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
    pub(crate) marks: OwnedFd,
    pub(crate) content: OwnedFd,
    /// Rung for `run`.
    pub(crate) bell: OwnedFd,
    /// Rung once, for the end of `listen`.
    pub(crate) end: OwnedFd,
    /// Who reads `marks` enters what it finds in the ledger before anybody else reads there.
    pub(crate) turn: Mutex<()>,
    pub(crate) inner: Mutex<Inner>,
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

pub(crate) fn ring(bell: &OwnedFd) {
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
    pub(crate) fn add(&self, file: &ManagedFile<OsFile>) {
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
    pub(crate) fn watch_marks(&self, file: &ManagedFile<OsFile>) {
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
        inner
            .by_place
            .insert(place, Watch { marks, content: None, newest_seq: Seq::ZERO, noticed, steps: false });
        drop(inner);
        self.watch_above(file);
    }

    /// Watches the directories above a file.
    pub(crate) fn watch_above(&self, file: &ManagedFile<OsFile>) {
        let path = file.meta().path.clone();
        locked(&self.inner).above.watch(&self.marks, &path, file.dev);
    }

    /// Gives up watches of directories that are of no use any more.
    pub(crate) fn sweep_above(&self, durable: &Durable<Mapping, OsDisk>) {
        if !locked(&self.inner).above.is_full() {
            return;
        }
        let managed = durable.managed();
        let files = managed.iter().filter(|file| file.fenced);
        let paths: Vec<_> = files.map(|file| (file.meta().path.clone(), file.dev)).collect();
        locked(&self.inner).above.sweep(&self.marks, paths.into_iter());
    }

    /// Enters what is to be heard of files below a directory that was moved.
    pub(crate) fn add_moved(
        &self,
        durable: &Durable<Mapping, OsDisk>,
        told: &mut HashMap<FileRef, (ReadFlags, Tale)>,
    ) {
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
            let file = durable.file(place);
            if file.is_some_and(|file| durable.is_elsewhere(&file)) {
                told.entry(place).or_default().1.of_name = true;
            }
        }
    }

    /// Watches a file's content, or looks at it in steps.
    pub(crate) fn watch_content(&self, file: &ManagedFile<OsFile>, steps: bool) {
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
    pub(crate) fn changes_often(&self, place: FileRef) -> bool {
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
    pub(crate) fn grown(&self, now: Instant) -> Vec<FileRef> {
        let mut inner = locked(&self.inner);
        let count = inner.young.iter().take_while(|(_, at)| *at <= now).count();
        inner.young.drain(..count).map(|(place, _)| place).collect()
    }

    /// Enters what is to be heard of files whose marks or content are not watched, or whose content
    /// was told to have changed.
    pub(crate) fn add_unwatched(&self, scope: Scope, told: &mut HashMap<FileRef, (ReadFlags, Tale)>) {
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

    pub(crate) fn stepped(&self) -> Vec<(FileRef, Seq)> {
        let inner = locked(&self.inner);
        let stepped = inner.by_place.iter().filter(|(_, watch)| watch.steps);
        stepped.map(|(place, watch)| (*place, watch.newest_seq)).collect()
    }

    /// Until something is due, if files came of age last at `grown`; `None`: for ever, which is
    /// noted.
    pub(crate) fn patience(&self, next_step: Instant, grown: Instant) -> Option<Duration> {
        let mut inner = locked(&self.inner);
        let stepped = inner.by_place.values().any(|watch| watch.steps).then_some(next_step);
        let grown = inner.young.front().map(|(_, at)| (*at).max(grown + YOUTH));
        let next = stepped.into_iter().chain(grown).min();
        inner.idle = next.is_none();
        next.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// What was told of files, by the numbers of one queue; `None`: notices were lost.
    pub(crate) fn read(
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
