//! Which files the kernel synced for programs, so that a verdict can name these and no others. It
//! counts for people and decides nothing.

use core::sync::atomic::AtomicU64;

use crate::mix::mix_file;
use crate::numbers::Inode;
use crate::sync::Ordering;

/// Files that are told apart.
const FILES: usize = 64;

#[derive(Default)]
#[repr(C)]
struct SyncedFile {
    /// Device and inode as one hash; 0: free.
    print: AtomicU64,
    syncs: AtomicU64,
}

/// Counts of syncs by file, of the first files that were synced so. Nothing is ordered by it, so
/// the model checker need not see these atomics.
#[repr(C, align(64))]
pub struct SyncedFiles {
    files: [SyncedFile; FILES],
    others: AtomicU64,
}

impl Default for SyncedFiles {
    fn default() -> Self {
        Self { files: core::array::from_fn(|_| SyncedFile::default()), others: AtomicU64::new(0) }
    }
}

fn print(file: Inode) -> u64 {
    mix_file(file.device, file.ino) | 1
}

impl SyncedFiles {
    /// Counts a sync of this file.
    pub fn note(&self, file: Inode) {
        let print = print(file);
        for row in &self.files {
            let take = || row.print.compare_exchange(0, print, Ordering::Relaxed, Ordering::Relaxed);
            let is_ours = match row.print.load(Ordering::Relaxed) {
                0 => take().is_ok() || row.print.load(Ordering::Relaxed) == print,
                known => known == print,
            };
            if is_ours {
                row.syncs.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        self.others.fetch_add(1, Ordering::Relaxed);
    }

    /// How many syncs of this file there were; `None`: there were more files than are told apart,
    /// and it is none of those that are.
    pub fn of(&self, file: Inode) -> Option<u64> {
        let print = print(file);
        let row = self.files.iter().find(|row| row.print.load(Ordering::Relaxed) == print);
        let none = || (self.others.load(Ordering::Relaxed) == 0).then_some(0);
        row.map(|row| row.syncs.load(Ordering::Relaxed)).or_else(none)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_while_there_is_room() {
        let synced = SyncedFiles::default();
        let file = |device, ino| Inode { device, ino };
        assert_eq!(synced.of(file(1, 1)), Some(0));
        for ino in 0..FILES as u64 {
            synced.note(file(1, ino));
            synced.note(file(1, ino));
        }
        assert_eq!((synced.of(file(1, 7)), synced.of(file(2, 7))), (Some(2), Some(0)));
        synced.note(file(2, 7));
        synced.note(file(1, 7));
        assert_eq!((synced.of(file(1, 7)), synced.of(file(2, 7))), (Some(3), None));
    }
}
