//! No documentation of the code has tests. The test command builds none: each would be a program of
//! its own, and an example that nobody runs is soon false. What is to be shown is a test.

use crate::{Fault, Tree};

/// What may be shown in documentation, since nobody would run it.
const SHOWN: [&str; 3] = ["text", "sh", "toml"];

/// Examples in the documentation of code that would be tests.
pub fn examples(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (path, source) in &tree.files {
        if !path.starts_with("crates") || path.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        let mut is_open = false;
        for (at, line) in source.lines().enumerate() {
            let line = line.trim_start();
            let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).map(str::trim_start);
            let Some(language) = text.and_then(|text| text.strip_prefix("```")) else { continue };
            is_open = !is_open;
            if is_open && !SHOWN.contains(&language) {
                let what = "an example that no command runs: make it a test".to_owned();
                faults.push(Fault { file: path.clone(), line: at + 1, what });
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
    fn examples_are_found_and_pictures_are_none() {
        let source =
            "//! ```text\n//! a\n//! ```\n\n/// ```\n/// f();\n/// ```\nfn f() {}\n    /// ```rust\n";
        let faults = examples(&tree_of(&[("crates/a/src/lib.rs", source), ("docs/a.md", "```\n")]));
        let lines: Vec<_> = faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [5, 9], "{faults:?}");
    }
}
