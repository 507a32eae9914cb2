//! No word points at what a reader does not have.

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
}
