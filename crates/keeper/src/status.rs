//! What the keeper says of itself: plain data for people and scripts. It computes nothing.

use holdfast_cache::{Reason, Unseen};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::config::KeeperConfig;

/// Why a file is left to the kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BypassedFile {
    /// Its path as last seen.
    pub path: String,
    /// Why it is not managed, in words.
    pub reason: String,
}

impl BypassedFile {
    /// Whether a program had it open from before, by its shell say.
    pub fn is_inherited(&self) -> bool {
        self.reason == Reason::UnknownOrigin.to_string()
    }
}

/// A program whose writes are not seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnseenProgram {
    /// Its path.
    pub program: String,
    /// Why not, in words.
    pub reason: String,
}

impl UnseenProgram {
    /// Whether it is another user's, who can have a keeper of their own.
    pub fn is_of_another_user(&self) -> bool {
        [Unseen::OtherUser, Unseen::MixedUser].iter().any(|unseen| unseen.to_string() == self.reason)
    }
}

/// Counters since the keeper started; what `--summary` prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Writes acknowledged from the log.
    pub writes_absorbed: u64,
    /// Their bytes.
    pub bytes_absorbed: u64,
    /// `fsync`, `fdatasync` and the like answered without the disk.
    pub syncs_absorbed: u64,
    /// Those passed on to the kernel by clients.
    pub syncs_real: u64,
    /// Truncations logged.
    pub truncates_absorbed: u64,
    /// Bytes written to NVM, headers and padding included.
    pub nvm_bytes: u64,
    /// Bytes that write-behind brought to the page cache.
    #[serde(default)]
    pub drained_bytes: u64,
    /// Real `fsync` and `syncfs` calls of the keeper.
    pub keeper_fsyncs: u64,
    /// Times a writer waited for log space.
    pub stalls: u64,
    /// Time writers waited for log space, in nanoseconds.
    pub stall_ns: u64,
    /// Cancel records: writes the kernel refused or cut short.
    pub cancels: u64,
    /// Times a file was brought fully to disk before a call went around the log.
    pub settles: u64,
    /// Calls that went around the log because expiry could not make room in it.
    #[serde(default)]
    pub no_room: u64,
    /// Segments copied to the spill file.
    #[serde(default)]
    pub segments_spilled: u64,
    /// Segments with records that recovery set aside.
    #[serde(default)]
    pub segments_set_aside: usize,
    /// Whether everything absorbed is in the files and on disk.
    pub drained: bool,
    /// The pool's path.
    pub pool: String,
    /// Whether the pool would be lost in a power cut.
    pub volatile: bool,
    /// The fence in use: `fanotify`, `inotify` or `none`.
    pub fence: String,
    /// Files by state (`through`, `bypassed`, `failed`, ...); `declined`: left to the kernel
    /// without ever having had a slot.
    pub files: BTreeMap<String, u64>,
    /// Files that are or were bypassed and why, at most 100.
    pub bypassed: Vec<BypassedFile>,
    /// Programs whose writes are not seen and why, at most 20.
    #[serde(default)]
    pub programs_unseen: Vec<UnseenProgram>,
    /// What recovery did when this keeper started, if there was something to recover.
    pub recovered: Option<holdfast_recovery::Report>,
}

/// The state of a running keeper; what `holdfast status` prints.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The keeper's process id.
    pub keeper_pid: u32,
    /// It was told to stop: it serves who is attached until they have ended, and nobody else.
    #[serde(default)]
    pub stopping: bool,
    /// Processes attached now.
    pub clients: Vec<u32>,
    /// Media in words, for example `volatile stand-in (tmpfs)`.
    pub media: String,
    /// Cache flush path in words.
    pub flush_path: String,
    /// Size of the pool in bytes.
    pub pool_bytes: u64,
    /// Size of the board in bytes, without the read cache.
    pub board_bytes: u64,
    /// Memory for pages that are read often, or scattered over the log, in bytes.
    #[serde(default)]
    pub read_cache_bytes: u64,
    /// Segments in all.
    pub segments: u64,
    /// Segments free.
    pub segments_free: u64,
    /// Frames of the spill file that can be written to, in all.
    #[serde(default)]
    pub frames: u64,
    /// Frames that hold a part of the log.
    #[serde(default)]
    pub frames_used: u64,
    /// File slots in all.
    pub slots: u64,
    /// File slots in use.
    pub slots_used: u64,
    /// Files with records that are not yet expired.
    pub files_dirty: u64,
    /// Upper bound of bytes in the log that are not yet expired.
    pub backlog_bytes: u64,
    /// Errors the keeper met while bringing files to disk, newest last, at most 20.
    pub errors: Vec<String>,
    /// What the keeper was started with.
    #[serde(default)]
    pub options: KeeperConfig,
    /// Counters.
    pub summary: Summary,
}
