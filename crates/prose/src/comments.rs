//! The comments of Rust and shell sources.
//!
//! It knows as much of Rust's grammar as it takes to tell a comment from a string that looks like
//! one, and must never judge code.

use std::ops::Range;

use crate::text::Text;

/// A piece of a comment that lies in one line.
struct Piece {
    line: usize,
    text: String,
    /// Where it begins in the source, and ends.
    bytes: Range<usize>,
    /// Nothing but the comment is in its line.
    alone: bool,
}

/// The comments of a Rust source, each run of lines as one text.
pub fn of_rust(source: &str) -> Vec<Text> {
    runs(source, &pieces(source))
}

/// A Rust source with its comments taken out.
pub fn without_comments(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut from = 0;
    for piece in pieces(source) {
        if piece.bytes.start >= from {
            code.push_str(&source[from..piece.bytes.start]);
            from = piece.bytes.end;
        }
    }
    code.push_str(&source[from..]);
    code
}

/// A Rust source with neither its comments nor what is built for tests alone.
pub fn code(source: &str) -> String {
    let source = without_comments(source);
    let mut lines = source.lines();
    let mut code = String::with_capacity(source.len());
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" || line.trim().starts_with("#[cfg(all(test, ") {
            let end = format!("{}}}", indentation(line));
            // A module of tests in a file of its own ends with its line.
            if lines.next().is_some_and(|module| module.ends_with('{')) {
                lines.by_ref().find(|line| *line == end);
            }
        } else {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// The spaces before what a line says.
pub fn indentation(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// The comments of a shell script that have a line for themselves.
pub fn of_shell(source: &str) -> Vec<Text> {
    let pieces: Vec<_> = source
        .lines()
        .enumerate()
        .filter_map(|(at, line)| Some((at, line.trim_start().strip_prefix('#')?)))
        .filter(|(_, text)| !text.starts_with('!'))
        .map(|(at, text)| Piece { line: at + 1, text: spaced(text), bytes: 0..0, alone: true })
        .collect();
    runs(source, &pieces)
}

/// Without the space that follows the mark.
fn spaced(text: &str) -> String {
    text.strip_prefix(' ').unwrap_or(text).trim_end().to_owned()
}

fn runs(source: &str, pieces: &[Piece]) -> Vec<Text> {
    let columns: Vec<_> = source.lines().map(|line| line.chars().count()).collect();
    pieces
        .chunk_by(|a, b| a.alone && b.alone && b.line == a.line + 1)
        .map(|run| {
            Text::new(run.iter().map(|piece| (piece.line, piece.text.clone(), columns[piece.line - 1])))
        })
        .collect()
}

fn pieces(source: &str) -> Vec<Piece> {
    let bytes = source.as_bytes();
    let (mut found, mut at, mut line, mut fresh) = (Vec::new(), 0, 1, true);
    let count = |from: usize, to: usize| bytes[from..to].iter().filter(|byte| **byte == b'\n').count();
    while at < bytes.len() {
        let from = at;
        let rest = &source[at..];
        let alone = fresh;
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            let text = source[from..at].trim_start_matches('/');
            let text = text.strip_prefix('!').unwrap_or(text);
            found.push(Piece { line, text: spaced(text), bytes: from..at, alone });
            continue;
        } else if rest.starts_with("/*") {
            at = end_of_block(bytes, at);
            let inner = source[from + 2..at].trim_end_matches("*/");
            for (index, text) in inner.lines().enumerate() {
                let text = text.trim_start().trim_start_matches(['*', '!']);
                found.push(Piece { line: line + index, text: spaced(text), bytes: from..at, alone });
            }
        } else if let Some(end) = end_of_literal(bytes, at) {
            at = end;
        } else {
            at += 1;
            while !source.is_char_boundary(at) {
                at += 1;
            }
        }
        let newlines = count(from, at);
        line += newlines;
        fresh = match bytes[at - 1] {
            b'\n' => true,
            b' ' | b'\t' => fresh,
            _ => false,
        };
    }
    found
}

pub(crate) fn end_of_block(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start + 2, 1);
    while at < bytes.len() && depth > 0 {
        match bytes.get(at..at + 2) {
            Some(b"/*") => (at, depth) = (at + 2, depth + 1),
            Some(b"*/") => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at
}

/// Where the string or character that begins here ends.
pub(crate) fn end_of_literal(bytes: &[u8], start: usize) -> Option<usize> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    match bytes[start] {
        b'"' => Some(end_of_string(bytes, start + 1, b'"')),
        b'\'' if bytes.get(start + 1) == Some(&b'\\') => Some(end_of_string(bytes, start + 1, b'\'')),
        b'\'' => {
            // A lifetime has no second quote behind its first character.
            let length = std::str::from_utf8(&bytes[start + 1..bytes.len().min(start + 5)])
                .map_or_else(|error| error.valid_up_to(), str::len);
            let text = std::str::from_utf8(&bytes[start + 1..start + 1 + length]).ok()?;
            let first = text.chars().next()?.len_utf8();
            (bytes.get(start + 1 + first) == Some(&b'\'')).then_some(start + first + 2)
        }
        b'r' => {
            let before = start.checked_sub(1).map_or(b' ', |at| bytes[at]);
            let prefixed = matches!(before, b'b' | b'c') && (start < 2 || !word(bytes[start - 2]));
            if word(before) && !prefixed {
                return None;
            }
            let hashes = bytes[start + 1..].iter().take_while(|byte| **byte == b'#').count();
            let open = start + 1 + hashes;
            if bytes.get(open) != Some(&b'"') {
                return None;
            }
            let mut close = vec![b'"'];
            close.resize(hashes + 1, b'#');
            let found = bytes[open + 1..].windows(close.len()).position(|window| window == close);
            Some(found.map_or(bytes.len(), |at| open + 1 + at + close.len()))
        }
        _ => None,
    }
}

fn end_of_string(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(source: &str) -> Vec<(usize, String)> {
        let texts = of_rust(source);
        texts.iter().flat_map(|text| &text.lines).map(|line| (line.number, line.text.clone())).collect()
    }

    #[test]
    fn strings_are_no_comments() {
        let source = "//! Head.\nlet a = \"// no\\\" // no\"; // yes\nlet b = r#\"\n\" // no\n\"#;\nlet c = '\"'; \
                      /* a\n * block */ let d: &'a str = '\\''; // end\n";
        let expected = [(1, "Head."), (2, "yes"), (6, "a"), (7, "block"), (7, "end")];
        assert_eq!(told(source), expected.map(|(line, text)| (line, text.to_owned())));
        let code = without_comments(source);
        assert!(["Head", "yes", "block", "end"].iter().all(|word| !code.contains(word)), "{code}");
        assert!(code.contains("// no") && code.contains("let d"), "{code}");
    }

    #[test]
    fn neighbouring_lines_are_one_text() {
        assert_eq!(of_rust("/// one\n/// two\n\n// three\nlet a; // four\n// five\n").len(), 4);
        assert_eq!(of_shell("#!/bin/sh\n# one\n# two\necho '#'\n").len(), 1);
    }
}
