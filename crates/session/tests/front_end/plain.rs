//! An open file of this process, by plain system calls.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use holdfast_board::{FileTime, Times, ownership_print};
use holdfast_cache::{Asked, Errno, Look};
use holdfast_media::Bytes;
use holdfast_session::{Backing, Calls, Stat};
use rustix::fs::FallocateFlags;

/// An open file.
pub struct Plain(File);

pub fn errno(error: std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(5))
}

impl Plain {
    pub fn create(path: &Path) -> Result<Self, Errno> {
        File::options().read(true).write(true).create_new(true).open(path).map(Self).map_err(errno)
    }
}

fn gathered(parts: &[Bytes<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        let at = bytes.len();
        bytes.resize(at + part.len(), 0);
        part.copy_to(&mut bytes[at..]);
    }
    bytes
}

impl Backing for Plain {
    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn stat(&self) -> Result<Stat, Errno> {
        let meta = self.0.metadata().map_err(errno)?;
        Ok(Stat {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            regular: meta.is_file(),
            ownership: (meta.mode(), meta.uid(), meta.gid()),
            changed_ns: meta.ctime() as u64 * 1_000_000_000 + meta.ctime_nsec() as u64,
            times: Times {
                modified: FileTime::new(meta.mtime(), meta.mtime_nsec()),
                changed: FileTime::new(meta.ctime(), meta.ctime_nsec()),
            },
        })
    }

    fn look(&self) -> Result<Look, Errno> {
        let meta = self.0.metadata().map_err(errno)?;
        let ownership = ownership_print(meta.mode(), meta.uid(), meta.gid());
        Ok(Look { size: meta.size(), links: meta.nlink(), ownership })
    }

    fn kernel_flags(&self) -> Option<u32> {
        None
    }

    fn fsync(&self, _: Asked) -> Result<(), Errno> {
        self.0.sync_all().map_err(errno)
    }

    fn check(&self) -> Result<(), Errno> {
        self.0.sync_data().map_err(errno)
    }

    fn read_whole(&self, bytes: u64, log: &mut dyn FnMut(&[Bytes<'_>])) -> bool {
        let mut content = vec![0; bytes as usize];
        let is_whole = self.0.read_exact_at(&mut content, 0).is_ok();
        if is_whole {
            log(&[Bytes::from_slice(&content)]);
        }
        is_whole
    }

    fn is_sole(&self) -> bool {
        true
    }

    fn may_be_managed(&self) -> bool {
        true
    }

    fn section<R>(&self, work: impl FnOnce() -> R) -> R {
        work()
    }
}

impl Calls for Plain {
    fn pread(&self, part: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.0.read_at(part, offset).map_err(errno)
    }

    fn pwrite(&self, parts: &[Bytes<'_>], offset: u64) -> Result<usize, Errno> {
        self.0.write_at(&gathered(parts), offset).map_err(errno)
    }

    fn append(&self, parts: &[Bytes<'_>]) -> Result<usize, Errno> {
        self.pwrite(parts, self.stat()?.size)
    }

    fn truncate(&self, size: u64) -> Result<(), Errno> {
        self.0.set_len(size).map_err(errno)
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.0, how, offset, bytes).map_err(|error| Errno(error.raw_os_error()))
    }
}
