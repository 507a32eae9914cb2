//! What the keeper says of itself: plain data for people and scripts. It computes nothing.

use holdfast_cache::{Reason, Unseen};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::config::KeeperConfig;
use crate::fence::FenceKind;

/// Why a file is left to the kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BypassedFile {
    /// Its path as last seen.
    pub path: String,
    /// Why it is not managed, in words.
    pub reason: String,
    /// Syncs of it that the kernel answered, if that is known.
    #[serde(default)]
    pub syncs: Option<u64>,
}

/// A file that is managed, and of which the kernel answered syncs all the same: the first of a file
/// that was there before, above all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncedFile {
    /// Its path when it became managed.
    pub path: String,
    /// These syncs.
    pub syncs: u64,
}

impl BypassedFile {
    /// Whether a program had it open from before, by its shell say.
    pub fn is_inherited(&self) -> bool {
        self.reason == Reason::UnknownOrigin.to_string()
    }

    /// Whether what is wrong is where it lies.
    pub fn is_of_file_system(&self) -> bool {
        self.reason == Reason::FileSystem.to_string()
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
    /// Whether its rights are others than its keeper's, or have become others.
    pub fn has_other_rights(&self) -> bool {
        const OTHERS: [Unseen; 10] = [
            Unseen::Privileged,
            Unseen::OtherUser,
            Unseen::MixedUser,
            Unseen::Filter,
            Unseen::Identity,
            Unseen::Capabilities,
            Unseen::Landlock,
            Unseen::Namespace,
            Unseen::Root,
            Unseen::RootWithout,
        ];
        OTHERS.iter().any(|unseen| unseen.to_string() == self.reason)
    }
}

/// A process that is attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// What brings its calls to the log, in words.
    pub front_end: String,
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
    /// Those of them that would have had the log commit what others did to the file system.
    #[serde(default)]
    pub syncs_crowded: u64,
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
    /// A count cannot be true: clients keep most of them in memory that they share, and one of them
    /// has overwritten it.
    #[serde(default)]
    pub is_board_damaged: bool,
    /// Whether everything absorbed is in the files and on disk.
    pub drained: bool,
    /// The pool's path.
    pub pool: String,
    /// Whether the pool would be lost in a power cut.
    pub volatile: bool,
    /// The fence in use: `fanotify`, `inotify`, `lease`, `none`, or `lost`: its watch has ended.
    pub fence: String,
    /// Files by state (`through`, `bypassed`, `failed`, ...); `declined`: left to the kernel
    /// without ever having had a slot.
    pub files: BTreeMap<String, u64>,
    /// Files that are or were bypassed and why, at most 100.
    pub bypassed: Vec<BypassedFile>,
    /// Files that are or were managed and that the kernel synced for programs, some of the first.
    #[serde(default)]
    pub synced_by_kernel: Vec<SyncedFile>,
    /// Programs whose writes are not seen and why, at most 20.
    #[serde(default)]
    pub programs_unseen: Vec<UnseenProgram>,
    /// How many processes were clients, by what brought their calls to the log.
    #[serde(default)]
    pub front_ends: BTreeMap<String, u64>,
    /// What recovery did when this keeper started, if there was something to recover.
    pub recovered: Option<holdfast_recovery::Report>,
}

impl Summary {
    /// Whether a count is above what there can have been.
    pub fn is_above(&self, most: u64) -> bool {
        [
            self.writes_absorbed,
            self.syncs_absorbed,
            self.syncs_real,
            self.syncs_crowded,
            self.truncates_absorbed,
            self.stalls,
            self.cancels,
            self.settles,
            self.no_room,
        ]
        .into_iter()
        .any(|count| count > most)
    }
}

impl Summary {
    /// Whether nothing says any more who opens files, because root's watch has ended.
    pub fn has_lost_watch(&self) -> bool {
        self.fence == FenceKind::Lost.to_string()
    }
}

/// A file that has a slot; what `holdfast files` prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLine {
    /// Its slot.
    pub slot: u32,
    /// Its path as last seen.
    pub path: String,
    /// `through`, `behind`, `bypassed`, `unsynced`, `removed` or `failed`.
    pub state: String,
    /// Whether it has records that are not yet expired.
    pub dirty: bool,
    /// How long the oldest of them has been in the log alone, in nanoseconds.
    pub oldest_ns: Option<u64>,
    /// Its size, if it is known without asking the kernel.
    pub size_bytes: Option<u64>,
    /// Why it is left to the kernel, in words.
    pub reason: Option<String>,
}

/// Some of the files that have slots, in the order of these.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePart {
    /// The files.
    pub files: Vec<FileLine>,
    /// From which slot on there are more.
    pub next: Option<u32>,
}

/// Calls that took less than so much, and not less than what is told before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TookCount {
    /// In nanoseconds; without one: longer than all others.
    pub below_ns: Option<u64>,
    /// How many.
    pub count: u64,
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
    /// The same, and what brings the calls of each to the log.
    #[serde(default)]
    pub processes: Vec<Process>,
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
    /// How long the oldest write that is not on disk has been in the log alone, in nanoseconds.
    #[serde(default)]
    pub oldest_ns: Option<u64>,
    /// What syncs took that the kernel answered.
    #[serde(default)]
    pub syncs_real_took: Vec<TookCount>,
    /// What all of them took, in nanoseconds.
    #[serde(default)]
    pub syncs_real_ns: u64,
    /// Errors the keeper met while bringing files to disk, newest last, at most 20.
    pub errors: Vec<String>,
    /// What the keeper was started with.
    #[serde(default)]
    pub options: KeeperConfig,
    /// Counters.
    pub summary: Summary,
}
