//! Tables are tables to whoever shows them: a head, a line below it, and as many cells in each row.

use crate::text::{Kind, Line};
use crate::{Fault, Tree};

/// Rows that no table holds, and rows of another length than their head.
pub fn tables(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for document in tree.documents.iter().filter(|document| document.is_markdown) {
        let lines: Vec<_> = document.texts.iter().flat_map(|text| &text.lines).collect();
        for table in lines.chunk_by(|a, b| a.kind == b.kind).filter(|run| run[0].kind == Kind::Row) {
            if let Some((line, what)) = fault_of(table) {
                faults.push(Fault { file: document.path.clone(), line, what });
            }
        }
    }
    faults
}

fn fault_of(table: &[&Line]) -> Option<(usize, String)> {
    let is_rule = |line: &&&Line| line.text.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
    if table.get(1).filter(is_rule).is_none() {
        let what = "rows without a head: a blank line above may have parted them from theirs";
        return Some((table[0].number, what.to_owned()));
    }
    let head = cells(&table[0].text);
    let odd = table.iter().find(|line| cells(&line.text) != head)?;
    Some((odd.number, format!("{} cells below a head of {head}", cells(&odd.text))))
}

/// The cells of a row. A bar that is escaped parts none.
fn cells(row: &str) -> usize {
    row.trim().replace("\\|", "").matches('|').count().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn rows_that_are_no_table_are_found() {
        let page = "| a | b |\n| --- | --- |\n| `x\\|y` | 2 |\n\n| lost | row |\n\ntext\n\n\
                    | a |\n| --- |\n| 1 |\n| 1 | 2 |\n";
        let faults = tables(&tree_of(&[("docs/a.md", page)]));
        let lines: Vec<_> = faults.iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [5, 12], "{faults:?}");
    }
}
