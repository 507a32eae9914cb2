//! Text as manual pages have it.

use std::fmt::Write as _;

pub(super) fn heading(page: &mut String, text: &str) {
    let _ = writeln!(page, ".SH \"{text}\"");
}

pub(super) fn paragraph(page: &mut String, text: &str) {
    let _ = writeln!(page, ".PP\n{}", escaped(text));
}

pub(super) fn item(page: &mut String, tag: &str, text: &str) {
    let _ = writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(tag), escaped(text));
}

pub(super) fn verbatim(page: &mut String, text: &str) {
    let _ = writeln!(page, ".PP\n.nf\n{}\n.fi", escaped(text));
}

/// Text as roff takes it for text: no escapes, no requests, and dashes that can be copied.
pub(super) fn escaped(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_request() {
        assert_eq!(escaped(".x\n'y\\-"), "\\&.x\n\\&'y\\e\\-");
    }
}
