//! Which design goes on with a file is matched in few places: everybody else asks for a property of
//! the file's state (docs/code.md, `board/src/states.rs`). A state by its name in one more file
//! is a design that leaks out.

use std::path::PathBuf;

use crate::comments::code;
use crate::sizes::is_code;
use crate::tokens::tokens;
use crate::{Fault, Tree};

/// Files that may name a state: the two designs, the ways and the row, and what a listing shows.
const FILES_MAX: usize = 5;

/// The files that name a state, if they are too many.
pub fn states(tree: &Tree) -> Vec<Fault> {
    let sources = tree.files.iter().filter(|(path, _)| {
        path.starts_with("crates") && path.extension().is_some_and(|end| end == "rs") && is_code(path)
    });
    let named: Vec<(PathBuf, usize)> =
        sources.filter_map(|(path, source)| Some((path.clone(), names_a_state(source)?))).collect();
    let count = named.len();
    let what =
        format!("one of {count} files that name a state of a file, of {FILES_MAX}: ask for a property");
    let fault = |(file, line)| Fault { file, line, what: what.clone() };
    if count > FILES_MAX { named.into_iter().map(fault).collect() } else { Vec::new() }
}

/// Where a source names a state first, as a line of its code.
fn names_a_state(source: &str) -> Option<usize> {
    let code = code(source);
    let tokens = tokens(&code);
    let is_it = |pair: &&[crate::tokens::Token<'_>]| pair[0].text == "FileState" && pair[1].text == "::";
    let line = tokens.windows(2).find(is_it)?[0].line;
    let text = code.lines().nth(line - 1)?;
    source.lines().position(|of_source| of_source.starts_with(text)).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn files_that_name_a_state_are_counted_and_tests_are_not() {
        let named = "fn f() {}\nuse board::FileState::Behind;\n";
        let quiet = "// FileState::Behind\nuse board::FileState;\nstatic A: &str = \"FileState::Behind\";\n\
                     #[cfg(test)]\nmod tests {\n    use FileState::Behind;\n}\n";
        let paths: Vec<String> = (0..=FILES_MAX).map(|at| format!("crates/a/src/{at}.rs")).collect();
        let mut files: Vec<(&str, &str)> = paths.iter().map(|path| (path.as_str(), named)).collect();
        files.extend([("crates/a/tests/b.rs", named), ("crates/a/src/tests/b.rs", named)]);
        let told = states(&tree_of(&files));
        assert_eq!(told.len(), FILES_MAX + 1, "{told:#?}");
        assert!(told[0].to_string().starts_with("crates/a/src/0.rs:2: one of 6 files"), "{told:#?}");
        files[0].1 = quiet;
        assert!(states(&tree_of(&files)).is_empty());
    }
}
