//! Recovery: what a crash left in a pool is brought back to the files.
//!
//! Scan (pure) -> resolve what is live -> locate the files -> plan -> apply -> `fsync` -> release.
//! An unrecovered pool ([`OpenPool`]) and a recovered one ([`RecoveredPool`]) are different types.
//! No step destroys anything in the log before its effect is synced to the files, so recovery may
//! itself crash anywhere and be run again (invariant 8). It must never guess: what it cannot judge
//! stays in the log, is set aside and reported.

use std::path::Path;

use holdfast_media::Nvm;
use holdfast_pool::Superblock;

use holdfast_disk::Disk;

mod apply;
mod compare;
mod directory;
mod entry;
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
mod payloads;
mod plan;
mod planned;
mod reasons;
mod redo;
mod replaced;
mod replay;
mod report;
mod run;
mod scan;
mod slots;
mod source;
mod survey;
mod witnesses;
mod words;
mod writer;

pub use error::PoolError;
pub use format::format;
pub use mapped::mapped_by;
pub use open::{OpenPool, RecoveredPool, open_file, refuse_unusable};
pub use report::{FileOutcome, FileReport, RecoverOptions, Report, UnknownOutcome};
pub use run::Recovered;
pub use words::{is_hidden, quoted, shown_json};

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

/// Whether a pool waits for its recovery: nobody owns it, and it was not closed with everything on
/// the disk. Its log is not read.
pub fn waits(pool: &Path) -> Result<bool, PoolError> {
    match OpenPool::open_read_only(pool) {
        Ok(open) => Ok(!open.is_clean()),
        Err(error) if error.is_busy() => Ok(false),
        Err(error) => Err(error),
    }
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
