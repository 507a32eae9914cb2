//! Holds what Holdfast left to what the oracle saw, and says what is different, and of which kind.

use std::fmt;

use serde::Serialize;

use crate::disk::Kind as DiskKind;
use crate::op::{Case, Step, Who};
use crate::oracle::{Oracle, PLANS_LIKELY};
use crate::play::{Guard, Played, Stage};

/// What kind of difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    /// A step had another result.
    Result,
    /// A step hung, a process died.
    Trouble,
    /// Recovery failed or did not end.
    Recovery,
    /// A file was set aside although no outsider took part, or was set aside and is not what it was
    /// before.
    Aside,
    /// Something is there natively in all runs, and is not.
    Lost,
    /// Something is there that no native run left.
    Returned,
    /// Something is otherwise than any native run left it.
    Changed,
    /// Each thing is as some native run left it, all together as none did.
    Order,
}

/// A difference.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The file system.
    pub fs: DiskKind,
    /// The case.
    pub case: String,
    /// The kind.
    pub kind: Kind,
    /// What was expected and found, a line each.
    pub told: Vec<String>,
    /// What recovery printed.
    pub recovery: String,
    /// The command that repeats it.
    pub repeat: String,
}

/// How a case came out.
#[derive(Default)]
pub struct Verdict {
    /// It could not be played natively: a kernel that cannot mount what it left.
    pub unjudged: Option<String>,
    /// What is different, if anything.
    pub difference: Option<Difference>,
    /// It is different, and contains a case that is known to be.
    pub known: Option<String>,
    /// Records that recovery found.
    pub records: u64,
    /// A file was set aside, as it may be after an outsider's interference.
    pub set_aside: bool,
}

/// Plays a case under Holdfast and judges it. `known` tells of a differing case that this one
/// contains: then what is not explained at once is taken for the same, without the many native runs
/// that would show it.
pub fn judge(
    stage: &Stage,
    oracle: &Oracle,
    fs: DiskKind,
    case: &Case,
    known: &dyn Fn(&Case) -> Option<String>,
) -> anyhow::Result<Verdict> {
    let seen = oracle.seen(stage, case)?;
    if let Some(trouble) = &seen.lock().expect("no holder panics").trouble {
        return Ok(Verdict { unjudged: Some(trouble.clone()), ..Verdict::default() });
    }
    let played = stage.play(case, &[], Guard::Holdfast)?;
    let recovery = played.recovery.clone().unwrap_or_default();
    let set_aside = !recovery.set_aside.is_empty();
    let judged = if let Some(trouble) = &played.trouble {
        Some((Kind::Trouble, vec![trouble.clone()]))
    } else if let Some(told) = results(case, &seen.lock().expect("no holder panics").results, &played) {
        Some((Kind::Result, told))
    } else if set_aside {
        aside(case, &played)
    } else if played.recovery.is_some() && recovery.status != Some(0) {
        Some((Kind::Recovery, vec![format!("recovery ended with {:?}, not 0", recovery.status)]))
    } else if oracle.allows(stage, case, &played.tree, PLANS_LIKELY)? {
        None
    } else if let Some(known) = known(case) {
        return Ok(Verdict { known: Some(known), records: recovery.records, ..Verdict::default() });
    } else if oracle.allows(stage, case, &played.tree, usize::MAX)? {
        None
    } else {
        let seen = seen.lock().expect("no holder panics");
        let strange = seen.strange(&played.tree);
        let kind = if strange.is_empty() {
            Kind::Order
        } else if strange.values().all(|there| !there) {
            Kind::Lost
        } else {
            let known = |path: &String| seen.trees.iter().any(|tree| tree.entries.contains_key(path));
            let back = strange.iter().any(|(path, there)| *there && !known(path));
            if back { Kind::Returned } else { Kind::Changed }
        };
        let plain = seen.plain.differences(&played.tree);
        let mut told: Vec<String> = plain.iter().map(|line| format!("natively {line}")).collect();
        let nearest = seen.nearest(&played.tree);
        if nearest != seen.plain {
            told.push(format!("of {} states that native kernels left the nearest has", seen.trees.len()));
            told.extend(nearest.differences(&played.tree).iter().map(|line| format!("         {line}")));
        }
        Some((kind, told))
    };
    let difference = judged.map(|(kind, told)| Difference {
        fs,
        case: case.to_string(),
        kind,
        told,
        recovery: recovery.told,
        repeat: format!("holdfast-siege --fs {} --case '{case}'", fs.name()),
    });
    Ok(Verdict { difference, records: recovery.records, set_aside, ..Verdict::default() })
}

fn results(case: &Case, native: &[i32], played: &Played) -> Option<Vec<String>> {
    let named = |errno: i32| match errno {
        0 => "success".to_owned(),
        errno => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    let pairs = case.steps.iter().zip(native.iter().zip(&played.results));
    let told: Vec<String> = pairs
        .filter(|(_, (native, found))| native != found)
        .map(|(step, (native, found))| format!("{step}: natively {}, but {}", named(*native), named(*found)))
        .collect();
    (!told.is_empty()).then_some(told)
}

/// An outsider may bring it about that a file is set aside; then it is what it was before recovery.
fn aside(case: &Case, played: &Played) -> Option<(Kind, Vec<String>)> {
    let recovery = played.recovery.as_ref()?;
    let told: Vec<String> =
        recovery.set_aside.iter().map(|(path, reason)| format!("{path} was set aside: {reason}")).collect();
    if !case.has(Who::O) {
        return Some((Kind::Aside, told));
    }
    let before = played.before.as_ref()?;
    let changed =
        recovery.set_aside.keys().find(|path| before.entries.get(*path) != played.tree.entries.get(*path));
    changed.map(|path| (Kind::Aside, vec![format!("{path} was set aside, and changed by recovery")]))
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} on {}: {}", self.kind, self.fs.name(), self.case)?;
        self.told.iter().try_for_each(|line| writeln!(f, "    {line}"))?;
        write!(f, "    $ {}", self.repeat)
    }
}

/// A simpler case that differs as well: steps are left out, and made by the program itself, as long
/// as there is a difference.
pub fn shortened(stage: &Stage, oracle: &Oracle, first: Difference) -> anyhow::Result<Difference> {
    let mut shortest = first;
    'again: loop {
        let case: Case = shortest.case.parse()?;
        for simpler in simpler(&case) {
            let found = judge(stage, oracle, shortest.fs, &simpler, &|_| None)?.difference;
            // A step that fails for want of another is no simpler case of the same.
            if let Some(found) =
                found.filter(|found| found.kind != Kind::Result || shortest.kind == Kind::Result)
            {
                shortest = found;
                continue 'again;
            }
        }
        return Ok(shortest);
    }
}

fn simpler(case: &Case) -> Vec<Case> {
    let changed = |at: usize, change: &dyn Fn(&mut Vec<Step>, usize)| {
        let mut steps = case.steps.clone();
        change(&mut steps, at);
        Case { steps }
    };
    let all = 0..case.steps.len();
    let shorter = all.clone().map(|at| changed(at, &|steps, at| drop(steps.remove(at))));
    let others = all.filter(|at| case.steps[*at].who != Who::P);
    let alone = others.map(|at| changed(at, &|steps, at| steps[at].who = Who::P));
    shorter.chain(alone).filter(|case| !case.steps.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simpler_cases_lack_a_step_or_an_actor() {
        let case: Case = "append a/old; o:fsync a/old".parse().unwrap();
        let simpler: Vec<String> = simpler(&case).iter().map(Case::to_string).collect();
        assert_eq!(simpler, ["o:fsync a/old", "append a/old", "append a/old; fsync a/old"]);
    }
}
