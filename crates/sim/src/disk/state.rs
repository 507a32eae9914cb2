//! The tables of a simulated file system: its inodes, what is not committed of them, and its clock.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use holdfast_disk::{Change, Notice};
use holdfast_pool::Ownership;
use holdfast_testkit::Random;

use super::content::Content;
use super::inode::Inode;
use super::journal::Change as Pending;
use super::rules::{Journal, Rules};

/// The device number of the file system.
pub const DEVICE: u64 = 9;
pub(super) const FS_UUID: [u8; 16] = [7; 16];
pub(super) const ROOT: u32 = 0;
pub(super) const SECOND_NS: u64 = 1_000_000_000;
/// The whole file system at one moment.
#[derive(Clone, Debug)]
pub struct DiskState {
    pub(super) inodes: Vec<Option<Arc<Inode>>>,
    pub(super) journal: Vec<Pending>,
    pub(super) kind: Journal,
    pub(super) rules: Rules,
    /// Numbers of inodes to be given again, each with its next generation.
    pub(super) free_numbers: Vec<(u64, u32)>,
    pub(super) next_number: u64,
    /// How many inodes were made: no two are born at the same moment.
    pub(super) births: u32,
    /// The clock, in seconds since 1970.
    pub now_unix_s: u64,
    /// When the machine was booted, by the same clock.
    pub(super) booted_unix_s: u64,
    /// How often it was.
    pub(super) boots: u8,
    /// Bytes that still fit on it, for whoever asks; nothing is refused.
    pub free_bytes: u64,
    pub(super) watches: Vec<u32>,
    pub(super) notices: Vec<Notice>,
    pub(super) random: Random,
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

pub(super) fn not_found() -> io::Error {
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

    pub(super) fn inode(&self, id: u32) -> &Inode {
        self.inodes[id as usize].as_ref().expect("an inode in use")
    }

    pub(super) fn inode_mut(&mut self, id: u32) -> &mut Inode {
        Arc::make_mut(self.inodes[id as usize].as_mut().expect("an inode in use"))
    }

    pub(super) fn make(&mut self, is_directory: bool, mode: u32) -> u32 {
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

    pub(super) fn parent<'a>(&self, path: &'a [u8]) -> io::Result<(u32, &'a [u8])> {
        let at = path.iter().rposition(|&byte| byte == b'/').ok_or_else(not_found)?;
        Ok((self.lookup(&path[..at])?, &path[at + 1..]))
    }

    pub(super) fn notify(&mut self, directory: u32, change: Change) {
        if self.watches.contains(&directory) {
            self.notices.push(Notice { watch: Some(directory as i32), change });
        }
    }

    pub(super) fn touch(&mut self, id: u32) {
        let now = self.now_unix_s as i64;
        self.inode_mut(id).ctime_unix_s = now;
        self.version += 1;
    }

    /// Gives an inode's number back when nothing holds it any more.
    pub(super) fn reclaim(&mut self, id: u32) {
        let inode = self.inode(id);
        if inode.links == 0 && inode.opens == 0 && self.rules.reuses_numbers {
            let next = (inode.number, inode.generation + 1);
            self.free_numbers.push(next);
        }
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
