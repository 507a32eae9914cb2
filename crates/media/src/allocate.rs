//! Makes the file of a pool, with every byte of it allocated.
//!
//! It must never leave holes: a store to a hole of a full file system ends the program with SIGBUS.
#![allow(unsafe_code)] // A mapping used only for advice on huge pages.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, fstat, fstatfs, fsync, ftruncate, openat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::process::{Resource, getrlimit};

use crate::detect::{detect, open_media};
use crate::error::MediaError;
use crate::kind::{HUGE_PAGE_BYTES, MediaKind};
use crate::mapping::{release, reserve};
use crate::probe::{file_system_of, memory_available};

const PAGE_BYTES: u64 = 4096;

/// Creates the file `path` (mode 0600) with `len` allocated bytes, all zero. `progress` is told
/// bytes done and total.
///
/// An existing file is an error ([`MediaError::Exists`]). If anything fails the file is removed
/// again.
pub fn allocate(path: impl AsRef<Path>, len: u64, progress: impl FnMut(u64, u64)) -> Result<(), MediaError> {
    let path = path.as_ref();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = openat(CWD, path, flags, Mode::RUSR | Mode::WUSR).map_err(|errno| match errno {
        Errno::EXIST => MediaError::Exists { path: path.to_owned() },
        _ => MediaError::Create { path: path.to_owned(), source: errno.into() },
    })?;
    let filled = fill(&fs::File::from(fd), path, len, progress).and_then(|()| sync_parent(path, len));
    if filled.is_err() {
        // The error of the first step is the one to tell.
        let _ = fs::remove_file(path);
    }
    filled
}

/// Gives the existing file or DAX device `path` `len` allocated bytes. Contents within `len` are
/// left as they are; the caller overwrites them. The file is kept if this fails.
///
/// The caller must own the media: a process that has a longer file mapped gets SIGBUS behind `len`.
pub fn allocate_over(
    path: impl AsRef<Path>,
    len: u64,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), MediaError> {
    let path = path.as_ref();
    let fd = open_media(path, true)?;
    let info = detect(fd.as_fd(), path)?;
    if info.kind != MediaKind::DaxDevice {
        return fill(&fs::File::from(fd), path, len, progress);
    }
    if info.len < len {
        return Err(MediaError::TooSmall { path: path.to_owned(), len, have: info.len });
    }
    progress(len, len);
    Ok(())
}

fn failed(path: &Path, len: u64, source: io::Error) -> MediaError {
    MediaError::Allocate { path: path.to_owned(), len, source }
}

fn fill(
    file: &fs::File,
    path: &Path,
    len: u64,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), MediaError> {
    // Refused before gigabytes are written to a disk that is no NVM.
    let info = detect(file.as_fd(), path)?;
    let full = |errno: Errno| match errno {
        Errno::NOSPC | Errno::DQUOT => no_space(file.as_fd(), path, len),
        _ => failed(path, len, errno.into()),
    };
    if info.len > len {
        ftruncate(file, len).map_err(full)?;
    }
    // The kernel would end this process, if it does not ignore SIGXFSZ.
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < len && info.len < len => {
            return Err(MediaError::SizeLimit { path: path.to_owned(), len, limit });
        }
        _ => {}
    }
    let volatile = info.kind == MediaKind::Volatile;
    if volatile {
        check_memory(file.as_fd(), path, len)?;
    }
    let window = if volatile { Window::new().ok() } else { None };
    let zeros = if volatile { Vec::new() } else { vec![0; HUGE_PAGE_BYTES as usize] };

    let mut done = 0;
    progress(done, len);
    while done < len {
        let n = HUGE_PAGE_BYTES.min(len - done);
        if let Some(window) = window.as_ref().filter(|_| n == HUGE_PAGE_BYTES) {
            // With one page there the kernel makes the whole range one huge page, several times
            // faster than from 512 pages; a hole it refuses. Without success the range just gets
            // small pages.
            fallocate(file, FallocateFlags::empty(), done, PAGE_BYTES).map_err(full)?;
            window.collapse(file.as_fd(), done);
        }
        fallocate(file, FallocateFlags::empty(), done, n).map_err(full)?;
        // A file system keeps fallocated blocks "unwritten" and would turn each by a journal
        // transaction at its first store, with a chance to fail.
        let fresh = done.max(info.len);
        if !volatile && fresh < done + n {
            file.write_all_at(&zeros[..(done + n - fresh) as usize], fresh)
                .map_err(|e| Errno::from_io_error(&e).map_or_else(|| failed(path, len, e), full))?;
        }
        done += n;
        progress(done, len);
    }
    fsync(file).map_err(full)
}

/// tmpfs promises more than the machine has: filling it up would wake the OOM killer instead of
/// giving an error.
fn check_memory(fd: BorrowedFd<'_>, path: &Path, len: u64) -> Result<(), MediaError> {
    let allocated = fstat(fd).map_or(0, |stat| stat.st_blocks as u64 * 512);
    match memory_available() {
        Some(available) if len.saturating_sub(allocated) > available => {
            Err(MediaError::NoMemory { path: path.to_owned(), len, available })
        }
        _ => Ok(()),
    }
}

/// What had been free before: the part that was allocated counts with the rest.
fn no_space(fd: BorrowedFd<'_>, path: &Path, len: u64) -> MediaError {
    let left = fstatfs(fd).map_or(0, |s| s.f_bavail * s.f_bsize as u64);
    let free = left + fstat(fd).map_or(0, |stat| stat.st_blocks as u64 * 512);
    MediaError::NoSpace { path: path.to_owned(), len, file_system: file_system_of(fd), free }
}

fn sync_parent(path: &Path, len: u64) -> Result<(), MediaError> {
    let dir = match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    };
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| failed(path, len, e))
}

/// Address space for one huge page, through which ranges of a file are collapsed one after another.
struct Window {
    base: NonNull<u8>,
}

impl Window {
    fn new() -> Result<Window, Errno> {
        Ok(Window { base: reserve(HUGE_PAGE_BYTES as usize)? })
    }

    /// Asks the kernel to hold 2 MiB of `fd` at `offset` in one huge page. Advice: nothing depends
    /// on its success.
    fn collapse(&self, fd: BorrowedFd<'_>, offset: u64) {
        const MADV_COLLAPSE: libc::c_int = 25;
        let (base, len) = (self.base.as_ptr().cast(), HUGE_PAGE_BYTES as usize);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces the window's own address range, which nobody else knows and nobody
        // accesses. madvise is given just that range; rustix has no name for this advice.
        unsafe {
            if mmap(base, len, ProtFlags::READ | ProtFlags::WRITE, flags, fd, offset).is_ok() {
                libc::madvise(base, len, MADV_COLLAPSE);
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the window's own range, unused from here on.
        unsafe { release(self.base, HUGE_PAGE_BYTES as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    fn shm() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").expect("tests need a tmpfs at /dev/shm")
    }

    #[test]
    fn every_byte_is_allocated_and_private() {
        let dir = shm();
        let path = dir.path().join("pool");
        let len = 3 * HUGE_PAGE_BYTES + 3 * PAGE_BYTES;
        let mut steps = Vec::new();
        allocate(&path, len, |done, total| steps.push((done, total))).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), len);
        assert!(meta.blocks() * 512 >= len);
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        assert_eq!(steps.first(), Some(&(0, len)));
        assert_eq!(steps.last(), Some(&(len, len)));
        assert!(steps.is_sorted());
        assert!(fs::read(&path).unwrap().iter().all(|b| *b == 0));
    }

    #[test]
    fn an_existing_file_is_refused_and_kept() {
        let dir = shm();
        let path = dir.path().join("pool");
        fs::write(&path, b"precious").unwrap();
        let error = allocate(&path, HUGE_PAGE_BYTES, |_, _| ()).unwrap_err();
        assert!(matches!(error, MediaError::Exists { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn allocate_over_grows_shrinks_and_keeps_contents() {
        let dir = shm();
        let path = dir.path().join("pool");
        fs::write(&path, b"here").unwrap();
        for len in [2 * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES] {
            allocate_over(&path, len, |_, _| ()).unwrap();
            let meta = fs::metadata(&path).unwrap();
            assert_eq!(meta.len(), len);
            assert!(meta.blocks() * 512 >= len);
            assert_eq!(&fs::read(&path).unwrap()[..5], b"here\0");
        }
    }

    #[test]
    fn no_memory_is_an_error_and_leaves_nothing() {
        let dir = shm();
        let path = dir.path().join("pool");
        let error = allocate(&path, 1 << 50, |_, _| ()).unwrap_err();
        assert!(matches!(error, MediaError::NoMemory { .. }), "{error}");
        assert!(!path.exists());
    }

    #[test]
    fn missing_directory_is_named() {
        let error = allocate("/dev/shm/no/such/dir/pool", HUGE_PAGE_BYTES, |_, _| ()).unwrap_err();
        assert!(error.to_string().contains("/dev/shm/no/such/dir/pool"), "{error}");
    }

    /// A file system without room gives an error that says where and how much; needs the right to
    /// mount.
    #[test]
    fn full_tmpfs_is_an_error_and_leaves_nothing() {
        let dir = shm();
        let target = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
        // SAFETY: C strings that live through the call.
        let mounted = unsafe {
            libc::mount(c"tmpfs".as_ptr(), target.as_ptr(), c"tmpfs".as_ptr(), 0, c"size=8m".as_ptr().cast())
        };
        assert_eq!(mounted, 0, "mounts a tmpfs: run as root ({})", io::Error::last_os_error());
        let path = dir.path().join("pool");
        let error = allocate(&path, 16 << 20, |_, _| ()).unwrap_err();
        let left = path.exists();
        let fits = allocate(&path, 8 << 20, |_, _| ());
        let _ = fs::remove_file(&path);
        // SAFETY: as above.
        unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) };
        assert!(matches!(error, MediaError::NoSpace { len, .. } if len == 16 << 20), "{error}");
        assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
        assert!(!left);
        fits.unwrap();
    }
}
