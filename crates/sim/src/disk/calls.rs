//! Calls of a program on a simulated file system, by path, and every state that a power cut may
//! leave after them: how the disk is held to what kernels do. Nothing here is part of a history.

use std::collections::BTreeMap;
use std::io;

use super::crash::Left;
use super::rules::Rules;
use super::state::{DiskState, ROOT};
use crate::random::Every;

/// What stands at a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Found {
    /// Which file or directory: the same for all its names.
    pub file: u32,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// How many names it has.
    pub names: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl DiskState {
    /// Other rules than its file system's: those of a wrong model.
    pub fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// The kernel has no inode in memory.
    pub fn forget_inodes(&mut self) {
        for id in 0..self.inodes.len() as u32 {
            if self.inodes[id as usize].is_some() {
                self.inode_mut(id).is_unread = true;
            }
        }
    }

    /// A program's call comes to what stands at a path.
    fn reach(&mut self, path: &str) -> io::Result<u32> {
        let id = self.lookup(path.as_bytes())?;
        if self.inode(id).is_unread {
            let joins = self.rules.reading_joins && !self.inode(id).is_directory;
            let inode = self.inode_mut(id);
            inode.is_unread = false;
            inode.in_journal |= joins;
            inode.is_journal_data |= joins;
        }
        Ok(id)
    }

    /// `open` with `O_CREAT` and `O_EXCL`.
    pub fn make_file(&mut self, path: &str) -> io::Result<()> {
        let (directory, name) = self.parent(path.as_bytes())?;
        let id = self.add(directory, name, 0o644)?;
        // The program keeps it open.
        self.inode_mut(id).opens += 1;
        Ok(())
    }

    /// `mkdir`.
    pub fn make_directory(&mut self, path: &str) -> io::Result<()> {
        let (directory, name) = self.parent(path.as_bytes())?;
        self.add_directory(directory, name)
    }

    /// `unlink` or `rmdir`.
    pub fn remove_name(&mut self, path: &str) -> io::Result<()> {
        self.reach(path)?;
        let (directory, name) = self.parent(path.as_bytes())?;
        self.remove(directory, name)
    }

    /// `link`.
    pub fn link_name(&mut self, path: &str, to: &str) -> io::Result<()> {
        let inode = self.reach(path)?;
        let (directory, name) = self.parent(to.as_bytes())?;
        self.link(inode, directory, name)
    }

    /// `rename`.
    pub fn rename_name(&mut self, path: &str, to: &str) -> io::Result<()> {
        let is_directory = |path: &str| self.lookup(path.as_bytes()).map(|id| self.inode(id).is_directory);
        if is_directory(to).is_ok_and(|over| is_directory(path).is_ok_and(|moved| moved != over)) {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        let (from, to) = (self.parent(path.as_bytes())?, self.parent(to.as_bytes())?);
        self.rename(from, to, true)
    }

    /// `renameat2` with `RENAME_EXCHANGE`.
    pub fn exchange_names(&mut self, path: &str, to: &str) -> io::Result<()> {
        self.reach(path)?;
        self.reach(to)?;
        let (one, two) = (self.parent(path.as_bytes())?, self.parent(to.as_bytes())?);
        self.exchange(one, two)
    }

    /// `pwrite`; without a place at the end.
    pub fn put(&mut self, path: &str, at: Option<u64>, bytes: &[u8]) -> io::Result<()> {
        let id = self.reach(path)?;
        let at = at.unwrap_or(self.inode(id).cached.size);
        self.write(id, at, bytes);
        Ok(())
    }

    /// `ftruncate`.
    pub fn resize(&mut self, path: &str, size: u64) -> io::Result<()> {
        let id = self.reach(path)?;
        self.set_size(id, size);
        Ok(())
    }

    /// `fallocate` with `FALLOC_FL_PUNCH_HOLE`.
    pub fn punch_hole(&mut self, path: &str, at: u64, bytes: u64) -> io::Result<()> {
        let id = self.reach(path)?;
        self.punch(id, at, bytes);
        Ok(())
    }

    /// `fsync`, or `fdatasync`, of a file or directory.
    pub fn sync_path(&mut self, path: &str, data: bool) -> io::Result<()> {
        let id = self.reach(path)?;
        if self.inode(id).is_directory {
            self.sync_directory(id);
            return Ok(());
        }
        self.sync_file(id, data, &mut 0)
    }

    /// `syncfs`.
    pub fn sync_file_system(&mut self) {
        self.sync_everything();
    }

    /// Every name, by its path.
    pub fn names(&self) -> BTreeMap<String, Found> {
        let (mut found, mut left) = (BTreeMap::new(), vec![(String::new(), ROOT)]);
        while let Some((prefix, directory)) = left.pop() {
            for (name, &file) in &self.inode(directory).entries {
                let inode = self.inode(file);
                let path = format!("{prefix}{}", String::from_utf8_lossy(name));
                if inode.is_directory {
                    left.push((format!("{path}/"), file));
                }
                let bytes = inode.cached.bytes();
                let (is_directory, names) = (inode.is_directory, inode.links);
                found.insert(path, Found { file, is_directory, names, bytes });
            }
        }
        found
    }

    /// Visits every state that a power cut may leave, perhaps more than once, until the visitor has
    /// enough of them.
    pub fn every_crash(&self, mut visit: impl FnMut(Self) -> bool) {
        let mut every = Every::default();
        loop {
            if !visit(self.crash(Left::Any, 1, &mut every)) || !every.again() {
                return;
            }
        }
    }
}
