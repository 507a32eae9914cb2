//! A file or directory of a simulated file system: what programs see of it, what is durable, and
//! the versions in between.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use holdfast_pool::Ownership;

use super::content::{BLOCK_BYTES, Block, Content};

/// A block as it was written at some time.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) index: u32,
    pub(super) block: Block,
    /// When, by the inode's own count.
    pub(super) at: u64,
}

/// A file or directory.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) number: u64,
    pub(super) generation: u32,
    pub(super) is_directory: bool,
    pub(super) links: u64,
    pub(super) opens: u32,
    pub(super) writers: u32,
    pub(super) ownership: Ownership,
    pub(super) ctime_unix_s: i64,
    pub(super) born_ns: i64,
    /// What programs see.
    pub(super) cached: Content,
    /// What a power cut certainly leaves, if the inode has a name then.
    pub(super) durable: Content,
    /// Blocks and sizes since the last sync, each of which may be on disk, the sizes with their
    /// times. Truncations are among them where no journal has them.
    pub(super) versions: Vec<Version>,
    pub(super) sizes: Vec<(u64, u64)>,
    /// How often its bytes or its size changed.
    pub(super) changes: u64,
    /// Entries of a directory.
    pub(super) entries: BTreeMap<Vec<u8>, u32>,
    pub(super) durable_entries: BTreeMap<Vec<u8>, u32>,
    /// Failures so far, those that nobody heard of between them as one; every description tells
    /// each once.
    pub(super) errors: u64,
    /// Nobody has heard of the last one yet.
    pub(super) is_error_news: bool,
    pub(super) fails_next: bool,
    /// The next write of the keeper fails.
    pub(super) refuses_next: bool,
    /// The journal has something of it that is not committed: it was made, or cut, or its names
    /// changed. The size of what was written comes to the journal only with the bytes.
    pub(super) in_journal: bool,
    /// And what it has is more than names.
    pub(super) is_journal_data: bool,
    /// No program has touched it since the disk was mounted, as far as somebody asks.
    pub(super) is_unread: bool,
    /// And it got or lost names, or, of a directory, names in it went.
    pub(super) is_moved: bool,
}

impl Inode {
    pub(super) fn is_dirty(&self) -> bool {
        !self.versions.is_empty() || !self.sizes.is_empty()
    }

    /// The failures that a description which is opened now has nothing to tell of.
    pub(super) fn errors_heard(&self) -> u64 {
        self.errors - u64::from(self.is_error_news)
    }

    /// Makes durable what is dirty, and nothing else: a page that a failed sync left in the cache
    /// is clean there, and no later sync writes it.
    pub(super) fn write_dirty(&mut self) {
        self.commit_sizes();
        for version in std::mem::take(&mut self.versions) {
            let newest = self.cached.block(version.index as usize).clone();
            self.durable.set_block(version.index as usize, newest);
        }
        self.durable.trim();
    }

    /// Sizes are metadata, and the journal has them in order: what was once cut off does not come
    /// back.
    pub(super) fn commit_sizes(&mut self) {
        if let Some(least) = std::mem::take(&mut self.sizes).iter().map(|(_, size)| *size).min() {
            self.durable.size = self.durable.size.min(least);
            self.durable.trim();
            self.durable.size = self.cached.size;
        }
    }

    /// Counts a change of bytes or size.
    pub(super) fn count(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// The size is on disk. What was written before does not come back behind it.
    pub(super) fn resize_durably(&mut self, size: u64, at: u64) {
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
    pub(super) fn punch_durably(&mut self, bytes: &Range<u64>, at: u64) {
        let first = (bytes.start as usize).div_ceil(BLOCK_BYTES);
        let whole = first..bytes.end as usize / BLOCK_BYTES;
        let blocks = &mut self.durable.blocks;
        let end = whole.end.min(blocks.len());
        blocks[whole.start.min(end)..end].fill(None);
        self.versions.retain(|version| version.at > at || !whole.contains(&(version.index as usize)));
    }
}
