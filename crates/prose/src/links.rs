//! Links inside the project lead somewhere: to a file, and to a heading of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::text::Kind;
use crate::tree::{Document, plain};
use crate::{Fault, Tree};

/// Links that lead nowhere.
pub fn links(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for document in tree.documents.iter().filter(|document| document.is_markdown) {
        for block in document.texts.iter().flat_map(|text| text.blocks()) {
            for (at, target) in targets(&block.text) {
                if let Some(what) = fault_of(tree, &document.path, target) {
                    faults.push(Fault { file: document.path.clone(), line: block.line(at), what });
                }
            }
        }
    }
    faults.extend(unlinked(tree));
    faults
}

/// Pages that no link leads to.
fn unlinked(tree: &Tree) -> Vec<Fault> {
    let pages = || tree.documents.iter().filter(|document| document.is_markdown);
    let mut found: BTreeSet<PathBuf> = BTreeSet::new();
    for page in pages() {
        let directory = page.path.parent().unwrap_or(Path::new(""));
        for block in page.texts.iter().flat_map(|text| text.blocks()) {
            let linked = targets(&block.text).map(|(_, target)| target.split('#').next().unwrap_or(target));
            found.extend(
                linked.filter_map(|path| plain(&directory.join(path))).filter(|path| *path != page.path),
            );
        }
    }
    let lost = pages().filter(|page| page.path != Path::new("README.md") && !found.contains(&page.path));
    let what = "no other page has a link to it: add one, or take the page out";
    lost.map(|page| Fault { file: page.path.clone(), line: 1, what: what.to_owned() }).collect()
}

/// Where the links of a text lead.
fn targets(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices("](").filter_map(|(at, _)| {
        let rest = &text[at + 2..];
        Some((at, &rest[..rest.find(')')?]))
    })
}

fn fault_of(tree: &Tree, from: &Path, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let directory = from.parent().unwrap_or(Path::new(""));
    let file = if path.is_empty() { Some(from.to_owned()) } else { plain(&directory.join(path)) };
    let Some(file) = file.filter(|file| tree.has(file)) else {
        return Some(format!("the link to {path} leads nowhere: name a file, from {}", directory.display()));
    };
    if anchor.is_empty() {
        return None;
    }
    let page = tree.documents.iter().find(|document| document.path == file)?;
    let headings = anchors(page);
    (!headings.iter().any(|heading| heading == anchor))
        .then(|| format!("{} has no heading for #{anchor}: it has {}", file.display(), headings.join(", ")))
}

/// What the headings of a page are called in links.
fn anchors(page: &Document) -> Vec<String> {
    let lines = page.texts.iter().flat_map(|text| &text.lines);
    lines.filter(|line| line.kind == Kind::Heading).map(|line| anchor(&line.text)).collect()
}

fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn dead_links_are_found() {
        let page = "See [a](b.md), [b](b.md#two-words-x),\n[c](../README.md), [d](https://x.y/z).\n\n\
                    And [e](no.md), [f](b.md#no), [g](#no), [h](../../out.md).\n";
        let tree = tree_of(&[("docs/a.md", page), ("docs/b.md", "# Two words: `x`\n"), ("README.md", "")]);
        let faults = links(&tree);
        let found: Vec<_> = faults.iter().map(|fault| (fault.file.to_str().unwrap(), fault.line)).collect();
        assert_eq!(found, [[("docs/a.md", 4); 4].as_slice(), &[("docs/a.md", 1)]].concat(), "{faults:?}");
    }
}
