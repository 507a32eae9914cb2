//! Files that are named exist, and hold what is named beside them.
//!
//! A path is written from the root (`crates/pool/src/slot.rs`), from `crates`
//! (`pool/src/slot.rs`), or short, beside a longer one or in a comment of a neighbour (`slot.rs`).

use std::path::{Path, PathBuf};

use crate::text::spans;
use crate::tree::plain;
use crate::{Fault, Tree};

const SOURCES: &[&str] = &["rs", "c", "h", "go", "py", "sh"];

/// Files that are not there, and names that are not in them.
pub fn paths(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for document in &tree.documents {
        // Its samples are made to fail.
        if document.path.starts_with("crates/prose") {
            continue;
        }
        for block in document.texts.iter().flat_map(|text| text.blocks()) {
            let mut before: Option<PathBuf> = None;
            for (at, span) in spans(&block.text).filter(|(_, span)| is_path(tree, span)) {
                let found = resolve(tree, &document.path, before.as_deref(), span);
                let mut say = |what| {
                    faults.push(Fault { file: document.path.clone(), line: block.line(at), what });
                };
                if found.is_empty() {
                    say(format!("there is no {span}: {}", advice(tree, span)));
                    continue;
                }
                for name in names_beside(&block.text, at, span) {
                    if !found.iter().any(|path| holds(tree, path, name)) && !is_theme(tree, name) {
                        let shown = found[0].display();
                        say(format!("{shown} has no {name}: name what it has, or where that is"));
                    }
                }
                before = found.into_iter().next();
            }
        }
    }
    faults
}

fn is_path(tree: &Tree, span: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    if span.starts_with(['/', '.', '-']) || !span.chars().all(is_name) {
        return false;
    }
    let ending = Path::new(span).extension().and_then(|ending| ending.to_str()).unwrap_or("");
    let Some((first, rest)) = span.split_once('/') else { return ending == "rs" };
    let is_ours = matches!(first, "crates" | "docs" | "contrib");
    let in_crate = rest.starts_with("src") || rest.starts_with("tests");
    is_ours
        || ending == "rs"
        || (tree.has(&Path::new("crates").join(first)) && (in_crate || SOURCES.contains(&ending)))
}

/// What a path stands for: the first place where it is, or all files of a bare name.
fn resolve(tree: &Tree, from: &Path, before: Option<&Path>, span: &str) -> Vec<PathBuf> {
    let relative = Path::new(span);
    let mut places = vec![PathBuf::new(), "crates".into()];
    for neighbour in [before, Some(from)].into_iter().flatten() {
        let own = neighbour.ancestors().take_while(|place| place.components().count() >= 2);
        places.extend(own.map(Path::to_owned));
        places.extend(neighbour.parent().map(Path::to_owned));
    }
    let found = places.iter().filter_map(|place| plain(&place.join(relative))).find(|path| tree.has(path));
    match found {
        Some(path) => vec![path],
        None if span.contains('/') => Vec::new(),
        None => tree.files.keys().filter(|path| path.ends_with(relative)).cloned().collect(),
    }
}

fn advice(tree: &Tree, span: &str) -> String {
    let name = Path::new(span).file_name();
    let same: Vec<_> = tree.files.keys().filter(|path| path.file_name() == name).collect();
    match same[..] {
        [] => "name a file that exists".to_owned(),
        _ => {
            let shown: Vec<_> = same.iter().take(5).map(|path| path.display().to_string()).collect();
            format!("is it {}?", shown.join(", "))
        }
    }
}

/// The names that stand beside a path: "`path`, `name`, `name`", "`path` (`name`)", "`name` in
/// `path`", "(`name`, `path`)".
fn names_beside<'a>(text: &'a str, at: usize, span: &str) -> Vec<&'a str> {
    let mut names = Vec::new();
    let mut rest = &text[(at + span.len() + 1).min(text.len())..];
    while let Some((name, after)) = [", `", " (`", "), `"]
        .iter()
        .find_map(|mark| rest.strip_prefix(mark))
        .and_then(|inside| inside.split_once('`'))
        .filter(|(name, _)| is_code_name(name))
    {
        names.push(name);
        rest = after;
    }
    let before = text[..at].strip_suffix('`').unwrap_or("");
    if let Some((lead, name)) = before
        .strip_suffix("`, ")
        .and_then(|inside| inside.rsplit_once('`'))
        .filter(|(_, name)| is_code_name(name))
        && lead.ends_with('(')
    {
        names.push(name);
    }
    let mut rest = before.strip_suffix(" in ");
    while let Some((before, name)) = rest
        .and_then(|before| before.strip_suffix('`'))
        .and_then(|inside| inside.rsplit_once('`'))
        .filter(|(_, name)| is_code_name(name))
    {
        names.push(name);
        rest = before.strip_suffix(", ").or_else(|| before.strip_suffix(" and "));
    }
    names
}

/// A theme of the conformance checks, which documents name beside tests.
fn is_theme(tree: &Tree, name: &str) -> bool {
    tree.has(&Path::new("crates/e2e/conformance").join(name).with_extension("c"))
}

/// Whether a code span is a name, or a path of names.
pub fn is_code_name(span: &str) -> bool {
    let span = span.strip_suffix("()").unwrap_or(span);
    span.split("::").all(|part| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// Whether a file, or one of a directory, has that name in it.
fn holds(tree: &Tree, path: &Path, name: &str) -> bool {
    let name = name.strip_suffix("()").unwrap_or(name);
    let last = name.rsplit("::").next().expect("splitting has a last part");
    let files = tree.files.range(path.to_owned()..).take_while(|(file, _)| file.starts_with(path));
    files.into_iter().any(|(_, content)| has_word(content, last))
}

/// Whether a text has that word.
pub fn has_word(text: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_word) && !text[at + word.len()..].starts_with(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    fn faults_of(page: &str) -> Vec<String> {
        let tree = tree_of(&[
            ("crates/pool/src/slot.rs", "fn mark() {}"),
            ("crates/pool/src/names/first.rs", "fn given() {}"),
            ("docs/a.md", page),
        ]);
        paths(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_exists_is_right() {
        let page = "`pool/src/slot.rs`, `mark`; `names/first.rs` (`given`); `slot.rs`; `mark` and `given` in `pool/src` (`mark`, `slot.rs`).\n\n\
                    `crates/pool/src/names/`, `a/b`, `/dev/shm`, `sqlite3.c`, `1.5`.\n";
        assert_eq!(faults_of(page), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_is_found() {
        for page in [
            "`pool/slot.rs`",
            "`nothing.rs`",
            "`crates/none`",
            "`pool/src/none`",
            "`pool/src/slot.rs`, `mar`",
            "`pool/src/slot.rs`, `mark`, `given`",
            "`given` in `pool/src/slot.rs`",
            "(`given`, `pool/src/slot.rs`)",
            "`Slot::given` in `slot.rs`",
        ] {
            assert_eq!(faults_of(page).len(), 1, "{page}");
        }
    }
}
