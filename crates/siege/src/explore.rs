//! Plays many cases at once, until there are none left or the time is over, and counts.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::disk::Kind;
use crate::op::{Case, Who};
use crate::oracle::Oracle;
use crate::play::{Stage, Tools};
use crate::sequence;
use crate::verdict::{self, Difference};

/// What is to be played.
pub struct Plan {
    /// On which file system.
    pub fs: Kind,
    /// How many operations.
    pub lengths: Vec<usize>,
    /// This case alone.
    pub case: Option<Case>,
    /// So many times.
    pub times: u64,
    /// Decides the order, and what is drawn.
    pub seed: u64,
    /// Only this part of so many.
    pub slice: (usize, usize),
    /// When to end.
    pub until: Option<Instant>,
    /// Do not end with the first difference.
    pub keep_going: bool,
    /// Leave the steps out that a difference does not need.
    pub shorten: bool,
    /// Of one and two operations: only what the program does by itself.
    pub alone: bool,
    /// What outsiders changed elsewhere must be there as well.
    pub strict: bool,
    /// How many cases at once.
    pub workers: usize,
    /// How many cases of each length at most.
    pub cases_max: usize,
}

/// What came of it.
#[derive(Default, Serialize)]
pub struct Found {
    /// Cases played under Holdfast, by length.
    pub cases: BTreeMap<usize, u64>,
    /// Cases there are, by length, where they can be counted.
    pub of: BTreeMap<usize, u64>,
    /// Native runs.
    pub native_runs: u64,
    /// Cases whose recovery found records.
    pub with_records: u64,
    /// Cases that could not be judged because the kernel could not mount what it left natively.
    pub unjudged: BTreeMap<String, String>,
    /// Cases in which a file was set aside because of an outsider.
    pub set_aside: u64,
    /// Cases that differ, before those that are the same in short were taken together.
    pub differing: u64,
    /// The differences, each with the number of cases that it is the short form of.
    pub differences: Vec<(u64, Difference)>,
    /// Seconds.
    pub seconds: f64,
}

/// Plays every case of `plan`. `tell` hears of each new difference at once.
pub fn explore(
    plan: &Plan,
    tools: &Arc<Tools>,
    home: &Path,
    tell: &(dyn Fn(&Difference) + Sync),
) -> anyhow::Result<Found> {
    let started = Instant::now();
    let queues: Vec<(usize, Queue)> = match &plan.case {
        Some(case) => vec![(0, Queue::new(vec![case.clone(); plan.times as usize]))],
        None => plan.lengths.iter().map(|length| (*length, Queue::of(plan, *length))).collect(),
    };
    let mut found = Found::default();
    for (length, queue) in &queues {
        if let Some(cases) = &queue.cases {
            found.of.insert(*length, cases.len() as u64);
        }
    }
    let exploration = Exploration {
        plan,
        tell,
        queues,
        oracle: Oracle::new(plan.strict),
        found: Mutex::new(found),
        known: Mutex::default(),
        stop: AtomicBool::new(false),
    };
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let exploration = &exploration;
        let worker = |worker| scope.spawn(move || exploration.work(worker, tools, home));
        let workers: Vec<_> = (0..plan.workers).map(worker).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let mut found = exploration.found.into_inner().expect("no holder panics");
    found.native_runs = exploration.oracle.runs();
    found.seconds = started.elapsed().as_secs_f64();
    found.differences.sort_by_key(|(count, difference)| (difference.kind, u64::MAX - count));
    Ok(found)
}

/// What the workers share.
struct Exploration<'a> {
    plan: &'a Plan,
    tell: &'a (dyn Fn(&Difference) + Sync),
    /// By length.
    queues: Vec<(usize, Queue)>,
    oracle: Oracle,
    found: Mutex<Found>,
    /// Where each difference that was found is among them, by its case.
    known: Mutex<HashMap<String, usize>>,
    stop: AtomicBool,
}

impl Exploration<'_> {
    /// Plays cases until there are none left, the time is over or somebody stops.
    fn work(&self, worker: usize, tools: &Arc<Tools>, home: &Path) -> anyhow::Result<()> {
        let ended = self.play_all(worker, tools, home);
        if ended.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        ended
    }

    fn play_all(&self, worker: usize, tools: &Arc<Tools>, home: &Path) -> anyhow::Result<()> {
        let plan = self.plan;
        let place = home.join(format!("{}-{worker}", plan.fs.name()));
        std::fs::create_dir_all(&place)?;
        let stage = Stage::new(plan.fs, &place, tools.clone())?;
        for (index, (length, queue)) in self.queues.iter().enumerate() {
            // Each length has its share of what time is left when it begins.
            let shares = (self.queues.len() - index) as u32;
            let until = plan.until.map(|until| {
                let left = until.saturating_duration_since(Instant::now());
                Instant::now() + left / shares
            });
            while !self.stop.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until) {
                let Some(case) = queue.next(plan, *length) else { break };
                self.play(&stage, *length, &case)?;
            }
        }
        Ok(())
    }

    /// Plays one case and counts what comes of it.
    fn play(&self, stage: &Stage, length: usize, case: &Case) -> anyhow::Result<()> {
        let contained = |case: &Case| self.contained(case);
        let verdict = verdict::judge(stage, &self.oracle, self.plan.fs, case, &contained)?;
        {
            let mut found = self.found.lock().expect("no holder panics");
            *found.cases.entry(length).or_default() += 1;
            if let Some(trouble) = verdict.unjudged {
                found.unjudged.insert(case.to_string(), trouble);
            }
            found.with_records += u64::from(verdict.records > 0);
            found.set_aside += u64::from(verdict.set_aside && verdict.difference.is_none());
            found.differing += u64::from(verdict.difference.is_some() || verdict.known.is_some());
        }
        if let Some(short) = verdict.known {
            let known = self.known.lock().expect("no holder panics");
            self.found.lock().expect("no holder panics").differences[known[&short]].0 += 1;
        }
        match verdict.difference {
            Some(difference) if self.plan.shorten => {
                self.note(verdict::shortened(stage, &self.oracle, difference)?);
            }
            Some(difference) => self.note(difference),
            None => {}
        }
        Ok(())
    }

    /// The short form of a difference that was found before and that this case has in it.
    fn contained(&self, case: &Case) -> Option<String> {
        let known = self.known.lock().expect("no holder panics");
        let mut cases = known.keys().map(|text| text.parse::<Case>().expect("what was printed is read"));
        cases.find(|known| self.plan.shorten && case.contains(known)).map(|known| known.to_string())
    }

    /// A difference was found, perhaps one that is known by now.
    fn note(&self, difference: Difference) {
        let mut known = self.known.lock().expect("no holder panics");
        let mut found = self.found.lock().expect("no holder panics");
        match known.get(&difference.case) {
            Some(at) => found.differences[*at].0 += 1,
            None => {
                (self.tell)(&difference);
                known.insert(difference.case.clone(), found.differences.len());
                found.differences.push((1, difference));
            }
        }
        if !self.plan.keep_going {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Cases that workers take one after the other.
struct Queue {
    /// All there are; none where they are drawn.
    cases: Option<Vec<Case>>,
    next: AtomicUsize,
    drawn: AtomicU64,
}

impl Queue {
    fn new(cases: Vec<Case>) -> Self {
        Self { cases: Some(cases), next: AtomicUsize::new(0), drawn: AtomicU64::new(0) }
    }

    fn of(plan: &Plan, length: usize) -> Self {
        if length > 2 {
            return Self { cases: None, ..Self::new(Vec::new()) };
        }
        let (part, parts) = plan.slice;
        let mut all = sequence::all(plan.fs, length, plan.seed);
        all.retain(|case| !plan.alone || !case.has(Who::Q) && !case.has(Who::O));
        Self::new(all.into_iter().skip(part).step_by(parts).take(plan.cases_max).collect())
    }

    fn next(&self, plan: &Plan, length: usize) -> Option<Case> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        match &self.cases {
            Some(cases) => cases.get(at).cloned(),
            None if at >= plan.cases_max => None,
            None => {
                let (part, parts) = plan.slice;
                let number = self.drawn.fetch_add(1, Ordering::Relaxed) * parts as u64 + part as u64;
                Some(sequence::drawn(plan.fs, length, plan.seed.wrapping_mul(1 << 32).wrapping_add(number)))
            }
        }
    }
}

/// The time from now on.
pub fn in_seconds(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}
