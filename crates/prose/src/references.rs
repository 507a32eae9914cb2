//! Numbers that are cited are given: invariants, histories and sections of docs/crash.md.

use std::collections::BTreeSet;

use crate::canaries::declared;
use crate::text::Kind;
use crate::{Fault, Tree};

/// The numbers that docs/crash.md, or what it is split into, gives.
#[derive(Default)]
struct Given {
    invariants: BTreeSet<u32>,
    histories: BTreeSet<u32>,
    sections: BTreeSet<u32>,
}

/// Cited numbers that nothing has.
pub fn references(tree: &Tree) -> Vec<Fault> {
    let given = Given::of(tree);
    let kinds: [(&[&str], &BTreeSet<u32>, &str); 3] = [
        (&["invariant ", "invariants "], &given.invariants, "invariant"),
        (&["history ", "histories "], &given.histories, "history"),
        (&["crash.md), section ", "crash.md, section "], &given.sections, "section"),
    ];
    let mut faults = Vec::new();
    for document in &tree.documents {
        // Its samples are made to fail.
        if document.path.starts_with("crates/prose") {
            continue;
        }
        for block in document.texts.iter().flat_map(|text| text.blocks()) {
            let text = block.text.to_ascii_lowercase();
            for (words, numbers, kind) in &kinds {
                for word in *words {
                    for (at, _) in text.match_indices(word) {
                        for number in cited(&text[at + word.len()..]) {
                            if !numbers.contains(&number) {
                                let what =
                                    format!("docs/crash.md has no {kind} {number}: cite one that it has");
                                faults.push(Fault {
                                    file: document.path.clone(),
                                    line: block.line(at),
                                    what,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    for canary in declared(tree) {
        let (word, numbers) = match canary.breaks.strip_prefix("history ") {
            Some(number) => (number, &given.histories),
            None if canary.breaks.contains('(') => (canary.breaks.as_str(), &given.sections),
            None => (canary.breaks.as_str(), &given.invariants),
        };
        if !cited(word).iter().all(|number| numbers.contains(number)) {
            let what =
                format!("{} breaks \"{}\", which docs/crash.md does not have", canary.name, canary.breaks);
            faults.push(Fault { file: canary.file, line: canary.line, what });
        }
    }
    faults
}

impl Given {
    fn of(tree: &Tree) -> Self {
        let mut given = Self::default();
        for document in tree.documents.iter().filter(|document| document.path.starts_with("docs")) {
            if !document.path.to_string_lossy().contains("crash") {
                continue;
            }
            let mut heading = String::new();
            for line in document.texts.iter().flat_map(|text| &text.lines) {
                match line.kind {
                    Kind::Heading => {
                        heading = line.text.trim_start_matches('#').trim().to_lowercase();
                        given.sections.extend(leading(&heading, "."));
                    }
                    Kind::Row if heading.contains("histories") => {
                        given.histories.extend(leading(line.text.trim_start_matches(['|', ' ']), " |"));
                    }
                    Kind::Prose if heading.contains("invariants") => {
                        given.invariants.extend(leading(&line.text, ". "));
                    }
                    _ => {}
                }
            }
        }
        given
    }
}

/// The number that a text begins with, if `end` follows it.
fn leading(text: &str, end: &str) -> Option<u32> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[digits..].starts_with(end).then(|| text[..digits].parse().ok())?
}

/// The numbers of "3", "3 and 4", "3, 4 and 5", "3 to 5".
fn cited(text: &str) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut rest = text;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(number) = rest[..digits].parse() else { return numbers };
        numbers.push(number);
        rest = &rest[digits..];
        match [", ", " and ", " or ", " to "].iter().find_map(|between| rest.strip_prefix(between)) {
            Some(after) => rest = after,
            None => return numbers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn numbers_that_nothing_has_are_found() {
        let crash = "# Why\n\n## 3. Invariants\n\n1. **One.**\n2. **Two.**\n\n## 13. Known histories\n\n\
                     | | what |\n| --- | --- |\n| 7 | it |\n";
        let code = "// Invariants 1 and 2, invariant 1, history 7 (docs/crash.md, section 13).\n\n\
                    // Invariants 2 and\n// 3; history 8; docs/crash.md, section 4.\n";
        let canary =
            "DropFence, \"9\", \"no fence\";\nKept, \"13 (x)\", \"y\";\nLeft, \"history 7\", \"z\";\n";
        let faults = references(&tree_of(&[
            ("docs/crash.md", crash),
            ("crates/a.rs", code),
            ("crates/canary/src/lib.rs", canary),
        ]));
        let lines: Vec<_> = faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [3, 4, 4, 1], "{faults:?}");
    }
}
