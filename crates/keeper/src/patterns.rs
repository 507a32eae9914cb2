//! Include and exclude patterns of absolute paths.

use std::path::Path;

use globset::{Glob, GlobSet, GlobSetBuilder};

/// Compiled patterns.
pub(crate) struct Patterns {
    include: Option<GlobSet>,
    exclude: GlobSet,
}

impl Patterns {
    /// Compiles the patterns; the error names the bad one.
    pub(crate) fn new(include: &[String], exclude: &[String]) -> Result<Self, globset::Error> {
        let include = if include.is_empty() { None } else { Some(build(include)?) };
        Ok(Self { include, exclude: build(exclude)? })
    }

    /// Whether a file under this path may be managed.
    pub(crate) fn admit(&self, path: &Path) -> bool {
        self.include.as_ref().is_none_or(|include| include.is_match(path)) && !self.exclude.is_match(path)
    }
}

/// Why a pattern is of no use, if it is not: it is none, or it begins with what no absolute path
/// begins with.
pub fn wrong_with_pattern(pattern: &str) -> Option<String> {
    if let Err(error) = Glob::new(pattern) {
        return Some(error.kind().to_string());
    }
    match pattern.chars().next() {
        None => Some("no path is empty: leave it out".to_owned()),
        Some('/' | '*' | '?' | '[' | '{' | '\\') => None,
        Some(_) => Some(
            "it is compared with absolute paths, and would match none: let it begin with / or **/".to_owned(),
        ),
    }
}

fn build(patterns: &[String]) -> Result<GlobSet, globset::Error> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern)?);
    }
    set.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclude_wins_over_include() {
        let patterns = Patterns::new(&["/data/**".into()], &["**/*.tmp".into()]).unwrap();
        assert!(patterns.admit(Path::new("/data/a/b.db")));
        assert!(!patterns.admit(Path::new("/data/a/b.tmp")));
        assert!(!patterns.admit(Path::new("/elsewhere/b.db")));
        assert!(Patterns::new(&[], &[]).unwrap().admit(Path::new("/any")));
        assert!(Patterns::new(&["a[".into()], &[]).is_err());
    }
}
