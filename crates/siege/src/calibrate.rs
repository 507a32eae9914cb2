//! The simulator's disks held to the kernels. Of each case K is what native runs left, with and
//! without syncs that came by themselves; M is all that the simulator's disk may leave after the
//! same calls. What each run left must be in M for the same syncs: the model allows what its kernel
//! did. And what every tree of K
//! says alike, facet by facet (which file stands at a name, its size, a page of it), every tree of
//! M must say: the model refuses what its kernel never did. Where a journal keeps the order, all
//! names together must be as in some tree of K. Where the model is weaker on purpose,
//! [`WEAKER`] has the rule that would make it as strong, and says why the simulator does without.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use holdfast_sim::disk::rules::{Covers, Rules};
use serde::Serialize;

use crate::disk::Kind;
use crate::op::{Case, Who};
use crate::play::{Guard, Played, Stage, Tools};
use crate::tree::Tree;
use crate::{oracle, sequence, simulated};

/// More states than that of one case are not counted up.
const STATES_MAX: usize = 1 << 18;
/// Of the trees of a case that the model refuses so many are told.
const TOLD_MAX: usize = 3;

/// A model that is wrong, for the controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Wrong {
    /// An `fdatasync` of bytes that were overwritten commits the journal.
    DataSyncCommits,
    /// The sync of a directory covers all that was changed anywhere.
    DirectorySyncCoversAll,
    /// A sync leaves bytes that may be lost.
    SyncedBytesLost,
    /// A sync of a file commits no names.
    SyncCommitsNothing,
    /// Changes become durable in any order.
    Unordered,
}

impl Wrong {
    fn of(self, rules: Rules) -> Rules {
        match self {
            Self::DataSyncCommits => Rules { data_sync_of_bytes: Covers::All, ..rules },
            Self::DirectorySyncCoversAll => Rules { directory_sync: Covers::All, ..rules },
            Self::SyncedBytesLost => Rules { keeps_bytes: false, ..rules },
            Self::SyncCommitsNothing => Rules { sync: Covers::Nothing, data_sync: Covers::Nothing, ..rules },
            Self::Unordered => Rules { ordered: false, ..rules },
        }
    }
}

/// How a model differs from its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Kinds {
    /// The kernel left what the model does not allow.
    Refused,
    /// The kernel always left what the model may lose.
    Weaker,
}

/// A difference.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The case.
    pub case: String,
    /// Which way.
    pub kind: Kinds,
    /// What, a line each.
    pub told: Vec<String>,
}

/// What is to be compared.
pub struct Plan {
    /// On which file system.
    pub fs: Kind,
    /// This case alone.
    pub case: Option<Case>,
    /// Decides the order.
    pub seed: u64,
    /// Only this part of so many.
    pub slice: (usize, usize),
    /// When to end.
    pub until: Option<Instant>,
    /// Ways of syncing in between for each case.
    pub plans: usize,
    /// The model is to be wrong.
    pub wrong: Option<Wrong>,
    /// Take no exception from the table.
    pub strict: bool,
    /// Cases at once.
    pub workers: usize,
}

/// What came of it.
#[derive(Default, Serialize)]
pub struct Found {
    /// Cases compared.
    pub cases: u64,
    /// Cases there are.
    pub of: u64,
    /// Native runs.
    pub native_runs: u64,
    /// Trees that they left, each once for its case.
    pub native_trees: u64,
    /// Trees that the models allow.
    pub model_trees: u64,
    /// Cases in which the model is weaker as the table says, by the exception's name.
    pub weaker: BTreeMap<&'static str, u64>,
    /// Cases without a native tree, or with too many states.
    pub unjudged: u64,
    /// The differences.
    pub differences: Vec<Difference>,
    /// Seconds.
    pub seconds: f64,
}

/// All cases that both sides know: of one operation and of two by turns.
fn cases(plan: &Plan) -> Vec<Case> {
    if let Some(case) = &plan.case {
        return vec![case.clone()];
    }
    let of = |length: usize| {
        let mut cases = sequence::all(plan.fs, length, plan.seed);
        cases.retain(|case| simulated::knows(case) && !case.has(Who::Q) && !case.has(Who::O));
        cases
    };
    let (mut ones, mut twos) = (of(1).into_iter(), of(2).into_iter());
    let mut cases = Vec::new();
    while ones.len() + twos.len() > 0 {
        cases.extend(ones.next().into_iter().chain(twos.by_ref().take(2)));
    }
    let (part, parts) = plan.slice;
    cases.into_iter().skip(part).step_by(parts).collect()
}

/// Compares until there is no case left or the time is over.
pub fn calibrate(plan: &Plan, tools: &Arc<Tools>, home: &Path) -> anyhow::Result<Found> {
    let started = Instant::now();
    let (cases, next) = (cases(plan), AtomicUsize::new(0));
    let found = Mutex::new(Found { of: cases.len() as u64, ..Found::default() });
    let work = |worker: usize| -> anyhow::Result<()> {
        let place = home.join(format!("{}-{worker}", plan.fs.name()));
        std::fs::create_dir_all(&place)?;
        let stage = Stage::new(plan.fs, &place, tools.clone())?;
        while plan.until.is_none_or(|until| Instant::now() < until) {
            let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let mut plans = oracle::plans(case);
            plans.truncate(plan.plans);
            let played: Vec<Played> = plans
                .iter()
                .map(|between| stage.play(case, between, Guard::Native))
                .collect::<anyhow::Result<_>>()?;
            // A kernel that cannot mount what it left itself says nothing.
            let (plans, native): (Vec<_>, Vec<_>) = plans
                .into_iter()
                .zip(&played)
                .filter(|(_, played)| played.trouble.is_none())
                .map(|(between, played)| (between, played.tree.clone()))
                .unzip();
            let compared = compare(plan, case, &plans, &native);
            let mut found = found.lock().expect("no holder panics");
            found.cases += 1;
            found.native_runs += played.len() as u64;
            found.native_trees += native.iter().collect::<HashSet<_>>().len() as u64;
            match compared {
                None => found.unjudged += 1,
                Some(compared) => {
                    found.model_trees += compared.states;
                    for name in compared.weaker {
                        *found.weaker.entry(name).or_default() += 1;
                    }
                    found.differences.extend(compared.differences);
                }
            }
        }
        Ok(())
    };
    let ended: anyhow::Result<()> = std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> = (0..plan.workers).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    });
    ended?;
    let mut found = found.into_inner().expect("no holder panics");
    found.seconds = started.elapsed().as_secs_f64();
    found.differences.sort_by(|one, two| (one.kind, &one.case).cmp(&(two.kind, &two.case)));
    Ok(found)
}

struct Compared {
    states: u64,
    weaker: BTreeSet<&'static str>,
    differences: Vec<Difference>,
}

/// None if one side has nothing to say.
fn compare(plan: &Plan, case: &Case, plans: &[oracle::Plan], native: &[Arc<Tree>]) -> Option<Compared> {
    let first = native.first()?;
    let right = simulated::model(plan.fs).rules();
    let rules = plan.wrong.map_or(right, |wrong| wrong.of(right));
    let allowed = |rules: Rules| simulated::trees(plan.fs, rules, case, plans, STATES_MAX);
    let by_plan = allowed(rules)?;
    let on: Vec<&Weaker> = WEAKER.iter().filter(|weaker| weaker.on.contains(&plan.fs)).collect();
    // What the kernel commits beyond the model's promise, a later sync does not commit again.
    let mut beyond: Option<Vec<Vec<HashSet<Tree>>>> = None;
    let mut is_beyond = |at: usize, tree: &Tree| {
        let beyond = beyond.get_or_insert_with(|| {
            let all = on.iter().fold(rules, |rules, weaker| (weaker.stronger)(rules));
            let each = on.iter().map(|weaker| (weaker.stronger)(rules));
            each.chain([all]).filter_map(allowed).collect()
        });
        beyond.iter().any(|by_plan| by_plan[at].contains(tree))
    };
    let model = |by_plan: Vec<HashSet<Tree>>| by_plan.into_iter().flatten().collect::<HashSet<Tree>>();
    let mut compared = Compared { states: 0, weaker: BTreeSet::new(), differences: Vec::new() };
    let runs = plans.iter().zip(native.iter().zip(&by_plan)).enumerate();
    let refused =
        runs.filter(|(at, (_, (tree, allowed)))| !allowed.contains(&***tree) && !is_beyond(*at, tree));
    let told = refused.take(TOLD_MAX).flat_map(|(_, (between, (tree, allowed)))| {
        let nearest = allowed.iter().min_by_key(|allowed| allowed.differences(tree).len());
        let lines = nearest.map(|nearest| nearest.differences(tree)).unwrap_or_default();
        let syncs: Vec<String> =
            between.iter().map(|sync| format!("{} after {}", sync.call, sync.after)).collect();
        std::iter::once(format!("with [{}] the nearest of the model's has", syncs.join(", ")))
            .chain(lines.into_iter().map(|line| format!("    {line}")))
    });
    let refused: Vec<String> = told.collect();
    let model_trees = model(by_plan);
    compared.states = model_trees.len() as u64;
    let mut sure = Sure {
        certain: first.facets(),
        known: native.iter().flat_map(|tree| tree.entries.keys().cloned()).collect(),
        // Each change was followed by a commit in some run: these are all.
        names: plan.fs.commits_a_prefix().then(|| native.iter().map(|tree| tree.names()).collect()),
    };
    for tree in &native[1..] {
        let facets = tree.facets();
        sure.certain.retain(|what, value| facets.get(what) == Some(value));
    }
    let mut told = sure.lost(&model_trees);
    if !told.is_empty() && !plan.strict {
        let explains = |weaker: &&&Weaker| {
            allowed((weaker.stronger)(rules)).is_some_and(|by_plan| sure.lost(&model(by_plan)).is_empty())
        };
        let together = || on.iter().fold(rules, |rules, weaker| (weaker.stronger)(rules));
        if let Some(weaker) = on.iter().find(explains) {
            compared.weaker.insert(weaker.name);
            told.clear();
        } else if allowed(together()).is_some_and(|by_plan| sure.lost(&model(by_plan)).is_empty()) {
            compared.weaker.insert("several of these together");
            told.clear();
        }
    }
    for (kind, told) in [(Kinds::Refused, refused), (Kinds::Weaker, told)] {
        if !told.is_empty() {
            compared.differences.push(Difference { case: case.to_string(), kind, told });
        }
    }
    Some(compared)
}

/// What the native trees of a case say together.
struct Sure {
    /// What all say alike.
    certain: BTreeMap<(String, String), String>,
    /// Every path that one of them has.
    known: BTreeSet<String>,
    /// The names that they have, each set of them once, where the order of changes is kept.
    names: Option<HashSet<BTreeMap<String, String>>>,
}

impl Sure {
    /// What of it is otherwise in some tree of a model.
    fn lost(&self, model: &HashSet<Tree>) -> Vec<String> {
        let mut lost: BTreeMap<(String, String), String> = BTreeMap::new();
        for tree in model {
            for path in tree.entries.keys().filter(|path| !self.known.contains(*path)) {
                lost.insert((path.clone(), "name".to_owned()), "nothing, but is there".to_owned());
            }
            let facets = tree.facets();
            for (what, value) in self.certain.iter().filter(|(what, value)| facets.get(what) != Some(value)) {
                let but = facets.get(what).map_or("is not there", String::as_str);
                lost.entry(what.clone()).or_insert_with(|| format!("{value}, but {but}"));
            }
            if let Some(names) = self.names.as_ref().filter(|names| !names.contains(&tree.names())) {
                let found: Vec<String> = tree.names().into_keys().collect();
                let line = format!("one of {} sets, but [{}]", names.len(), found.join(" "));
                lost.insert(("names".to_owned(), "all together".to_owned()), line);
            }
        }
        lost.into_iter().map(|((path, facet), line)| format!("{path}, {facet}: always {line}")).collect()
    }
}

/// What a kernel makes durable and its model does not promise, on purpose.
pub struct Weaker {
    /// What it is called.
    pub name: &'static str,
    /// The file systems.
    pub on: &'static [Kind],
    /// Why the model does not promise it.
    pub reason: &'static str,
    /// A case that needs it, on the first of these.
    pub case: &'static str,
    /// The rules with this promise: they must explain all that the case differs in.
    stronger: fn(Rules) -> Rules,
}

/// All of them.
pub static WEAKER: &[Weaker] = &[
    Weaker {
        name: "a sync of a directory commits though no name in it changed",
        on: &[Kind::Ext4, Kind::Ext4Fast],
        reason: "since fast commits came, ext4 forces a commit for whatever is no regular file; older kernels look \
                 at the directory's transaction",
        case: "otrunc a/old; fsync b",
        stronger: |rules| Rules { clean_directory_sync: Covers::All, ..rules },
    },
    Weaker {
        name: "a sync of a file commits of which nothing that counts changed",
        on: &[Kind::Ext4, Kind::Ext4Fast],
        reason: "an inode that ext4 reads from the disk while a transaction runs counts as part of it, which \
                 depends on what was in memory",
        case: "mkdir a/new1; fsync b/clean",
        stronger: |rules| Rules { reading_joins: true, ..rules },
    },
    Weaker {
        name: "a sync of overwritten bytes commits",
        on: &[Kind::Ext4, Kind::Ext4Fast, Kind::Xfs],
        reason: "the time of the write is in the journal, unless the clock's tick is the one of the last write",
        case: "mkdir a/new1; over a/old; fsync a/old",
        stronger: |rules| Rules { sync_of_bytes: Covers::All, ..rules },
    },
    Weaker {
        name: "the size that a write within the last block makes is the journal's",
        on: &[Kind::Ext4, Kind::Ext4Fast],
        reason: "ext4 has nothing to allocate there and notes the size at once, without the bytes; the simulator's \
                 sizes lag all the more",
        case: "append a/live; create a/new2; fsync a/new2",
        stronger: |rules| Rules { journals_written_sizes: true, ..rules },
    },
    Weaker {
        name: "a sync of what got or lost names commits",
        on: &[Kind::Btrfs],
        reason: "where its log of syncs would be wrong or long, btrfs commits the transaction instead; each \
                 kernel has other cases",
        case: "cut a/live; rename a/old b/moved2; fsync b/moved2",
        stronger: |rules| Rules { sync_of_moved: Covers::All, sync_beside_moves: Covers::All, ..rules },
    },
];
