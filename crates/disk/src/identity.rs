//! Who a file is, for the file system it lives on: UUID and kernel handle.
//!
//! Inode numbers are reused at once and device numbers change with every mount; the UUID and the
//! handle (which carries the inode's generation) are not. It must never call two files the same
//! because their numbers agree.
#![allow(unsafe_code)] // File handles and the ioctls for UUIDs have no safe wrappers.

use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use holdfast_canary::{Canary, on};
use holdfast_pool::{HANDLE_BYTES_MAX, Identity};
use rustix::fs::{fstat, fstatfs};

const EXT_MAGIC: u32 = 0xef53;
const XFS_MAGIC: u32 = 0x5846_5342;
const BTRFS_MAGIC: u32 = 0x9123_683e;

// Request numbers of the ioctls, as <linux/fs.h>, <xfs/xfs_fs.h> and <linux/btrfs.h> define them.
const FS_IOC_GETFSUUID: libc::c_ulong = 0x8011_1500;
const EXT4_IOC_GETFSUUID: libc::c_ulong = 0x8008_662c;
const XFS_IOC_FSGEOMETRY_V1: libc::c_ulong = 0x8070_5864;
const BTRFS_IOC_FS_INFO: libc::c_ulong = 0x8400_941f;
const BTRFS_IOC_GET_FEATURES: libc::c_ulong = 0x8018_9439;
/// Asks BTRFS_IOC_FS_INFO for the UUID of the metadata, too, and says that it is there.
const BTRFS_FS_INFO_FLAG_METADATA_UUID: u64 = 1 << 2;
/// The UUID was changed, and the metadata have the older one.
const BTRFS_FEATURE_INCOMPAT_METADATA_UUID: u64 = 1 << 10;

/// The file systems whose files Holdfast manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// ext4 (and ext2, ext3, which its driver serves).
    Ext4,
    /// xfs.
    Xfs,
    /// btrfs; its handles name the subvolume too.
    Btrfs,
}

impl fmt::Display for FsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        })
    }
}

/// The identity of an open file (not an `O_PATH` descriptor) and the kind of its file system.
///
/// A file system that Holdfast does not manage is [`io::ErrorKind::Unsupported`], with its type in
/// the message.
pub fn identify(fd: impl AsFd) -> io::Result<(Identity, FsKind)> {
    let fd = fd.as_fd();
    let (fs_uuid, kind) = file_system(fd)?;
    Ok((identify_on(fd, fs_uuid)?, kind))
}

/// The identity of a file, an `O_PATH` descriptor included, on the file system with this UUID.
pub fn identify_on(fd: impl AsFd, fs_uuid: [u8; 16]) -> io::Result<Identity> {
    let fd = fd.as_fd();
    let (handle_type, handle) = handle(fd)?;
    Ok(Identity { fs_uuid, handle_type, handle, inode: fstat(fd)?.st_ino })
}

/// UUID and kind of the file system an open file or directory lives on.
pub fn file_system(fd: impl AsFd) -> io::Result<([u8; 16], FsKind)> {
    let fd = fd.as_fd();
    match kind_of(fd) {
        Err(_) if on(Canary::AnyFileSystem) => Ok(([0; 16], FsKind::Ext4)),
        Ok(kind @ FsKind::Btrfs) => Ok((btrfs_uuid(fd)?, kind)),
        kind => kind.and_then(|kind| Ok((uuid(fd, kind)?, kind))),
    }
}

/// Kind of the file system that a file or directory lives on.
pub fn kind_of(fd: impl AsFd) -> io::Result<FsKind> {
    match fstatfs(fd)?.f_type as u32 {
        EXT_MAGIC => Ok(FsKind::Ext4),
        XFS_MAGIC => Ok(FsKind::Xfs),
        BTRFS_MAGIC => Ok(FsKind::Btrfs),
        other => {
            let message = format!("its file system (type {other:#x}) is not one of ext4, xfs and btrfs");
            Err(io::Error::new(io::ErrorKind::Unsupported, message))
        }
    }
}

/// Opens the file with this identity, wherever its name is now. `mount` is any directory of its
/// file system. Needs `CAP_DAC_READ_SEARCH`; a file that is gone is
/// [`io::ErrorKind::StaleNetworkFileHandle`] or not found.
pub fn open_by_identity(mount: impl AsFd, identity: &Identity) -> io::Result<OwnedFd> {
    let mut raw =
        RawHandle { bytes: identity.handle.len() as u32, kind: identity.handle_type, data: [0; 128] };
    raw.data[..identity.handle.len()].copy_from_slice(&identity.handle);
    // SAFETY: `raw` has the layout of struct file_handle with room for `bytes` bytes and outlives
    // the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_fd().as_raw_fd(),
            &raw const raw,
            libc::O_PATH | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made this descriptor and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Opens an `O_PATH` descriptor anew for reading or writing.
pub fn reopen(fd: impl AsFd, write: bool) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let mut options = File::options();
    if write {
        options.write(true)
    } else {
        options.read(true)
    };
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    options.open(path)
}

/// struct file_handle with the largest handle there is.
#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    data: [u8; HANDLE_BYTES_MAX],
}

fn handle(fd: BorrowedFd<'_>) -> io::Result<(i32, Vec<u8>)> {
    name_to_handle(fd.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
}

/// Type and bytes of the handle of what `path` leads to; links are followed, and nothing is opened.
pub fn handle_at(path: &Path) -> io::Result<(i32, Vec<u8>)> {
    name_to_handle(libc::AT_FDCWD, &CString::new(path.as_os_str().as_bytes())?, libc::AT_SYMLINK_FOLLOW)
}

fn name_to_handle(dirfd: RawFd, path: &CStr, flags: libc::c_int) -> io::Result<(i32, Vec<u8>)> {
    let mut raw = RawHandle { bytes: HANDLE_BYTES_MAX as u32, kind: 0, data: [0; HANDLE_BYTES_MAX] };
    let mut mount_id = 0i32;
    // SAFETY: `raw` has the layout of struct file_handle with room for `bytes` bytes, the path is
    // a C string, and all of them outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dirfd,
            path.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = raw.data.get(..raw.bytes as usize).ok_or(io::ErrorKind::InvalidData)?;
    Ok((raw.kind, bytes.to_vec()))
}

/// Asks one ioctl into a zeroed buffer that is at least as large as any of the answers.
fn ask(fd: BorrowedFd<'_>, request: libc::c_ulong, buffer: &mut [u8; 1024]) -> io::Result<()> {
    // SAFETY: the buffer is larger than the structure of every request number used here, and
    // outlives the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, buffer.as_mut_ptr()) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// The UUID as it stands on the disk. The general call comes second: it tells what the kernel read
/// at mount, which is not what the next mount sees if the UUID was changed since.
fn uuid(fd: BorrowedFd<'_>, kind: FsKind) -> io::Result<[u8; 16]> {
    let mut buffer = [0u8; 1024];
    // struct fsuuid begins with the room for the answer; the other calls overwrite it.
    buffer[0] = 16;
    let (request, at) = match kind {
        FsKind::Ext4 => (EXT4_IOC_GETFSUUID, 8),
        FsKind::Xfs => (XFS_IOC_FSGEOMETRY_V1, 64),
        FsKind::Btrfs => (BTRFS_IOC_FS_INFO, 16),
    };
    let at = match ask(fd, request, &mut buffer) {
        Ok(()) => at,
        Err(_) => {
            ask(fd, FS_IOC_GETFSUUID, &mut buffer)?;
            // struct fsuuid2: the length, then the bytes.
            1
        }
    };
    let mut uuid = [0u8; 16];
    uuid.copy_from_slice(&buffer[at..at + 16]);
    if uuid == [0; 16] {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "its file system has no UUID"));
    }
    Ok(uuid)
}

/// As `uuid`, of a btrfs. To one of which a copy is mounted already Linux gives a UUID for as long
/// as it is mounted (since 6.7); what stands on the disk its metadata say.
fn btrfs_uuid(fd: BorrowedFd<'_>) -> io::Result<[u8; 16]> {
    let mut info = [0u8; 1024];
    info[48..56].copy_from_slice(&BTRFS_FS_INFO_FLAG_METADATA_UUID.to_ne_bytes());
    if ask(fd, BTRFS_IOC_FS_INFO, &mut info).is_err() {
        return uuid(fd, FsKind::Btrfs);
    }
    let word = |bytes: &[u8; 1024], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word)
    };
    let place = |at: usize| {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&info[at..at + 16]);
        uuid
    };
    let (own, of_metadata) = (place(16), place(64));
    let is_told = word(&info, 48) & BTRFS_FS_INFO_FLAG_METADATA_UUID != 0;
    if !is_told || own == of_metadata {
        return Ok(own);
    }
    let mut features = [0u8; 1024];
    ask(fd, BTRFS_IOC_GET_FEATURES, &mut features)?;
    let was_changed = word(&features, 16) & BTRFS_FEATURE_INCOMPAT_METADATA_UUID != 0;
    Ok(if was_changed || on(Canary::MountedUuid) { own } else { of_metadata })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_keeps_its_identity_under_another_name_and_a_new_one_differs() {
        let dir = std::env::temp_dir().join(format!("holdfast-identity-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (a, b) = (dir.join("a"), dir.join("b"));
        fs::write(&a, "x").unwrap();
        let Ok((first, _)) = identify(File::open(&a).unwrap()) else {
            fs::remove_dir_all(&dir).unwrap();
            // The temporary directory is on a file system without identities: nothing to compare.
            return;
        };
        fs::rename(&a, &b).unwrap();
        assert_eq!(identify(File::open(&b).unwrap()).unwrap().0, first);
        fs::remove_file(&b).unwrap();
        fs::write(&a, "x").unwrap();
        assert_ne!(identify(File::open(&a).unwrap()).unwrap().0, first);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn all_files_of_a_file_system_have_its_uuid() {
        let directory = std::env::temp_dir();
        let Ok(first) = file_system(File::open(&directory).unwrap()) else { return };
        let path = directory.join(format!("holdfast-uuid-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let found = file_system(&file).unwrap();
        let path_only =
            File::from(rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap());
        assert_eq!(file_system(reopen(&path_only, false).unwrap()).unwrap(), first);
        fs::remove_file(&path).unwrap();
        assert_eq!(found, first);
    }

    #[test]
    fn other_file_systems_are_named_as_such() {
        let error = file_system(File::open("/proc").unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
    }
}
