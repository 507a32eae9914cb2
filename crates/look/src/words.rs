//! Names of files as people read and type them. A name may hold anything: escapes that change a
//! terminal, line feeds that look like another message, blanks and quotes that a shell takes apart.

use std::path::Path;

/// A text from outside, with what is no character of a line told by its number.
pub fn shown(text: &str) -> String {
    text.chars().flat_map(one).collect()
}

/// As [`shown`], of a text of ours that may have several lines.
pub fn shown_lines(text: &str) -> String {
    text.split_inclusive('\n')
        .map(|line| line.strip_suffix('\n').map_or_else(|| shown(line), |line| shown(line) + "\n"))
        .collect()
}

fn one(char: char) -> Vec<char> {
    // Marks that turn the direction of what follows hide what a name is.
    let turns = matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if char.is_control() || turns { char.escape_default().collect() } else { vec![char] }
}

/// A path as a word that a shell gives back as it is.
pub fn quoted(path: &Path) -> String {
    let word = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%=".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into_owned()
    } else if word.chars().any(char::is_control) {
        // bash, zsh and ksh read this form.
        let escaped: String =
            word.chars().flat_map(|c| if c == '\'' { vec!['\\', '\''] } else { in_dollars(c) }).collect();
        format!("$'{escaped}'")
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

fn in_dollars(char: char) -> Vec<char> {
    match char {
        '\\' => vec!['\\', '\\'],
        char if char.is_control() => format!("\\x{:02x}", u32::from(char)).chars().collect(),
        char => vec![char],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_passed_on_as_a_shell_reads_them() {
        let quoted = |word: &str| quoted(Path::new(word));
        assert_eq!(quoted("/srv/app.db-1"), "/srv/app.db-1");
        assert_eq!(quoted("#12"), "'#12'");
        assert_eq!(quoted("/a b/it's"), r"'/a b/it'\''s'");
        assert_eq!(quoted("/a\n'\\\u{1b}[31m"), r"$'/a\x0a\'\\\x1b[31m'");
    }

    #[test]
    fn nothing_in_a_name_reaches_the_terminal() {
        assert_eq!(shown("/a\u{1b}[2J\nholdfast: all is well"), r"/a\u{1b}[2J\nholdfast: all is well");
        assert_eq!(shown("/\u{202e}fdp.exe"), r"/\u{202e}fdp.exe");
        assert_eq!(shown("/Grüße/日本"), "/Grüße/日本");
        assert_eq!(shown_lines("one\u{7}\ntwo\n"), "one\\u{7}\ntwo\n");
    }
}
