//! The model of these words under Shuttle, for `holdfast-model` alone.
//!
//! - Every access is a scheduling point of the checker.
//! - With [`Memory::Buffered`], stores that are not sequentially consistent wait in a buffer of
//!   their thread, as x86-64 keeps them (total store order): others see them later, in order, at
//!   moments the checker chooses. A read-modify-write, a sequentially consistent store, a system
//!   call and a thread's end empty it.
//! - A thread can be killed before any of its visible steps, as SIGKILL does: what it did stays,
//!   what it would have done while its stack unwinds has no effect.
//! - A sleeper is woken only by a wake-up, never by its time limit, unless the model says so: a
//!   lost wake-up is then a deadlock, which the checker reports.

use core::cell::RefCell;
use core::sync::atomic::{self, Ordering};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use shuttle::current::TaskId;
use shuttle::rand::Rng;
use shuttle::sync::{Condvar, Mutex};

/// How stores become visible to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// At once.
    #[default]
    Sequential,
    /// Later, in order: total store order, the model of x86-64.
    Buffered,
}

/// A protocol broken on purpose: the checker must notice, or the model proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A writer draws its seq, then announces a bound (history 14).
    DrawBeforeAnnouncing,
    /// The keeper reads the announcements, then the counter (history 14).
    AnnouncementsBeforeCounter,
    /// A writer looks whether the file is exclusive, then announces its operation.
    LookBeforeAnnouncing,
    /// A writer opens its page locks while its seq still stands in the lane (history 15).
    OpenBeforeSettling,
    /// The keeper looks at the files' seqs, then collects the sealed segments.
    FilesBeforeSegments,
    /// A segment's first record may come before its generation is durable (invariant 3).
    RecordBeforeGeneration,
    /// Changes of pages are not counted (history 21).
    ChangeUncounted,
    /// Writes leave loaded pages as they are.
    LoadedUnrefreshed,
    /// A drain does not lock the pages it writes (history 21).
    DrainUnlocked,
    /// The count of a file's rows is cleared though a drain is about to count that its last row has
    /// gone.
    CountClearedAmidDrain,
    /// What the kernel read counts, whatever was entered and drained meanwhile.
    KernelReadUnchecked,
}

/// How one execution is to behave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// How stores become visible.
    pub memory: Memory,
    /// Whether sleepers may return early, as time limits and signals allow: needed where somebody
    /// is killed between changing a word and waking its sleepers.
    pub early_returns: bool,
    /// What is broken on purpose.
    pub mutation: Option<Mutation>,
}

/// The payload with which a killed thread unwinds.
#[derive(Debug)]
pub struct Killed;

#[derive(Default)]
struct Thread {
    /// Stores that others do not see yet, oldest first.
    buffer: VecDeque<(Cell, u64)>,
    /// Visible steps left to live.
    steps_left: Option<u64>,
    dead: bool,
}

/// A word's memory. The scheduling points around it are our own: a thread that unwinds must not
/// have any.
type Cell = Arc<atomic::AtomicU64>;

type Sleeper = Arc<(Mutex<bool>, Condvar)>;

#[derive(Default)]
struct World {
    rules: Rules,
    /// Any access to it is a scheduling point.
    point: Arc<shuttle::sync::atomic::AtomicBool>,
    threads: HashMap<TaskId, Thread>,
    /// Sleepers by the address of their word's cell, longest first.
    sleepers: HashMap<usize, VecDeque<Sleeper>>,
}

std::thread_local! {
    /// An execution runs on one thread of the system, so its world is that thread's.
    static WORLD: RefCell<World> = RefCell::default();
}

fn mine<R>(act: impl FnOnce(&mut Thread) -> R) -> R {
    let me = shuttle::current::me();
    WORLD.with_borrow_mut(|world| act(world.threads.entry(me).or_default()))
}

fn rules() -> Rules {
    WORLD.with_borrow(|world| world.rules)
}

/// Begins an execution: called first by every model.
pub fn begin(rules: Rules) {
    WORLD.with_borrow_mut(|world| *world = World { rules, ..World::default() });
}

/// A moment at which the checker may let another thread go on.
fn turn() {
    let point = WORLD.with_borrow(|world| Arc::clone(&world.point));
    point.load(Ordering::SeqCst);
}

/// Whether the protocol is broken in this way.
pub fn mutated(mutation: Mutation) -> bool {
    rules().mutation == Some(mutation)
}

/// Runs `life` and kills it before its visible step number `steps`; `None` when it was killed.
pub fn live<R>(steps: u64, life: impl FnOnce() -> R) -> Option<R> {
    mine(|thread| thread.steps_left = Some(steps));
    let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(life));
    // Being dead ends with the body: what follows is the model's own.
    let killed = mine(|thread| {
        thread.steps_left = None;
        std::mem::take(&mut thread.dead)
    });
    match lived {
        Ok(value) => Some(value),
        Err(payload) if killed && payload.is::<Killed>() => None,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// Starts a thread. What its starter did, and at its end what it did, is visible.
pub fn spawn<R: Send + 'static>(body: impl FnOnce() -> R + Send + 'static) -> shuttle::thread::JoinHandle<R> {
    drain();
    shuttle::thread::spawn(move || {
        let result = body();
        drain();
        result
    })
}

/// A step that others can see: of the words here, of the media, of a file. False when its thread is
/// dead and the step must have no effect.
pub fn step() -> bool {
    let (alive, kill) = mine(|thread| {
        if thread.dead {
            return (false, false);
        }
        let Some(left) = &mut thread.steps_left else { return (true, false) };
        if *left == 0 {
            return (true, true);
        }
        *left -= 1;
        (true, false)
    });
    if kill {
        // What the processor has taken over becomes visible whatever happens to the process.
        drain();
        mine(|thread| thread.dead = true);
        std::panic::resume_unwind(Box::new(Killed));
    }
    alive
}

/// A moment at which others may run, for steps outside of these words (media, files, system calls).
pub fn choose() {
    if !mine(|thread| thread.dead) {
        drain();
        turn();
    }
}

/// As [`choose`], in the code under test.
pub fn moment() {
    choose();
}

/// The same, where nothing can be done before others have done something.
fn give_way() {
    if !mine(|thread| thread.dead) {
        drain();
        shuttle::thread::yield_now();
    }
}

fn drain() {
    while drain_one() {}
}

/// The oldest of the waiting stores becomes visible, if there is one.
fn drain_one() -> bool {
    if mine(|thread| thread.buffer.is_empty()) {
        return false;
    }
    turn();
    if let Some((cell, value)) = mine(|thread| thread.buffer.pop_front()) {
        cell.store(value, Ordering::SeqCst);
    }
    true
}

/// Some of the waiting stores become visible, or none.
fn drain_some() {
    while mine(|thread| !thread.buffer.is_empty()) && shuttle::rand::thread_rng().gen_bool(0.5) {
        drain_one();
    }
}

/// A word of any width, kept as 64 bits.
#[derive(Debug)]
struct Word(Cell);

impl Word {
    fn new(value: u64) -> Self {
        Self(Arc::new(atomic::AtomicU64::new(value)))
    }

    fn load(&self) -> u64 {
        if !mine(|thread| thread.dead) {
            drain_some();
            turn();
        }
        let own = mine(|thread| {
            let newest = thread.buffer.iter().rev().find(|(cell, _)| Arc::ptr_eq(cell, &self.0));
            newest.map(|&(_, value)| value)
        });
        own.unwrap_or_else(|| self.0.load(Ordering::SeqCst))
    }

    fn store(&self, value: u64, order: Ordering) {
        if !step() {
            return;
        }
        if order == Ordering::SeqCst || rules().memory == Memory::Sequential {
            drain();
            turn();
            self.0.store(value, Ordering::SeqCst);
        } else {
            drain_some();
            mine(|thread| thread.buffer.push_back((Arc::clone(&self.0), value)));
        }
    }

    /// One read-modify-write; `change` gives the new value, or `None` to leave it.
    fn update(&self, change: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        if !step() {
            return Err(self.load());
        }
        drain();
        turn();
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change)
    }
}

macro_rules! word {
    ($name:ident, $type:ty) => {
        /// See the type of this name in `core`.
        #[derive(Debug)]
        pub struct $name(Word);

        #[allow(missing_docs, reason = "the methods of the type in `core`")]
        impl $name {
            pub fn new(value: $type) -> Self {
                Self(Word::new(value as u64))
            }

            pub fn load(&self, _: Ordering) -> $type {
                self.0.load() as $type
            }

            pub fn store(&self, value: $type, order: Ordering) {
                self.0.store(value as u64, order);
            }

            pub fn swap(&self, value: $type, _: Ordering) -> $type {
                self.update(|_| Some(value))
            }

            pub fn compare_exchange(
                &self,
                from: $type,
                to: $type,
                _: Ordering,
                _: Ordering,
            ) -> Result<$type, $type> {
                let result = self.0.update(|held| (held as $type == from).then_some(to as u64));
                result.map(|held| held as $type).map_err(|held| held as $type)
            }

            pub fn fetch_add(&self, n: $type, _: Ordering) -> $type {
                self.update(|held| Some(held.wrapping_add(n)))
            }

            pub fn fetch_sub(&self, n: $type, _: Ordering) -> $type {
                self.update(|held| Some(held.wrapping_sub(n)))
            }

            pub fn fetch_max(&self, n: $type, _: Ordering) -> $type {
                self.update(|held| Some(held.max(n)))
            }

            pub fn fetch_or(&self, n: $type, _: Ordering) -> $type {
                self.update(|held| Some(held | n))
            }

            pub fn fetch_and(&self, n: $type, _: Ordering) -> $type {
                self.update(|held| Some(held & n))
            }

            fn update(&self, change: impl Fn($type) -> Option<$type>) -> $type {
                let result = self.0.update(|held| change(held as $type).map(|value| value as u64));
                result.unwrap_or_else(|held| held) as $type
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }
    };
}

word!(AtomicU32, u32);
word!(AtomicU64, u64);
word!(AtomicI32, i32);

/// Orders this thread's accesses. Loads are never reordered here; only a full fence empties the
/// buffer.
pub fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        drain();
    }
}

/// A turn for the others.
pub fn spin_loop() {
    give_way();
}

/// How long something takes is nothing that a schedule tells.
pub fn now_ns() -> Option<u64> {
    None
}

/// As often as everywhere.
pub fn spins(times: u32) -> u32 {
    times
}

/// A turn for the others: time is not modelled.
pub fn pause(_: Duration) {
    give_way();
}

/// Sleeps while `word` holds `seen`, until woken.
pub fn wait(word: &AtomicU32, seen: u32, _: Duration) {
    if mine(|thread| thread.dead) {
        return;
    }
    drain();
    if rules().early_returns {
        give_way();
        return;
    }
    let key = Arc::as_ptr(&word.0.0).addr();
    let sleeper = Sleeper::default();
    turn();
    // No scheduling point lies between this load and the entry in the list.
    if word.0.0.load(Ordering::SeqCst) as u32 != seen {
        return;
    }
    WORLD.with_borrow_mut(|world| world.sleepers.entry(key).or_default().push_back(Arc::clone(&sleeper)));
    let mut woken = sleeper.0.lock().expect("no thread panics here");
    while !*woken {
        woken = sleeper.1.wait(woken).expect("no thread panics here");
    }
}

/// Wakes up to `count` sleepers of `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    if !step() {
        return;
    }
    drain();
    turn();
    let key = Arc::as_ptr(&word.0.0).addr();
    let woken: Vec<Sleeper> = WORLD.with_borrow_mut(|world| {
        let Some(sleepers) = world.sleepers.get_mut(&key) else { return Vec::new() };
        let count = sleepers.len().min(count as usize);
        sleepers.drain(..count).collect()
    });
    for sleeper in woken {
        *sleeper.0.lock().expect("no thread panics here") = true;
        sleeper.1.notify_one();
    }
}
