//! What `run` and `serve` ask of a keeper.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use holdfast_keeper::config::{FenceChoice, WriteBehind};
use serde::Deserialize;

use crate::sizes;

/// What a keeper is asked for.
#[derive(Args, Clone, Debug, Default)]
pub struct KeeperArgs {
    /// The pool: a DAX device, a file on a DAX file system, or (with --volatile) a file on tmpfs.
    /// With --volatile the default is /dev/shm/holdfast-UID.pool, which goes once everything is on
    /// the disk and its last program has ended
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: Option<PathBuf>,
    /// Size of a pool that has to be created [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes)]
    pub size: Option<u64>,
    /// Accept a pool that survives a crash of the program but not a power cut
    #[arg(long)]
    pub volatile: bool,
    /// What is guaranteed when a call returns [default: sync]
    #[arg(long, value_enum, env = "HOLDFAST_DURABILITY")]
    pub durability: Option<Durability>,
    /// You vouch that nobody else opens the files below DIR (may be given several times)
    #[arg(long, value_name = "DIR")]
    pub exclusive: Vec<PathBuf>,
    /// How to notice others who open managed files [default: auto]
    #[arg(long, value_enum)]
    pub fence: Option<Fence>,
    /// Manage only files whose absolute path matches (may be given several times)
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,
    /// Never manage files whose absolute path matches (may be given several times)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Let writes reach the page cache later than the log where nobody can see the difference
    /// [default: off]
    #[arg(long, value_enum)]
    pub write_behind: Option<Behind>,
    /// Memory for pages that are read often, or whose newest bytes are scattered over the log, with
    /// --write-behind [default: 32M]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes_or_none, requires = "write_behind")]
    pub read_cache: Option<u64>,
    /// When the log is full let it go on in FILE, in order, on any local disk; made if it does not
    /// exist
    #[arg(long, value_name = "FILE")]
    pub spill: Option<PathBuf>,
    /// Size of a spill file that has to be made [default: 16 times the pool, at least 1G]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes, requires = "spill")]
    pub spill_size: Option<u64>,
    /// Start bringing files to disk once this much is logged [default: an eighth of the pool]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes)]
    pub batch_min: Option<u64>,
    /// Bring files to disk at the latest when this much is logged [default: half of the pool]
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_bytes)]
    pub batch_max: Option<u64>,
    /// Bring files to disk at the latest when the oldest logged write is this old, for example
    /// 200ms or 5s; with --write-behind when a file was not written for so long, and at the latest
    /// after thirty times that. A number alone is milliseconds [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = sizes::parse_ms)]
    pub age_max: Option<u64>,
    /// How long a keeper that gets SIGTERM goes on for programs that have not ended yet, for
    /// example 30s; it ends with the last of them. Choose less than your service manager waits
    /// before it kills [default: 75s]
    #[arg(long, visible_alias = "stop-timeout", value_name = "TIME", value_parser = sizes::parse_ms)]
    pub stop_max: Option<u64>,
    /// Inject latency: every durable write takes at least this long
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000_000_000))]
    pub nvm_latency_ns: Option<u64>,
    /// Inject a write bandwidth limit, for example 2G/s; at least 1M/s
    #[arg(long, value_name = "SIZE/s", value_parser = sizes::parse_bytes_per_s)]
    pub nvm_bandwidth: Option<u64>,
    /// Become this user first, with all of its groups: keeper and program run as it does. Needs
    /// root, whose watch (holdfast-watch) stays behind for the fanotify fence. The environment
    /// stays as it is
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

/// What a returned call guarantees.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// As natively: a write is durable once the program has synced the file, and after a file's
    /// first sync when it returns. Files that are never synced cost next to nothing
    Sync,
    /// Every write of every file that is managed is durable when it returns
    Write,
}

impl From<Durability> for holdfast_keeper::config::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Write => Self::Write,
            Durability::Sync => Self::Sync,
        }
    }
}

/// Whether writes may reach the page cache later than the log.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Behind {
    /// Every write goes to the page cache before it returns
    Off,
    /// Files below --exclusive directories or behind the fanotify or lease fence; new files once
    /// they are written again and again
    On,
    /// As on, new files at once
    AtOnce,
}

impl From<Behind> for WriteBehind {
    fn from(behind: Behind) -> Self {
        match behind {
            Behind::Off => Self::Off,
            Behind::On => Self::On,
            Behind::AtOnce => Self::AtOnce,
        }
    }
}

/// Fences against processes that are no clients.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fence {
    /// fanotify when permitted, else inotify
    Auto,
    /// Others wait until the file is settled; needs root
    Fanotify,
    /// Others are noticed and the file is marked; needs nothing
    Inotify,
    /// As inotify; who opens a file that the program has open alone waits, so that it may be
    /// written behind. O_NONBLOCK openers are refused once (EAGAIN). Needs only the owner's rights
    /// and Linux 6.9
    Lease,
    /// Manage only files below --exclusive directories
    None,
}

impl From<Fence> for FenceChoice {
    fn from(fence: Fence) -> Self {
        match fence {
            Fence::Auto => Self::Auto,
            Fence::Fanotify => Self::Fanotify,
            Fence::Inotify => Self::Inotify,
            Fence::Lease => Self::Lease,
            Fence::None => Self::None,
        }
    }
}
