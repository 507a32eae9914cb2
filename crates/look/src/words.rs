//! Names of files as people read and type them. A name may hold anything: escapes that change a
//! terminal, line feeds that look like another message, blanks and quotes that a shell takes apart.

use std::path::Path;

use holdfast_recovery::is_hidden;
pub use holdfast_recovery::quoted;

/// A text from outside, with what is no character of a line told by its number.
pub fn shown(text: &str) -> String {
    text.chars().flat_map(one).collect()
}

/// The name of a file, as [`shown`].
pub fn name_of(path: &Path) -> String {
    shown(&path.to_string_lossy())
}

/// As [`shown`], of a text of ours that may have several lines.
pub fn shown_lines(text: &str) -> String {
    text.split_inclusive('\n')
        .map(|line| line.strip_suffix('\n').map_or_else(|| shown(line), |line| shown(line) + "\n"))
        .collect()
}

fn one(char: char) -> Vec<char> {
    if is_hidden(char) { char.escape_default().collect() } else { vec![char] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_reaches_the_terminal() {
        assert_eq!(shown("/a\u{1b}[2J\nholdfast: all is well"), r"/a\u{1b}[2J\nholdfast: all is well");
        assert_eq!(shown("/\u{202e}fdp.exe"), r"/\u{202e}fdp.exe");
        assert_eq!(shown("/Grüße/日本"), "/Grüße/日本");
        assert_eq!(shown_lines("one\u{7}\ntwo\n"), "one\\u{7}\ntwo\n");
    }
}
