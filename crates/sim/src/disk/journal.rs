//! Changes that are not durable yet, other than of bytes.

use std::ops::Range;

/// A name: its directory and what it is called.
type Name = (u32, Vec<u8>);

/// A change that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Add { directory: u32, name: Vec<u8>, inode: u32 },
    Remove { directory: u32, name: Vec<u8>, inode: u32 },
    Move { from: Name, to: Name, inode: u32, replaced: Option<u32> },
    Exchange { one: (u32, Vec<u8>, u32), two: (u32, Vec<u8>, u32) },
    Size { inode: u32, size: u64, at: u64 },
    Hole { inode: u32, bytes: Range<u64>, at: u64 },
}

impl Change {
    /// The inodes that it is about.
    pub(super) fn inodes(&self) -> Vec<u32> {
        match self {
            Self::Add { inode, .. } | Self::Remove { inode, .. } => vec![*inode],
            Self::Move { inode, replaced, .. } => [*inode].into_iter().chain(*replaced).collect(),
            Self::Exchange { one, two } => vec![one.2, two.2],
            Self::Size { inode, .. } | Self::Hole { inode, .. } => vec![*inode],
        }
    }

    /// The names that it is about.
    pub(super) fn names(&self) -> Vec<Name> {
        match self {
            Self::Add { directory, name, .. } | Self::Remove { directory, name, .. } => {
                vec![(*directory, name.clone())]
            }
            Self::Move { from, to, .. } => vec![from.clone(), to.clone()],
            Self::Exchange { one, two } => vec![(one.0, one.1.clone()), (two.0, two.1.clone())],
            Self::Size { .. } | Self::Hole { .. } => Vec::new(),
        }
    }

    /// The file whose size or space it changes.
    pub(super) fn reshapes(&self) -> Option<u32> {
        match self {
            Self::Size { inode, .. } | Self::Hole { inode, .. } => Some(*inode),
            _ => None,
        }
    }

    /// Whether a name goes with it.
    pub(super) fn moves(&self) -> bool {
        matches!(self, Self::Remove { .. } | Self::Move { .. } | Self::Exchange { .. })
    }

    /// Whether it is a rename over a file.
    pub(super) fn replaces(&self) -> bool {
        matches!(self, Self::Move { replaced: Some(_), .. })
    }

    /// A rename to another directory as two changes: the new name comes, the old one goes.
    pub(super) fn halves(&self) -> Option<[Self; 2]> {
        let Self::Move { from, to, inode, .. } = self else { return None };
        let added = Self::Add { directory: to.0, name: to.1.clone(), inode: *inode };
        let removed = Self::Remove { directory: from.0, name: from.1.clone(), inode: *inode };
        (from.0 != to.0).then_some([added, removed])
    }
}
