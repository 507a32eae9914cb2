//! Running many histories on several threads, and one history again.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Instant;

use holdfast_testkit::Random;

use crate::check::{Checker, Counts, Effort, Violation};
use crate::explore::{Seedling, Spread, directed, exhaustive, seeded, spilled, spread};
use crate::history::History;
use crate::known::Known;
use crate::machine::Behind;
use crate::machine::Outcome;

/// Histories that a thread takes at a time: those next to each other have most images in common.
const NEIGHBOURS: u64 = 16;

thread_local! {
    static PLAYING: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The arguments that play again what this thread is playing; for panics.
pub fn playing() -> String {
    PLAYING.with_borrow(Clone::clone)
}

/// What a failure is, and how it is played again.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What is broken.
    pub violation: Violation,
    /// The history.
    pub history: String,
    /// The arguments that play it again.
    pub replay: String,
}

/// One image of one crash point, of one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Only {
    /// The crash point; of a seeded history in all its lives.
    pub crash: Option<usize>,
    /// The image.
    pub image: Option<usize>,
}

impl Only {
    /// Everything.
    pub const ALL: Self = Self { crash: None, image: None };

    fn crash(&self, crash: usize) -> bool {
        self.crash.is_none_or(|only| only == crash)
    }

    fn image(&self, image: usize) -> bool {
        self.image.is_none_or(|only| only == image)
    }
}

/// What the threads of a run share.
#[derive(Default)]
pub struct Shared {
    /// Set to stop.
    pub stop: AtomicBool,
    /// Histories begun, for progress.
    pub histories: AtomicU64,
    /// Images checked, for progress.
    pub images: AtomicU64,
    /// What each thread is playing: the number of the history, and the arguments that play it
    /// again.
    playing: Mutex<HashMap<ThreadId, (u64, String)>>,
}

impl Shared {
    fn all_playing(&self) -> MutexGuard<'_, HashMap<ThreadId, (u64, String)>> {
        self.playing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread begins a history that these arguments play again.
    fn begins(&self, replay: String) {
        let number = self.histories.fetch_add(1, Ordering::Relaxed);
        self.all_playing().insert(thread::current().id(), (number, replay.clone()));
        PLAYING.set(replay);
    }

    /// This thread plays nothing any more.
    pub fn ends(&self) {
        self.all_playing().remove(&thread::current().id());
    }
}

/// Who sees that no history takes for ever. Steps and recoveries are bounded by what they do
/// (`crate::stage::begin`); a thread that does nothing at all, because it waits for a lock of its
/// own, is seen from outside alone.
#[derive(Default)]
pub struct Watchman {
    /// How often each history was seen.
    looks: BTreeMap<u64, u32>,
}

impl Watchman {
    /// The arguments that play a history again which was under way at each of the last `looks_max`
    /// looks. Looks are counted, not seconds: the machine may have stopped us.
    pub fn look(&mut self, shared: &Shared, looks_max: u32) -> Option<String> {
        let playing = shared.all_playing();
        self.looks.retain(|number, _| playing.values().any(|(other, _)| other == number));
        playing.values().find_map(|(number, replay)| {
            let looks = self.looks.entry(*number).or_default();
            *looks += 1;
            (*looks > looks_max).then(|| replay.clone())
        })
    }
}

/// A thread's part of a run.
pub struct Worker<'a> {
    /// Which histories are this thread's: a few in every `of` times as many, from `index` on.
    pub index: u64,
    /// How many threads there are.
    pub of: u64,
    /// How thoroughly.
    pub effort: Effort,
    /// With the others.
    pub shared: &'a Shared,
    /// Where failures go.
    pub failures: Sender<Failure>,
    /// Counted so far.
    pub counts: Counts,
    /// What recovery makes of images, by what else matters for them.
    pub known: BTreeMap<Shape, Known>,
    /// Nothing is left out: every image is recovered wherever it comes up, and histories go on
    /// behind steps that change nothing.
    pub whole: bool,
    /// What is known of an image is compared with what recovery makes of it this time.
    pub doubts: bool,
}

/// Pools whose images may be compared, and how they are served afterwards.
type Shape = ((u32, u32, u64), Option<Behind>, bool, Option<u32>);

fn shape(history: &History) -> Shape {
    (history.pool, history.behind, history.on_sync, history.spill)
}

impl<'a> Worker<'a> {
    /// A thread that has all to itself.
    pub fn new(effort: Effort, shared: &'a Shared, failures: Sender<Failure>) -> Self {
        Self {
            index: 0,
            of: 1,
            effort,
            shared,
            failures,
            counts: Counts::default(),
            known: BTreeMap::new(),
            whole: false,
            doubts: false,
        }
    }

    /// One of several threads.
    pub fn part(self, index: u64, of: u64) -> Self {
        Self { index, of, ..self }
    }
}

impl Worker<'_> {
    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed)
    }

    /// Plays this thread's part of the exhaustive sets; returns whether it is complete.
    pub fn exhaustive(&mut self, operations: usize) -> bool {
        let whole = self.whole;
        self.sets(|visit| exhaustive(operations, whole, visit))
    }

    /// Plays this thread's part of the directed histories.
    pub fn directed(&mut self) {
        self.sets(directed);
    }

    /// Plays this thread's part of the sets in which the log goes on in a file; returns whether it
    /// is complete.
    pub fn spilled(&mut self, operations: usize) -> bool {
        self.sets(|visit| spilled(operations, visit))
    }

    fn sets(&mut self, visit_all: impl FnOnce(&mut dyn FnMut(Seedling))) -> bool {
        let mut number = 0;
        visit_all(&mut |(history, how)| {
            number += 1;
            if number / NEIGHBOURS % self.of != self.index || self.stopped() {
                return;
            }
            if how == Spread::None {
                self.short(&history);
                return;
            }
            let points = history.play(history.steps.len()).points;
            for history in spread(&history, how, points) {
                if !self.stopped() {
                    self.short(&history);
                }
            }
        });
        !self.stopped()
    }

    /// Plays a short history and checks the crash points of its last step.
    pub fn short(&mut self, history: &History) {
        self.counts.histories_of_sets += 1;
        self.check(history, history.steps.len() - 1, Only::ALL);
    }

    fn fail(&self, history: &History, replay: String, violation: Violation) {
        let _ = self.failures.send(Failure { violation, history: history.to_string(), replay });
    }

    /// Plays a history and checks images of the crash points of its steps from `from` on.
    pub fn check(&mut self, history: &History, from: usize, only: Only) {
        self.counts.histories += 1;
        let replay = || format!("--history '{}'", serde_json::to_string(history).unwrap_or_default());
        self.shared.begins(replay());
        let played = history.play(from);
        self.counts.writes_behind += crate::machine::writes_behind();
        if let Some(step) = played.hangs {
            let violation =
                Violation { what: format!("step {} never ends", step + 1), trail: crate::machine::trouble() };
            return self.fail(history, replay(), violation);
        }
        if let Some((step, wrong)) = played.wrong {
            let what = format!("after step {}: {wrong}", step + 1);
            return self.fail(history, replay(), Violation { what, trail: crate::machine::trouble() });
        }
        let seed = history.seed();
        let superblock = history.superblock();
        let (effort, behind, on_sync, doubts) = (self.effort, history.behind, history.on_sync, self.doubts);
        let mut known = self.take_known(history, only);
        let counts = Counts::default();
        let mut checker = Checker {
            superblock: &superblock,
            known: known.as_mut(),
            doubts,
            effort,
            behind,
            on_sync,
            counts,
        };
        'points: for (crash, snapshot) in
            played.snapshots.iter().enumerate().filter(|(crash, _)| only.crash(*crash))
        {
            checker.counts.crash_points += 1;
            for image in (0..checker.images_of(snapshot)).filter(|image| only.image(*image)) {
                if let Err(violation) = checker.check(snapshot, image, &[seed, crash as u64], false) {
                    let replay = format!("{} --crash {crash} --image {image}", replay());
                    self.fail(history, replay, violation);
                    break 'points;
                }
            }
        }
        let counts = checker.counts;
        self.add(&counts);
        self.known.extend(known.map(|known| (shape(history), known)));
    }

    /// What is known of images of a history. What was printed is played again as it was, with
    /// everything that is drawn for it.
    fn take_known(&mut self, history: &History, only: Only) -> Option<Known> {
        let shares = only == Only::ALL && !self.whole;
        shares.then(|| self.known.remove(&shape(history)).unwrap_or_default())
    }

    fn add(&mut self, counts: &Counts) {
        self.counts.add(counts);
        self.shared.images.fetch_add(counts.images, Ordering::Relaxed);
    }

    /// Plays the lives of a seed: a long history, a crash, recovery, another long history on what
    /// is left, and so on.
    pub fn seed(&mut self, seed: u64, only: Only) {
        let mut random = Random::of(&[seed, 2]);
        let lives = 1 + random.below(3);
        let mut next: Option<Outcome> = None;
        let first = seeded(seed);
        let superblock = first.superblock();
        let mut number = 0;
        for life in 0..lives {
            let mut history = seeded(seed.wrapping_add(life as u64 * 0x1_0000_0000));
            (history.pool, history.journal) = (first.pool, first.journal);
            (history.behind, history.spill) = (first.behind, first.spill);
            self.counts.histories += 1;
            self.shared.begins(format!("--seed {seed}"));
            let played = match next.take() {
                None => history.play_all(),
                Some(outcome) => history.play_after(&outcome, superblock),
            };
            self.counts.writes_behind += crate::machine::writes_behind();
            let fail = |this: &Self, crash: usize, image: usize, violation| {
                let replay = format!("--seed {seed} --crash {crash} --image {image}");
                this.fail(&history, replay, violation);
            };
            if let Some(step) = played.hangs {
                let violation = Violation {
                    what: format!("step {} never ends", step + 1),
                    trail: crate::machine::trouble(),
                };
                return fail(self, number, 0, violation);
            }
            if let Some((step, wrong)) = played.wrong {
                let what = format!("after step {}: {wrong}", step + 1);
                return fail(self, number, 0, Violation { what, trail: crate::machine::trouble() });
            }
            let effort = Effort { images: 3, ..self.effort };
            let (behind, on_sync, doubts) = (history.behind, history.on_sync, self.doubts);
            let mut known = self.take_known(&history, only);
            let counts = Counts::default();
            let mut checker = Checker {
                superblock: &superblock,
                known: known.as_mut(),
                doubts,
                effort,
                behind,
                on_sync,
                counts,
            };
            let last = played.snapshots.len().saturating_sub(1);
            let chosen = last.saturating_sub(random.below(last + 1) / 4);
            for (index, snapshot) in played.snapshots.iter().enumerate() {
                let crash = number + index;
                for image in 0..checker.images_of(snapshot) {
                    let goes_on = index == chosen && image == 0 && life + 1 < lives;
                    if !(goes_on || only.crash(crash) && only.image(image)) {
                        continue;
                    }
                    match checker.check(snapshot, image, &[seed, crash as u64], goes_on) {
                        Ok(outcome) if goes_on => next = outcome,
                        Ok(_) => {}
                        Err(violation) => {
                            let counts = checker.counts;
                            fail(self, crash, image, violation);
                            self.add(&counts);
                            return;
                        }
                    }
                }
            }
            checker.counts.crash_points += played.snapshots.len() as u64;
            number += played.snapshots.len();
            let counts = checker.counts;
            self.add(&counts);
            self.known.extend(known.map(|known| (shape(&history), known)));
            if next.is_none() {
                break;
            }
        }
    }

    /// Plays this thread's seeds from `first` on: `count` of them, or until the time is over.
    /// Returns how many.
    pub fn seeds(&mut self, first: u64, count: u64, until: Option<Instant>) -> u64 {
        let mut played = 0;
        let mut seed = first + self.index;
        while !self.stopped()
            && seed < first.saturating_add(count)
            && until.is_none_or(|until| Instant::now() < until)
        {
            self.seed(seed, Only::ALL);
            played += 1;
            seed += self.of;
        }
        played
    }
}
