//! A sentence that goes on in the next line of the code has no run of blanks in its midst: such a
//! run is what is left of a line that was to be broken there, and people read it in a message.

use crate::{Fault, Tree};

/// Wider than any gap between words.
const RUN: &str = "   ";

/// Whether a run of blanks stands between two words of a line. Behind a line break, which code has
/// as `\n`, it is an indentation.
fn has_gap(line: &str) -> bool {
    let unbroken = line.replace("\\n", "\n");
    unbroken.match_indices(RUN).any(|(at, _)| {
        let before = unbroken[..at].chars().next_back();
        let behind = unbroken[at..].trim_start_matches(' ').chars().next();
        before.is_some_and(|it| it.is_ascii_alphanumeric() || ",;:.".contains(it))
            && behind.is_some_and(|it| it.is_ascii_lowercase())
    })
}

/// Strings of code with such a run.
pub fn strings(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (path, source) in &tree.files {
        if !path.starts_with("crates") || path.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        let mut goes_on = false;
        for (at, line) in source.lines().enumerate() {
            let text = line.trim();
            let ends_open = text.ends_with(" \\") && !text.starts_with("//");
            if (goes_on || ends_open) && has_gap(text) {
                let what = "a run of blanks in the midst of a sentence: leave one".to_owned();
                faults.push(Fault { file: path.clone(), line: at + 1, what });
            }
            goes_on = ends_open;
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn a_sentence_is_told_from_a_table() {
        let source =
            "let a = \"it says which{gap}of them \\\n are there\";\nlet b = \"they are \\\n here{gap}or\";
            let c = \"all is \\\n well\";\nlet d = \"name{gap}size\\n\\\n a\\n{gap}1\";\n// so{gap}far \\\n";
        let source = source.replace("{gap}", RUN);
        let faults = strings(&tree_of(&[("crates/a/src/lib.rs", &source), ("docs/a.md", &source)]));
        let lines: Vec<_> = faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [1, 4], "{faults:?}");
    }
}
