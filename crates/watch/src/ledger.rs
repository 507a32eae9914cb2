//! Who of the outsiders is where: one account per watched file, and the workers that act on it.
//!
//! The readers of kernel events only make entries here, which never blocks. Workers take the files
//! one by one, so that what the sink is told about one file never overlaps; its lock is never held
//! while the sink or the kernel is asked for anything.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::account::{Before, File, Gate, INSTALL_MS, Open, Verdict, Who};
use crate::holders::{Scan, scan_holders};
use crate::key::Key;
use crate::opener::{self, Intent};
use crate::{Opener, Outsiders};

/// Workers at most. Each may wait for a disk while it settles a file.
const WORKERS_MAX: usize = 32;
/// Looks prompted by explained opens take at most one part in so many of one processor's time.
const SWEEP_SHARE: u32 = 50;

enum Job {
    /// Find out what an opener wants.
    Judge { key: Key, tid: u32, opener: Opener, gate: Gate },
    /// Act on a file's account.
    Turn(Key),
    /// Look for writers among the suspects.
    Sweep,
}

#[derive(Default)]
struct Inner {
    files: HashMap<Key, File>,
    slots: HashMap<u32, Key>,
    jobs: VecDeque<Job>,
    timers: BTreeSet<(Instant, Key)>,
    sweep_at: Option<Instant>,
    sweep_not_before: Option<Instant>,
    ids: u64,
    workers: usize,
    idle: usize,
    stopped: bool,
}

/// All accounts.
pub struct Ledger {
    sink: Arc<dyn Outsiders>,
    inner: Mutex<Inner>,
    wake: Condvar,
}

impl Ledger {
    /// No accounts yet; `sink` is told of what happens.
    pub fn new(sink: Arc<dyn Outsiders>) -> Arc<Ledger> {
        Arc::new(Ledger { sink, inner: Mutex::default(), wake: Condvar::new() })
    }

    /// Who is told.
    pub fn sink(&self) -> &dyn Outsiders {
        &*self.sink
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere must not stop the answering of opens.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens an account, replacing an older one of the same slot or inode.
    pub fn add(&self, key: Key, slot: u32, generation: u64) {
        let announced = self.sink.client_opens_over(slot, key.ino);
        let mut inner = self.lock();
        let old = inner.slots.insert(slot, key).and_then(|old| inner.files.remove(&old));
        inner.ids += 1;
        let file = File::new(inner.ids, slot, generation, announced);
        let replaced = inner.files.insert(key, file);
        if let Some(replaced) = replaced.as_ref().filter(|replaced| replaced.slot != slot) {
            inner.slots.remove(&replaced.slot);
        }
        drop(inner);
        drop((old, replaced));
    }

    /// The inode that a slot is watched for.
    pub fn find(&self, slot: u32, generation: u64) -> Option<Key> {
        let inner = self.lock();
        let key = *inner.slots.get(&slot)?;
        inner.files.get(&key).filter(|file| file.generation == generation).map(|_| key)
    }

    /// Closes an account; the opens that wait on it are allowed. Whether it was there.
    pub fn remove(&self, key: Key, slot: u32, generation: u64) -> bool {
        let mut inner = self.lock();
        if !inner.files.get(&key).is_some_and(|file| file.slot == slot && file.generation == generation) {
            return false;
        }
        inner.slots.remove(&slot);
        let removed = inner.files.remove(&key);
        drop(inner);
        removed.is_some()
    }

    /// A process that is none of ours, or goes past its library, waits for permission to open the
    /// file.
    pub(crate) fn opening(self: &Arc<Self>, key: Key, tid: u32, opener: Opener, gate: Gate) {
        let mut inner = self.lock();
        if inner.files.contains_key(&key) {
            self.push(&mut inner, Job::Judge { key, tid, opener, gate });
        }
    }

    /// Whether closes of this file matter now.
    pub(crate) fn wants_closes(&self, key: Key) -> bool {
        self.lock().files.get(&key).is_some_and(File::wants_closes)
    }

    /// An outsider's description (fanotify) was closed for good.
    pub(crate) fn closed_by(self: &Arc<Self>, key: Key, tid: u32, pid: u32, wrote: bool) {
        // Which of several hidden descriptions it was, nothing tells: it stands for one.
        let mut hidden_left = 1;
        self.closed(key, wrote, |open| {
            let Who::Thread { tid: by_tid, pid: by_pid, hidden } = open.who else { return false };
            if by_pid != pid || open.seen || (hidden && hidden_left == 0) {
                return false;
            }
            hidden_left -= u32::from(hidden);
            // A thread that closes something cannot be inside an open any more.
            open.past |= by_tid == tid;
            open.seen = true;
            true
        });
    }

    /// Somebody's description (inotify) was closed for good.
    pub fn closed_by_somebody(self: &Arc<Self>, key: Key, wrote: bool) {
        self.closed(key, wrote, |open| !std::mem::replace(&mut open.seen, true));
    }

    fn closed(self: &Arc<Self>, key: Key, wrote: bool, mark: impl FnMut(&mut Open) -> bool) {
        let mut inner = self.lock();
        let file = inner.files.get_mut(&key).filter(|file| file.wants_closes());
        if file.is_some_and(|file| file.closed(wrote, mark, Instant::now())) {
            self.schedule(&mut inner, key);
        }
    }

    /// inotify: somebody opened the file. If clients have announced as many opens, one of theirs.
    pub fn opened_by_somebody(self: &Arc<Self>, key: Key) {
        let Some(slot) = self.lock().files.get(&key).map(|file| file.slot) else { return };
        let announced = self.sink.client_opens(slot, key.ino);
        let now = Instant::now();
        let mut inner = self.lock();
        let Some(file) = inner.files.get_mut(&key).filter(|file| file.slot == slot) else { return };
        if file.tally.notice(announced, now) {
            self.suspect(&mut inner, key, now);
        } else {
            file.wait(Who::Somebody, None);
            self.schedule(&mut inner, key);
        }
    }

    /// An outsider is there already.
    pub fn present(self: &Arc<Self>, key: Key) {
        let mut inner = self.lock();
        if let Some(file) = inner.files.get_mut(&key) {
            file.present = true;
            file.wrote = true;
            file.epoch += 1;
            self.schedule(&mut inner, key);
        }
    }

    /// Events were lost: everything may have happened to every file.
    pub fn lost_events(self: &Arc<Self>) {
        let mut inner = self.lock();
        let keys: Vec<Key> = inner.files.keys().copied().collect();
        for key in keys {
            if let Some(file) = inner.files.get_mut(&key) {
                file.lost_events();
            }
            self.schedule(&mut inner, key);
        }
    }

    /// Ends the workers (each after what it is doing) and allows all opens that still wait.
    pub fn stop(&self) {
        let mut inner = self.lock();
        inner.stopped = true;
        let left_over = (
            std::mem::take(&mut inner.files),
            std::mem::take(&mut inner.jobs),
            std::mem::take(&mut inner.slots),
        );
        drop(inner);
        self.wake.notify_all();
        drop(left_over);
    }

    fn schedule(self: &Arc<Self>, inner: &mut Inner, key: Key) {
        match inner.files.get_mut(&key) {
            Some(file) if !file.queued => file.queued = true,
            _ => return,
        }
        // A worker that is on the file takes another round by itself.
        if !inner.files[&key].running {
            self.push(inner, Job::Turn(key));
        }
    }

    fn push(self: &Arc<Self>, inner: &mut Inner, job: Job) {
        if inner.stopped {
            return;
        }
        inner.jobs.push_back(job);
        self.call_worker(inner);
    }

    /// Wakes a worker, or starts one if there are more jobs than workers that wait.
    fn call_worker(self: &Arc<Self>, inner: &mut Inner) {
        if inner.workers == 0 || (inner.jobs.len() >= inner.idle.max(1) && inner.workers < WORKERS_MAX) {
            let ledger = Arc::clone(self);
            let started = thread::Builder::new().name("fence-worker".into()).spawn(move || ledger.work());
            inner.workers += usize::from(started.is_ok());
        }
        self.wake.notify_one();
    }

    fn work(self: Arc<Self>) {
        while let Some(job) = self.next_job() {
            match job {
                Job::Judge { key, tid, opener, gate } => self.judge(key, tid, opener, gate),
                Job::Turn(key) => self.turn(key),
                Job::Sweep => self.sweep(),
            }
        }
    }

    fn next_job(self: &Arc<Self>) -> Option<Job> {
        let mut inner = self.lock();
        loop {
            if inner.stopped {
                return None;
            }
            let now = Instant::now();
            while let Some(&(at, key)) = inner.timers.first().filter(|(at, _)| *at <= now) {
                inner.timers.remove(&(at, key));
                self.schedule(&mut inner, key);
            }
            if inner.sweep_at.is_some_and(|at| at <= now) {
                inner.sweep_at = None;
                self.push(&mut inner, Job::Sweep);
            }
            if let Some(job) = inner.jobs.pop_front() {
                return Some(job);
            }
            let until = inner.timers.first().map(|(at, _)| *at).into_iter().chain(inner.sweep_at).min();
            inner.idle += 1;
            inner = match until {
                Some(until) => {
                    let pause = until.saturating_duration_since(now);
                    self.wake.wait_timeout(inner, pause).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
            inner.idle -= 1;
        }
    }

    /// Lets readers in once they see everything; queues everybody else behind `arrived`.
    fn judge(self: &Arc<Self>, key: Key, tid: u32, opener: Opener, gate: Gate) {
        let intent = opener::intent(tid);
        if intent == Intent::Read {
            let file = self.lock().files.get(&key).map(|file| (file.slot, file.generation));
            if let Some((slot, generation)) = file {
                self.sink.reads(slot, generation);
            }
            return;
        }
        let pid = match opener {
            Opener::Client(pid) => {
                self.sink.goes_past(pid);
                pid
            }
            Opener::Outsider(pid) => pid,
            Opener::Ours => return,
        };
        let mut inner = self.lock();
        if let Some(file) = inner.files.get_mut(&key) {
            let who = Who::Thread { tid, pid, hidden: intent == Intent::Hidden };
            file.wait(who, Some(gate));
            self.schedule(&mut inner, key);
        }
    }

    /// Acts on one file until nothing is left to do now.
    fn turn(self: &Arc<Self>, key: Key) {
        let Some(id) = self.begin_turn(key) else { return };
        loop {
            if self.let_in(key, id) {
                continue;
            }
            let mut inner = self.lock();
            let Some(file) = inner.files.get_mut(&key).filter(|file| file.id == id) else { return };
            file.queued = false;
            if !file.waiting.is_empty() || file.present {
                continue;
            }
            let due = if file.arrived { file.look_at } else { None };
            if due.is_some_and(|at| at <= Instant::now()) {
                drop(inner);
                self.look(key, id);
                continue;
            }
            file.running = false;
            if let Some(at) = due {
                // A timer of old finds the file not due and does nothing.
                inner.timers.insert((at, key));
                self.wake.notify_one();
            }
            return;
        }
    }

    fn begin_turn(&self, key: Key) -> Option<u64> {
        let mut inner = self.lock();
        let file = inner.files.get_mut(&key).filter(|file| !file.running)?;
        file.running = true;
        Some(file.id)
    }

    /// Tells `arrived` if that is due and lets in those who wait for it. Whether there was anybody.
    fn let_in(&self, key: Key, id: u64) -> bool {
        let (waiting, tell, knows_closes, slot, generation) = {
            let mut inner = self.lock();
            let Some(file) = inner.files.get_mut(&key).filter(|file| file.id == id) else { return false };
            if file.waiting.is_empty() && !file.present {
                return false;
            }
            file.unnamed |= std::mem::take(&mut file.present);
            let tell = !std::mem::replace(&mut file.arrived, true);
            (std::mem::take(&mut file.waiting), tell, file.tells_closes, file.slot, file.generation)
        };
        if tell {
            self.sink.arrived(slot, generation);
        }
        // Before anybody is let in, so that no close of theirs is missed. Where it fails, who was
        // seen to write is never seen to have left, and the file stays the kernel's.
        let gate = waiting.iter().find_map(|(_, gate)| gate.as_ref()).filter(|_| !knows_closes);
        let tells_closes = gate.is_some_and(|gate| gate.ask_closes().is_ok());
        let now = Instant::now();
        let mut inner = self.lock();
        if let Some(file) = inner.files.get_mut(&key).filter(|file| file.id == id) {
            file.tells_closes |= tells_closes;
            file.let_in(&waiting, now);
        }
        drop(inner);
        drop(waiting);
        true
    }

    /// Finds out whether outsiders that can write are left, and tells `left` if not.
    fn look(self: &Arc<Self>, key: Key, id: u64) {
        let (mut opens, before, slot) = {
            let inner = self.lock();
            let Some(file) = inner.files.get(&key).filter(|file| file.id == id) else { return };
            let at = Instant::now();
            let before = Before { epoch: file.epoch, write_closes: file.write_closes, at };
            (file.opens.clone(), before, file.slot)
        };
        let announced = self.sink.client_opens(slot, key.ino);
        opens.iter_mut().for_each(|open| open.past = open.is_past(before.at));
        // A scan is thousands of system calls: not before it can decide.
        let scan = opens.iter().all(|open| open.past).then(|| self.scan(&[key]));

        let mut inner = self.lock();
        let Some(file) = inner.files.get_mut(&key).filter(|file| file.id == id) else { return };
        let now = Instant::now();
        let verdict = file.conclude(&before, opens, scan.as_ref(), announced, now);
        let (slot, generation) = (file.slot, file.generation);
        if let Verdict::Left { wrote, all_ours } = verdict {
            if all_ours {
                self.suspect(&mut inner, key, now);
            }
            drop(inner);
            self.sink.left(slot, generation, wrote);
        }
    }

    fn scan(&self, keys: &[Key]) -> Scan {
        let files: Vec<(u64, u64)> = keys.iter().map(|key| (key.dev, key.ino)).collect();
        scan_holders(&files, &|pid| pid == std::process::id() || self.sink.is_ours(pid))
    }

    /// Asks for a look at a file whose opens are explained, but may hide another.
    fn suspect(self: &Arc<Self>, inner: &mut Inner, key: Key, now: Instant) {
        let Some(file) = inner.files.get_mut(&key) else { return };
        file.suspect = true;
        if inner.sweep_at.is_none() {
            let soon = now + Duration::from_millis(INSTALL_MS);
            inner.sweep_at = Some(inner.sweep_not_before.map_or(soon, |not_before| soon.max(not_before)));
            self.call_worker(inner);
        }
    }

    /// inotify merges equal notices, so an outsider's open can hide behind a client's. Looks for
    /// such.
    fn sweep(self: &Arc<Self>) {
        let suspects: Vec<Key> = {
            let mut inner = self.lock();
            let files = inner.files.iter_mut();
            files.filter_map(|(key, file)| std::mem::take(&mut file.suspect).then_some(*key)).collect()
        };
        let begun = Instant::now();
        let scan = self.scan(&suspects);
        for holder in scan.holders.iter().filter(|holder| holder.writes) {
            self.present(Key { dev: holder.dev, ino: holder.ino });
        }
        let mut inner = self.lock();
        let not_before = Instant::now() + begun.elapsed() * SWEEP_SHARE;
        inner.sweep_not_before = Some(not_before);
        if inner.sweep_at.is_some_and(|at| at < not_before) {
            inner.sweep_at = Some(not_before);
        }
    }
}
