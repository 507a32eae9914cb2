//! The keeper's state, shared by its threads: event loop, request server, expirer, settlers and fence.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use holdfast_board::Board;
use holdfast_cache::Reason;
use holdfast_media::{Mapping, MediaInfo};
use holdfast_pool::{Slots, Superblock, Words};

use crate::config::KeeperConfig;
use crate::directories::Directories;
use crate::fence::Fence;
use crate::files::ManagedFile;
use crate::patterns::Patterns;
use crate::recovery::Report;
use crate::status::BypassedFile;

/// The keeper's name as an owner in the board; no client gets it.
pub(crate) const KEEPER_ID: u32 = 0x7fff_ffff;

const ERRORS_KEPT_MAX: usize = 20;
const BYPASSED_KEPT_MAX: usize = 100;

/// A process attached to this keeper.
pub(crate) struct Attached {
    pub pid: u32,
    pub pidfd: Arc<OwnedFd>,
}

/// A registration between its two halves: the fence stands, the client asks the kernel whether it is alone.
pub(crate) struct Pending {
    pub slot: u32,
    pub generation: u64,
    pub client: u32,
    /// An outsider came in between.
    pub tainted: bool,
    /// Kept so that the watch can be taken back.
    pub since: Instant,
}

/// Counters that no client keeps.
#[derive(Default)]
pub(crate) struct Counters {
    pub keeper_fsyncs: AtomicU64,
}

/// Everything the keeper's threads share. Locks are taken one at a time and never across a system call that
/// waits for the disk, except a file's own.
pub(crate) struct Keeper {
    pub config: KeeperConfig,
    pub nvm: Mapping,
    pub media: MediaInfo,
    pub superblock: Superblock,
    pub board: &'static Board,
    pub board_fd: OwnedFd,
    /// A description of the pool for clients; the lock is on another one.
    pub pool_fd: OwnedFd,
    pub patterns: Patterns,
    pub fence: OnceLock<Fence>,
    pub files: Mutex<Vec<Option<Arc<ManagedFile>>>>,
    pub pending: Mutex<HashMap<(u64, u64), Pending>>,
    pub clients: Mutex<HashMap<u32, Attached>>,
    /// Directories (device, inode) known to be reachable on disk.
    pub directories: Mutex<HashSet<(u64, u64)>>,
    /// Up to which count of name changes a directory was synced.
    pub names_covered: Mutex<HashMap<PathBuf, u64>>,
    /// Files of which a removal was announced and not seen yet.
    pub removing: Mutex<Vec<Arc<ManagedFile>>>,
    /// Created files that had no record when last looked at.
    pub fresh: Mutex<Vec<Arc<ManagedFile>>>,
    /// Directories whose changes are followed, so that their syncs can be absorbed.
    pub directories_watched: Mutex<Directories>,
    pub counters: Counters,
    pub errors: Mutex<VecDeque<String>>,
    pub bypassed: Mutex<Vec<BypassedFile>>,
    pub recovered: Option<Report>,
    /// Files voided since removed ones were given back last.
    pub removed_files: AtomicU32,
    /// Where the search for a free slot begins.
    pub slot_hint: AtomicU32,
    /// Slots that recovery set aside: never used, never expired.
    pub set_aside: Vec<u32>,
    pub segments_pinned: usize,
    pub stopping: AtomicBool,
    /// Drains asked for, and done up to.
    pub drain_wanted: AtomicU64,
    pub drain_done: Mutex<(u64, bool)>,
    pub drain_signal: std::sync::Condvar,
}

/// Locks a mutex; a thread that panicked while it held one left nothing half done that matters here.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Keeper {
    pub(crate) fn slots(&self) -> Slots<'_, Mapping> {
        Slots { nvm: &self.nvm, layout: &self.superblock.layout }
    }

    pub(crate) fn words(&self) -> Words<'_, Mapping> {
        Words { nvm: &self.nvm, layout: &self.superblock.layout }
    }

    /// Keeps an error for `status`, newest last.
    pub(crate) fn report(&self, message: String) {
        let mut errors = locked(&self.errors);
        if errors.len() == ERRORS_KEPT_MAX {
            errors.pop_front();
        }
        errors.push_back(message);
    }

    /// Keeps the name of a file that is left to the kernel, and why.
    pub(crate) fn note_bypassed(&self, path: &std::path::Path, reason: Reason) {
        let mut bypassed = locked(&self.bypassed);
        let path = path.to_string_lossy().into_owned();
        if bypassed.len() < BYPASSED_KEPT_MAX && !bypassed.iter().any(|known| known.path == path) {
            bypassed.push(BypassedFile { path, reason: reason.to_string() });
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// The process id of a client.
    pub(crate) fn pid_of(&self, client: u32) -> Option<u32> {
        locked(&self.clients).get(&client).map(|attached| attached.pid)
    }

    /// Whether a process is attached.
    pub(crate) fn is_client(&self, pid: u32) -> bool {
        locked(&self.clients).values().any(|attached| attached.pid == pid)
    }

    /// Seconds since 1970.
    pub(crate) fn now_unix_s() -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.as_secs())
    }
}
