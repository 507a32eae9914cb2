//! Recovery: what a crash left in a pool is brought back to the files.
//!
//! Scan (pure) -> resolve what is live -> locate the files -> plan -> apply -> `fsync` -> release.
//! An unrecovered pool ([`OpenPool`]) and a recovered one ([`RecoveredPool`]) are different types.
//! No step destroys anything in the log before its effect is synced to the files, so recovery may
//! itself crash anywhere and be run again (invariant 8). It must never guess: what it cannot judge
//! stays in the log, is set aside and reported.

use std::path::{Path, PathBuf};

use holdfast_media::Nvm;
use holdfast_pool::Superblock;
use serde::{Deserialize, Serialize};

use holdfast_disk::Disk;

mod apply;
mod compare;
mod directory;
mod error;
mod export;
mod file;
mod format;
mod frames;
mod judge;
mod live;
mod locate;
mod loss;
mod mapped;
mod open;
mod others;
mod overlay;
mod plan;
mod reasons;
mod redo;
mod replaced;
mod replay;
mod run;
mod scan;
mod source;
mod survey;
mod witnesses;
mod words;
mod writer;

pub use error::PoolError;
pub use format::format;
pub use mapped::mapped_by;
pub use open::{NO_POOL, open_file};
pub use open::{OpenPool, RecoveredPool};
pub use run::Recovered;
pub use words::quoted;

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

/// Recovers a pool that no keeper owns. `progress` hears `(stage, done, total)` in bytes.
///
/// When nothing had to be set aside the pool is left marked as closed cleanly. A dry run reports
/// the same and changes nothing.
pub fn recover(
    pool: &Path,
    options: &RecoverOptions,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> Result<Report, PoolError> {
    if options.dry_run {
        return OpenPool::open_read_only(pool)?.examine(options, progress);
    }
    let (recovered, report) = OpenPool::open(pool, true)?.recover(options, progress)?;
    recovered.close_clean();
    Ok(report)
}

/// Recovers the pool on `nvm`, which the caller owns alone, with files on `disk`; as
/// [`OpenPool::recover`].
pub fn recover_on(
    nvm: &(impl Nvm + Sync),
    superblock: &Superblock,
    disk: &impl Disk,
    options: &RecoverOptions,
) -> Result<(Recovered, Report), PoolError> {
    let source = source::Source::new(nvm, superblock, Path::new("of this memory"));
    run::recover(&source, disk, options, &mut |_, _, _| {})
}
