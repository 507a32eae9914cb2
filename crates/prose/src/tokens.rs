//! Rust sources as words, marks and literals.
//!
//! Comments are left out, and what stands in a string is one literal: nothing in either passes for
//! code. It must never judge what it reads.

use crate::comments::{end_of_block, end_of_literal};

/// A piece of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    /// The line that it begins in, from 1.
    pub(crate) line: usize,
    /// A word, a literal, `::`, or one character.
    pub(crate) text: &'a str,
}

impl Token<'_> {
    /// Whether it is a name or a keyword.
    pub(crate) fn is_word(&self) -> bool {
        self.text.starts_with(|first: char| first.is_alphabetic() || first == '_')
            && !self.text.ends_with(['"', '\'', '#'])
    }
}

/// All tokens of a source.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let bytes = source.as_bytes();
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < bytes.len() {
        let rest = &source[at..];
        let (length, is_code) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), false)
        } else if rest.starts_with("/*") {
            (end_of_block(bytes, at) - at, false)
        } else {
            code(rest)
        };
        let text = &rest[..length];
        if is_code {
            found.push(Token { line, text });
        }
        line += text.matches('\n').count();
        at += length;
    }
    found
}

/// How long the token is that begins here, and whether there is one.
fn code(rest: &str) -> (usize, bool) {
    let bytes = rest.as_bytes();
    // The letters before a string are a part of it: b"", c"", r"", br"", cr"".
    for prefix in 0..2 {
        if bytes[..prefix].iter().all(|byte| matches!(byte, b'b' | b'c'))
            && bytes.get(prefix).is_some_and(|byte| matches!(byte, b'"' | b'\'' | b'r'))
            && let Some(end) = end_of_literal(bytes, prefix)
        {
            return (end, true);
        }
    }
    let first = rest.chars().next().unwrap_or(' ');
    if first.is_whitespace() {
        return (first.len_utf8(), false);
    }
    if rest.starts_with("::") {
        return (2, true);
    }
    let raw = if rest.starts_with("r#") { 2 } else { 0 };
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = rest[raw..].find(|c: char| !in_word(c)).unwrap_or(rest.len() - raw);
    if word > 0 { (raw + word, true) } else { (first.len_utf8(), true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_comments_nor_strings_are_code() {
        let source = "//! crate::a\n/* crate::b\n/* */ */ use crate::c; // crate::d\nlet s = \"crate::e\n\";\n\
                      let t = br#\"crate::f \" \"#; let c: &'x u8 = b'\"'; r#mod::g();\n";
        let found = tokens(source);
        let words: Vec<_> = found.iter().filter(|token| token.is_word()).collect();
        let told: Vec<_> = words.iter().map(|token| (token.line, token.text)).collect();
        let expected = [
            (3, "use"),
            (3, "crate"),
            (3, "c"),
            (4, "let"),
            (4, "s"),
            (6, "let"),
            (6, "t"),
            (6, "let"),
            (6, "c"),
            (6, "x"),
            (6, "u8"),
            (6, "r#mod"),
            (6, "g"),
        ];
        assert_eq!(told, expected);
        assert_eq!(found.iter().filter(|token| token.text == "::").count(), 2);
    }
}
