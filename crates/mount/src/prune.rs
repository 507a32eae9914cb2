//! Room for more inodes: the kernel keeps those that nobody uses, and each of them is a descriptor
//! of ours. Before there is none left, the kernel is asked to forget some (Linux 6.18; before,
//! nothing comes of it). It keeps those that are in use.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use nix::sys::resource::{Resource, getrlimit};

use crate::kept::{Kept, Row};

/// `FUSE_NOTIFY_PRUNE`.
const PRUNE: u32 = 9;
/// The kernel is asked for so many at once.
const AT_ONCE: usize = 1024;

/// Who asks for room.
pub struct Prune {
    /// More inodes than this are too many.
    most: usize,
    /// Behind the last descriptor that was asked for.
    next: AtomicI32,
}

impl Prune {
    /// By the limit of this process: an eighth of it stays for files that are open.
    pub fn new() -> Self {
        let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(now, _)| now);
        Self { most: usize::try_from(most / 8 * 7).unwrap_or(usize::MAX), next: AtomicI32::new(0) }
    }

    /// Asks for some of them back, in turn, if there are `known`.
    pub fn make_room(&self, known: usize, kept: &Kept, device: BorrowedFd<'_>) {
        if known < self.most {
            return;
        }
        let inodes: Vec<(RawFd, u64)> = kept
            .rows_from(self.next.load(Ordering::Relaxed))
            .filter_map(|(fd, row)| match row {
                Row::Node { number, .. } => Some((fd, number)),
                Row::Handle => None,
            })
            .take(AT_ONCE)
            .collect();
        // After the last row it begins with the first one again.
        self.next.store(inodes.last().map_or(0, |(fd, _)| fd + 1), Ordering::Relaxed);
        let numbers: Vec<u64> = inodes.into_iter().map(|(_, number)| number).collect();
        // A kernel that does not know it goes on as it did.
        let _ = rustix::io::write(device, &message(&numbers));
    }
}

fn message(inodes: &[u64]) -> Vec<u8> {
    const HEADER: usize = 32;
    let len = (HEADER + size_of_val(inodes)) as u32;
    let words = [len, PRUNE, 0, 0, inodes.len() as u32, 0, 0, 0];
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend(inodes.iter().flat_map(|inode| inode.to_ne_bytes()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn inodes_are_asked_for_in_turn_once_there_are_too_many() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let device = File::options().append(true).open(file.path()).expect("opened");
        let asked = || std::fs::read(file.path()).expect("read").len();
        let kept = Kept::new().expect("memory");
        (0..AT_ONCE as i32 + 3).for_each(|fd| kept.set_node(fd, 7, 1));
        let prune = Prune { most: 10, next: AtomicI32::new(0) };
        prune.make_room(9, &kept, device.as_fd());
        assert_eq!(asked(), 0);
        let mut expected = 0;
        for inodes in [AT_ONCE, 3, 0, AT_ONCE] {
            prune.make_room(10, &kept, device.as_fd());
            expected += 32 + 8 * inodes;
            assert_eq!(asked(), expected);
        }
        let first = &std::fs::read(file.path()).expect("read")[..40];
        assert_eq!(first[..8], [[32, 32, 0, 0], [9, 0, 0, 0]].concat());
        assert_eq!((first[16..20].to_vec(), first[32]), (vec![0, 4, 0, 0], 7));
    }
}
