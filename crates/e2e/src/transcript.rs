//! Comparing what the conformance checks saw natively with what they saw under Holdfast.

use std::collections::BTreeMap;

/// Where a difference stands: the check's name before each line.
fn placed(transcript: &str) -> Vec<(String, &str)> {
    let mut check = String::new();
    transcript
        .lines()
        .map(|line| {
            if let Some(name) = line.strip_prefix("== ") {
                check = name.to_owned();
            }
            // In a tree each line is about another path.
            let path =
                line.strip_prefix("./").and_then(|line| line.split(':').next()).filter(|_| check == "tree");
            (path.map_or_else(|| check.clone(), |path| format!("tree, {path}")), line)
        })
        .collect()
}

/// What differs between two transcripts, line by line within each check; each begins with the
/// check's theme and name.
pub fn differences(native: &str, held: &str) -> Vec<String> {
    let by_check = |transcript| {
        let mut checks: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (check, line) in placed(transcript) {
            checks.entry(check).or_default().push(line);
        }
        checks
    };
    let (native, held) = (by_check(native), by_check(held));
    let names: std::collections::BTreeSet<&String> = native.keys().chain(held.keys()).collect();
    let none = Vec::new();
    let mut found = Vec::new();
    for name in names {
        let (native, held) = (native.get(name).unwrap_or(&none), held.get(name).unwrap_or(&none));
        let lines = native.len().max(held.len());
        if let Some(at) = (0..lines).find(|&at| native.get(at) != held.get(at)) {
            let shown = |lines: &Vec<&str>| lines.get(at).map_or("(nothing)", |line| *line).to_owned();
            found.push(format!(
                "{name}, line {at}:\n    natively {}\n    held     {}",
                shown(native),
                shown(held)
            ));
        }
    }
    found
}
