//! A simulated file system: what programs see, what is durable, and everything in between that a
//! power cut may leave.
//!
//! The fault model of docs/crash: of unsynced writes any block may be there in any of its versions
//! since the last sync, sizes that writes made lag independently of blocks, and changes of names
//! become durable as [`rules`] says: with truncations and holes in the order of a journal
//! ([`Journal::Ext4`], [`Journal::Xfs`]), or each by itself ([`Journal::Btrfs`],
//! [`Journal::Lagging`], [`Journal::Bare`]). A sync may fail once, and so may the kernel's own
//! writing back, of which nobody hears before the next sync: either drops the dirty pages, of which
//! no later sync writes what is not written again. Every description of the file hears of it once;
//! one that was opened afterwards only if nobody had heard of it before (`errseq_sample`). Inode
//! numbers are reused at once, but on btrfs, and the number of a file that a power cut took is
//! given again with its generation, as xfs does.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use holdfast_disk::{Change, Notice};
use holdfast_pool::Ownership;
use holdfast_testkit::Random;

use content::Content;
use journal::Change as Pending;

pub mod calls;
mod content;
mod crash;
mod file;
mod journal;
mod names;
pub mod rules;

pub use crash::Left;
pub use file::SimFile;
pub use rules::Journal;
use rules::{Covers, Rules};

/// Unit in which file contents reach the disk, in bytes.
pub const BLOCK_BYTES: usize = 256;
/// The device number of the file system.
pub const DEVICE: u64 = 9;
const FS_UUID: [u8; 16] = [7; 16];
const ROOT: u32 = 0;
const SECOND_NS: u64 = 1_000_000_000;
/// The spill file's name in the root directory.
const SPILL: &[u8] = b"spill";

type Block = Option<Arc<[u8; BLOCK_BYTES]>>;

/// A block as it was written at some time.
#[derive(Clone, Debug)]
struct Version {
    index: u32,
    block: Block,
    /// When, by the inode's own count.
    at: u64,
}

/// A file or directory.
#[derive(Clone, Debug)]
struct Inode {
    number: u64,
    generation: u32,
    is_directory: bool,
    links: u64,
    opens: u32,
    writers: u32,
    ownership: Ownership,
    ctime_unix_s: i64,
    born_ns: i64,
    /// What programs see.
    cached: Content,
    /// What a power cut certainly leaves, if the inode has a name then.
    durable: Content,
    /// Blocks and sizes since the last sync, each of which may be on disk, the sizes with their
    /// times. Truncations are among them where no journal has them.
    versions: Vec<Version>,
    sizes: Vec<(u64, u64)>,
    /// How often its bytes or its size changed.
    changes: u64,
    /// Entries of a directory.
    entries: BTreeMap<Vec<u8>, u32>,
    durable_entries: BTreeMap<Vec<u8>, u32>,
    /// Failures so far, those that nobody heard of between them as one; every description tells
    /// each once.
    errors: u64,
    /// Nobody has heard of the last one yet.
    is_error_news: bool,
    fails_next: bool,
    /// The next write of the keeper fails.
    refuses_next: bool,
    /// The journal has something of it that is not committed: it was made, or cut, or its names
    /// changed. The size of what was written comes to the journal only with the bytes.
    in_journal: bool,
    /// And what it has is more than names.
    is_journal_data: bool,
    /// No program has touched it since the disk was mounted, as far as somebody asks.
    is_unread: bool,
    /// And it got or lost names, or, of a directory, names in it went.
    is_moved: bool,
}

impl Inode {
    fn is_dirty(&self) -> bool {
        !self.versions.is_empty() || !self.sizes.is_empty()
    }

    /// The failures that a description which is opened now has nothing to tell of.
    fn errors_heard(&self) -> u64 {
        self.errors - u64::from(self.is_error_news)
    }

    /// Makes durable what is dirty, and nothing else: a page that a failed sync left in the cache
    /// is clean there, and no later sync writes it.
    fn write_dirty(&mut self) {
        self.commit_sizes();
        for version in std::mem::take(&mut self.versions) {
            let newest = self.cached.block(version.index as usize).clone();
            self.durable.set_block(version.index as usize, newest);
        }
        self.durable.trim();
    }

    /// Sizes are metadata, and the journal has them in order: what was once cut off does not come
    /// back.
    fn commit_sizes(&mut self) {
        if let Some(least) = std::mem::take(&mut self.sizes).iter().map(|(_, size)| *size).min() {
            self.durable.size = self.durable.size.min(least);
            self.durable.trim();
            self.durable.size = self.cached.size;
        }
    }

    /// Counts a change of bytes or size.
    fn count(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }
}

/// The whole file system at one moment.
#[derive(Clone, Debug)]
pub struct DiskState {
    inodes: Vec<Option<Arc<Inode>>>,
    journal: Vec<Pending>,
    kind: Journal,
    rules: Rules,
    /// Numbers of inodes to be given again, each with its next generation.
    free_numbers: Vec<(u64, u32)>,
    next_number: u64,
    /// How many inodes were made: no two are born at the same moment.
    births: u32,
    /// The clock, in seconds since 1970.
    pub now_unix_s: u64,
    /// When the machine was booted, by the same clock.
    booted_unix_s: u64,
    /// How often it was.
    boots: u8,
    /// Bytes that still fit on it, for whoever asks; nothing is refused.
    pub free_bytes: u64,
    watches: Vec<u32>,
    notices: Vec<Notice>,
    random: Random,
    /// Writes of the keeper and syncs that failed.
    pub refusals: u64,
    /// Changes with everything that changes what a crash may leave.
    pub version: u64,
}

/// A file system that several handles share.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
}

fn not_found() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl DiskState {
    /// A file system with one empty directory `/d`, made long ago.
    pub fn new(kind: Journal, now_unix_s: u64, seed: u64) -> Self {
        let mut state = Self {
            inodes: Vec::new(),
            journal: Vec::new(),
            kind,
            rules: kind.rules(),
            free_numbers: Vec::new(),
            next_number: 2,
            births: 0,
            now_unix_s,
            booted_unix_s: now_unix_s - 1000,
            boots: 1,
            free_bytes: u64::MAX,
            watches: Vec::new(),
            notices: Vec::new(),
            random: Random::new(seed),
            refusals: 0,
            version: 0,
        };
        let root = state.make(true, 0o755);
        let directory = state.make(true, 0o755);
        for id in [root, directory] {
            state.inode_mut(id).born_ns = 1;
        }
        state.inode_mut(root).entries.insert(b"d".to_vec(), directory);
        state.inode_mut(root).durable_entries.insert(b"d".to_vec(), directory);
        state
    }

    fn inode(&self, id: u32) -> &Inode {
        self.inodes[id as usize].as_ref().expect("an inode in use")
    }

    fn inode_mut(&mut self, id: u32) -> &mut Inode {
        Arc::make_mut(self.inodes[id as usize].as_mut().expect("an inode in use"))
    }

    fn make(&mut self, is_directory: bool, mode: u32) -> u32 {
        let (number, generation) = self.free_numbers.pop().unwrap_or_else(|| {
            self.next_number += 1;
            (self.next_number - 1, 1)
        });
        self.births += 1;
        let id = self.inodes.len() as u32;
        let now = self.now_unix_s as i64;
        self.inodes.push(Some(Arc::new(Inode {
            number,
            generation,
            is_directory,
            links: 1,
            opens: 0,
            writers: 0,
            ownership: Ownership { mode, owner: 0, group: 0 },
            ctime_unix_s: now,
            born_ns: now * SECOND_NS as i64 + i64::from(self.births),
            cached: Content::default(),
            durable: Content::default(),
            versions: Vec::new(),
            sizes: Vec::new(),
            changes: 0,
            entries: BTreeMap::new(),
            durable_entries: BTreeMap::new(),
            errors: 0,
            is_error_news: false,
            fails_next: false,
            refuses_next: false,
            in_journal: true,
            is_journal_data: true,
            is_unread: false,
            is_moved: false,
        })));
        self.version += 1;
        id
    }

    /// The inode at an absolute path.
    pub(crate) fn lookup(&self, path: &[u8]) -> io::Result<u32> {
        let mut at = ROOT;
        for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
            at = *self.inode(at).entries.get(part).ok_or_else(not_found)?;
        }
        Ok(at)
    }

    fn parent<'a>(&self, path: &'a [u8]) -> io::Result<(u32, &'a [u8])> {
        let at = path.iter().rposition(|&byte| byte == b'/').ok_or_else(not_found)?;
        Ok((self.lookup(&path[..at])?, &path[at + 1..]))
    }

    fn notify(&mut self, directory: u32, change: Change) {
        if self.watches.contains(&directory) {
            self.notices.push(Notice { watch: Some(directory as i32), change });
        }
    }

    fn touch(&mut self, id: u32) {
        let now = self.now_unix_s as i64;
        self.inode_mut(id).ctime_unix_s = now;
        self.version += 1;
    }

    /// Gives an inode's number back when nothing holds it any more.
    fn reclaim(&mut self, id: u32) {
        let inode = self.inode(id);
        if inode.links == 0 && inode.opens == 0 && self.rules.reuses_numbers {
            let next = (inode.number, inode.generation + 1);
            self.free_numbers.push(next);
        }
    }

    pub(crate) fn write(&mut self, id: u32, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset as usize + done;
            let (index, from) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let step = (BLOCK_BYTES - from).min(bytes.len() - done);
            let inode = self.inode_mut(id);
            let mut block = inode.cached.block(index).clone().unwrap_or_else(|| Arc::new([0; BLOCK_BYTES]));
            Arc::make_mut(&mut block)[from..from + step].copy_from_slice(&bytes[done..done + step]);
            inode.cached.set_block(index, Some(Arc::clone(&block)));
            let at = inode.count();
            inode.versions.push(Version { index: index as u32, block: Some(block), at });
            done += step;
        }
        let end = offset + bytes.len() as u64;
        let journals = self.rules.journals_written_sizes;
        let inode = self.inode_mut(id);
        if inode.cached.size < end {
            inode.cached.size = end;
            let at = inode.count();
            if journals {
                self.journal.push(Pending::Size { inode: id, size: end, at });
                self.reshaped(id);
            } else {
                inode.sizes.push((at, end));
            }
        }
        self.touch(id);
    }

    pub(crate) fn set_size(&mut self, id: u32, size: u64) {
        let journals = self.rules.journals_sizes;
        let inode = self.inode_mut(id);
        let before = inode.cached.blocks.clone();
        inode.cached.size = size;
        inode.cached.trim();
        let at = inode.count();
        for (index, old) in before.iter().enumerate() {
            let block = inode.cached.block(index).clone();
            if block != *old {
                inode.versions.push(Version { index: index as u32, block, at });
            }
        }
        if journals {
            self.journal.push(Pending::Size { inode: id, size, at });
        } else {
            inode.sizes.push((at, size));
        }
        self.reshaped(id);
    }

    pub(crate) fn punch(&mut self, id: u32, offset: u64, bytes: u64) {
        let size = self.inode(id).cached.size;
        let end = (offset + bytes).min(size);
        if offset < end {
            let at = self.inode_mut(id).count();
            self.write(id, offset, &vec![0; (end - offset) as usize]);
            if self.rules.journals_sizes {
                self.journal.push(Pending::Hole { inode: id, bytes: offset..end, at });
            }
            self.reshaped(id);
        }
        debug_assert_eq!(self.inode(id).cached.size, size);
    }

    /// The journal has something of a file that is more than a name.
    fn reshaped(&mut self, id: u32) {
        let inode = self.inode_mut(id);
        (inode.in_journal, inode.is_journal_data) = (true, true);
        self.touch(id);
    }

    /// Syncs a file, or its data; `seen` counts the errors its description has told.
    fn sync_file(&mut self, id: u32, data: bool, seen: &mut u64) -> io::Result<()> {
        let covers = self.covers(id, data);
        self.tell_failure(id, seen)?;
        match covers {
            Covers::Nothing => {}
            Covers::Own => self.commit(|change| change.inodes().contains(&id)),
            Covers::All => self.commit_all(),
        }
        if self.rules.keeps_bytes {
            self.inode_mut(id).write_dirty();
        }
        self.version += 1;
        Ok(())
    }

    /// Everything that is the journal's becomes durable.
    pub(super) fn commit_all(&mut self) {
        self.commit(|_| true);
        for inode in self.inodes.iter_mut().flatten().filter(|inode| inode.in_journal) {
            let inode = Arc::make_mut(inode);
            (inode.in_journal, inode.is_journal_data, inode.is_moved) = (false, false, false);
        }
        self.version += 1;
    }

    /// Which changes of names a sync of a file makes durable. Bytes that were overwritten are none
    /// of the journal's business.
    fn covers(&self, id: u32, data: bool) -> Covers {
        let (inode, rules) = (self.inode(id), &self.rules);
        let covers = if inode.is_journal_data || !inode.sizes.is_empty() {
            if data { rules.data_sync } else { rules.sync }
        } else if inode.in_journal {
            match data {
                true if inode.is_moved => rules.data_sync_of_names,
                true => Covers::Nothing,
                false => rules.sync,
            }
        } else if inode.is_dirty() {
            if data { rules.data_sync_of_bytes } else { rules.sync_of_bytes }
        } else {
            Covers::Nothing
        };
        let moves = || self.journal.iter().any(Pending::moves);
        match () {
            () if inode.is_moved => covers.max(rules.sync_of_moved),
            () if (inode.in_journal || inode.is_dirty()) && moves() => covers.max(rules.sync_beside_moves),
            () => covers,
        }
    }

    /// Whether an `fsync` of an inode makes all changes of names durable: a journal commits
    /// everything for an inode that it has something of, and nothing for any other.
    pub(crate) fn commits_with(&self, id: u32) -> bool {
        self.covers(id, false) == Covers::All
    }

    /// A sync tells of pages that were lost, and loses some if it is to fail.
    fn tell_failure(&mut self, id: u32, seen: &mut u64) -> io::Result<()> {
        if self.inode(id).fails_next {
            self.drop_dirty(id);
        }
        let inode = self.inode_mut(id);
        if inode.errors > *seen {
            *seen = inode.errors;
            inode.is_error_news = false;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    /// What the kernel does when it cannot write dirty pages: some got to the disk, none stays
    /// dirty, and those that are evicted read as the disk has them.
    fn drop_dirty(&mut self, id: u32) {
        if self.journal.iter().any(|change| change.reshapes() == Some(id)) {
            self.commit_all();
        }
        let mut random = self.random.clone();
        let inode = self.inode_mut(id);
        inode.fails_next = false;
        inode.errors += u64::from(!inode.is_error_news);
        inode.is_error_news = true;
        let blocks: Vec<u32> = inode.versions.drain(..).map(|version| version.index).collect();
        inode.commit_sizes();
        for block in blocks {
            let index = block as usize;
            let cached = inode.cached.block(index).clone();
            match random.below(3) {
                0 => inode.durable.set_block(index, cached),
                1 => {
                    let old = inode.durable.block(index).clone();
                    inode.cached.set_block(index, old);
                }
                _ => {}
            }
        }
        inode.durable.trim();
        inode.cached.trim();
        self.random = random;
        self.refusals += 1;
        self.version += 1;
    }

    /// Adds the file where the log of a pool goes on, which has had these first bytes for long.
    pub fn add_spill(&mut self, header: &[u8], bytes: u64) {
        let id = self.make(false, 0o600);
        self.write(id, 0, header);
        self.set_size(id, bytes);
        self.inode_mut(id).write_dirty();
        let root = self.inode_mut(ROOT);
        root.entries.insert(SPILL.to_vec(), id);
        root.durable_entries.insert(SPILL.to_vec(), id);
    }

    /// Has the next write to the spill file fail, or the next sync of it.
    pub fn fail_spill(&mut self, sync: bool) {
        let Some(&id) = self.inode(ROOT).entries.get(SPILL) else { return };
        let inode = self.inode_mut(id);
        inode.fails_next |= sync;
        inode.refuses_next |= !sync;
    }

    /// The files of the directory `/d` as programs see them.
    pub fn tree(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let directory = self.lookup(b"/d").expect("/d is never removed");
        let entries = &self.inode(directory).entries;
        entries.iter().map(|(name, &id)| (name.clone(), self.inode(id).cached.bytes())).collect()
    }

    /// A path of an inode.
    pub(crate) fn path_of(&self, id: u32) -> Option<Vec<u8>> {
        let directory = self.lookup(b"/d").ok()?;
        let (name, _) = self.inode(directory).entries.iter().find(|(_, entry)| **entry == id)?;
        Some([b"/d/", &name[..]].concat())
    }

    /// Whether it has a journal.
    pub fn is_ordered(&self) -> bool {
        self.rules.ordered
    }

    /// Has the next sync of a file fail.
    pub fn fail_next_sync(&mut self, id: u32) {
        self.inode_mut(id).fails_next = true;
    }

    /// The kernel fails to write back what is dirty of a file, and nobody asked for it.
    pub fn lose_dirty(&mut self, id: u32) {
        if self.inode(id).is_dirty() {
            self.drop_dirty(id);
        }
    }

    /// Has the next write of the keeper to a file fail.
    pub fn refuse_next_write(&mut self, id: u32) {
        self.inode_mut(id).refuses_next = true;
    }
}

impl SimDisk {
    /// A file system in this state.
    pub fn new(state: DiskState) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Whether a sync of anything commits all earlier changes of names.
    pub fn is_ordered(&self) -> bool {
        self.state().rules.ordered
    }

    /// The state, to look at or replace.
    pub fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
