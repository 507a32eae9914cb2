//! Names of simulated files: how they change, and when the changes are durable.

use std::io;

use holdfast_keeper::disk::Change;

use super::{DiskState, Journal, not_found};

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum NameChange {
    Add { directory: u32, name: Vec<u8>, inode: u32 },
    Remove { directory: u32, name: Vec<u8>, inode: u32 },
    Move { from: (u32, Vec<u8>), to: (u32, Vec<u8>), inode: u32, replaced: Option<u32> },
}

impl DiskState {
    pub(crate) fn add(&mut self, directory: u32, name: &[u8], mode: u32) -> io::Result<u32> {
        if self.inode(directory).entries.contains_key(name) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        let inode = self.make(false, mode);
        let parent = self.inode_mut(directory);
        parent.entries.insert(name.to_vec(), inode);
        parent.in_journal = true;
        self.journal.push(NameChange::Add { directory, name: name.to_vec(), inode });
        self.notify(directory, Change::Created(name.to_vec()));
        Ok(inode)
    }

    pub(crate) fn remove(&mut self, directory: u32, name: &[u8]) -> io::Result<()> {
        let inode = self.inode_mut(directory).entries.remove(name).ok_or_else(not_found)?;
        self.inode_mut(inode).links -= 1;
        for id in [directory, inode] {
            self.inode_mut(id).in_journal = true;
        }
        self.touch(inode);
        self.journal.push(NameChange::Remove { directory, name: name.to_vec(), inode });
        self.notify(directory, Change::Removed(name.to_vec()));
        self.reclaim(inode);
        Ok(())
    }

    pub(crate) fn rename(&mut self, from: (u32, &[u8]), to: (u32, &[u8]), replace: bool) -> io::Result<()> {
        let inode = *self.inode(from.0).entries.get(from.1).ok_or_else(not_found)?;
        let replaced = self.inode(to.0).entries.get(to.1).copied();
        if replaced.is_some() && !replace {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        self.inode_mut(from.0).entries.remove(from.1);
        self.inode_mut(to.0).entries.insert(to.1.to_vec(), inode);
        for id in [from.0, to.0, inode] {
            self.inode_mut(id).in_journal = true;
        }
        self.touch(inode);
        let change =
            NameChange::Move { from: (from.0, from.1.to_vec()), to: (to.0, to.1.to_vec()), inode, replaced };
        self.journal.push(change);
        self.notify(from.0, Change::Removed(from.1.to_vec()));
        self.notify(to.0, Change::Created(to.1.to_vec()));
        if let Some(replaced) = replaced {
            self.inode_mut(replaced).links -= 1;
            self.touch(replaced);
            self.reclaim(replaced);
        }
        Ok(())
    }

    pub(super) fn sync_directory(&mut self, id: u32) {
        match self.ordering {
            Journal::Ordered if self.commits_with(id) => self.commit_all(),
            Journal::Ordered => {}
            Journal::Lagging => self.commit(|change| match change {
                NameChange::Add { directory, .. } | NameChange::Remove { directory, .. } => *directory == id,
                NameChange::Move { from, to, .. } => from.0 == id || to.0 == id,
            }),
        }
        self.version += 1;
    }

    /// Makes changes of names durable, and the earlier ones they need.
    pub(super) fn commit(&mut self, wanted: impl Fn(&NameChange) -> bool) {
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

    /// Whether a change of names can be on disk only after an earlier one: same name, same inode,
    /// or the same inode number under a new generation.
    pub(super) fn depends(&self, later: &NameChange, earlier: &NameChange) -> bool {
        let names = |change: &NameChange| match change {
            NameChange::Add { directory, name, .. } | NameChange::Remove { directory, name, .. } => {
                vec![(*directory, name.clone())]
            }
            NameChange::Move { from, to, .. } => vec![from.clone(), to.clone()],
        };
        let numbers = |change: &NameChange| match change {
            NameChange::Add { inode, .. } | NameChange::Remove { inode, .. } => {
                vec![self.inode(*inode).number]
            }
            NameChange::Move { inode, replaced, .. } => {
                let mut numbers = vec![self.inode(*inode).number];
                numbers.extend(replaced.map(|id| self.inode(id).number));
                numbers
            }
        };
        let (names_later, numbers_later) = (names(later), numbers(later));
        names(earlier).iter().any(|name| names_later.contains(name))
            || numbers(earlier).iter().any(|number| numbers_later.contains(number))
    }

    pub(super) fn make_durable(&mut self, change: &NameChange) {
        match change {
            NameChange::Add { directory, name, inode } => {
                self.inode_mut(*directory).durable_entries.insert(name.clone(), *inode);
            }
            NameChange::Remove { directory, name, .. } => {
                self.inode_mut(*directory).durable_entries.remove(name);
            }
            NameChange::Move { from, to, inode, .. } => {
                self.inode_mut(from.0).durable_entries.remove(&from.1);
                self.inode_mut(to.0).durable_entries.insert(to.1.clone(), *inode);
            }
        }
    }
}
