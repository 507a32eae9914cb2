//! Where a comparison works: directories beside the user's files and in memory, and a pool. It
//! removes all that it made, and never uses what was there before.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tempfile::TempDir;

use crate::machine::FileSystem;
use crate::side::{PoolChoice, Side};
use crate::units;

/// What the files of all sides take at most.
const DISK_BYTES_MIN: u64 = 384 << 20;
/// What those of the side in memory take, with the floor's.
const MEMORY_BYTES: u64 = 192 << 20;
/// The pool; less if /dev/shm is small.
const POOL_BYTES_MAX: u64 = 256 << 20;
const POOL_BYTES_MIN: u64 = 16 << 20;
/// Where what is volatile lies.
const MEMORY: &str = "/dev/shm";

/// Where a comparison works.
pub struct Place {
    /// The user's directory.
    pub dir: PathBuf,
    /// What it is on.
    pub file_system: FileSystem,
    /// The pool.
    pub pool: PoolChoice,
    made: Vec<PathBuf>,
    files: TempDir,
    memory: TempDir,
}

impl Place {
    /// Looks whether all can be had that it takes, and makes the directories.
    pub fn new(dir: &Path, pool: Option<&Path>) -> anyhow::Result<Self> {
        let dir = dir.canonicalize().with_context(|| format!("cannot use {}", dir.display()))?;
        if !dir.is_dir() {
            bail!("{} is no directory", dir.display());
        }
        let file_system = managed(&dir)?;
        let files = temporary(&dir)?;
        let free_bytes = free_bytes(&dir)?;
        if free_bytes < DISK_BYTES_MIN {
            bail!(
                "{} has only {} free, and {} are needed",
                dir.display(),
                units::bytes(free_bytes),
                units::bytes(DISK_BYTES_MIN)
            );
        }
        let memory = temporary(Path::new(MEMORY))?;
        let (pool, made) = match pool {
            None => {
                let choice =
                    PoolChoice { path: memory.path().join("pool"), bytes: Some(pool_bytes(MEMORY_BYTES)?) };
                (choice, Vec::new())
            }
            Some(path) => named_pool(path)?,
        };
        Ok(Self { dir, file_system, pool, made, files, memory })
    }

    /// Where the files of a side are; made when first asked for.
    pub fn home(&self, side: Side) -> anyhow::Result<PathBuf> {
        let root = if side == Side::Tmpfs { self.memory.path() } else { self.files.path() };
        let home = root.join(side.name());
        std::fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        Ok(home)
    }

    /// Where Holdfast says what it did.
    pub fn summary(&self) -> PathBuf {
        self.memory.path().join("summary.json")
    }

    /// A file on the media of the pool for the floor; none where the pool has all of its media.
    pub fn beside_pool(&mut self) -> Option<PathBuf> {
        if self.made.is_empty() && !self.pool.path.starts_with(self.memory.path()) {
            return None;
        }
        let mut name = self.pool.path.file_name()?.to_os_string();
        name.push(".floor");
        let path = self.pool.path.with_file_name(name);
        self.made.push(path.clone());
        Some(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for path in &self.made {
            // One that was not made after all is as good as removed.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// What a directory is on, if Holdfast absorbs what is done to files there.
pub fn managed(dir: &Path) -> anyhow::Result<FileSystem> {
    let file_system = FileSystem::of(dir)?;
    let dir = dir.display();
    if file_system.is_memory() {
        bail!(
            "{dir} is on {}: nothing there is durable, so that there is nothing to gain; name a directory \
             on ext4, xfs or btrfs",
            file_system.kind
        );
    }
    if !file_system.is_managed() {
        let kind = if file_system.kind.is_empty() { "an unknown file system" } else { &file_system.kind };
        bail!(
            "{dir} is on {kind}, which Holdfast leaves to the kernel; name a directory on ext4, xfs or btrfs"
        );
    }
    Ok(file_system)
}

/// A pool that a user named: of it only what is made here is removed.
fn named_pool(path: &Path) -> anyhow::Result<(PoolChoice, Vec<PathBuf>)> {
    let path = std::path::absolute(path).with_context(|| format!("cannot use {}", path.display()))?;
    let choice = |bytes| PoolChoice { path: path.clone(), bytes };
    match std::fs::metadata(&path) {
        Ok(found) if found.is_file() => bail!(
            "there is something at {} already: name a file that is not there yet (it is made and removed), \
             or a DAX device",
            path.display()
        ),
        Ok(_) => Ok((choice(None), Vec::new())),
        Err(_) => Ok((choice(Some(POOL_BYTES_MAX)), vec![path])),
    }
}

/// How large a pool in memory may be, if so much is to stay free.
pub fn pool_bytes(spare_bytes: u64) -> anyhow::Result<u64> {
    let free_bytes = free_bytes(Path::new(MEMORY))?;
    let most = free_bytes.saturating_sub(spare_bytes) / 2;
    let bytes = POOL_BYTES_MAX.min(most / POOL_BYTES_MIN * POOL_BYTES_MIN);
    if bytes == 0 {
        bail!(
            "{MEMORY} has only {} free: mount -o remount,size=1G /dev/shm (docker run --shm-size=1g)",
            units::bytes(free_bytes)
        );
    }
    Ok(bytes)
}

/// A directory in memory that is removed again.
pub fn in_memory() -> anyhow::Result<TempDir> {
    temporary(Path::new(MEMORY))
}

/// A directory that is removed again.
pub fn temporary(parent: &Path) -> anyhow::Result<TempDir> {
    let made = tempfile::Builder::new().prefix("holdfast-bench-").tempdir_in(parent);
    made.with_context(|| format!("cannot make a directory in {}", parent.display()))
}

fn free_bytes(dir: &Path) -> anyhow::Result<u64> {
    let facts = rustix::fs::statvfs(dir).with_context(|| format!("cannot look at {}", dir.display()))?;
    Ok(facts.f_bavail * facts.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_memory_is_refused_and_a_pool_is_no_file_of_the_users() {
        let memory = in_memory().expect("a directory");
        let told = Place::new(memory.path(), None).err().expect("refused").to_string();
        assert!(told.contains("is on tmpfs: nothing there is durable"), "{told}");
        assert!(Place::new(&memory.path().join("none"), None).is_err());
        let file = memory.path().join("file");
        std::fs::write(&file, "the user's").expect("written");
        let told = named_pool(&file).expect_err("refused").to_string();
        assert!(told.contains("already"), "{told}");
        let (_, made) = named_pool(&memory.path().join("pool")).expect("a pool");
        assert_eq!(made, [memory.path().join("pool")]);
        let (_, made) = named_pool(Path::new("/dev/null")).expect("a device");
        assert!(made.is_empty());
    }
}
