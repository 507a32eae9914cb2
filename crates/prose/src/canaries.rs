//! Deliberate bugs that are named exist; those that exist stand in the code, and a document or a
//! test names each.

use std::path::{Path, PathBuf};

use crate::paths::has_word;
use crate::text::{Block, Kind, spans};
use crate::{Fault, Tree};

const LIST: &str = "crates/canary/src/lib.rs";

/// One deliberate bug, as the list has it.
pub(crate) struct Declared {
    pub name: String,
    pub breaks: String,
    pub file: PathBuf,
    pub line: usize,
}

/// All of them: lines of the form `Name, "what it breaks", "what it does";`.
pub(crate) fn declared(tree: &Tree) -> Vec<Declared> {
    let Some(list) = tree.files.get(Path::new(LIST)) else { return Vec::new() };
    let lines = list.lines().enumerate();
    let canaries = lines.filter_map(|(at, text)| {
        let (name, rest) = text.trim().split_once(", \"")?;
        let is_name =
            name.starts_with(|c: char| c.is_ascii_uppercase()) && name.chars().all(char::is_alphanumeric);
        let breaks = rest.split_once('"').filter(|_| is_name)?.0;
        Some(Declared { name: name.to_owned(), breaks: breaks.to_owned(), file: LIST.into(), line: at + 1 })
    });
    canaries.collect()
}

/// Canaries that are named and do not exist, or exist and are not named.
pub fn canaries(tree: &Tree) -> Vec<Fault> {
    let declared = declared(tree);
    let mut faults = Vec::new();
    for document in tree.documents.iter().filter(|document| !document.path.starts_with("crates/prose")) {
        for text in &document.texts {
            let in_tables = text.lines.iter().filter(|line| line.kind == Kind::Row);
            let is_listed = in_tables.map(|line| line.text.as_str()).any(|row| row.starts_with("| canary |"));
            for block in text.blocks() {
                for (at, name) in named(&block, is_listed && document.is_markdown) {
                    if name != "X" && !declared.iter().any(|canary| canary.name == name) {
                        let what = format!("there is no canary {name}: name one of {LIST}");
                        faults.push(Fault { file: document.path.clone(), line: block.line(at), what });
                    }
                }
            }
        }
    }
    for canary in declared {
        let mut say = |what| faults.push(Fault { file: canary.file.clone(), line: canary.line, what });
        let others = || tree.files.iter().filter(|(path, _)| path.as_path() != Path::new(LIST));
        let asked = format!("Canary::{}", canary.name);
        if !others().any(|(_, content)| has_word(content, &asked)) {
            say(format!(
                "nothing asks for {}: put the bug beside the line that it spoils, or take it out",
                canary.name
            ));
        }
        let tells = |path: &Path| {
            let name = path.to_string_lossy();
            name.ends_with(".md") || name.contains("/tests") || name.contains("/stories")
        };
        if !others().any(|(path, content)| tells(path) && has_word(content, &canary.name)) {
            say(format!(
                "no document and no test names {}: say in docs/crash/canaries.md what catches it",
                canary.name
            ));
        }
    }
    faults
}

/// The canaries that a text names: behind that word, by their path, or first in a row of the table.
fn named(block: &Block, in_table: bool) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut follows = false;
    let mut end = 0;
    for (index, (at, span)) in spans(&block.text).enumerate() {
        let between = &block.text[end..at - 1];
        follows = ["canary ", "canaries "].iter().any(|word| between.ends_with(word))
            || (follows && matches!(between, ", " | " and " | ", and "));
        end = at + span.len() + 1;
        let is_name =
            span.starts_with(|c: char| c.is_ascii_uppercase()) && span.chars().all(char::is_alphanumeric);
        let first_in_row = in_table && index == 0 && block.text.starts_with("| `") && is_name;
        if let Some(name) = span.strip_prefix("Canary::") {
            found.push((at, name));
        } else if first_in_row || (follows && is_name) {
            found.push((at, span));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn canaries_and_their_names_agree() {
        let list = "    One, \"1\", \"a\";\n    Two, \"2\", \"b\";\n    Three, \"3\", \"c\";\n";
        let page = "It is so (canary `One`; canaries `One`, `Four` and `Two`).\n\n\
                    | canary | what |\n| --- | --- |\n| `Five` | `Six` |\n";
        let code = "// `Canary::Seven`, `Canary::X`.\nif on(Canary::One) || on(Canary::Two) {}\n";
        let faults = canaries(&tree_of(&[(LIST, list), ("docs/a.md", page), ("crates/a.rs", code)]));
        let found: Vec<_> = faults.iter().map(ToString::to_string).collect();
        let expected = ["Seven", "Four", "Five", "nothing asks for Three", "names Three"];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (fault, part) in found.iter().zip(expected) {
            assert!(fault.contains(part), "{found:#?}");
        }
    }
}
