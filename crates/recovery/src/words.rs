//! Paths in the commands that messages name, as somebody may paste them into a shell.

use std::path::Path;

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
}
