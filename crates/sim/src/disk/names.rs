//! Names of simulated files: how they change, and when the changes are durable.

use std::io;

use holdfast_disk::Change as Notified;

use super::journal::Change;
use super::rules::Covers;
use super::state::{DiskState, not_found};

impl DiskState {
    pub(crate) fn add(&mut self, directory: u32, name: &[u8], mode: u32) -> io::Result<u32> {
        self.add_inode(directory, name, false, mode)
    }

    fn add_inode(&mut self, directory: u32, name: &[u8], is_directory: bool, mode: u32) -> io::Result<u32> {
        if self.inode(directory).entries.contains_key(name) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        let inode = self.make(is_directory, mode);
        let parent = self.inode_mut(directory);
        parent.entries.insert(name.to_vec(), inode);
        parent.in_journal = true;
        self.journal.push(Change::Add { directory, name: name.to_vec(), inode });
        self.notify(directory, Notified::Created(name.to_vec()));
        Ok(inode)
    }

    pub(crate) fn remove(&mut self, directory: u32, name: &[u8]) -> io::Result<()> {
        let inode = self.inode_mut(directory).entries.remove(name).ok_or_else(not_found)?;
        self.inode_mut(inode).links -= 1;
        self.note_moved(&[directory, inode]);
        self.touch(inode);
        self.journal.push(Change::Remove { directory, name: name.to_vec(), inode });
        self.notify(directory, Notified::Removed(name.to_vec()));
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
        self.note_moved(&[from.0, to.0, inode]);
        self.touch(inode);
        let change =
            Change::Move { from: (from.0, from.1.to_vec()), to: (to.0, to.1.to_vec()), inode, replaced };
        self.journal.push(change);
        self.notify(from.0, Notified::Removed(from.1.to_vec()));
        self.notify(to.0, Notified::Created(to.1.to_vec()));
        if let Some(replaced) = replaced {
            self.inode_mut(replaced).links -= 1;
            self.touch(replaced);
            self.reclaim(replaced);
        }
        Ok(())
    }

    /// Files of a directory, or of those below it, of whose inode number `wanted` says so.
    pub(super) fn entries_below(&self, directory: u32, wanted: &dyn Fn(u64) -> bool) -> Vec<u32> {
        let mut found = Vec::new();
        for &id in self.inode(directory).entries.values() {
            let inode = self.inode(id);
            if inode.is_directory {
                found.extend(self.entries_below(id, wanted));
            } else if wanted(inode.number) {
                found.push(id);
            }
        }
        found
    }

    fn note_moved(&mut self, ids: &[u32]) {
        for id in ids {
            let inode = self.inode_mut(*id);
            (inode.in_journal, inode.is_moved) = (true, true);
        }
    }

    /// Another name for a file.
    pub(super) fn link(&mut self, inode: u32, directory: u32, name: &[u8]) -> io::Result<()> {
        if self.inode(directory).entries.contains_key(name) {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        self.inode_mut(directory).entries.insert(name.to_vec(), inode);
        self.inode_mut(inode).links += 1;
        self.note_moved(&[directory, inode]);
        self.touch(inode);
        self.journal.push(Change::Add { directory, name: name.to_vec(), inode });
        self.notify(directory, Notified::Created(name.to_vec()));
        Ok(())
    }

    /// A directory.
    pub(super) fn add_directory(&mut self, directory: u32, name: &[u8]) -> io::Result<()> {
        self.add_inode(directory, name, true, 0o755).map(drop)
    }

    /// Two names change places.
    pub(super) fn exchange(&mut self, one: (u32, &[u8]), two: (u32, &[u8])) -> io::Result<()> {
        let first = *self.inode(one.0).entries.get(one.1).ok_or_else(not_found)?;
        let second = *self.inode(two.0).entries.get(two.1).ok_or_else(not_found)?;
        self.inode_mut(one.0).entries.insert(one.1.to_vec(), second);
        self.inode_mut(two.0).entries.insert(two.1.to_vec(), first);
        self.note_moved(&[one.0, two.0]);
        for id in [first, second] {
            self.inode_mut(id).in_journal = true;
        }
        if self.rules.exchange_moves {
            self.note_moved(&[first, second]);
        }
        self.touch(first);
        self.touch(second);
        self.journal.push(Change::Exchange {
            one: (one.0, one.1.to_vec(), first),
            two: (two.0, two.1.to_vec(), second),
        });
        Ok(())
    }

    pub(super) fn sync_directory(&mut self, id: u32) {
        let (directory, rules) = (self.inode(id), &self.rules);
        let mut covers = if directory.in_journal { rules.directory_sync } else { rules.clean_directory_sync };
        if directory.is_moved {
            covers = covers.max(rules.sync_of_moved);
        }
        match covers {
            Covers::Nothing => {}
            Covers::Own => self.commit_directory(id),
            Covers::All => self.commit_all(),
        }
        self.version += 1;
    }
}
