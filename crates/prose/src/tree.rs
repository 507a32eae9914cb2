//! The checkout: its documents, its comments, and which files there are.
//!
//! It must never leave the checkout or look into what was built.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::comments;
use crate::text::Text;

/// A file with something to read.
pub struct Document {
    /// From the root of the checkout.
    pub path: PathBuf,
    /// Its prose: all of it, or one text for each comment.
    pub texts: Vec<Text>,
    /// It is Markdown.
    pub is_markdown: bool,
}

/// All that is checked.
pub struct Tree {
    /// What is read.
    pub documents: Vec<Document>,
    /// All files, with the content of those that are text.
    pub files: BTreeMap<PathBuf, String>,
}

impl Tree {
    /// Reads the checkout that this crate lies in.
    ///
    /// # Panics
    ///
    /// If it cannot be read.
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut files = BTreeMap::new();
        for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "test.sh"] {
            collect(&root, Path::new(name), &mut files);
        }
        for name in ["docs", "contrib", "crates", ".ci", "Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT"] {
            if root.join(name).exists() {
                collect(&root, Path::new(name), &mut files);
            }
        }
        Self::of(files)
    }

    /// A tree of these files.
    pub fn of(files: BTreeMap<PathBuf, String>) -> Self {
        let documents = files.iter().filter_map(|(path, content)| document(path, content)).collect();
        Self { documents, files }
    }

    /// Whether there is such a file or directory.
    pub fn has(&self, path: &Path) -> bool {
        // Paths are ordered by their parts: what lies in a directory follows it.
        self.files.range(path.to_path_buf()..).next().is_some_and(|(first, _)| first.starts_with(path))
    }
}

/// The path with `..` and `.` taken out, if it stays inside.
pub fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !plain.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

fn collect(root: &Path, path: &Path, files: &mut BTreeMap<PathBuf, String>) {
    let full = root.join(path);
    if full.is_dir() {
        let entries = fs::read_dir(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()));
        for entry in entries {
            let name = entry.expect("a directory can be read").file_name();
            if name != "target" && name != "__pycache__" {
                collect(root, &path.join(name), files);
            }
        }
    } else {
        let bytes = fs::read(&full).unwrap_or_else(|error| panic!("{}: {error}", full.display()));
        files.insert(path.to_owned(), String::from_utf8(bytes).unwrap_or_default());
    }
}

fn document(path: &Path, content: &str) -> Option<Document> {
    let in_crates = path.starts_with("crates");
    let is_markdown = path.extension().is_some_and(|ending| ending == "md") && !in_crates;
    let texts = if is_markdown {
        let lines = content.lines().enumerate();
        vec![Text::new(lines.map(|(at, line)| (at + 1, line.to_owned(), line.chars().count())))]
    } else if path.extension().is_some_and(|ending| ending == "rs") {
        comments::of_rust(content)
    } else if path.extension().is_some_and(|ending| ending == "sh") && !in_crates {
        comments::of_shell(content)
    } else {
        return None;
    };
    Some(Document { path: path.to_owned(), texts, is_markdown })
}

#[cfg(test)]
pub fn tree_of(files: &[(&str, &str)]) -> Tree {
    Tree::of(files.iter().map(|(path, content)| (path.into(), (*content).to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_there() {
        let tree = tree_of(&[("crates/a/src/lib.rs", ""), ("crates/ab.rs", ""), ("docs/a.md", "")]);
        for (path, is_there) in
            [("crates/a", true), ("crates/a/src", true), ("docs", true), ("crates/b", false)]
        {
            assert_eq!(tree.has(Path::new(path)), is_there, "{path}");
        }
        assert_eq!(plain(Path::new("docs/../crates/./a")), Some("crates/a".into()));
        assert_eq!(plain(Path::new("docs/../..")), None);
    }
}
