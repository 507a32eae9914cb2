//! Syncs of simulated files: what they make durable, and what the kernel loses when it cannot
//! write.

use std::io;
use std::sync::Arc;

use super::journal::Change;
use super::rules::Covers;
use super::state::DiskState;

impl DiskState {
    /// Syncs a file, or its data; `seen` counts the errors its description has told.
    pub(super) fn sync_file(&mut self, id: u32, data: bool, seen: &mut u64) -> io::Result<()> {
        let covers = self.covers(id, data);
        self.tell_failure(id, seen)?;
        match covers {
            Covers::Nothing => {}
            Covers::Own => self.commit(|change| change.inodes().contains(&id)),
            Covers::All => self.commit_all(),
        }
        if self.rules.keeps_bytes {
            self.inode_mut(id).write_dirty();
        }
        self.version += 1;
        Ok(())
    }

    /// Everything that is the journal's becomes durable.
    pub(super) fn commit_all(&mut self) {
        self.commit(|_| true);
        for inode in self.inodes.iter_mut().flatten().filter(|inode| inode.in_journal) {
            let inode = Arc::make_mut(inode);
            (inode.in_journal, inode.is_journal_data, inode.is_moved) = (false, false, false);
        }
        self.version += 1;
    }

    /// Which changes of names a sync of a file makes durable. Bytes that were overwritten are none
    /// of the journal's business.
    pub(super) fn covers(&self, id: u32, data: bool) -> Covers {
        let (inode, rules) = (self.inode(id), &self.rules);
        let covers = if inode.is_journal_data || !inode.sizes.is_empty() {
            if data { rules.data_sync } else { rules.sync }
        } else if inode.in_journal {
            match data {
                true if inode.is_moved => rules.data_sync_of_names,
                true => Covers::Nothing,
                false => rules.sync,
            }
        } else if inode.is_dirty() {
            if data { rules.data_sync_of_bytes } else { rules.sync_of_bytes }
        } else {
            Covers::Nothing
        };
        let moves = || self.journal.iter().any(Change::moves);
        match () {
            () if inode.is_moved => covers.max(rules.sync_of_moved),
            () if (inode.in_journal || inode.is_dirty()) && moves() => covers.max(rules.sync_beside_moves),
            () => covers,
        }
    }

    /// Whether an `fsync` of an inode makes all changes of names durable: a journal commits
    /// everything for an inode that it has something of, and nothing for any other.
    pub(crate) fn commits_with(&self, id: u32) -> bool {
        self.covers(id, false) == Covers::All
    }

    /// A sync tells of pages that were lost, and loses some if it is to fail.
    pub(super) fn tell_failure(&mut self, id: u32, seen: &mut u64) -> io::Result<()> {
        if self.inode(id).fails_next {
            self.drop_dirty(id);
        }
        let inode = self.inode_mut(id);
        if inode.errors > *seen {
            *seen = inode.errors;
            inode.is_error_news = false;
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        Ok(())
    }

    /// What the kernel does when it cannot write dirty pages: some got to the disk, none stays
    /// dirty, and those that are evicted read as the disk has them.
    pub(super) fn drop_dirty(&mut self, id: u32) {
        if self.journal.iter().any(|change| change.reshapes() == Some(id)) {
            self.commit_all();
        }
        let mut random = self.random.clone();
        let inode = self.inode_mut(id);
        inode.fails_next = false;
        inode.errors += u64::from(!inode.is_error_news);
        inode.is_error_news = true;
        let blocks: Vec<u32> = inode.versions.drain(..).map(|version| version.index).collect();
        inode.commit_sizes();
        for block in blocks {
            let index = block as usize;
            let cached = inode.cached.block(index).clone();
            match random.below(3) {
                0 => inode.durable.set_block(index, cached),
                1 => {
                    let old = inode.durable.block(index).clone();
                    inode.cached.set_block(index, old);
                }
                _ => {}
            }
        }
        inode.durable.trim();
        inode.cached.trim();
        self.random = random;
        self.refusals += 1;
        self.version += 1;
    }

    /// Has the next sync of a file fail.
    pub fn fail_next_sync(&mut self, id: u32) {
        self.inode_mut(id).fails_next = true;
    }

    /// The kernel fails to write back what is dirty of a file, and nobody asked for it.
    pub fn lose_dirty(&mut self, id: u32) {
        if self.inode(id).is_dirty() {
            self.drop_dirty(id);
        }
    }

    /// Has the next write of the keeper to a file fail.
    pub fn refuse_next_write(&mut self, id: u32) {
        self.inode_mut(id).refuses_next = true;
    }

    /// A sync of the whole file system.
    pub(super) fn sync_everything(&mut self) {
        self.commit_all();
        for id in 0..self.inodes.len() as u32 {
            if self.inodes[id as usize].as_ref().is_some_and(|inode| inode.is_dirty())
                && self.rules.keeps_bytes
            {
                self.inode_mut(id).write_dirty();
            }
        }
    }
}
