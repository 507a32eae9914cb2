//! The file where the log of a pool goes on.

use super::state::{DiskState, ROOT};

/// The spill file's name in the root directory.
const SPILL: &[u8] = b"spill";

impl DiskState {
    /// Adds the file where the log of a pool goes on, which has had these first bytes for long.
    pub fn add_spill(&mut self, header: &[u8], bytes: u64) {
        let id = self.make(false, 0o600);
        self.write(id, 0, header);
        self.set_size(id, bytes);
        self.inode_mut(id).write_dirty();
        let root = self.inode_mut(ROOT);
        root.entries.insert(SPILL.to_vec(), id);
        root.durable_entries.insert(SPILL.to_vec(), id);
    }

    /// Has the next write to the spill file fail, or the next sync of it.
    pub fn fail_spill(&mut self, sync: bool) {
        let Some(&id) = self.inode(ROOT).entries.get(SPILL) else { return };
        let inode = self.inode_mut(id);
        inode.fails_next |= sync;
        inode.refuses_next |= !sync;
    }
}
