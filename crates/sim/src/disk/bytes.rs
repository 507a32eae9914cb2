//! How the bytes and sizes of simulated files change, as far as programs see.

use std::sync::Arc;

use super::content::BLOCK_BYTES;
use super::inode::Version;
use super::journal::Change;
use super::state::DiskState;

impl DiskState {
    pub(crate) fn write(&mut self, id: u32, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset as usize + done;
            let (index, from) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let step = (BLOCK_BYTES - from).min(bytes.len() - done);
            let inode = self.inode_mut(id);
            let mut block = inode.cached.block(index).clone().unwrap_or_else(|| Arc::new([0; BLOCK_BYTES]));
            Arc::make_mut(&mut block)[from..from + step].copy_from_slice(&bytes[done..done + step]);
            inode.cached.set_block(index, Some(Arc::clone(&block)));
            let at = inode.count();
            inode.versions.push(Version { index: index as u32, block: Some(block), at });
            done += step;
        }
        let end = offset + bytes.len() as u64;
        let journals = self.rules.journals_written_sizes;
        let inode = self.inode_mut(id);
        if inode.cached.size < end {
            inode.cached.size = end;
            let at = inode.count();
            if journals {
                self.journal.push(Change::Size { inode: id, size: end, at });
                self.reshaped(id);
            } else {
                inode.sizes.push((at, end));
            }
        }
        self.touch(id);
    }

    pub(crate) fn set_size(&mut self, id: u32, size: u64) {
        let journals = self.rules.journals_sizes;
        let inode = self.inode_mut(id);
        let before = inode.cached.blocks.clone();
        inode.cached.size = size;
        inode.cached.trim();
        let at = inode.count();
        for (index, old) in before.iter().enumerate() {
            let block = inode.cached.block(index).clone();
            if block != *old {
                inode.versions.push(Version { index: index as u32, block, at });
            }
        }
        if journals {
            self.journal.push(Change::Size { inode: id, size, at });
        } else {
            inode.sizes.push((at, size));
        }
        self.reshaped(id);
    }

    pub(crate) fn punch(&mut self, id: u32, offset: u64, bytes: u64) {
        let size = self.inode(id).cached.size;
        let end = (offset + bytes).min(size);
        if offset < end {
            let at = self.inode_mut(id).count();
            self.write(id, offset, &vec![0; (end - offset) as usize]);
            if self.rules.journals_sizes {
                self.journal.push(Change::Hole { inode: id, bytes: offset..end, at });
            }
            self.reshaped(id);
        }
        debug_assert_eq!(self.inode(id).cached.size, size);
    }

    /// The journal has something of a file that is more than a name.
    fn reshaped(&mut self, id: u32) {
        let inode = self.inode_mut(id);
        (inode.in_journal, inode.is_journal_data) = (true, true);
        self.touch(id);
    }
}
