//! No line of prose or comment is wider than a page.

use crate::text::Kind;
use crate::{Fault, Tree};

/// The widest line.
const COLUMNS_MAX: usize = 100;

/// Lines that are too wide. Tables, code and what has no space to break at are not prose.
pub fn widths(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for document in &tree.documents {
        for line in document.texts.iter().flat_map(|text| &text.lines) {
            let can_break = line.text.trim().trim_start_matches(['-', ' ']).contains(' ');
            if line.kind == Kind::Prose && line.columns > COLUMNS_MAX && can_break {
                let what = format!("{} columns: break the line at {COLUMNS_MAX}", line.columns);
                faults.push(Fault { file: document.path.clone(), line: line.number, what });
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
    fn wide_prose_is_found_and_nothing_else() {
        let wide = "word ".repeat(21);
        let long = "x".repeat(101);
        let page = format!("{wide}\n\n    {wide}\n\n| {wide} |\n\n- {long}\n");
        let code = format!("// {wide}\nlet a = 1; // {wide}\nlet b = \"{wide}\";\n");
        let faults = widths(&tree_of(&[("docs/a.md", &page), ("crates/a.rs", &code), ("test.sh", &code)]));
        let lines: Vec<_> = faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [1, 2, 1], "{faults:?}");
    }
}
