//! Paths in the commands that messages name, as somebody may paste them into a shell.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A path as a word that a shell gives back as it is, and in which nothing changes a terminal.
pub fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+:,@%=".contains(byte);
    match std::str::from_utf8(bytes) {
        Ok(word) if !word.is_empty() && bytes.iter().all(is_plain) => word.to_owned(),
        Ok(word) if !word.chars().any(is_hidden) => format!("'{}'", word.replace('\'', "'\\''")),
        _ => in_dollars(bytes),
    }
}

/// Whether a character is none that a reader sees in its place: those that control a terminal, and
/// the marks that turn the direction of what follows.
pub fn is_hidden(char: char) -> bool {
    let turns = matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    char.is_control() || turns
}

/// JSON in which every character is one that a reader sees: JSON itself has a terminal's controls
/// by their numbers, and this has the rest so, which means the same.
pub fn shown_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut units = [0; 2];
    for char in text.chars() {
        // Outside of names JSON is ASCII, with line feeds between its parts.
        if char.is_ascii() && char != '\u{7f}' || !is_hidden(char) {
            shown.push(char);
            continue;
        }
        for unit in char.encode_utf16(&mut units) {
            let _ = write!(shown, "\\u{unit:04x}");
        }
    }
    shown
}

/// bash, zsh and ksh read this form.
fn in_dollars(bytes: &[u8]) -> String {
    let mut word = String::from("$'");
    for part in bytes.utf8_chunks() {
        for char in part.valid().chars() {
            let mut buffer = [0; 4];
            match char {
                '\\' | '\'' => word.extend(['\\', char]),
                _ if is_hidden(char) => in_numbers(char.encode_utf8(&mut buffer).as_bytes(), &mut word),
                _ => word.push(char),
            }
        }
        in_numbers(part.invalid(), &mut word);
    }
    word + "'"
}

/// Three digits: of two a shell would take a letter that follows as well.
fn in_numbers(bytes: &[u8], word: &mut String) {
    for byte in bytes {
        let _ = write!(word, "\\{byte:03o}");
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn json_means_the_same_when_it_is_shown() {
        let name = "/a\u{202e}b\u{7f}\u{85}\n\u{e0041}\u{1b}\u{200b}/日本";
        let shown = shown_json(&serde_json::to_string_pretty(&[name]).unwrap());
        assert!(shown.contains(r"/a\u202eb\u007f\u0085\n"), "{shown}");
        assert!(shown.contains("日本") && shown.starts_with("[\n"), "{shown}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), [name]);
    }

    #[test]
    fn names_are_passed_on_as_a_shell_reads_them() {
        let quoted = |word: &str| quoted(Path::new(word));
        assert_eq!(quoted("/srv/app.db-1"), "/srv/app.db-1");
        assert_eq!(quoted("#12"), "'#12'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("/a b/it's"), r"'/a b/it'\''s'");
        assert_eq!(quoted("/a\n'\\\u{1b}[31m"), r"$'/a\012\'\\\033[31m'");
        assert_eq!(quoted("/\u{85}a\u{202e}b"), r"$'/\302\205a\342\200\256b'");
        assert_eq!(super::quoted(Path::new(OsStr::from_bytes(b"/gr\xfc\xc3\xbc'"))), r"$'/gr\374ü\''");
    }
}
