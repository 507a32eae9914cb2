//! No word points at what a reader does not have.

use std::path::PathBuf;

use crate::{Fault, Tree};

/// Words, and what to write in their place.
const UNKNOWN: &[(&str, &str)] = &[
    ("the plan", "say what the code does: a reader has no plan"),
    ("the issue", "say what was asked for: a reader has no issue"),
    ("this session", "speak of Holdfast alone"),
    ("next.md", "cite a document of the project"),
    ("facts.md", "cite a document of the project"),
    ("style.md", "cite a document of the project"),
];

/// Words after which a number cites something that is not here.
const UNKNOWN_NUMBERED: &[(&str, &str)] =
    &[("design ", "name the document and its section"), ("issue ", "say what was wrong")];

/// Words that no reader can follow.
pub fn words(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for document in &tree.documents {
        // This list has to name them.
        if document.path.starts_with("crates/prose") {
            continue;
        }
        for block in document.texts.iter().flat_map(|text| text.blocks()) {
            let text = block.text.to_ascii_lowercase();
            let mut say = |at: usize, word: &str, advice: &str| {
                let what = format!("\"{}\": {advice}", word.trim());
                faults.push(Fault { file: document.path.clone(), line: block.line(at), what });
            };
            for (word, advice) in UNKNOWN {
                for (at, _) in text.match_indices(word) {
                    if !text[at + word.len()..].starts_with(|c: char| c.is_alphanumeric()) {
                        say(at, word, advice);
                    }
                }
            }
            for (word, advice) in UNKNOWN_NUMBERED {
                for (at, _) in text.match_indices(word) {
                    if text[at + word.len()..].starts_with(|c: char| c.is_ascii_digit()) {
                        say(at, word, advice);
                    }
                }
            }
        }
    }
    faults
}

/// What a reader can keep in mind while reading a page.
const GLOSSARY_WORDS_MAX: usize = 40;

/// A glossary of the map that is too long, or that a reader meets after its words.
pub fn glossary(tree: &Tree) -> Vec<Fault> {
    let file = PathBuf::from("ARCHITECTURE.md");
    let Some(map) = tree.files.get(&file) else { return Vec::new() };
    let heads: Vec<_> = map.lines().enumerate().filter(|(_, line)| line.starts_with("## ")).collect();
    let fault = |line, what: String| vec![Fault { file: file.clone(), line, what }];
    let Some(&(first, head)) = heads.first() else { return Vec::new() };
    if head != "## Words" {
        return fault(first + 1, "the words come first: move \"## Words\" here".to_owned());
    }
    let end = heads.get(1).map_or(usize::MAX, |(next, _)| *next);
    let rows = map.lines().take(end).skip(first).filter(|line| line.starts_with('|')).count();
    let words = rows.saturating_sub(2);
    if words <= GLOSSARY_WORDS_MAX {
        return Vec::new();
    }
    fault(first + 1, format!("{words} words, of {GLOSSARY_WORDS_MAX}: explain one where it is used"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn words_without_a_reader_are_found() {
        let page = "As the\nplan says (design 5).\n\nThe planet of a design, of its issue.\n";
        let faults = words(&tree_of(&[("docs/a.md", page)]));
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn a_glossary_is_short_and_comes_first() {
        let found = |words: usize, before: &str| {
            let rows = "| a | b |\n".repeat(words);
            let map = format!(
                "# Map\n\n{before}## Words\n\n| word | meaning |\n| --- | --- |\n{rows}\n## Code\n\n{rows}"
            );
            glossary(&tree_of(&[("ARCHITECTURE.md", &map)]))
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(found(GLOSSARY_WORDS_MAX, ""), [""; 0]);
        assert!(found(GLOSSARY_WORDS_MAX + 1, "")[0].starts_with("ARCHITECTURE.md:3: 41 words, of 40"));
        assert!(found(1, "## Code\n\n")[0].starts_with("ARCHITECTURE.md:3: the words come first"));
    }
}
