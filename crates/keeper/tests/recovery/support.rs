//! A pool on tmpfs, files on a managed file system, and a writer that fills the pool as a client
//! and its keeper do.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_disk::identity::{file_system, identify};
use holdfast_disk::{Disk, DiskFile, OsDisk};
use holdfast_log::{Draft, Kind, Tail, append};
use holdfast_media::{Bytes, Mapping, Nvm};
use holdfast_pool::{
    Generation, Layout, Mount, Parent, SEGMENT_HEADER_BYTES, SLOT_BYTES, Segment, SegmentUse, Seq, Slot,
    Slots, Stamp, Words, seal_segment, segment_seed, set_segment_generation,
};
use holdfast_recovery::{OpenPool, RecoverOptions, Report, format, recover};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Nanoseconds since 1970.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// A moment that is neither before nor after, for a clock that stamps files in ticks.
pub fn pass() {
    std::thread::sleep(std::time::Duration::from_millis(60));
}

/// What the keeper would say of a file now.
pub fn stamp(path: &Path, is_on_disk: bool) -> Stamp {
    let disk = OsDisk::new();
    let stat = disk.hold(path).unwrap().stat().unwrap();
    stat.stamp(disk.boot(), is_on_disk)
}

/// The directory of a path, as slots know it.
pub fn parent(path: &Path) -> Parent {
    let (identity, _) = identify(File::open(path.parent().unwrap()).unwrap()).unwrap();
    Parent { handle_type: identity.handle_type, handle: identity.handle }
}

/// A pool and a directory, removed on drop.
pub struct Rig {
    pub pool: PathBuf,
    pub dir: PathBuf,
}

impl Rig {
    pub fn new(name: &str) -> Self {
        let id = format!("holdfast-{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let places = [PathBuf::from(env!("CARGO_TARGET_TMPDIR")), std::env::temp_dir(), "/var/tmp".into()];
        let place = places
            .iter()
            .find(|place| File::open(place).and_then(file_system).is_ok())
            .expect("these tests need a directory on ext4, xfs or btrfs");
        let dir = place.canonicalize().unwrap().join(&id);
        fs::create_dir_all(&dir).unwrap();
        let pool = PathBuf::from("/dev/shm").join(id).with_extension("pool");
        format(&pool, 16 << 20, true, false, &mut |_, _| ()).unwrap();
        Self { pool, dir }
    }

    /// Makes a file.
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The names in the directory, sorted.
    pub fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.dir).unwrap();
        let mut names: Vec<String> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn open(&self) -> OpenPool {
        OpenPool::open(&self.pool, true).unwrap()
    }

    pub fn recover(&self, options: &RecoverOptions) -> Report {
        recover(&self.pool, options, &mut |_, _, _| ()).unwrap()
    }

    /// Uses the pool and leaves it unclosed, with a last sign of life.
    pub fn crash(&self, work: impl FnOnce(&mut Writer)) {
        let open = self.open();
        let words = Words { nvm: open.mapping(), layout: &open.superblock().layout };
        let counter = words.counter_clean().unwrap_or_default().max(Seq::new(100));
        words.set_in_use();
        words.set_booted_unix_us(OsDisk::new().clock().booted_ns_min / 1000);
        let mut writer = Writer { open, counter, unix_time_ns: now_ns(), tails: HashMap::new() };
        writer.beat();
        work(&mut writer);
        writer.beat();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.pool);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A slot under its generation.
#[derive(Clone, Copy)]
pub struct Taken {
    pub slot: u32,
    pub generation: Generation,
}

/// Writes to a pool as clients and keeper do.
pub struct Writer {
    open: OpenPool,
    counter: Seq,
    pub unix_time_ns: u64,
    tails: HashMap<u32, Tail>,
}

impl Writer {
    fn beat(&mut self) {
        let words = Words { nvm: self.open.mapping(), layout: &self.open.superblock().layout };
        words.set_heartbeat_unix_us(now_ns() / 1000);
    }

    fn nvm(&self) -> &Mapping {
        self.open.mapping()
    }

    pub fn slots(&self) -> Slots<'_, Mapping> {
        Slots { nvm: self.open.mapping(), layout: &self.open.superblock().layout }
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.open.superblock().uuid
    }

    /// The next number.
    pub fn number(&mut self) -> Seq {
        self.counter = self.counter.next();
        self.counter.before()
    }

    /// Lets the counter go on from `to`.
    pub fn jump(&mut self, to: Seq) -> &mut Self {
        self.counter = to;
        self
    }

    /// Takes a slot for a file, as if its file system had been mounted anew since: its stamp says
    /// what the disk has.
    pub fn take(&mut self, slot: u32, path: &Path, marks: u64) -> Taken {
        let mount = Mount { id: 1, ..stamp(path, true).mount };
        self.take_with(slot, path, marks, Stamp { mount, ..stamp(path, true) })
    }

    /// The same, with a stamp.
    pub fn take_with(&mut self, slot: u32, path: &Path, marks: u64, stamp: Stamp) -> Taken {
        let generation = Generation::drawn_at(self.number());
        let (identity, _) = identify(File::open(path).unwrap()).unwrap();
        let parent = parent(path);
        let taken = holdfast_pool::Taken {
            identity: &identity,
            ownership: stamp.ownership,
            marks,
            path: path.as_os_str().as_encoded_bytes(),
            parent: Some(&parent),
            stamp: Some(stamp),
        };
        self.slots().take(Slot::new(slot), generation, &taken);
        Taken { slot, generation }
    }

    /// Starts a segment anew.
    pub fn renew(&mut self, segment: u32) {
        let generation = Generation::drawn_at(self.number());
        let layout = self.open.superblock().layout;
        set_segment_generation(self.nvm(), &layout, Segment::new(segment), generation);
        let tail = Tail {
            segment_offset: layout.segment_offset(Segment::new(segment)),
            at: SEGMENT_HEADER_BYTES as u32,
            generation,
            seed: segment_seed(&self.uuid(), Segment::new(segment), generation),
        };
        self.tails.insert(segment, tail);
    }

    pub fn write(&mut self, segment: u32, file: Taken, offset: u64, bytes: &[u8]) -> Seq {
        self.record(segment, file, Kind::Write, offset, bytes.len() as u64, bytes)
    }

    pub fn cancel(&mut self, segment: u32, file: Taken, seq: Seq, stays: u64) {
        self.record(segment, file, Kind::Cancel, seq.get(), stays, b"");
    }

    /// Appends a record of its own and returns its number.
    pub fn record(
        &mut self,
        segment: u32,
        file: Taken,
        kind: Kind,
        file_offset: u64,
        extent: u64,
        bytes: &[u8],
    ) -> Seq {
        if !self.tails.contains_key(&segment) {
            self.renew(segment);
        }
        let seq = self.number();
        let draft = Draft { kind, file_offset, extent, ..self.draft(file, seq) };
        self.append(segment, &draft, bytes);
        seq
    }

    /// Appends one member of a group.
    #[allow(clippy::too_many_arguments)]
    pub fn member(
        &mut self,
        segment: u32,
        file: Taken,
        seq: Seq,
        file_offset: u64,
        bytes: &[u8],
        group_index: u16,
        group_count: u16,
    ) {
        let draft = Draft { file_offset, extent: 6, group_index, group_count, ..self.draft(file, seq) };
        self.append(segment, &draft, bytes);
    }

    fn draft(&self, file: Taken, seq: Seq) -> Draft {
        Draft {
            kind: Kind::Write,
            slot: Slot::new(file.slot),
            slot_generation: file.generation,
            seq,
            file_offset: 0,
            extent: 0,
            unix_time_ns: self.unix_time_ns,
            group_index: 0,
            group_count: 1,
            is_called: false,
        }
    }

    fn append(&mut self, segment: u32, draft: &Draft, bytes: &[u8]) {
        if !self.tails.contains_key(&segment) {
            self.renew(segment);
        }
        let mut tail = self.tails[&segment];
        let took = append(self.nvm(), &tail, draft, &[Bytes::from_slice(bytes)], 0, bytes.len());
        self.nvm().fence();
        tail.at += took as u32;
        self.tails.insert(segment, tail);
    }

    /// Seals a segment where its records end now.
    pub fn seal(&mut self, segment: u32) {
        let (layout, uuid) = (self.open.superblock().layout, self.uuid());
        let tail = self.tails[&segment];
        let below = self.number();
        let place = SegmentUse { segment: Segment::new(segment), generation: tail.generation };
        seal_segment(self.nvm(), &layout, &uuid, place, tail.at, below);
    }

    /// Where the next record of a segment goes.
    pub fn end(&self, segment: u32) -> u64 {
        u64::from(self.tails[&segment].at)
    }

    /// Has a part of a segment read as zeros.
    pub fn blank(&mut self, segment: u32, from: u64, bytes: usize) {
        let offset = self.open.superblock().layout.segment_offset(Segment::new(segment)) + from;
        self.nvm().write(offset, &vec![0; bytes]);
    }

    /// Exchanges, or copies the first to the second, what stands in two places.
    pub fn mix(&mut self, places: [u64; 2], bytes: usize, exchange: bool) {
        let read = |offset| {
            let mut found = vec![0; bytes];
            self.nvm().read(offset, &mut found);
            found
        };
        let [first, second] = places.map(read);
        self.nvm().write(places[1], &first);
        if exchange {
            self.nvm().write(places[0], &second);
        }
    }

    pub fn layout(&self) -> Layout {
        self.open.superblock().layout
    }

    /// Flips a bit of a segment.
    pub fn spoil(&mut self, segment: u32, at: u64) {
        let offset = self.open.superblock().layout.segment_offset(Segment::new(segment)) + at;
        self.flip(offset);
    }

    /// Flips a bit of a slot.
    pub fn spoil_slot(&mut self, slot: u32, at: u64) {
        let offset = self.open.superblock().layout.slot_offset(Slot::new(slot)) + at;
        self.flip(offset);
    }

    /// Has the slot's memory read as zeros.
    pub fn blank_slot(&mut self, slot: u32) {
        let offset = self.open.superblock().layout.slot_offset(Slot::new(slot));
        self.nvm().write(offset, &[0; SLOT_BYTES as usize]);
    }

    fn flip(&self, offset: u64) {
        let mut byte = [0u8];
        self.nvm().read(offset, &mut byte);
        self.nvm().write(offset, &[byte[0] ^ 1]);
    }
}
