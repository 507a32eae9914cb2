//! What a look at one thing of the machine says.

use serde::Serialize;

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Good,
    /// Works, but slower or with less.
    Limited,
    /// Does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    /// What was looked at.
    pub(super) subject: String,
    pub(super) level: Level,
    /// What is there.
    pub(super) found: String,
    /// What to do; empty if nothing needs doing.
    pub(super) advice: String,
}

impl Finding {
    pub(super) fn good(subject: &str, found: impl Into<String>) -> Self {
        Self { subject: subject.to_string(), level: Level::Good, found: found.into(), advice: String::new() }
    }

    pub(super) fn limited(subject: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        let (found, advice) = (found.into(), advice.into());
        Self { subject: subject.to_string(), level: Level::Limited, found, advice }
    }

    pub(super) fn missing(subject: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { level: Level::Missing, ..Self::limited(subject, found, advice) }
    }
}

/// A file of /proc or /sys as trimmed text; empty if it is not there.
pub(super) fn read(path: impl AsRef<std::path::Path>) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}
