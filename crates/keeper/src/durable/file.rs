//! A file with a slot of its own, as the keeper knows it.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use holdfast_cache::Reason;

use super::{IDLE_FILE, locked};
use crate::disk::DiskFile;

/// A file with a slot of its own.
pub struct ManagedFile<F> {
    /// Its slot.
    pub slot: u32,
    /// Generation of the slot's use.
    pub generation: u64,
    pub(crate) dev: u64,
    /// Our own description, read-only: holds the inode, takes our syncs and sees every write-back error once.
    pub(crate) description: F,
    /// The fence watches it (it is not below an `--exclusive` directory).
    pub(crate) fenced: bool,
    /// Held while `expired_seq` is persisted, so that it never goes back.
    pub(super) expiring: Mutex<()>,
    meta: Mutex<Meta>,
}

/// What changes about a managed file.
pub(crate) struct Meta {
    pub path: PathBuf,
    pub marks: u64,
    /// Names written to the slot that their directories may not hold yet.
    pub names_unsynced: u32,
    pub directories: HashSet<PathBuf>,
    /// The name whose removal was announced last: the link count tells when the last one is gone.
    pub unlinking: Option<PathBuf>,
    /// The client that announced it.
    pub removing: Option<u32>,
    /// The client that announced a new name last.
    pub naming: Option<u32>,
    pub bypass: Option<Reason>,
    pub rewrite: bool,
    pub failures: u32,
    pub used: Instant,
    /// When to see whether the slot is still needed.
    pub look_at: Instant,
}

impl<F> ManagedFile<F> {
    pub(super) fn new(
        (slot, generation): (u32, u64),
        dev: u64,
        description: F,
        fenced: bool,
        path: &Path,
        marks: u64,
    ) -> Self {
        let meta = Meta {
            path: path.to_owned(),
            marks,
            names_unsynced: 1,
            directories: path.parent().map(Path::to_owned).into_iter().collect(),
            unlinking: None,
            removing: None,
            naming: None,
            bypass: None,
            rewrite: false,
            failures: 0,
            used: Instant::now(),
            look_at: Instant::now() + IDLE_FILE,
        };
        Self { slot, generation, dev, description, fenced, expiring: Mutex::new(()), meta: Mutex::new(meta) }
    }

    pub(crate) fn meta(&self) -> MutexGuard<'_, Meta> {
        locked(&self.meta)
    }
}

impl<F: DiskFile> ManagedFile<F> {
    pub(super) fn links(&self) -> io::Result<u64> {
        Ok(self.description.stat()?.links)
    }
}
