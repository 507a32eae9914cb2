//! A file with a slot of its own, as the keeper knows it.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use holdfast_cache::Reason;

use super::turn::Turn;
use super::{IDLE_FILE, locked};
use crate::disk::{Access, DiskFile};

/// A file with a slot of its own.
pub struct ManagedFile<F> {
    /// Its slot.
    pub slot: u32,
    /// Generation of the slot's use.
    pub generation: u64,
    pub(crate) dev: u64,
    held: Held<F>,
    /// Our own description, once we have one.
    opened: OnceLock<F>,
    /// The fence watches it (it is not below an `--exclusive` directory).
    pub(crate) fenced: bool,
    /// Taken for a sync and what must be known before the next one.
    pub(super) syncing: Turn,
    /// Held while `expired_seq` is persisted, so that it never goes back.
    pub(super) expiring: Mutex<()>,
    meta: Mutex<Meta>,
}

/// What keeps a file's inode from being used for another file.
pub enum Held<F> {
    /// A description, read-only, that takes our syncs and sees every write-back error once.
    Open(F),
    /// A hold that no fence sees ([`crate::disk::Disk::hold`]): a description follows when the file is first brought to
    /// disk, which the journals of databases never are.
    Path(F),
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
    /// Nothing but the free space of its disk speaks against state Behind.
    pub may_be_behind: bool,
    /// Until then it stays out of state Behind: the log was too short for what would be in the log alone.
    pub crowded_until: Option<Instant>,
    pub rewrite: bool,
    /// Failed syncs of clients that are known here.
    pub client_failures: u32,
    pub failures: u32,
    pub used: Instant,
    /// When to see whether the slot is still needed.
    pub look_at: Instant,
    /// Its slot is given back although clients have it open for writing, who leave it to the kernel.
    pub written_natively: bool,
    /// When it may be judged anew whether it can be managed.
    pub judge_at: Instant,
}

impl<F> ManagedFile<F> {
    pub(super) fn new(
        (slot, generation): (u32, u64),
        dev: u64,
        held: Held<F>,
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
            may_be_behind: false,
            crowded_until: None,
            rewrite: false,
            client_failures: 0,
            failures: 0,
            used: Instant::now(),
            look_at: Instant::now() + IDLE_FILE,
            written_natively: false,
            judge_at: Instant::now(),
        };
        Self {
            slot,
            generation,
            dev,
            held,
            opened: OnceLock::new(),
            fenced,
            syncing: Turn::default(),
            expiring: Mutex::new(()),
            meta: Mutex::new(meta),
        }
    }

    pub(crate) fn meta(&self) -> MutexGuard<'_, Meta> {
        locked(&self.meta)
    }
}

impl<F: DiskFile> ManagedFile<F> {
    pub(super) fn links(&self) -> io::Result<u64> {
        Ok(self.held().stat()?.links)
    }

    /// What can be looked at and reopened.
    pub(crate) fn held(&self) -> &F {
        match &self.held {
            Held::Open(file) | Held::Path(file) => file,
        }
    }

    /// Whether we have a description of our own, which is told of every error since it was opened.
    pub(super) fn is_described(&self) -> bool {
        matches!(self.held, Held::Open(_)) || self.opened.get().is_some()
    }

    /// Our own description, opened now if need be. `opens` tells the fence that an open is ours.
    pub(super) fn description(&self, opens: &AtomicU64) -> io::Result<&F> {
        if let Held::Open(file) = &self.held {
            return Ok(file);
        }
        if self.opened.get().is_none() {
            opens.fetch_add(1, Ordering::SeqCst);
            // Two at once: one description is enough, and each shows the errors that happened before it.
            let _ = self.opened.set(self.held().reopen(Access::Read)?);
        }
        self.opened.get().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}
