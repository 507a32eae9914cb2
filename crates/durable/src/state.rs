//! What all steps stand on: the pool, the board, the disk, and what the keeper remembers from one
//! step to the next. The steps themselves are above, by their subjects; nothing here takes one.

use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Instant;

use holdfast_board::{Board, LaneIndex, Ours};
use holdfast_cache::{FileRef, Reason};
use holdfast_disk::{Disk, DiskFile};
use holdfast_media::Nvm;
use holdfast_pool::{Generation, Slot, Slots, Superblock, Words};

use super::file::ManagedFile;
use super::frames::Spill;
use super::reclaimer::Reclaimer;
use super::turn::Turn;
use super::watched::Directories;

/// The keeper's name as an owner in the board; no client gets it.
pub const KEEPER_ID: u32 = 0x7fff_ffff;

/// Owner of page locks in the keeper's name; no lane has this number.
///
/// Not a number that a stray store leaves easily.
pub(super) const KEEPER_LANE: LaneIndex = LaneIndex::new(0x5c1e_96d2);

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
pub struct Durable<N, D: Disk, U> {
    /// The pool's media.
    pub nvm: N,
    /// The pool's superblock.
    pub superblock: Superblock,
    /// Memory shared with the clients.
    pub board: Arc<Board>,
    /// Where the files are.
    pub disk: D,
    pub(super) events: Arc<dyn Events<D::File>>,
    pub(super) files: Mutex<Files<D::File>>,
    /// Directories (device, inode) known to be reachable on disk.
    pub(super) directories: Mutex<HashSet<(u64, u64)>>,
    /// Taken for a commit of a file system.
    pub(super) committing: Mutex<()>,
    /// Files of which a removal was announced and not seen yet.
    pub(super) removing: Mutex<Vec<Arc<ManagedFile<D::File>>>>,
    /// Renames that slots hold and of which the directories are not told yet.
    pub(super) renaming: Mutex<Vec<Arc<Renaming<D::File>>>>,
    /// Created files that had no record when last looked at.
    pub(super) fresh: Mutex<Vec<Arc<ManagedFile<D::File>>>>,
    /// Directories whose changes are followed, so that their syncs can be absorbed.
    pub(super) watched: Mutex<Directories>,
    /// Slots that are being taken.
    pub(super) taking: Mutex<HashSet<Slot>>,
    /// Files without a name that are not let go of yet.
    pub(super) orphans: Mutex<Vec<FileRef>>,
    /// Slots of removed files of which nothing else is left here.
    pub(super) graves: Mutex<HashMap<Slot, Grave<D::File>>>,
    /// The expirer looks for removed files in a moment.
    pub(super) looks_for_removed: AtomicBool,
    /// When a removed file was let go of last.
    pub(super) freed: Mutex<Option<Instant>>,
    /// Slots of files that were taken from clients that stand still, by device and inode.
    pub(super) stood: Mutex<HashMap<(u64, u64), Slot>>,
    /// Pages that are locked here.
    pub(super) ours: Mutex<Vec<Ours>>,
    /// The slots of which the keeper keeps the writers out.
    pub(super) held: Mutex<HashSet<Slot>>,
    /// Held while removed files are let go of.
    pub(super) letting_go: Mutex<()>,
    /// Files removed since slots of such were given back last.
    pub(super) removed_files: AtomicU32,
    /// Taken while segments are given back, which may wait for page locks.
    pub(super) reclaiming: Turn,
    /// Belongs to who reclaims.
    pub(super) reclaimer: Mutex<Reclaimer>,
    /// Where the log goes on when it is short.
    pub(super) spill: OnceLock<Spill<D::File>>,
    /// Where the search for a free slot begins.
    pub(super) slot_hint: AtomicU32,
    /// Slots that tell of a file system's newest state though none of its files need be open, by
    /// device.
    pub(super) witnesses: Mutex<HashMap<u64, Witness>>,
    /// Slots that recovery set aside: never used, never expired.
    pub(super) set_aside: Vec<Slot>,
    /// Real syncs made here.
    pub(super) syncs: AtomicU64,
    /// Segments copied to the spill file.
    pub(super) segments_spilled: AtomicU64,
    /// Bytes brought to the page cache from page rows.
    pub(super) drained_bytes: AtomicU64,
    /// The designs of its files.
    pub(super) designs: PhantomData<fn() -> U>,
}

/// The managed files, by slot.
pub(super) type Files<F> = Vec<Option<Arc<ManagedFile<F>>>>;

/// A rename that a slot holds and of which the directories are not told yet.
pub(super) struct Renaming<F> {
    pub(super) file: Arc<ManagedFile<F>>,
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    /// Who makes it, and has the file meanwhile.
    pub(super) client: u32,
    /// Device and inode number of the file that it takes the name from.
    pub(super) replaced: Option<(u64, u64)>,
}

/// A slot of which the file is let go.
pub(super) struct Grave<F> {
    pub(super) generation: Generation,
    pub(super) dev: u64,
    /// In which its names were.
    pub(super) directories: HashSet<PathBuf>,
    /// Threads may know it from before, and be about to do something with its slot.
    pub(super) known: Weak<ManagedFile<F>>,
    /// There as long as something of it is open: who knows it last is still about to close it.
    pub(super) open: Weak<()>,
}

/// A slot without a file, kept for its stamp.
pub(super) struct Witness {
    pub(super) slot: Slot,
    pub(super) ino: u64,
}

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

impl<N: Nvm, D: Disk, U> Durable<N, D, U> {
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
            ours: Mutex::default(),
            held: Mutex::default(),
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
        durable.board.header().has_times.set(D::File::HAS_TIMES);
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
