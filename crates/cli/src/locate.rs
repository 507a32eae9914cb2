//! Where things are: the default pool, this executable, absolute paths, file systems. It creates
//! nothing.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, ensure};

/// Where volatile pools lie that nobody has named.
const MEMORY: &str = "/dev/shm";

/// The pool used when none is named: one volatile pool per user.
pub fn default_volatile_pool() -> PathBuf {
    static POOL: OnceLock<PathBuf> = OnceLock::new();
    POOL.get_or_init(|| volatile_pool_in(Path::new(MEMORY), rustix::process::geteuid().as_raw())).clone()
}

/// The name that the default pool would have and that is somebody else's, if this user has no pool
/// by another name either.
pub fn taken_default_pool() -> Option<PathBuf> {
    let plain = Path::new(MEMORY).join(format!("holdfast-{}.pool", rustix::process::geteuid().as_raw()));
    let pool = default_volatile_pool();
    (pool != plain && !pool.exists()).then_some(plain)
}

/// A user's pool in a directory where everybody may make files: who takes its name first must stop
/// nobody. Then it has a name that nobody could know, by which it is found again.
fn volatile_pool_in(directory: &Path, uid: u32) -> PathBuf {
    let is_ours = |path: &Path| path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.uid() == uid);
    let plain = directory.join(format!("holdfast-{uid}.pool"));
    if is_ours(&plain) {
        return plain;
    }
    let stem = format!("holdfast-{uid}-");
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_named = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix(&stem).and_then(|rest| rest.strip_suffix(".pool")).is_some_and(is_hexadecimal)
    };
    if let Some(other) = entries.filter(is_named).filter(|path| is_ours(path)).min() {
        return other;
    }
    if plain.symlink_metadata().is_err() {
        return plain;
    }
    let mut bytes = [0u8; 8];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(8) => directory.join(format!("{stem}{:016x}.pool", u64::from_le_bytes(bytes))),
        _ => plain,
    }
}

fn is_hexadecimal(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
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

/// Keepers are told where things are as JSON, which holds text alone.
pub fn refuse_no_text(option: &str, path: &Path) -> anyhow::Result<()> {
    let told = path.as_os_str().as_encoded_bytes().escape_ascii();
    ensure!(
        path.to_str().is_some(),
        "{option} {told}: this path is not UTF-8, and a keeper takes no other: rename what it leads to, or name another one"
    );
    Ok(())
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

/// All mount points.
pub fn mounted() -> std::io::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let points =
        table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    Ok(points.map(unescaped).collect())
}

/// A path as the kernel writes it: blanks, line feeds and backslashes by their numbers.
fn unescaped(mut word: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(word.len());
    while let Some((byte, rest)) = word.split_first() {
        let digits = rest.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(number) if *byte == b'\\' => {
                path.push(number);
                word = &rest[3..];
            }
            _ => {
                path.push(*byte);
                word = rest;
            }
        }
    }
    Path::new(&OsString::from_vec(path)).to_owned()
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

    #[test]
    fn mount_points_are_read_as_the_kernel_writes_them() {
        assert_eq!(unescaped(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescaped(b"/a\\04"), Path::new("/a\\04"));
        assert!(mounted().expect("readable").contains(&PathBuf::from("/proc")));
    }

    /// Whoever is first in a directory of everybody's must not keep a user from a pool.
    #[test]
    fn a_name_that_somebody_took_stops_nobody() {
        let home = tempfile::tempdir().expect("directory");
        let (dir, uid) = (home.path(), rustix::process::geteuid().as_raw());
        let plain = dir.join(format!("holdfast-{uid}.pool"));
        assert_eq!(volatile_pool_in(dir, uid), plain);
        std::os::unix::fs::symlink("elsewhere", &plain).expect("link");
        let other = volatile_pool_in(dir, uid);
        assert!(other != plain && other.starts_with(dir));
        std::fs::write(&other, "").expect("pool");
        // Found again, and by nobody else; also once the name is free.
        assert_eq!(volatile_pool_in(dir, uid), other);
        assert_ne!(volatile_pool_in(dir, uid + 1), other);
        std::fs::remove_file(&plain).expect("removed");
        assert_eq!(volatile_pool_in(dir, uid), other);
        std::fs::write(&plain, "").expect("pool");
        assert_eq!(volatile_pool_in(dir, uid), plain);
        // A directory, and a file of another user.
        std::fs::remove_file(&plain).expect("removed");
        std::fs::remove_file(&other).expect("removed");
        std::fs::create_dir(&plain).expect("directory");
        assert_ne!(volatile_pool_in(dir, uid), plain);
    }
}
