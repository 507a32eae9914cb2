//! What a file or device is: real NVM, a file on it, or a volatile stand-in.
//!
//! It must never call media persistent unless the kernel vouches for it: a file counts as NVM only
//! if MAP_SYNC is granted.
#![allow(unsafe_code)] // A trial mapping, removed at once.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    FileType, Mode, OFlags, StatxAttributes, StatxFlags, fstat, fstatfs, major, minor, openat, statx,
};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::cpu::FlushPath;
use crate::error::MediaError;
use crate::kind::{HUGE_PAGE_BYTES, MediaInfo, MediaKind};
use crate::sysfs::{device_len, persistence_domain};

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// Examines the media behind `fd`; `path` is for messages only.
pub(crate) fn detect(fd: BorrowedFd<'_>, path: &Path) -> Result<MediaInfo, MediaError> {
    let stat = fstat(fd).map_err(|e| examine(path, "stat", e.into()))?;
    let (kind, len) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => {
            let sysfs =
                dax_sysfs(stat.st_rdev).ok_or_else(|| MediaError::NotMedia { path: path.to_owned() })?;
            refuse_large_alignment(&sysfs, path)?;
            (MediaKind::DaxDevice, device_len(&sysfs).map_err(|e| examine(path, "device size", e))?)
        }
        FileType::RegularFile => (file_kind(fd, path)?, stat.st_size as u64),
        _ => return Err(MediaError::NotMedia { path: path.to_owned() }),
    };
    Ok(MediaInfo { kind, len, flush: flush_path(kind) })
}

/// eADR is a property of the platform, so it says nothing about a volatile stand-in: that keeps the
/// instructions (and the cost) of real NVM.
fn flush_path(kind: MediaKind) -> FlushPath {
    if kind.is_persistent() && persistence_domain().as_deref() == Some("cpu_cache") {
        FlushPath::None
    } else {
        FlushPath::of_cpu()
    }
}

/// Opens the media at `path`.
pub(crate) fn open_media(path: &Path, write: bool) -> Result<std::os::fd::OwnedFd, MediaError> {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    // NONBLOCK: a FIFO named by mistake must give an error, not a wait.
    openat(rustix::fs::CWD, path, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .map_err(|e| MediaError::Open { path: path.to_owned(), source: e.into() })
}

fn examine(path: &Path, what: &'static str, source: io::Error) -> MediaError {
    MediaError::Examine { path: path.to_owned(), what, source }
}

/// Whether a file is a DAX device.
pub fn is_dax_device(meta: &fs::Metadata) -> bool {
    meta.file_type().is_char_device() && dax_sysfs(meta.rdev()).is_some()
}

/// The sysfs directory of a DAX device, or nothing if the device is something else.
fn dax_sysfs(rdev: u64) -> Option<PathBuf> {
    let dir = PathBuf::from(format!("/sys/dev/char/{}:{}", major(rdev), minor(rdev)));
    let subsystem = fs::canonicalize(dir.join("subsystem")).ok()?;
    (subsystem.file_name()? == "dax").then_some(dir)
}

/// A device is mapped in units of its alignment only; ours are segments, and the part that clients
/// may not store to.
fn refuse_large_alignment(sysfs: &Path, path: &Path) -> Result<(), MediaError> {
    // Kernels that do not say it map in small units.
    let align = fs::read_to_string(sysfs.join("align")).ok().and_then(|text| text.trim().parse().ok());
    match align {
        Some(align) if align > HUGE_PAGE_BYTES => Err(MediaError::Alignment { path: path.to_owned(), align }),
        _ => Ok(()),
    }
}

fn file_kind(fd: BorrowedFd<'_>, path: &Path) -> Result<MediaKind, MediaError> {
    let file_system = fstatfs(fd).map_err(|e| examine(path, "file system", e.into()))?;
    if matches!(file_system.f_type, TMPFS_MAGIC | RAMFS_MAGIC) {
        return Ok(MediaKind::Volatile);
    }
    match try_map_sync(fd) {
        Ok(()) => Ok(MediaKind::DaxFile),
        Err(errno) => {
            let dax = statx(fd, "", rustix::fs::AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
                .is_ok_and(|statx| statx.stx_attributes.contains(StatxAttributes::DAX));
            if dax {
                Err(MediaError::SyncRefused { path: path.to_owned(), source: errno.into() })
            } else if matches!(errno, Errno::OPNOTSUPP | Errno::INVAL | Errno::NODEV) {
                Err(MediaError::NotPersistent { path: path.to_owned() })
            } else {
                Err(MediaError::Map { path: path.to_owned(), source: errno.into() })
            }
        }
    }
}

/// Asks whether the kernel grants MAP_SYNC on `fd`. Works on an empty file too: nothing is touched.
fn try_map_sync(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    const PAGE_BYTES: usize = 4096;
    // SAFETY: a new mapping at an address of the kernel's choice, neither read nor written.
    unsafe {
        let page = mmap(
            std::ptr::null_mut(),
            PAGE_BYTES,
            ProtFlags::READ,
            MapFlags::SHARED_VALIDATE | MapFlags::SYNC,
            fd,
            0,
        )?;
        munmap(page, PAGE_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel refuses to map such a device at our boundaries with a bare «invalid argument».
    #[test]
    fn a_device_that_is_mapped_by_the_gigabyte_is_refused_with_the_remedy() {
        let sysfs = tempfile::tempdir().unwrap();
        let check = || refuse_large_alignment(sysfs.path(), Path::new("/dev/dax0.0"));
        check().unwrap();
        fs::write(sysfs.path().join("align"), "2097152\n").unwrap();
        check().unwrap();
        fs::write(sysfs.path().join("align"), "1073741824\n").unwrap();
        let error = check().unwrap_err().to_string();
        assert!(error.contains("/dev/dax0.0") && error.contains("--align=2M"), "{error}");
    }
}
