//! No crate, file or function is larger than a reader takes in.
//!
//! Of crates those are counted that users get: the lines of `src` that hold something beside a
//! comment, modules under `#[cfg(test)]` and files of tests apart. Functions are counted in `src`,
//! files of tests apart, and files as they are, whoever they are for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::comments::{code, indentation};
use crate::map::{dependencies, manifests};
use crate::{Fault, Tree};

/// Lines of code of a crate.
const CRATE_LINES_MAX: usize = 6_000;
/// Lines of a file, comments and all.
const FILE_LINES_MAX: usize = 700;
/// Lines of a function, from its name to its end.
const FUNCTION_LINES_MAX: usize = 80;

/// Files that are longer still, and may grow no more.
const LONG_FILES: [(&str, usize); 1] = [("crates/pool/src/slot.rs", 740)];

/// What is too large.
pub fn sizes(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    let product = product(tree);
    let mut crates: BTreeMap<&str, usize> = BTreeMap::new();
    let sources = tree.files.iter().filter(|(path, _)| path.extension().is_some_and(|end| end == "rs"));
    for (path, content) in sources {
        let parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap_or("")).collect();
        let &["crates", name, ..] = &parts[..] else { continue };
        let lines = content.lines().count();
        let most = known(&LONG_FILES, path).unwrap_or(FILE_LINES_MAX);
        if lines > most {
            let what = format!("{lines} lines: split the file by its subjects at {most}");
            faults.push(Fault { file: path.clone(), line: 1, what });
        }
        if !is_code(path) {
            continue;
        }
        if product.contains(name) {
            *crates.entry(name).or_default() += code_lines(content);
        }
        for (line, lines) in long_functions(content) {
            if lines > FUNCTION_LINES_MAX {
                let what = format!("a function of {lines} lines: split it at {FUNCTION_LINES_MAX}");
                faults.push(Fault { file: path.clone(), line, what });
            }
        }
    }
    for (name, lines) in crates.into_iter().filter(|(_, lines)| *lines > CRATE_LINES_MAX) {
        let file = Path::new("crates").join(name).join("Cargo.toml");
        let what = format!("{lines} lines of code: make two crates of it at {CRATE_LINES_MAX}");
        faults.push(Fault { file, line: 1, what });
    }
    faults
}

/// Whether a file of a crate is for anything but tests.
pub(crate) fn is_code(path: &Path) -> bool {
    let mut parts = path.iter().filter_map(|part| part.to_str()).skip(2);
    parts.next() == Some("src") && !parts.any(|part| matches!(part, "tests" | "tests.rs"))
}

/// The limit of a file that is known to be above the one for all.
fn known(list: &[(&str, usize)], path: &Path) -> Option<usize> {
    list.iter().find(|(known, _)| path == Path::new(known)).map(|(_, lines)| *lines)
}

/// The crates that users get: those that are built where none is named, and all that they use.
fn product(tree: &Tree) -> BTreeSet<&str> {
    let workspace = tree.files.get(Path::new("Cargo.toml")).map_or("", String::as_str);
    let line = workspace.lines().find_map(|line| line.strip_prefix("default-members = ")).unwrap_or("");
    let mut found: BTreeSet<&str> =
        line.split('"').filter_map(|member| member.strip_prefix("crates/")).collect();
    loop {
        let used: Vec<&str> = manifests(tree)
            .filter(|(_, name, _)| found.contains(name))
            .flat_map(|(_, _, manifest)| dependencies(manifest))
            .map(|(_, name)| name)
            .collect();
        let before = found.len();
        found.extend(used);
        if found.len() == before {
            return found;
        }
    }
}

/// Lines with code, tests apart.
fn code_lines(source: &str) -> usize {
    code(source).lines().filter(|line| !line.trim().is_empty()).count()
}

/// Where functions begin that are too long, and how long they are. Formatted code closes a function
/// where it begins.
fn long_functions(source: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let head = line.trim_start();
        let is_function = head.starts_with("fn ")
            || head.split(" fn ").next().is_some_and(|before| before != head && is_qualified(before));
        if !is_function {
            continue;
        }
        let end = format!("{}}}", indentation(line));
        // A declaration has no body, and a short one ends in its line.
        let body = lines[at..].iter().position(|line| line.ends_with(['{', ';', '}']));
        if body.is_none_or(|body| !lines[at + body].ends_with('{')) {
            continue;
        }
        let length = lines[at..].iter().position(|line| *line == end).map_or(0, |last| last + 1);
        if length > FUNCTION_LINES_MAX {
            found.push((at + 1, length));
        }
    }
    found
}

/// Whether these words may stand before `fn`.
fn is_qualified(before: &str) -> bool {
    before.split(' ').all(|word| {
        matches!(word, "const" | "unsafe" | "extern" | "async") || word.starts_with(['"', '(']) || {
            word.starts_with("pub")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        sizes(&tree_of(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn code_is_counted_without_comments_and_tests() {
        let source = "//! Head.\n\nfn a() {} // why\n\n#[cfg(test)]\nmod far;\n#[cfg(test)]\nmod tests {\n    \
                      fn b() {}\n}\n#[cfg(all(test, not(shuttle)))]\nmod tests {\n    fn d() {}\n}\nfn c() {}\n";
        assert_eq!(code_lines(source), 2);
    }

    #[test]
    fn what_users_get_is_counted_and_nothing_else() {
        let workspace = "[workspace]\ndefault-members = [\"crates/cli\"]\n";
        let uses = "[dependencies]\nholdfast-log.workspace = true\n";
        let long = "static A: u8 = 0;\n".repeat(601);
        let parts: Vec<String> =
            (0..10).flat_map(|at| ["log", "sim"].map(|name| format!("crates/{name}/src/{at}.rs"))).collect();
        let mut files = vec![
            ("Cargo.toml", workspace),
            ("crates/cli/Cargo.toml", uses),
            ("crates/log/Cargo.toml", ""),
            ("crates/sim/Cargo.toml", uses),
        ];
        files.extend(parts.iter().map(|path| (path.as_str(), long.as_str())));
        let told = found(&files);
        assert_eq!(told.len(), 1, "{told:#?}");
        assert!(told[0].starts_with("crates/log/Cargo.toml:1: 6010 lines"), "{told:#?}");
    }

    #[test]
    fn long_functions_and_files_are_found() {
        let fits = "        a();\n".repeat(77);
        let long = "        a();\n".repeat(79);
        let source = format!(
            "impl A {{\n    pub(crate) unsafe extern \"C\" fn fits(\n    ) {{\n{fits}    }}\n    fn long() {{\n{long}    \
             }}\n    fn told();\n    fn short() {{}}\n}}\n"
        );
        let told = found(&[
            ("crates/a/src/b.rs", &source),
            ("crates/a/src/tests.rs", &source),
            ("crates/a/tests/c.rs", &"\n".repeat(701)),
        ]);
        assert_eq!(told.len(), 2, "{told:#?}");
        assert!(told[0].contains("b.rs:82: a function of 81 lines"), "{told:#?}");
        assert!(told[1].contains("c.rs:1: 701 lines"), "{told:#?}");
    }
}
