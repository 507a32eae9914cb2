//! What recovery is asked to do, and what it says of what it found and did.
//!
//! It must never read a pool or a file.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What to do with files that recovery set aside.
#[derive(Clone, Debug, Default)]
pub struct RecoverOptions {
    /// Look and report only; change nothing in pool and files.
    pub dry_run: bool,
    /// Replay these files although they were changed or replaced since the crash. `#12` names the
    /// file of a slot of which no path is known, or which has it together with others.
    pub force: Vec<PathBuf>,
    /// Forget what the log holds for these files; `#12` as above.
    pub discard: Vec<PathBuf>,
    /// Write the records even into files whose page cache has them already: what tests of the log
    /// want.
    pub replay: bool,
    /// Write what is set aside (with `dry_run`: everything live) to this directory.
    pub export: Option<PathBuf>,
}

/// What became of a file. In reports and in JSON it is its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "&'static str", try_from = "String")]
pub enum FileOutcome {
    /// Its records were written to it.
    Replayed,
    /// The page cache had all of it, and it was synced.
    Synced,
    /// It was lost, and was built anew.
    Rebuilt,
    /// It was removed, and is so again.
    Unlinked,
    /// The pool holds nothing of it.
    AlreadyOnDisk,
    /// Its records were forgotten.
    Discarded,
    /// A person decides.
    SetAside,
    /// The next recovery tries again.
    PutOff,
    /// A person named it, and the pool knows nothing of it.
    Unknown,
}

const _: () = assert!(FileOutcome::ALL.len() == FileOutcome::Unknown as usize + 1);

impl FileOutcome {
    const ALL: [Self; 9] = [
        Self::Replayed,
        Self::Synced,
        Self::Rebuilt,
        Self::Unlinked,
        Self::AlreadyOnDisk,
        Self::Discarded,
        Self::SetAside,
        Self::PutOff,
        Self::Unknown,
    ];

    /// How it is called.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Replayed => "replayed",
            Self::Synced => "synced",
            Self::Rebuilt => "rebuilt",
            Self::Unlinked => "unlinked",
            Self::AlreadyOnDisk => "already on disk",
            Self::Discarded => "discarded",
            Self::SetAside => "set aside",
            Self::PutOff => "put off",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the file's records still wait for something.
    pub const fn is_unresolved(self) -> bool {
        matches!(self, Self::SetAside | Self::PutOff)
    }
}

impl fmt::Display for FileOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.words())
    }
}

impl From<FileOutcome> for &'static str {
    fn from(outcome: FileOutcome) -> Self {
        outcome.words()
    }
}

/// Words that no outcome is called by.
#[derive(Debug, thiserror::Error)]
#[error("no file ends up {0:?}")]
pub struct UnknownOutcome(String);

impl TryFrom<String> for FileOutcome {
    type Error = UnknownOutcome;

    fn try_from(words: String) -> Result<Self, UnknownOutcome> {
        Self::ALL.into_iter().find(|outcome| outcome.words() == words).ok_or(UnknownOutcome(words))
    }
}

/// What became of one file, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileReport {
    /// Its path, as far as it is known.
    pub path: String,
    /// What means this file, and no other one, in [`RecoverOptions`]: a name that its slot has, or
    /// the slot's number.
    pub named: String,
    /// What that is.
    pub outcome: FileOutcome,
    /// Why, in words.
    pub reason: String,
    /// Records applied or held.
    pub records: u64,
    /// Bytes applied or held.
    pub bytes: u64,
    /// Whether `--force` can do anything for it: some name of it is known, and its records are not
    /// those of a life that another one followed.
    #[serde(default)]
    pub can_be_forced: bool,
}

/// What recovery found and did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Whether the pool had been closed cleanly, so that there was nothing to do.
    pub clean: bool,
    /// Bytes of log scanned.
    pub scanned_bytes: u64,
    /// Live records found.
    pub records: u64,
    /// Bytes of live records.
    pub bytes: u64,
    /// One row per file with live records or intents.
    pub files: Vec<FileReport>,
    /// Damaged records: position and reason.
    pub damaged: Vec<String>,
    /// Whether the superblock or its copy was damaged, and was written anew from the other.
    #[serde(default)]
    pub is_superblock_mended: bool,
    /// Time spent scanning, in nanoseconds.
    pub scan_ns: u64,
    /// Time spent applying, `fsync` included, in nanoseconds.
    pub apply_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_read_by_the_words_that_it_is_written_with() {
        for outcome in FileOutcome::ALL {
            let written = serde_json::to_string(&outcome).unwrap();
            assert_eq!(written, format!("\"{outcome}\""));
            assert_eq!(serde_json::from_str::<FileOutcome>(&written).unwrap(), outcome);
        }
        let unknown = serde_json::from_str::<FileOutcome>("\"lost\"").unwrap_err();
        assert!(unknown.to_string().contains("\"lost\""), "{unknown}");
    }
}
