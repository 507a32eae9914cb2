//! Which changes need which, and what comes of one that a commit, or a power cut, makes durable.

use super::journal::Change;
use super::state::DiskState;

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
