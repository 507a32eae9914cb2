//! The inodes that the kernel knows. Each is one `O_PATH` descriptor, which holds the file whatever
//! becomes of its names, and a count of the kernel's lookups. A file with two names is one node.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fuser::INodeNo;
use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag, fstat};

use crate::kept::{Kept, Row};
use crate::raw::{self, Result};

/// Numbers for inodes of another device, such as those of a btrfs subvolume, begin here: no file
/// system gives out such a number itself.
const FIRST_OF_OTHERS: u64 = 1 << 62;

/// A file that the kernel knows.
#[derive(Debug)]
pub struct Node {
    fd: OwnedFd,
    /// A symbolic link cannot be reached by its descriptor's path.
    pub is_link: bool,
}

impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A file, as the kernel tells it from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Identity {
    device: u64,
    inode: u64,
}

struct Known {
    node: Arc<Node>,
    lookups: u64,
    identity: Identity,
}

#[derive(Default)]
struct Tables {
    known: HashMap<u64, Known>,
    /// The numbers of inodes that are on another device than the root.
    others: HashMap<Identity, u64>,
    others_made: u64,
}

/// All of them.
pub struct Nodes {
    root: Arc<Node>,
    device: u64,
    kept: Arc<Kept>,
    tables: RwLock<Tables>,
}

/// Whether a file is of this kind.
pub fn is(stat: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == kind
}

impl Nodes {
    /// A table that knows the root alone.
    pub fn new(root: OwnedFd, device: u64, kept: Arc<Kept>) -> Self {
        kept.set_node(root.as_raw_fd(), INodeNo::ROOT.0, 1);
        Self { root: Arc::new(Node { fd: root, is_link: false }), device, kept, tables: RwLock::default() }
    }

    /// The table of a server that is gone, by the descriptors that it had.
    pub fn known(kept: Arc<Kept>) -> Result<Self> {
        let (mut root, mut tables) = (None, Tables::default());
        for (fd, row) in kept.rows() {
            let Row::Node { number, lookups } = row else { continue };
            let fd = raw::owned(fd);
            let stat = fstat(&fd)?;
            let node = Arc::new(Node { fd, is_link: is(&stat, SFlag::S_IFLNK) });
            if number == INodeNo::ROOT.0 {
                root = Some((node, stat.st_dev));
                continue;
            }
            let identity = Identity { device: stat.st_dev, inode: stat.st_ino };
            if number >= FIRST_OF_OTHERS {
                tables.others.insert(identity, number);
            }
            tables.known.insert(number, Known { node, lookups, identity });
        }
        tables.others_made = kept.others_made();
        let (root, device) = root.ok_or(Errno::EPROTO)?;
        Ok(Self { root, device, kept, tables: RwLock::new(tables) })
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device of the root.
    pub fn device(&self) -> u64 {
        self.device
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.read().known.len()
    }

    /// The node of a number that the kernel was told.
    pub fn get(&self, inode: INodeNo) -> Result<Arc<Node>> {
        if inode == INodeNo::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        self.read().known.get(&inode.0).map(|known| Arc::clone(&known.node)).ok_or(Errno::ESTALE)
    }

    /// Counts one lookup of the file behind `fd`; its number.
    pub fn look_up(&self, fd: OwnedFd, stat: &FileStat) -> INodeNo {
        let identity = Identity { device: stat.st_dev, inode: stat.st_ino };
        let mut tables = self.write();
        let number = tables.number(identity, self.device);
        if tables.others_made != self.kept.others_made() {
            self.kept.set_others_made(tables.others_made);
        }
        let node = || Arc::new(Node { fd, is_link: is(stat, SFlag::S_IFLNK) });
        let known = tables.known.entry(number);
        let known = known.or_insert_with(|| Known { node: node(), lookups: 0, identity });
        known.lookups += 1;
        self.kept.set_node(known.node.fd.as_raw_fd(), number, known.lookups);
        INodeNo(number)
    }

    /// The kernel forgets so many lookups; with the last of them the descriptor goes.
    pub fn forget(&self, inode: INodeNo, lookups: u64) {
        let mut tables = self.write();
        let Some(known) = tables.known.get_mut(&inode.0) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        let fd = known.node.fd.as_raw_fd();
        if known.lookups > 0 {
            self.kept.set_node(fd, inode.0, known.lookups);
        } else {
            self.kept.clear(fd);
            let gone = tables.known.remove(&inode.0);
            if let Some(known) = &gone {
                tables.others.remove(&known.identity);
            }
            // The descriptor is closed after the lock is given back: that may take long.
            drop(tables);
            drop(gone);
        }
    }
}

impl Tables {
    fn number(&mut self, identity: Identity, device: u64) -> u64 {
        if identity.device == device {
            return identity.inode;
        }
        let next = FIRST_OF_OTHERS + self.others_made;
        let number = *self.others.entry(identity).or_insert(next);
        self.others_made += u64::from(number == next);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_is_one_node_until_its_last_lookup_is_forgotten() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        File::create(&one).and_then(|_| std::fs::hard_link(&one, &two)).expect("made");
        let open = |path| OwnedFd::from(File::open(path).expect("opened"));
        let root = open(dir.path());
        let device = fstat(&root).expect("stat").st_dev;
        let kept = Arc::new(Kept::new().expect("memory"));
        let nodes = Nodes::new(root, device, Arc::clone(&kept));
        let look_up = |path| {
            let fd = open(path);
            let stat = fstat(&fd).expect("stat");
            nodes.look_up(fd, &stat)
        };
        let number = look_up(&one);
        assert_eq!(number, look_up(&two));
        nodes.forget(number, 1);
        nodes.get(number).expect("one lookup is left");
        nodes.forget(number, 1);
        assert_eq!(nodes.get(number).expect_err("forgotten"), Errno::ESTALE);
        nodes.get(INodeNo::ROOT).expect("the root stays");
        assert_eq!(kept.rows().count(), 1, "only the root is kept");
    }

    #[test]
    fn files_of_another_device_get_numbers_of_their_own() {
        let mut tables = Tables::default();
        let file = |device| Identity { device, inode: 256 };
        assert_eq!(tables.number(file(1), 1), 256);
        let other = tables.number(file(2), 1);
        assert_ne!(other, 256);
        assert_eq!(tables.number(file(2), 1), other);
        assert_ne!(tables.number(file(3), 1), other);
    }
}
