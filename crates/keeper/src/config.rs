//! What `holdfast run` tells the keeper it starts. Plain data, passed as JSON; it decides nothing.

use std::path::PathBuf;

use holdfast_media::Delay;
use serde::{Deserialize, Serialize};

/// Which fence against outsiders to use (design: who else may be looking).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FenceChoice {
    /// fanotify when the keeper may use it, else inotify.
    #[default]
    Auto,
    /// Permission events on every managed file; needs root.
    Fanotify,
    /// Notices with a conflict mark; needs nothing.
    Inotify,
    /// As inotify, and leases on files that a program has open alone; needs nothing.
    Lease,
    /// No fence: only files under `exclusive` directories are managed.
    None,
}

/// Whether files may be in state Behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteBehind {
    /// Every write goes to the page cache at once.
    #[default]
    Off,
    /// Files that no outsider can see stale; new ones once they are written again and again.
    On,
    /// New ones at once, too.
    AtOnce,
}

/// What makes a write durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Its return.
    Write,
    /// The program's next sync of the file, as natively; once there was one, its return.
    #[default]
    Sync,
}

/// Service managers kill what has not ended after 90 seconds; the drain needs time as well.
const STOP_MS_MAX: u64 = 75_000;

/// Everything a keeper is started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeeperConfig {
    /// The pool: a DAX device, a file on a DAX file system, or a file on tmpfs.
    pub pool: PathBuf,
    /// Whether media that does not survive a power cut is accepted.
    pub volatile: bool,
    /// The pool goes with its keeper once everything is on the disk: nobody named it.
    #[serde(default)]
    pub temporary: bool,
    /// Directories the user vouches for: nobody else touches the files below.
    pub exclusive: Vec<PathBuf>,
    /// The fence for all other files.
    pub fence: FenceChoice,
    /// Under which name root's watch listens, which makes the fanotify fence for who is not root.
    #[serde(default)]
    pub watch: Option<String>,
    /// Globs of absolute paths; when not empty, only these are managed.
    pub include: Vec<String>,
    /// Globs of absolute paths that are never managed.
    pub exclude: Vec<String>,
    /// Expire once this much is logged, in bytes (0: an eighth of the pool).
    pub batch_bytes_min: u64,
    /// Expire at the latest when this much is logged, in bytes (0: half of the pool).
    pub batch_bytes_max: u64,
    /// Expire at the latest when the oldest record is this old, in milliseconds; in state Behind
    /// when a file was not written for so long, and at the latest after thirty times that.
    pub age_ms_max: u64,
    /// What makes a write durable.
    pub durability: Durability,
    /// Whether writes may reach the page cache later than the log.
    pub write_behind: WriteBehind,
    /// DRAM for pages that are read often, or whose newest bytes are scattered over the log, in
    /// bytes.
    pub read_cache_bytes: u64,
    /// The file in which the log goes on when it is full: absolute, without symbolic links.
    #[serde(default)]
    pub spill: Option<PathBuf>,
    /// Size of a spill file that has to be made, in bytes (0: as large as is useful).
    #[serde(default)]
    pub spill_bytes: u64,
    /// Injected write latency per fence, in nanoseconds.
    pub nvm_latency_ns: u64,
    /// Injected write bandwidth limit, in bytes per second (0: none).
    pub nvm_bandwidth_bytes_per_s: u64,
    /// It is a service of its own: it stays until it is told to stop, used or not, and keeps its
    /// standard error.
    #[serde(default)]
    pub service: bool,
    /// How long a keeper that is told to stop goes on for the programs that it serves, in
    /// milliseconds.
    pub stop_ms_max: u64,
}

impl Default for KeeperConfig {
    fn default() -> Self {
        Self::new(PathBuf::new())
    }
}

impl KeeperConfig {
    /// What is made of stores where slower media are played.
    pub(crate) fn delay(&self) -> Delay {
        Delay { write_latency_ns: self.nvm_latency_ns, bandwidth_bytes_per_s: self.nvm_bandwidth_bytes_per_s }
    }

    /// The defaults for a pool.
    pub fn new(pool: PathBuf) -> Self {
        Self {
            pool,
            volatile: false,
            temporary: false,
            exclusive: Vec::new(),
            fence: FenceChoice::Auto,
            watch: None,
            include: Vec::new(),
            exclude: Vec::new(),
            batch_bytes_min: 0,
            batch_bytes_max: 0,
            age_ms_max: 1000,
            durability: Durability::Sync,
            write_behind: WriteBehind::Off,
            read_cache_bytes: 32 << 20,
            spill: None,
            spill_bytes: 0,
            nvm_latency_ns: 0,
            nvm_bandwidth_bytes_per_s: 0,
            service: false,
            stop_ms_max: STOP_MS_MAX,
        }
    }
}
