//! Changes that are not durable yet, other than of bytes: which of them need which, and what comes
//! of one that a commit, or a power cut, makes durable.

use std::ops::Range;
use std::sync::Arc;

use super::{BLOCK_BYTES, DiskState, Inode, Version};

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

    fn names(&self) -> Vec<Name> {
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

impl DiskState {
    /// Makes changes durable, and the earlier ones they need.
    pub(super) fn commit(&mut self, wanted: impl Fn(&Change) -> bool) {
        let journal = std::mem::take(&mut self.journal);
        let mut chosen: Vec<bool> = journal.iter().map(&wanted).collect();
        for index in (0..journal.len()).rev() {
            if chosen[index] {
                for earlier in 0..index {
                    chosen[earlier] |= self.depends(&journal[index], &journal[earlier]);
                }
            }
        }
        for (change, chosen) in journal.into_iter().zip(chosen) {
            if chosen {
                self.make_durable(&change);
            } else {
                self.journal.push(change);
            }
        }
    }

    /// What the sync of a directory makes durable where each has its own: names that came to it or
    /// went, and its own where the rules say so. Of a file that came from elsewhere the old name
    /// may stay.
    pub(super) fn commit_directory(&mut self, id: u32) {
        if self.rules.renames_by_halves {
            let halved = |change: Change| match (change.halves(), &change) {
                (Some(halves), Change::Move { from, .. }) if from.0 != id => halves.to_vec(),
                _ => vec![change],
            };
            self.journal = std::mem::take(&mut self.journal).into_iter().flat_map(halved).collect();
        }
        let of_itself = self.rules.directory_sync_of_itself;
        self.commit(|change| {
            let in_it = change.names().iter().any(|(directory, _)| *directory == id);
            in_it || of_itself && change.inodes().contains(&id)
        });
    }

    /// Whether a change can be on disk only after an earlier one: same name, same inode, or the
    /// same inode number under a new generation; or a name in a directory that came later. Names
    /// and sizes of one file need each other only where the file is new.
    pub(super) fn depends(&self, later: &Change, earlier: &Change) -> bool {
        if later.reshapes().is_some() != earlier.reshapes().is_some() {
            let Change::Add { inode, .. } = earlier else { return false };
            return later.reshapes() == Some(*inode);
        }
        // Where a rename may be there by half, so may the end of the file: its other name stays.
        if self.rules.renames_by_halves
            && let (Change::Remove { .. }, Change::Remove { .. }) = (later, earlier)
        {
            return later.names() == earlier.names();
        }
        let numbers = |change: &Change| -> Vec<u64> {
            change.inodes().iter().map(|id| self.inode(*id).number).collect()
        };
        let names_later = later.names();
        let numbers_later = numbers(later);
        earlier.names().iter().any(|name| names_later.contains(name))
            || numbers(earlier).iter().any(|number| numbers_later.contains(number))
            || names_later.iter().any(|(directory, _)| earlier.inodes().contains(directory))
    }

    pub(super) fn make_durable(&mut self, change: &Change) {
        match change {
            Change::Add { directory, name, inode } => {
                self.inode_mut(*directory).durable_entries.insert(name.clone(), *inode);
            }
            Change::Remove { directory, name, .. } => {
                self.inode_mut(*directory).durable_entries.remove(name);
            }
            Change::Move { from, to, inode, .. } => {
                self.inode_mut(from.0).durable_entries.remove(&from.1);
                self.inode_mut(to.0).durable_entries.insert(to.1.clone(), *inode);
            }
            Change::Exchange { one, two } => {
                self.inode_mut(one.0).durable_entries.insert(one.1.clone(), two.2);
                self.inode_mut(two.0).durable_entries.insert(two.1.clone(), one.2);
            }
            Change::Size { inode, size, at } => self.inode_mut(*inode).resize_durably(*size, *at),
            Change::Hole { inode, bytes, at } => self.inode_mut(*inode).punch_durably(bytes, *at),
        }
    }

    /// When the first change of a file's size was made that is not durable: what was written later
    /// beyond its end is not there before it.
    pub(super) fn first_resized(&self, id: u32) -> u64 {
        let sizes = self.journal.iter().filter_map(|change| match change {
            Change::Size { inode, at, .. } if *inode == id => Some(*at),
            _ => None,
        });
        sizes.min().unwrap_or(u64::MAX)
    }
}

impl Inode {
    /// The size is on disk. What was written before does not come back behind it.
    fn resize_durably(&mut self, size: u64, at: u64) {
        self.durable.size = size;
        self.durable.trim();
        self.sizes.retain(|(made, _)| *made > at);
        let (whole, rest) = (size as usize / BLOCK_BYTES, size as usize % BLOCK_BYTES);
        self.versions.retain_mut(|Version { index, block, at: made }| {
            let index = *index as usize;
            if *made > at || index < whole {
                return true;
            }
            if index == whole
                && let Some(block) = block
            {
                Arc::make_mut(block)[rest..].fill(0);
            }
            index == whole && rest > 0
        });
    }

    /// The hole is on disk, as far as it has whole blocks; the rest is bytes that were written.
    fn punch_durably(&mut self, bytes: &Range<u64>, at: u64) {
        let first = (bytes.start as usize).div_ceil(BLOCK_BYTES);
        let whole = first..bytes.end as usize / BLOCK_BYTES;
        let blocks = &mut self.durable.blocks;
        let end = whole.end.min(blocks.len());
        blocks[whole.start.min(end)..end].fill(None);
        self.versions.retain(|version| version.at > at || !whole.contains(&(version.index as usize)));
    }
}
