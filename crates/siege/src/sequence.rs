//! Which cases there are. Of one operation all, of two all of the core vocabulary, of three and
//! four as many as there is time for, drawn by a seed. No two that differ in names alone. What an
//! operation needs is there: the files that every case starts from, and what an earlier step made.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use holdfast_testkit::Random;

use crate::disk::Kind;
use crate::op::{Case, Step, Theme, VERBS, Verb, Who};

/// Existing and not yet seen by Holdfast, synced under it, made under it.
const FILES: [&str; 3] = ["a/old", "a/live", "a/made"];
/// Another file, which only ever is written to: syncs of it, clean or not, are syncs of something
/// else.
const OTHER: &str = "b/clean";

/// Who makes the first operation, who the second.
const PAIRS: [(Who, Who); 4] = [(Who::P, Who::P), (Who::P, Who::Q), (Who::P, Who::O), (Who::O, Who::P)];

fn runs_on(verb: &Verb, kind: Kind) -> bool {
    let cannot_clone = matches!(kind, Kind::Ext4 | Kind::Ext4Fast);
    let cannot_shift = kind == Kind::Btrfs;
    !(cannot_clone && verb.name == "clone"
        || cannot_shift && matches!(verb.name, "collapse" | "insert" | "scollapse" | "dinsert"))
}

/// What a verb may be done to. `nth` parts the names that several operations of one case make.
fn instances(verb: &'static Verb, who: Who, files: &[&str], nth: usize) -> Vec<Step> {
    let new = |stem: &str| format!("{stem}{nth}");
    let step = |paths: &[&str]| Step::new(who, verb.name, paths);
    match verb.name {
        "create" | "tmplink" | "mkdir" | "symlink" => vec![step(&[&new("a/new")])],
        "rmdir" => vec![step(&["a/sub"])],
        "link" => files.iter().map(|file| step(&[file, &new("b/link")])).collect(),
        "clone" => files.iter().map(|file| step(&[file, &new("a/clone")])).collect(),
        "exchange" => files.iter().map(|file| step(&[file, OTHER])).collect(),
        "rename" => {
            let mut all = vec![step(&["a/sub", &new("b/sub")])];
            for file in files {
                all.extend([
                    step(&[file, &new("a/moved")]),
                    step(&[file, &new("b/moved")]),
                    step(&[file, OTHER]),
                ]);
            }
            all
        }
        _ => files.iter().map(|file| step(&[file])).collect(),
    }
}

/// What may end a case, or part two operations: syncs of what was changed, of where it is, of
/// everything, of something else.
fn syncs(who: Who, step: &Step) -> Vec<Option<Step>> {
    let target = step.target();
    let parent = target.rsplit_once('/').map_or("a", |(parent, _)| parent);
    let mut all = vec![None];
    // Directories, links and what is gone are not synced by name.
    if !matches!(step.verb.name, "unlink" | "rmdir" | "symlink") {
        all.push(Some(Step::new(who, "fsync", &[target])));
        all.push(Some(Step::new(who, "fdatasync", &[target])));
    }
    all.push(Some(Step::new(who, "fsync", &[parent])));
    all.push(Some(Step::new(who, "syncfs", &[])));
    all.push(Some(Step::new(who, "fsync", &[OTHER])));
    all
}

/// All cases of one operation.
fn ones(kind: Kind) -> Vec<(u64, Case)> {
    let mut cases = Vec::new();
    for verb in operations(kind) {
        for who in [Who::P, Who::Q, Who::O] {
            for step in instances(verb, who, &FILES, 1) {
                let mut ends = syncs(Who::P, &step);
                if who != Who::P {
                    ends.extend(syncs(who, &step));
                }
                for name in ["msync", "close"] {
                    if matches!(verb.theme, Theme::Bytes | Theme::Space) {
                        ends.push(Some(Step::new(Who::P, name, &[step.target()])));
                    }
                }
                let stratum = stratum(&[&step]);
                let cases_of =
                    ends.into_iter().map(|end| [Some(step.clone()), end].into_iter().flatten().collect());
                cases.extend(cases_of.map(|steps| (stratum, Case { steps })));
            }
        }
    }
    cases
}

/// All cases of two operations of the core vocabulary: on one file or on two, with nothing or a
/// sync between and at the end.
fn twos(kind: Kind) -> Vec<(u64, Case)> {
    let mut cases = Vec::new();
    for (first_who, second_who) in PAIRS {
        for (one, two) in operations(kind).flat_map(|one| operations(kind).map(move |two| (one, two))) {
            if !one.core || !two.core {
                continue;
            }
            for first in instances(one, first_who, &FILES, 1) {
                for second in seconds(&first, two, second_who) {
                    let stratum = stratum(&[&first, &second]);
                    let between = [None, Some(Step::new(Who::P, "fsync", &[first.target()]))];
                    for between in &between[..if first.verb.name == "unlink" { 1 } else { 2 }] {
                        for end in syncs(Who::P, &second) {
                            let steps = [Some(first.clone()), between.clone(), Some(second.clone()), end];
                            cases.push((stratum, Case { steps: steps.into_iter().flatten().collect() }));
                        }
                    }
                }
            }
        }
    }
    cases
}

/// Second operations behind a first one: on the file as it is called now, on what the first one
/// made, on another file.
fn seconds(first: &Step, verb: &'static Verb, who: Who) -> Vec<Step> {
    let mut files = vec![first.target()];
    let others = FILES.iter().filter(|file| !first.paths.iter().any(|path| path == *file));
    // One that is there natively, one that is there by its record alone.
    files.extend(others.copied().filter(|file| *file != "a/live"));
    files.retain(|file| *file != OTHER || first.verb.name != "exchange");
    files.dedup();
    let mut steps = instances(verb, who, &files, 2);
    // A name that is free again is taken again.
    if matches!(verb.name, "create" | "mkdir") && matches!(first.verb.name, "unlink" | "rename" | "rmdir") {
        steps.push(Step::new(who, verb.name, &[&first.paths[0]]));
    }
    steps.retain(|step| fits(first, step));
    steps
}

/// Whether a step can succeed behind another one, as far as names tell: errors are compared by few
/// cases only.
fn fits(first: &Step, step: &Step) -> bool {
    let gone = match first.verb.name {
        "unlink" | "rmdir" | "rename" => Some(first.paths[0].as_str()),
        _ => None,
    };
    let needs_file = !matches!(step.verb.name, "create" | "tmplink" | "mkdir" | "symlink" | "rmdir");
    let subject = step.paths.first().map(String::as_str);
    let directory = |step: &Step| {
        matches!(step.verb.name, "mkdir") || step.paths.first().is_some_and(|path| path.contains("sub"))
    };
    let of_directories = matches!(step.verb.name, "rename" | "utimens" | "rmdir");
    let same = subject == Some(first.target());
    let needs_name = needs_file || step.verb.name == "rmdir";
    let is_gone = needs_name && subject == gone;
    let is_directory = same && needs_file && directory(first) && !of_directories;
    let is_link = same && first.verb.name == "symlink" && !matches!(step.verb.name, "rename" | "unlink");
    let is_itself = step.paths.first() == step.paths.get(1);
    ![is_gone, is_directory, is_link, is_itself].contains(&true)
}

fn operations(kind: Kind) -> impl Iterator<Item = &'static Verb> {
    VERBS.iter().filter(move |verb| verb.theme != Theme::Syncs && runs_on(verb, kind))
}

/// Cases of the same verbs by the same actors.
fn stratum(steps: &[&Step]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for step in steps {
        (step.who, step.verb.name).hash(&mut hasher);
    }
    hasher.finish()
}

/// All cases of a length, each once, in an order drawn by the seed that brings every kind of
/// sequence before it brings any again.
pub fn all(kind: Kind, length: usize, seed: u64) -> Vec<Case> {
    let cases = match length {
        1 => ones(kind),
        2 => twos(kind),
        _ => panic!("sequences of {length} are drawn, not counted"),
    };
    let mut known = HashSet::new();
    let mut cases: Vec<(u64, Case)> =
        cases.into_iter().filter(|(_, case)| known.insert(case.to_string())).collect();
    let mut random = Random::new(seed);
    for at in (1..cases.len()).rev() {
        cases.swap(at, random.between(0, at as u64 + 1) as usize);
    }
    // The how manieth of its kind each is.
    let mut counts = std::collections::HashMap::new();
    let mut ranked: Vec<(u64, Case)> = cases
        .into_iter()
        .map(|(stratum, case)| {
            let rank = counts.entry(stratum).or_insert(0_u64);
            *rank += 1;
            (*rank, case)
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, case)| case).collect()
}

/// A case of so many operations, drawn from all verbs.
pub fn drawn(kind: Kind, length: usize, seed: u64) -> Case {
    let mut random = Random::new(seed);
    let verbs: Vec<&Verb> = operations(kind).collect();
    let mut steps: Vec<Step> = Vec::new();
    let mut files: Vec<String> = FILES.iter().map(|file| (*file).to_owned()).collect();
    // Most cases stay with few files, or nothing would meet.
    files.remove(random.between(0, 3) as usize);
    let mut gone: Vec<String> = Vec::new();
    let mut made = 0;
    while made < length {
        let verb = verbs[random.between(0, verbs.len() as u64) as usize];
        let who = match random.between(0, 8) {
            0 => Who::Q,
            1 => Who::O,
            _ => Who::P,
        };
        let names: Vec<&str> = files.iter().map(String::as_str).collect();
        if names.is_empty() {
            break;
        }
        let instances = instances(
            VERBS.iter().find(|known| known.name == verb.name).expect("known"),
            who,
            &names,
            made + 1,
        );
        let mut step = instances[random.between(0, instances.len() as u64) as usize].clone();
        if matches!(verb.name, "create" | "tmplink") && !gone.is_empty() && random.between(0, 2) == 0 {
            step.paths[0] = gone.swap_remove(0);
        }
        let repeats = steps
            .iter()
            .any(|earlier| earlier.paths == step.paths && matches!(verb.name, "rmdir" | "rename"));
        if repeats || step.paths.first() == step.paths.get(1) {
            continue;
        }
        match verb.name {
            "create" | "tmplink" | "link" | "clone" => files.push(step.target().to_owned()),
            "unlink" | "rename" => {
                files.retain(|file| *file != step.paths[0]);
                gone.push(step.paths[0].clone());
                if verb.name == "rename" && !step.target().contains("sub") && step.target() != OTHER {
                    files.push(step.target().to_owned());
                }
            }
            _ => {}
        }
        made += 1;
        let last = made == length;
        let ends = syncs(if random.between(0, 8) == 0 { Who::Q } else { Who::P }, &step);
        let closes = matches!(verb.theme, Theme::Bytes | Theme::Space) && random.between(0, 6) == 0;
        let target = step.target().to_owned();
        steps.push(step);
        if closes {
            steps.push(Step::new(who, "close", &[&target]));
        }
        if last || random.between(0, 2) == 0 {
            steps.extend(ends[random.between(0, ends.len() as u64) as usize].clone());
        }
    }
    Case { steps }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_case_comes_twice_and_the_seed_decides_the_order() {
        for length in [1, 2] {
            let cases = all(Kind::Xfs, length, 1);
            let texts: HashSet<String> = cases.iter().map(Case::to_string).collect();
            assert_eq!(texts.len(), cases.len());
            let other = all(Kind::Xfs, length, 2);
            assert_eq!(other.len(), cases.len());
            assert_ne!(
                other[0].to_string() + &other[1].to_string(),
                cases[0].to_string() + &cases[1].to_string()
            );
            println!("{length}: {} cases", cases.len());
        }
    }

    #[test]
    fn every_kind_of_sequence_comes_before_any_comes_again() {
        let cases = all(Kind::Ext4, 1, 1);
        let verbs: HashSet<&str> = cases[..200].iter().map(|case| case.steps[0].verb.name).collect();
        assert_eq!(verbs.len(), operations(Kind::Ext4).count());
    }

    #[test]
    fn a_drawn_case_is_drawn_again() {
        let case = drawn(Kind::Xfs, 4, 7);
        assert_eq!(case, drawn(Kind::Xfs, 4, 7));
        assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
    }
}
