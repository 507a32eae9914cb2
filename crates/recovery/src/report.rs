//! What recovery is asked to do, and what it says of what it found and did.
//!
//! It must never read a pool or a file.

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

/// What became of one file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileReport {
    /// Its path, as far as it is known.
    pub path: String,
    /// What means this file, and no other one, in [`RecoverOptions`]: a name that its slot has, or
    /// the slot's number.
    pub named: String,
    /// `replayed`, `synced` (the page cache had all of it), `rebuilt`, `unlinked`, `already on
    /// disk`, `discarded`, `set aside` (a person decides) or `put off` (the next recovery tries
    /// again).
    pub outcome: String,
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
