//! Names of functions, types, tests and fields that documents and comments give exist in the code.

use std::collections::BTreeSet;

use crate::comments::without_comments;
use crate::paths::is_code_name;
use crate::text::spans;
use crate::{Fault, Tree};

/// Functions of kernels and libraries that no source here has to have.
const OF_OTHERS: &[&str] =
    &["errseq_sample", "ext4_fsync_journal", "file_check_and_advance_wb_err", "sd_notify"];

/// Names that nothing has.
pub fn names(tree: &Tree) -> Vec<Fault> {
    let sources: Vec<_> = tree
        .files
        .iter()
        .filter(|(path, _)| !path.starts_with("docs") && !path.starts_with("crates/prose"))
        .filter_map(|(path, content)| {
            let ending = path.extension()?.to_str()?;
            match ending {
                "rs" => Some(without_comments(content)),
                "md" | "lock" => None,
                _ => Some(content.clone()),
            }
        })
        .collect();
    let words: BTreeSet<&str> = sources
        .iter()
        .flat_map(|source| source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .map(|word| word.strip_prefix("SYS_").unwrap_or(word))
        .collect();
    let mut faults = Vec::new();
    for document in &tree.documents {
        // Its samples are made to fail.
        if document.path.starts_with("crates/prose") {
            continue;
        }
        for block in document.texts.iter().flat_map(|text| text.blocks()) {
            for (at, span) in spans(&block.text).filter(|(_, span)| is_code_name(span)) {
                // A word of plain letters may be a command, a program or a word.
                if !span.contains('_') && !span.contains("::") {
                    continue;
                }
                // Constants are the kernel's as often as ours.
                let is_constant = |part: &str| !part.contains(|c: char| c.is_ascii_lowercase());
                let known =
                    |part: &str| words.contains(part) || OF_OTHERS.contains(&part) || is_constant(part);
                let mut parts = span.trim_end_matches("()").split("::");
                if let Some(lost) = parts.find(|part| !known(part)) {
                    let what = format!("the code has no {lost}: name what it has");
                    faults.push(Fault { file: document.path.clone(), line: block.line(at), what });
                }
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn names_that_no_code_has_are_found() {
        let code =
            "/// As `Slot::mark`, `no_longer`.\nfn mark_it() {}\nstruct Slot;\n// no_longer\nfn mark() {}\n";
        let page = "`mark_it()`, `Slot::mark`, `plain`, `SQLite`.\n`Slot::marked`, `mark_that`\n";
        let faults = names(&tree_of(&[("crates/a/src/lib.rs", code), ("docs/a.md", page)]));
        let found: Vec<_> = faults.iter().map(|fault| (fault.file.to_str().unwrap(), fault.line)).collect();
        assert_eq!(found, [("crates/a/src/lib.rs", 1), ("docs/a.md", 2), ("docs/a.md", 2)], "{faults:?}");
    }
}
