//! Pool files that tests use and that are gone afterwards.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The path of a pool on memory that stands in for NVM. Nothing is there at first, and nothing at
/// the end.
#[derive(Debug)]
pub struct ScratchPool(PathBuf);

impl ScratchPool {
    /// A path that no other test has.
    pub fn new(name: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = format!("/dev/shm/holdfast-test-{name}-{}-{number}.pool", std::process::id());
        let _ = std::fs::remove_file(&path);
        Self(path.into())
    }
}

impl Deref for ScratchPool {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for ScratchPool {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl AsRef<Path> for ScratchPool {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}
