//! Descriptions of simulated files, and the two traits by which the keeper and recovery use them.

use std::ffi::OsString;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_disk::{Access, Clock, Disk, DiskFile, Notice, Stat};
use holdfast_pool::{Identity, Ownership};

use super::journal::Change;
use super::state::{DEVICE, FS_UUID, SECOND_NS, SimDisk, not_found};
use crate::stage::{self, Kind};

/// What a change takes: a commit that is had once a second is due after a few.
const CHANGE_NS: u64 = 100_000_000;

/// An open description.
pub struct SimFile {
    disk: SimDisk,
    /// The inode.
    pub id: u32,
    writes: bool,
    /// Errors told so far.
    seen: Arc<AtomicU64>,
}

impl SimDisk {
    /// Opens an inode.
    pub fn open_inode(&self, id: u32, writes: bool) -> SimFile {
        let mut state = self.state();
        let inode = state.inode_mut(id);
        inode.opens += 1;
        inode.writers += u32::from(writes);
        let seen = Arc::new(AtomicU64::new(inode.errors_heard()));
        drop(state);
        SimFile { disk: self.clone(), id, writes, seen }
    }

    /// A program's `open` of a new file.
    pub fn create(&self, path: &[u8]) -> io::Result<SimFile> {
        stage::point(Kind::Disk);
        let id = {
            let mut state = self.state();
            let (directory, name) = state.parent(path)?;
            state.add(directory, name, 0o644)?
        };
        Ok(self.open_inode(id, true))
    }

    /// A program's `unlink`.
    pub fn unlink(&self, path: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let (directory, name) = state.parent(path)?;
        state.remove(directory, name)
    }

    /// A program's `rename`.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let (from, to) = (state.parent(from)?, state.parent(to)?);
        state.rename(from, to, true)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.disk.state();
        // After a power cut nothing is open, and the file may be gone.
        if state.inodes.get(self.id as usize).is_some_and(Option::is_some) && state.inode(self.id).opens > 0 {
            let inode = state.inode_mut(self.id);
            inode.opens -= 1;
            inode.writers = inode.writers.saturating_sub(u32::from(self.writes));
            state.reclaim(self.id);
        }
    }
}

impl SimFile {
    fn name(&self, name: &[u8]) -> (u32, Vec<u8>) {
        (self.id, name.to_vec())
    }

    /// `pwrite` of a program: no point of the stage, the caller has them.
    pub fn pwrite(&self, bytes: &[u8], offset: u64) {
        self.disk.state().write(self.id, offset, bytes);
    }

    /// `ftruncate` of a program.
    pub fn truncate(&self, bytes: u64) {
        self.disk.state().set_size(self.id, bytes);
    }

    /// `fallocate(FALLOC_FL_PUNCH_HOLE)` of a program.
    pub fn punch_hole(&self, offset: u64, bytes: u64) {
        self.disk.state().punch(self.id, offset, bytes);
    }

    /// `pread` of a program.
    pub fn pread(&self, buffer: &mut [u8], offset: u64) -> usize {
        let bytes = self.bytes();
        let from = bytes.len().min(offset as usize);
        let count = buffer.len().min(bytes.len() - from);
        buffer[..count].copy_from_slice(&bytes[from..from + count]);
        count
    }

    /// All bytes that the kernel reads from it.
    pub fn bytes(&self) -> Vec<u8> {
        self.disk.state().inode(self.id).cached.bytes()
    }

    /// Its size.
    pub fn size(&self) -> u64 {
        self.disk.state().inode(self.id).cached.size
    }

    /// Whether a sync on this description would tell of a failure.
    pub fn owes_error(&self) -> bool {
        self.disk.state().inode(self.id).errors > self.seen.load(Ordering::Relaxed)
    }

    /// `sync_file_range` of a program, of no page: tells of a failure as a sync would, and writes
    /// nothing.
    pub fn tell_error(&self) -> io::Result<()> {
        if !self.owes_error() {
            return Ok(());
        }
        let mut state = self.disk.state();
        let inode = state.inode_mut(self.id);
        inode.is_error_news = false;
        self.seen.store(inode.errors, Ordering::Relaxed);
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    /// Its device and inode number.
    pub fn key(&self) -> (u64, u64) {
        (DEVICE, self.disk.state().inode(self.id).number)
    }
}

impl DiskFile for SimFile {
    fn path_now(&self) -> Option<PathBuf> {
        let path = self.disk.state().path_of(self.id)?;
        Some(PathBuf::from(OsString::from_vec(path)))
    }

    fn stat(&self) -> io::Result<Stat> {
        let state = self.disk.state();
        let inode = state.inode(self.id);
        Ok(Stat {
            dev: DEVICE,
            ino: inode.number,
            is_file: !inode.is_directory,
            links: inode.links,
            size: inode.cached.size,
            ownership: inode.ownership,
            modified_ns: inode.ctime_unix_s * SECOND_NS as i64,
            changed_ns: inode.ctime_unix_s * SECOND_NS as i64,
            mount: 1,
            is_fixed: false,
            born_ns: Some(inode.born_ns),
        })
    }

    fn identity(&self) -> io::Result<Identity> {
        let state = self.disk.state();
        let inode = state.inode(self.id);
        let mut handle = inode.number.to_le_bytes().to_vec();
        handle.extend(inode.generation.to_le_bytes());
        Ok(Identity { fs_uuid: FS_UUID, handle_type: 1, handle, inode: inode.number })
    }

    fn identity_on(&self, _file_system: [u8; 16]) -> io::Result<Identity> {
        self.identity()
    }

    fn file_system(&self) -> io::Result<[u8; 16]> {
        Ok(FS_UUID)
    }

    fn reopen(&self, access: Access) -> io::Result<Self> {
        Ok(self.disk.open_inode(self.id, access != Access::Read))
    }

    fn is_open_for_writing(&self) -> bool {
        self.disk.state().inode(self.id).writers > 0
    }

    fn sync(&self) -> io::Result<()> {
        let is_directory = self.disk.state().inode(self.id).is_directory;
        stage::point(if is_directory { Kind::Disk } else { Kind::FileSync });
        let result = {
            let mut state = self.disk.state();
            if is_directory {
                state.sync_directory(self.id);
                Ok(())
            } else {
                let mut seen = self.seen.load(Ordering::Relaxed);
                let result = state.sync_file(self.id, false, &mut seen);
                self.seen.store(seen, Ordering::Relaxed);
                result
            }
        };
        stage::point(if is_directory { Kind::Disk } else { Kind::FileSync });
        result
    }

    fn sync_data(&self) -> io::Result<()> {
        stage::point(Kind::FileSync);
        let result = {
            let mut seen = self.seen.load(Ordering::Relaxed);
            let result = self.disk.state().sync_file(self.id, true, &mut seen);
            self.seen.store(seen, Ordering::Relaxed);
            result
        };
        stage::point(Kind::FileSync);
        result
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.pread(bytes, offset);
        if read == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn sync_all(&self) -> io::Result<()> {
        stage::point(Kind::Disk);
        self.disk.state().sync_everything();
        Ok(())
    }

    fn sync_file_system(&self) {}

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        stage::point(Kind::FileWrite);
        let mut state = self.disk.state();
        if state.inode(self.id).refuses_next {
            state.inode_mut(self.id).refuses_next = false;
            state.refusals += 1;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        state.write(self.id, offset, bytes);
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(self.disk.state().free_bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        stage::point(Kind::Disk);
        self.disk.state().set_size(self.id, bytes);
        Ok(())
    }

    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        stage::point(Kind::Disk);
        self.disk.state().punch(self.id, offset, bytes);
        Ok(())
    }

    fn held_entries(&self, wanted: &dyn Fn(u64) -> bool) -> io::Result<Vec<Self>> {
        stage::point(Kind::Disk);
        let found = self.disk.state().entries_below(self.id, wanted);
        Ok(found.into_iter().map(|id| self.disk.open_inode(id, false)).collect())
    }

    fn orders_names(&self) -> bool {
        self.disk.is_ordered()
    }

    fn commits_quickly(&self) -> bool {
        self.disk.state().rules.commits_quickly
    }

    fn commit(&self) -> io::Result<()> {
        stage::point(Kind::Disk);
        {
            let mut state = self.disk.state();
            if state.rules.commit_writes_out { state.sync_everything() } else { state.commit_all() }
        }
        stage::point(Kind::Disk);
        Ok(())
    }

    fn try_clone(&self) -> io::Result<Self> {
        let mut other = self.disk.open_inode(self.id, self.writes);
        other.seen = Arc::clone(&self.seen);
        Ok(other)
    }

    fn begin_write_back(&self, _range: &Range<u64>) {}

    fn set_ownership(&self, ownership: Ownership) -> io::Result<()> {
        let mut state = self.disk.state();
        state.inode_mut(self.id).ownership = ownership;
        Ok(())
    }

    fn create(&self, name: &[u8]) -> io::Result<Self> {
        stage::point(Kind::Disk);
        let id = self.disk.state().add(self.id, name, 0o600)?;
        Ok(self.disk.open_inode(id, true))
    }

    fn make_directory(&self, _name: &[u8]) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
    }

    fn rename(&self, from: &[u8], directory: &Self, to: &[u8]) -> io::Result<()> {
        stage::point(Kind::Disk);
        let (from, to) = (self.name(from), directory.name(to));
        self.disk.state().rename((from.0, &from.1), (to.0, &to.1), false)
    }

    fn replace(&self, from: &[u8], directory: &Self, to: &[u8]) -> io::Result<()> {
        stage::point(Kind::Disk);
        let (from, to) = (self.name(from), directory.name(to));
        self.disk.state().rename((from.0, &from.1), (to.0, &to.1), true)
    }

    fn remove(&self, name: &[u8]) -> io::Result<()> {
        stage::point(Kind::Disk);
        self.disk.state().remove(self.id, name)
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn open(&self, path: &Path) -> io::Result<SimFile> {
        self.find(path.as_os_str().as_bytes())
    }

    fn hold(&self, path: &Path) -> io::Result<SimFile> {
        self.find(path.as_os_str().as_bytes())
    }

    fn find(&self, path: &[u8]) -> io::Result<SimFile> {
        let id = self.state().lookup(path)?;
        Ok(self.open_inode(id, false))
    }

    fn find_directory(&self, path: &[u8]) -> io::Result<SimFile> {
        let id = self.state().lookup(path)?;
        if !self.state().inode(id).is_directory {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        Ok(self.open_inode(id, false))
    }

    fn find_by_identity(&self, _beside: &SimFile, identity: &Identity) -> io::Result<(SimFile, Vec<u8>)> {
        let state = self.state();
        let is_it = |id: u32| {
            let inode = state.inode(id);
            let handle = [&inode.number.to_le_bytes()[..], &inode.generation.to_le_bytes()[..]].concat();
            handle == identity.handle
        };
        let directory = state.lookup(b"/d")?;
        let found = state.inode(directory).entries.iter().find(|(_, id)| is_it(**id));
        let (name, &id) = found.ok_or_else(not_found)?;
        let path = [b"/d/", &name[..]].concat();
        drop(state);
        Ok((self.open_inode(id, false), path))
    }

    fn clock(&self) -> Clock {
        let state = self.state();
        let booted_ns = state.booted_unix_s * SECOND_NS;
        Clock { now_ns: state.now_unix_s * SECOND_NS, booted_ns_min: booted_ns, booted_ns_max: booted_ns }
    }

    fn monotonic_ns(&self) -> u64 {
        // The same in each play of a history.
        self.state().version * CHANGE_NS
    }

    fn boot(&self) -> [u8; 16] {
        [self.state().boots; 16]
    }

    fn watch(&self, directory: &Path) -> Option<i32> {
        let mut state = self.state();
        let id = state.lookup(directory.as_os_str().as_bytes()).ok()?;
        if !state.watches.contains(&id) {
            state.watches.push(id);
        }
        Some(id as i32)
    }

    fn unwatch(&self, watch: i32) {
        self.state().watches.retain(|&id| id as i32 != watch);
    }

    fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut self.state().notices)
    }
}

impl SimDisk {
    /// In words, what of a file system is not durable.
    pub fn describe(&self) -> String {
        let state = self.state();
        let names = state.journal.iter().map(|change| match change {
            Change::Add { name, .. } => format!("+{}", String::from_utf8_lossy(name)),
            Change::Remove { name, .. } => format!("-{}", String::from_utf8_lossy(name)),
            Change::Move { from, to, .. } => {
                format!("{}->{}", String::from_utf8_lossy(&from.1), String::from_utf8_lossy(&to.1))
            }
            Change::Exchange { one, two } => {
                format!("{}<->{}", String::from_utf8_lossy(&one.1), String::from_utf8_lossy(&two.1))
            }
            Change::Size { inode, size, .. } => format!("file {inode} has {size} bytes"),
            Change::Hole { inode, bytes, .. } => format!("file {inode} has a hole at {bytes:?}"),
        });
        let dirty = state.inodes.iter().flatten().filter(|inode| inode.is_dirty()).count();
        format!(
            "changes not on disk: [{}]; files with unsynced bytes: {dirty}",
            names.collect::<Vec<_>>().join(" ")
        )
    }
}
