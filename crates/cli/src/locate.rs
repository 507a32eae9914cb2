//! Where things are: the default pool, this executable, absolute paths, file systems. It creates
//! nothing.

use std::path::{Path, PathBuf};

use anyhow::Context;

/// The pool used when none is named: one volatile pool per user.
pub fn default_volatile_pool() -> PathBuf {
    PathBuf::from(format!("/dev/shm/holdfast-{}.pool", rustix::process::geteuid().as_raw()))
}

/// This executable.
pub fn executable() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot find the path of this executable (is /proc mounted?)")
}

/// `path` made absolute without touching the file system, since the keeper has another working
/// directory.
pub fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot make {} absolute", path.display()))
}

/// File systems whose files are managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4, xfs or btrfs, by name.
    Managed(&'static str),
    /// tmpfs or ramfs, where a volatile pool may lie.
    Memory,
    /// Anything else: files there are left to the kernel.
    Other,
}

/// The file system that `path` (or, while it does not exist, its directory) is on. A device is on
/// none: the one that holds its node, which is in memory, says nothing about its bytes.
pub fn file_system(path: &Path) -> anyhow::Result<FileSystem> {
    let existing = if path.exists() { path } else { parent(path) };
    if std::fs::metadata(existing).is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
        return Ok(FileSystem::Other);
    }
    let facts =
        rustix::fs::statfs(existing).with_context(|| format!("cannot look at {}", existing.display()))?;
    Ok(match facts.f_type {
        0xEF53 => FileSystem::Managed("ext4"),
        0x5846_5342 => FileSystem::Managed("xfs"),
        0x9123_683E => FileSystem::Managed("btrfs"),
        // tmpfs and ramfs.
        0x0102_1994 | 0x8584_58F6 => FileSystem::Memory,
        _ => FileSystem::Other,
    })
}

/// The kind of file system that a file is on, or was, by the name people know it by.
pub fn kind_of_file_system(path: &Path) -> &'static str {
    let known = rustix::fs::statfs(path).or_else(|_| rustix::fs::statfs(parent(path)));
    match known.map(|facts| facts.f_type as u32) {
        Ok(0xEF53) => "ext2, ext3 or ext4",
        Ok(0x0102_1994) => "tmpfs",
        Ok(0x8584_58F6) => "ramfs",
        Ok(0x794C_7630) => "overlay",
        Ok(0x6969) => "NFS",
        Ok(0xFF53_4D42 | 0xFE53_4D42) => "SMB",
        Ok(0x0102_1997) => "9p",
        Ok(0x6573_5546) => "FUSE",
        Ok(0x2FC1_2FC1) => "ZFS",
        Ok(0xCA45_1A4E) => "bcachefs",
        Ok(0xF2F5_2010) => "f2fs",
        Ok(0x4D44) => "FAT",
        Ok(0x2011_BAB0) => "exFAT",
        Ok(0x00C3_6400) => "Ceph",
        _ => "another file system",
    }
}

/// The directory a path lies in.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_pool_is_per_user() {
        assert!(default_volatile_pool().to_string_lossy().starts_with("/dev/shm/holdfast-"));
    }

    #[test]
    fn file_systems_are_told_apart() {
        assert_eq!(file_system(Path::new("/dev/shm/not-there")).expect("known"), FileSystem::Memory);
        assert_eq!(file_system(Path::new("/proc/self")).expect("known"), FileSystem::Other);
        assert!(file_system(Path::new("/no/such/dir/file")).is_err());
    }

    /// A DAX device was refused as a pool in memory: its node lies in devtmpfs.
    #[test]
    fn a_device_is_not_where_its_node_is() {
        assert_eq!(file_system(Path::new("/dev/null")).expect("known"), FileSystem::Other);
    }
}
