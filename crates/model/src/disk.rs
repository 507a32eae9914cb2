//! A file system of one file, in ordinary memory: every call on it is one step, as a kernel makes
//! it that keeps readers out while it writes (xfs).

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use holdfast_board::model::{choose, step};
use holdfast_disk::{Access, Clock, Disk, DiskFile, Notice, Stat};
use holdfast_pool::{Identity, Ownership};

/// Device, and inode of the file; that of its directory is the next one.
pub(crate) const DEVICE: u64 = 1;
const INODE: u64 = 1;
const NOW_UNIX_S: u64 = 1_000_000;

/// What the page cache has of the one file; clones share it.
#[derive(Clone, Default)]
pub struct OneFile(Arc<Mutex<Vec<u8>>>);

impl OneFile {
    fn cache(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().expect("no thread panics while it holds it")
    }

    /// The kernel's `pread`: gives the number of bytes there are.
    pub fn pread(&self, bytes: &mut [u8], offset: u64) -> usize {
        choose();
        let cache = self.cache();
        let from = cache.len().min(offset as usize);
        let count = bytes.len().min(cache.len() - from);
        bytes[..count].copy_from_slice(&cache[from..from + count]);
        count
    }

    /// The kernel's `pwrite`.
    pub fn pwrite(&self, bytes: &[u8], offset: u64) {
        self.change(|cache| {
            let end = offset as usize + bytes.len();
            let size = cache.len().max(end);
            cache.resize(size, 0);
            cache[offset as usize..end].copy_from_slice(bytes);
        });
    }

    /// The kernel's `ftruncate`.
    pub fn truncate(&self, size: u64) {
        self.change(|cache| cache.resize(size as usize, 0));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<u8>)) {
        choose();
        if step() {
            change(&mut self.cache());
        }
    }

    /// All there is of it.
    pub fn contents(&self) -> Vec<u8> {
        self.cache().clone()
    }

    /// A description of it.
    pub fn description(&self) -> Description {
        Description { file: self.clone(), is_directory: false }
    }
}

/// A description of the file, or of its directory.
#[derive(Clone)]
pub struct Description {
    file: OneFile,
    is_directory: bool,
}

fn no_directory() -> io::Error {
    io::Error::from(io::ErrorKind::NotADirectory)
}

impl Disk for OneFile {
    type File = Description;

    fn open(&self, path: &Path) -> io::Result<Description> {
        Ok(Description { file: self.clone(), is_directory: path == Path::new("/") })
    }

    fn hold(&self, path: &Path) -> io::Result<Description> {
        self.open(path)
    }

    fn find(&self, _path: &[u8]) -> io::Result<Description> {
        Ok(self.description())
    }

    fn find_directory(&self, _path: &[u8]) -> io::Result<Description> {
        Ok(Description { file: self.clone(), is_directory: true })
    }

    fn find_by_identity(&self, _: &Description, _: &Identity) -> io::Result<(Description, Vec<u8>)> {
        Ok((self.description(), b"/a".to_vec()))
    }

    fn clock(&self) -> Clock {
        Clock { now_ns: NOW_UNIX_S * 1_000_000_000, booted_ns_min: 0, booted_ns_max: 0 }
    }

    fn boot(&self) -> [u8; 16] {
        [1; 16]
    }

    fn watch(&self, _directory: &Path) -> Option<i32> {
        None
    }

    fn unwatch(&self, _watch: i32) {}

    fn take_notices(&self) -> Vec<Notice> {
        Vec::new()
    }
}

impl DiskFile for Description {
    fn stat(&self) -> io::Result<Stat> {
        Ok(Stat {
            dev: DEVICE,
            ino: INODE + u64::from(self.is_directory),
            is_file: !self.is_directory,
            links: 1,
            size: self.file.cache().len() as u64,
            ownership: Ownership { mode: 0o600, owner: 0, group: 0 },
            modified_ns: 0,
            changed_ns: 0,
            mount: 1,
            is_fixed: false,
            born_ns: None,
        })
    }

    fn identity(&self) -> io::Result<Identity> {
        self.identity_on([1; 16])
    }

    fn identity_on(&self, fs_uuid: [u8; 16]) -> io::Result<Identity> {
        Ok(Identity { fs_uuid, handle_type: 1, handle: vec![1; 8], inode: INODE })
    }

    fn file_system(&self) -> io::Result<[u8; 16]> {
        Ok([1; 16])
    }

    fn reopen(&self, _access: Access) -> io::Result<Self> {
        Ok(self.clone())
    }

    fn is_open_for_writing(&self) -> bool {
        true
    }

    fn sync(&self) -> io::Result<()> {
        choose();
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync()
    }

    fn read_exact_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let read = self.file.pread(bytes, offset);
        if read == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    fn sync_file_system(&self) {}

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.pwrite(bytes, offset);
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.truncate(bytes);
        Ok(())
    }

    fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.file.change(|cache| {
            let end = cache.len().min((offset + bytes) as usize);
            cache[end.min(offset as usize)..end].fill(0);
        });
        Ok(())
    }

    fn orders_names(&self) -> bool {
        true
    }

    fn commit(&self) -> io::Result<()> {
        Ok(())
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    fn begin_write_back(&self, _range: &Range<u64>) {}

    fn set_ownership(&self, _ownership: Ownership) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, _name: &[u8]) -> io::Result<Self> {
        Err(no_directory())
    }

    fn make_directory(&self, _name: &[u8]) -> io::Result<()> {
        Err(no_directory())
    }

    fn rename(&self, _from: &[u8], _directory: &Self, _to: &[u8]) -> io::Result<()> {
        Err(no_directory())
    }

    fn replace(&self, _from: &[u8], _directory: &Self, _to: &[u8]) -> io::Result<()> {
        Err(no_directory())
    }

    fn remove(&self, _name: &[u8]) -> io::Result<()> {
        Err(no_directory())
    }
}
