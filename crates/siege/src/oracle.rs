//! What a native kernel may leave of a case: of the case as it is, and of the case with syncs that
//! come by themselves, in every place and of every kind that makes a difference. A state is allowed
//! if it was seen natively; bytes may be those of any native run that left the same names, sizes
//! and attributes, page by page, since pages are written back in any order.
//!
//! What an outsider changed and nobody synced may be missing although what the program did later is
//! there: whose change it was, or who syncs that very thing, sees to it ([`left_out`]).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use crate::op::{Case, NOTHING, Who};
use crate::play::{Guard, Played, Spontaneous, Stage};
use crate::tree::Tree;

/// How many ways of syncing in between are tried at most.
const PLANS_MAX: usize = 800;
/// The likely ones.
pub const PLANS_LIKELY: usize = 40;

/// Syncs between the steps of one native run.
pub type Plan = Vec<Spontaneous>;

/// All that was seen natively of one case.
#[derive(Default)]
pub struct Seen {
    /// What came of its steps.
    pub results: Vec<i32>,
    /// Why the plain run left nothing.
    pub trouble: Option<String>,
    /// What the plain run left.
    pub plain: Arc<Tree>,
    /// Trees that a run left, each once.
    pub trees: Vec<Arc<Tree>>,
    /// How many plans of the list were run.
    pub tried: usize,
}

/// Native runs, remembered by case for all workers.
#[derive(Default)]
pub struct Oracle {
    /// What outsiders changed elsewhere must be there as well.
    strict: bool,
    cases: Mutex<HashMap<String, Arc<Mutex<Seen>>>>,
    runs: std::sync::atomic::AtomicU64,
}

impl Oracle {
    /// One that has seen nothing yet. A `strict` one lets nothing be missing that outsiders changed
    /// elsewhere.
    pub fn new(strict: bool) -> Self {
        Self { strict, ..Self::default() }
    }

    /// How many native runs were made.
    pub fn runs(&self) -> u64 {
        self.runs.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether a native kernel could have left the tree, of the case or of what [`left_out`] makes
    /// of it. Runs each natively in one way after the other until one shows it, or so many were
    /// tried.
    pub fn allows(&self, stage: &Stage, case: &Case, tree: &Tree, plans_max: usize) -> anyhow::Result<bool> {
        if self.allows_this(stage, case, tree, plans_max)? {
            return Ok(true);
        }
        if self.strict {
            return Ok(false);
        }
        let results = |case: &Case| -> anyhow::Result<Vec<i32>> {
            let seen = self.seen(stage, case)?;
            let seen = seen.lock().expect("no holder panics");
            Ok(seen.results.clone())
        };
        let all = results(case)?;
        let succeeded = |at: usize| all.get(at) == Some(&0);
        for without in left_out(case, &succeeded) {
            // A change that needs what is left out fails without it.
            let some = results(&without)?;
            let is_whole = case
                .steps
                .iter()
                .enumerate()
                .all(|(at, step)| step.is_sync() || !succeeded(at) || some[at] == 0);
            if is_whole && self.allows_this(stage, &without, tree, plans_max)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn allows_this(&self, stage: &Stage, case: &Case, tree: &Tree, plans_max: usize) -> anyhow::Result<bool> {
        let case = &native(case);
        let seen = self.seen(stage, case)?;
        let mut seen = seen.lock().expect("no holder panics");
        if seen.allow(tree) {
            return Ok(true);
        }
        let plans = plans(case);
        while let Some(plan) = plans.get(seen.tried).filter(|_| seen.tried < plans_max) {
            let played = self.play(stage, case, plan)?;
            seen.tried += 1;
            // A kernel that cannot mount what it left itself says nothing. ext4's fast commits
            // bring that about.
            if played.trouble.is_none() && seen.note(played.tree) && seen.allow(tree) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What is known of a case: at least one plain run.
    pub fn seen(&self, stage: &Stage, case: &Case) -> anyhow::Result<Arc<Mutex<Seen>>> {
        let case = &native(case);
        let seen = self.cases.lock().expect("no holder panics").entry(case.to_string()).or_default().clone();
        {
            let mut seen = seen.lock().expect("no holder panics");
            if seen.trees.is_empty() {
                let played = self.play(stage, case, &[])?;
                seen.trouble = played.trouble;
                seen.results = played.results;
                seen.plain = played.tree.clone();
                seen.note(played.tree);
            }
        }
        Ok(seen)
    }

    fn play(&self, stage: &Stage, case: &Case, plan: &[Spontaneous]) -> anyhow::Result<Played> {
        self.runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        stage.play(case, plan, Guard::Native)
    }
}

impl Seen {
    fn note(&mut self, tree: Arc<Tree>) -> bool {
        let new = !self.trees.contains(&tree);
        if new {
            self.trees.push(tree);
        }
        new
    }

    /// Whether the trees seen so far allow this one.
    pub fn allow(&self, tree: &Tree) -> bool {
        let shape = tree.shape();
        let alike: Vec<&Arc<Tree>> = self.trees.iter().filter(|seen| seen.shape() == shape).collect();
        tree.entries.iter().all(|(path, entry)| {
            let mut pages = entry.pages.iter().enumerate();
            pages.all(|(page, bytes)| alike.iter().any(|seen| seen.entries[path].pages[page] == *bytes))
        }) && !alike.is_empty()
    }

    /// The tree that differs least from this one.
    pub fn nearest(&self, tree: &Tree) -> Arc<Tree> {
        let distance = |seen: &&Arc<Tree>| seen.differences(tree).len();
        self.trees.iter().min_by_key(distance).expect("one run at least").clone()
    }

    /// For each path, whether some native run left what stands at it in the tree.
    pub fn strange(&self, tree: &Tree) -> BTreeMap<String, bool> {
        let paths = self.trees.iter().flat_map(|seen| seen.entries.keys()).chain(tree.entries.keys());
        let mut told = BTreeMap::new();
        for path in paths {
            let found = tree.entries.get(path);
            let known = self.trees.iter().any(|seen| seen.entries.get(path) == found);
            if !known {
                told.insert(path.clone(), found.is_some());
            }
        }
        told
    }
}

/// The case as the oracle plays it. Who makes a step is the same to a kernel, unless it matters who
/// has which file open.
fn native(case: &Case) -> Case {
    let mut case = case.clone();
    let told_apart = ["close", "mmap", "msync", "rename", "exchange", "unlink"];
    if !case.steps.iter().any(|step| told_apart.contains(&step.verb.name)) {
        case.steps.iter_mut().for_each(|step| step.who = Who::P);
    }
    case
}

/// The case without changes that outsiders made to what nobody under Holdfast has anything to do
/// with, and that no sync was asked to make durable: neither one of their own, nor one of the whole
/// file system, nor one of that file or, if a name was changed, of its directory. Natively the
/// journal takes such a change along with any other. But no program can tell that another process
/// made it earlier, unless it looks at that very thing; and to have looked makes nothing durable,
/// so a step that failed does not count.
fn left_out(case: &Case, succeeded: &dyn Fn(usize) -> bool) -> Vec<Case> {
    let foreign = |at: &usize| case.steps[*at].who == Who::O && !case.steps[*at].is_sync();
    let foreign: Vec<usize> = (0..case.steps.len()).filter(foreign).collect();
    let mut without = Vec::new();
    for set in 1..1_u32 << foreign.len() {
        let is_out =
            |at: usize| foreign.iter().position(|step| *step == at).is_some_and(|bit| set >> bit & 1 == 1);
        let kept = (0..case.steps.len()).filter(|at| !is_out(*at) && succeeded(*at));
        let needed = kept.into_iter().any(|later| {
            (0..later).any(|at| is_out(at) && case.steps[later].has_to_do_with(&case.steps[at]))
        });
        if !needed {
            let mut case = case.clone();
            let out = case.steps.iter_mut().enumerate().filter(|(at, _)| is_out(*at));
            out.for_each(|(_, step)| step.verb = &NOTHING);
            without.push(case);
        }
    }
    without
}

/// Ways of syncing in between, the likely ones first.
pub(crate) fn plans(case: &Case) -> Vec<Plan> {
    let changes: Vec<usize> = (0..case.steps.len()).filter(|at| !case.steps[*at].is_sync()).collect();
    let sync = |at: usize, call: &str| Spontaneous { after: at + 1, call: call.to_owned() };
    // What survives by luck does not survive always: the plain case more than once.
    let mut plans: Vec<Plan> = vec![Vec::new(); 2];
    let mut singles: Plan = Vec::new();
    for at in changes.iter().rev() {
        singles.push(sync(*at, "syncfs"));
        singles.push(sync(*at, "commit"));
        singles.extend(case.paths().iter().map(|path| sync(*at, &format!("fsync {path}"))));
    }
    plans.extend(singles.iter().map(|single| vec![single.clone()]));
    // What was synced before the case may have been committed as well: then btrfs need not take it
    // along.
    let committed = Spontaneous { after: 0, call: "syncfs".to_owned() };
    plans.push(vec![committed.clone()]);
    plans.extend(singles.iter().map(|single| vec![committed.clone(), single.clone()]));
    // Each change synced by itself, as a record of it would be; all, then all but some.
    for left_out in 0..1_u32 << changes.len().min(5) {
        let kept = changes.iter().enumerate().filter(|(bit, _)| left_out >> bit & 1 == 0);
        let plan: Plan =
            kept.map(|(_, at)| sync(*at, &format!("fsync {}", case.steps[*at].target()))).collect();
        if plan.len() > 1 {
            plans.extend([plan.clone(), [vec![committed.clone()], plan].concat()]);
        }
    }
    // Pages that were written back alone, with or without a commit.
    let files: Vec<String> = case.paths().into_iter().filter(|path| path.contains('/')).collect();
    for at in changes.iter().rev() {
        for file in &files {
            let written = sync(*at, &format!("range {file}"));
            plans.push(vec![written.clone()]);
            for commit in singles.iter().filter(|single| single.call == "commit") {
                plans.push(vec![written.clone(), commit.clone()]);
            }
        }
    }
    for (index, one) in singles.iter().enumerate() {
        plans.extend(singles[..index].iter().map(|two| vec![two.clone(), one.clone()]));
    }
    for plan in &mut plans {
        plan.sort_by_key(|sync| sync.after);
    }
    plans.truncate(PLANS_MAX);
    plans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_outsiders_did_elsewhere_may_be_missing() {
        let left_out_of_failing = |case: &str, fails: usize| {
            let found = left_out(&case.parse().unwrap(), &|at| at != fails);
            found.iter().map(Case::to_string).collect::<Vec<_>>()
        };
        let left_out = |case: &str| left_out_of_failing(case, usize::MAX);
        assert_eq!(left_out("o:mkdir a/new1; append a/made"), ["o:nothing a/new1; append a/made"]);
        assert_eq!(left_out("o:fchmod a/old; fsync a"), ["o:nothing a/old; fsync a"]);
        assert_eq!(left_out("o:link a/old b/new; fsync a"), ["o:nothing a/old b/new; fsync a"]);
        assert_eq!(left_out("o:symlink a/new; fsync a/new"), ["o:nothing a/new; fsync a/new"]);
        assert_eq!(
            left_out("o:fchmod a/old; o:cut a/old; fsync b"),
            ["o:fchmod a/old; o:nothing a/old; fsync b", "o:nothing a/old; o:nothing a/old; fsync b"]
        );
        let failing = left_out_of_failing("o:rmdir a/sub; fsync a/sub; append a/made", 1);
        assert_eq!(failing, ["o:nothing a/sub; fsync a/sub; append a/made"]);
        for needed in [
            "o:mkdir a/new1; fsync a",
            "o:rmdir a/sub; fsync a/sub",
            "o:fchmod a/old; append a/old",
            "o:fchmod a/old; fsync a/old",
            "o:fchmod a/old; syncfs",
            "o:link a/old b/new; fsync b",
            "o:link a/old b/new; fsync a/old",
            "o:symlink a/new; append a/new",
            "o:fchmod a/old; o:fsync b/clean",
            "o:mkdir a/new1; create a/new1/file",
            "o:rename a b; append b/old",
            "append a/made; fsync a/made",
        ] {
            assert_eq!(left_out(needed), [""; 0], "{needed}");
        }
    }

    #[test]
    fn every_change_may_be_synced_by_itself() {
        let plans = plans(&"append a/old; fsync b; unlink a/old".parse().unwrap());
        let fsync = |after, path: &str| Spontaneous { after, call: format!("fsync {path}") };
        assert!(plans.contains(&vec![fsync(1, "a/old")]));
        assert!(plans.contains(&vec![fsync(1, "a/old"), fsync(3, "a/old")]));
        assert!(plans.iter().flatten().all(|sync| sync.after != 2), "behind a sync there is nothing new");
    }
}
