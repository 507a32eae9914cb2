//! What is cited is there: invariants and histories of docs/crash by their numbers, documents by
//! their paths.

use std::collections::BTreeSet;
use std::path::Path;

use crate::canaries::declared;
use crate::text::Kind;
use crate::{Fault, Tree};

/// The pages that argue why nothing acknowledged is lost.
const ARGUMENT: &str = "docs/crash";

/// The numbers that these pages give.
#[derive(Default)]
struct Given {
    invariants: BTreeSet<u32>,
    histories: BTreeSet<u32>,
}

/// Cited numbers that nothing has, and documents that are not there.
pub fn references(tree: &Tree) -> Vec<Fault> {
    let given = Given::of(tree);
    let kinds: [(&[&str], &BTreeSet<u32>, &str); 2] = [
        (&["invariant ", "invariants "], &given.invariants, "invariant"),
        (&["history ", "histories "], &given.histories, "history"),
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
                                let what = format!("{ARGUMENT} has no {kind} {number}: cite one that it has");
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
            for (at, path) in documents(&block.text) {
                if !tree.has(Path::new(path)) {
                    let what = format!("there is no {path}: cite a document that exists");
                    faults.push(Fault { file: document.path.clone(), line: block.line(at), what });
                }
            }
        }
    }
    for canary in declared(tree) {
        if !given.has(tree, &canary.breaks) {
            let what =
                format!("{} breaks \"{}\", which {ARGUMENT} does not have", canary.name, canary.breaks);
            faults.push(Fault { file: canary.file, line: canary.line, what });
        }
    }
    faults
}

impl Given {
    fn of(tree: &Tree) -> Self {
        let mut given = Self::default();
        for document in tree.documents.iter().filter(|document| document.path.starts_with(ARGUMENT)) {
            let mut heading = String::new();
            for line in document.texts.iter().flat_map(|text| &text.lines) {
                match line.kind {
                    Kind::Heading => {
                        heading = line.text.to_lowercase();
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

    /// Whether they have what a canary breaks: "3", "history 3", "names" (a page, there or among
    /// the other documents), "3 (names)".
    fn has(&self, tree: &Tree, breaks: &str) -> bool {
        if let Some(number) = breaks.strip_prefix("history ") {
            return number.parse().is_ok_and(|number| self.histories.contains(&number));
        }
        let (number, page) = match breaks.split_once(" (") {
            Some((number, page)) => (Some(number), page.strip_suffix(')')),
            None if breaks.starts_with(|c: char| c.is_ascii_digit()) => (Some(breaks), None),
            None => (None, Some(breaks)),
        };
        let is_page = |page: &str| {
            [ARGUMENT, "docs"].iter().any(|place| tree.has(&Path::new(place).join(format!("{page}.md"))))
        };
        number.is_none_or(|number| number.parse().is_ok_and(|number| self.invariants.contains(&number)))
            && page.is_none_or(is_page)
    }
}

/// The documents that a text names by their paths from the root, in a link or not.
fn documents(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    text.match_indices("docs/").filter_map(move |(at, _)| {
        let rest = &text[at..];
        let path = &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())];
        let path = path.trim_end_matches('.');
        (!text[..at].ends_with(is_name) && path.ends_with(".md")).then_some((at, path))
    })
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
        let crash = "# Why\n\n## Invariants\n\n1. **One.**\n2. **Two.**\n";
        let histories = "# Known histories\n\n| | what |\n| --- | --- |\n| 7 | it |\n";
        let code = "// Invariants 1 and 2, invariant 1, history 7 (docs/crash/histories.md).\n\n\
                    // Invariants 2 and\n// 3; history 8; docs/crash.md, docs/crash/README.md.\n";
        let canary = "One, \"9\", \"a\";\nTwo, \"2 (histories)\", \"b\";\nThree, \"history 7\", \"c\";\n\
                      Four, \"trust\", \"d\";\nFive, \"names\", \"e\";\nSix, \"3 (trust)\", \"f\";\n\
                      Seven, \"2 (names)\", \"g\";\nEight, \"history 8\", \"h\";\n";
        let faults = references(&tree_of(&[
            ("docs/crash/README.md", crash),
            ("docs/crash/histories.md", histories),
            ("docs/trust.md", "# Trust\n"),
            ("crates/a.rs", code),
            ("crates/canary/src/lib.rs", canary),
        ]));
        let lines: Vec<_> = faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [3, 4, 4, 1, 5, 6, 7, 8], "{faults:?}");
    }
}
