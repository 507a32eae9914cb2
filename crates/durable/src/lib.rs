//! The part of the keeper that decides on durability: slots, syncs, expiry, segments, names and the
//! repair of what dead clients leave.
//!
//! It is generic over media and disk, so that a simulator can put both on one power cord and run
//! this very code. Threads, requests, fences and processes are around it (`keeper`, `serve`,
//! `requests`). It never expires a record before a real sync succeeded (invariant 2), and reaches
//! files only through [`Disk`], media only through [`Nvm`].

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use holdfast_board::Board;
use holdfast_cache::{FileRef, Reason};
use holdfast_media::Nvm;
use holdfast_pool::{Slot, Slots, Superblock, Words};

use directories::Directories;
use holdfast_disk::{Disk, DiskFile, locked};
use turn::Turn;

mod directories;
mod drain;
mod expire;
mod file;
mod ledger;
mod lent;
mod looks;
mod names;
mod outsiders;
mod reclaim;
mod removed;
mod renames;
mod repair;
mod requests;
mod rewrite;
mod settle;
mod slots;
mod spill;
mod stalls;
mod sums;
mod tell;
mod times;
mod turn;
mod unsynced;
mod upkeep;

pub use drain::{BEHIND_AT_ONCE, Pace};
pub use expire::BYPASSED_FILE;
use expire::IDLE_FILE;
pub use file::{Held, ManagedFile, Meta};
pub use looks::Tale;
pub use reclaim::{Effort, Reclaimed};
pub use removed::REMOVED_FILES_MAX;
pub use requests::Unanswered;
pub use rewrite::LiveRecords;
pub use settle::Writers;
pub use settle::is_held;
pub use slots::{Newcomer, Refusal};
pub use spill::{Order, Spilled};
pub use upkeep::{Behind, Stock, Task as UpkeepTask, Through, Upkeep, Upkeeps};

/// For [`upkeeps`].
pub use holdfast_board::FileState;

/// The keeper's name as an owner in the board; no client gets it.
pub const KEEPER_ID: u32 = 0x7fff_ffff;

/// Who hears of what happens here.
pub trait Events<F>: Send + Sync {
    /// Something went wrong that a person should know.
    fn trouble(&self, message: String);

    /// A file is left to the kernel from now on.
    fn bypassed(&self, path: &Path, reason: Reason);

    /// The slot of a file was given back.
    fn released(&self, file: &ManagedFile<F>);

    /// A step of a drain that nobody waits for is done, and no lock is held: the place to let
    /// others work.
    fn breathe(&self) {}
}

/// Everything that decisions on durability need. Locks are taken one at a time and never across a
/// system call that waits for the disk, except a file's own.
pub struct Durable<N, D: Disk, U = Stock> {
    /// The pool's media.
    pub nvm: N,
    /// The pool's superblock.
    pub superblock: Superblock,
    /// Memory shared with the clients.
    pub board: Arc<Board>,
    /// Where the files are.
    pub disk: D,
    events: Arc<dyn Events<D::File>>,
    files: Mutex<Files<D::File>>,
    /// Directories (device, inode) known to be reachable on disk.
    directories: Mutex<HashSet<(u64, u64)>>,
    /// Taken for a commit of a file system.
    committing: Mutex<()>,
    /// Files of which a removal was announced and not seen yet.
    removing: Mutex<Vec<Arc<ManagedFile<D::File>>>>,
    /// Renames that slots hold and of which the directories are not told yet.
    renaming: Mutex<Vec<Arc<renames::Renaming<D::File>>>>,
    /// Created files that had no record when last looked at.
    fresh: Mutex<Vec<Arc<ManagedFile<D::File>>>>,
    /// Directories whose changes are followed, so that their syncs can be absorbed.
    watched: Mutex<Directories>,
    /// Slots that are being taken.
    taking: Mutex<HashSet<Slot>>,
    /// Files without a name that are not let go of yet.
    orphans: Mutex<Vec<FileRef>>,
    /// Slots of removed files of which nothing else is left here.
    graves: Mutex<HashMap<Slot, removed::Grave<D::File>>>,
    /// The expirer looks for removed files in a moment.
    looks_for_removed: AtomicBool,
    /// When a removed file was let go of last.
    freed: Mutex<Option<Instant>>,
    /// Slots of files that were taken from clients that stand still, by device and inode.
    stood: Mutex<HashMap<(u64, u64), Slot>>,
    /// Held while removed files are let go of.
    letting_go: Mutex<()>,
    /// Files removed since slots of such were given back last.
    removed_files: AtomicU32,
    /// Taken while segments are given back, which may wait for page locks.
    reclaiming: Turn,
    /// Belongs to who reclaims.
    reclaimer: Mutex<reclaim::Reclaimer>,
    /// Where the log goes on when it is short.
    spill: OnceLock<spill::Spill<D::File>>,
    /// Where the search for a free slot begins.
    slot_hint: AtomicU32,
    /// Slots that tell of a file system's newest state though none of its files need be open, by
    /// device.
    witnesses: Mutex<HashMap<u64, slots::Witness>>,
    /// Slots that recovery set aside: never used, never expired.
    set_aside: Vec<Slot>,
    /// Real syncs made here.
    syncs: AtomicU64,
    /// Segments copied to the spill file.
    segments_spilled: AtomicU64,
    /// Bytes brought to the page cache from page rows.
    drained_bytes: AtomicU64,
    /// The designs of its files.
    designs: PhantomData<fn() -> U>,
}

/// The managed files, by slot.
type Files<F> = Vec<Option<Arc<ManagedFile<F>>>>;

/// What was done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// Real syncs made here.
    pub syncs: u64,
    /// Segments copied to the spill file.
    pub segments_spilled: u64,
    /// Bytes brought to the page cache from page rows.
    pub drained_bytes: u64,
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// What was done so far.
    pub fn counters(&self) -> Counters {
        Counters {
            syncs: self.syncs.load(Ordering::Relaxed),
            segments_spilled: self.segments_spilled.load(Ordering::Relaxed),
            drained_bytes: self.drained_bytes.load(Ordering::Relaxed),
        }
    }

    /// How many slots recovery set aside: never used, never expired.
    pub fn set_aside_count(&self) -> usize {
        self.set_aside.len()
    }

    /// Takes a recovered pool into service. `set_aside` are the slots that recovery left for a
    /// person. The board is empty but for its counter, which is above every number in the pool.
    pub fn new(
        (nvm, superblock): (N, Superblock),
        board: Arc<Board>,
        disk: D,
        set_aside: Vec<Slot>,
        events: Arc<dyn Events<D::File>>,
    ) -> Self {
        let durable = Self {
            nvm,
            superblock,
            board,
            disk,
            events,
            files: Mutex::new(superblock.layout.slots().map(|_| None).collect()),
            directories: Mutex::default(),
            committing: Mutex::default(),
            removing: Mutex::default(),
            renaming: Mutex::default(),
            fresh: Mutex::default(),
            watched: Mutex::default(),
            taking: Mutex::default(),
            orphans: Mutex::default(),
            graves: Mutex::default(),
            looks_for_removed: AtomicBool::new(false),
            freed: Mutex::default(),
            stood: Mutex::default(),
            letting_go: Mutex::default(),
            removed_files: AtomicU32::new(0),
            reclaiming: Turn::default(),
            reclaimer: Mutex::default(),
            spill: OnceLock::new(),
            slot_hint: AtomicU32::new(0),
            witnesses: Mutex::default(),
            set_aside,
            syncs: AtomicU64::new(0),
            segments_spilled: AtomicU64::new(0),
            drained_bytes: AtomicU64::new(0),
            designs: PhantomData,
        };
        durable.board.header().has_times.word.store(u32::from(D::File::HAS_TIMES), Ordering::SeqCst);
        durable.beat();
        durable.words().set_in_use();
        durable
    }

    /// The slots of the pool.
    pub fn slots(&self) -> Slots<'_, N> {
        Slots { nvm: &self.nvm, layout: &self.superblock.layout }
    }

    /// What is said of the pool as a whole.
    pub fn words(&self) -> Words<'_, N> {
        Words { nvm: &self.nvm, layout: &self.superblock.layout }
    }

    /// Persists that the keeper is at work, and by which clock: recovery tells later changes of
    /// files from ours by it.
    pub fn beat(&self) {
        let (clock, words) = (self.disk.clock(), self.words());
        let booted_us = clock.booted_ns_min / 1000;
        // As precise as the word is: whoever sets the clock moves it by more.
        if words.booted_unix_us().is_none_or(|known| known.abs_diff(booted_us) > 1) {
            words.set_booted_unix_us(booted_us);
        }
        words.set_heartbeat_unix_us(clock.now_ns.div_ceil(1000));
    }

    /// Makes the expirer look, whether it sleeps with or without a limit.
    pub fn ring_expirer(&self) {
        self.board.header().ring_expirer();
    }
}
