//! What a power cut leaves of a file system.

use std::sync::Arc;

use holdfast_pool::Ownership;
use holdfast_testkit::Random;

use super::content::{BLOCK_BYTES, Content};
use super::inode::Inode;
use super::journal::Change;
use super::state::{DiskState, ROOT};
use crate::known::Digest;
use crate::random::Choices;

/// How much of what was not synced a power cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Synced,
    /// Everything.
    Everything,
    /// All changes of names, no bytes.
    Names,
    /// All bytes, no change of names.
    Bytes,
    /// Any of it.
    Any,
}

impl DiskState {
    /// What is left after a power cut, mounted again `later_s` seconds later.
    pub fn crash(&self, left: Left, later_s: u64, random: &mut impl Choices) -> Self {
        let mut next = self.clone();
        let mut journal = std::mem::take(&mut next.journal);
        if left == Left::Any && self.rules.renames_by_halves {
            let halved = |change: Change| match change.halves() {
                // One over a file needs a sync for that.
                Some(halves) if !change.replaces() => halves.to_vec(),
                _ => vec![change],
            };
            journal = journal.into_iter().flat_map(halved).collect();
        }
        let cut = if self.rules.ordered { random.choose(journal.len() + 1) } else { 0 };
        for (index, change) in journal.into_iter().enumerate() {
            let chosen = match left {
                Left::Synced | Left::Bytes => false,
                Left::Everything | Left::Names => true,
                Left::Any if self.rules.ordered => index < cut,
                Left::Any => random.choose(2) == 0,
            };
            if chosen && !next.journal.iter().any(|earlier| self.depends(&change, earlier)) {
                next.make_durable(&change);
            } else {
                next.journal.push(change);
            }
        }
        let mut links = vec![0u64; next.inodes.len()];
        for inode in next.inodes.iter().flatten().filter(|inode| inode.is_directory) {
            for &id in inode.durable_entries.values() {
                links[id as usize] += 1;
            }
        }
        links[ROOT as usize] = 1;
        next.free_numbers.clear();
        for (id, links) in links.into_iter().enumerate() {
            let Some(inode) = &next.inodes[id] else { continue };
            if links == 0 {
                let (number, generation) = (inode.number, inode.generation);
                match next.free_numbers.iter_mut().find(|(free, _)| *free == number) {
                    _ if !self.rules.reuses_numbers => {}
                    // The last of them: an earlier one was freed before, by which that came to its
                    // generation.
                    Some((_, newest)) => *newest = generation.max(*newest),
                    None => next.free_numbers.push((number, generation)),
                }
                next.inodes[id] = None;
            } else {
                next.settle_inode(id as u32, links, left, random);
            }
        }
        next.journal.clear();
        let used: Vec<u64> = next.inodes.iter().flatten().map(|inode| inode.number).collect();
        next.free_numbers.retain(|(number, _)| !used.contains(number));
        next.now_unix_s += later_s;
        next.booted_unix_s = next.now_unix_s;
        next.boots = self.boots.wrapping_add(1);
        next.free_bytes = u64::MAX;
        next.watches.clear();
        next.notices.clear();
        next.random = Random::new(random.next_seed());
        next.version = 0;
        next
    }

    /// What is left when all processes die and the kernel goes on; `None` once bytes of a file were
    /// lost, of which the kernel may have told somebody who is dead now.
    pub fn all_die(&self) -> Option<Self> {
        let mut next = self.clone();
        for id in 0..next.inodes.len() as u32 {
            let Some(inode) = next.inodes[id as usize].as_mut().map(Arc::make_mut) else { continue };
            if inode.errors > 0 || inode.fails_next || inode.refuses_next {
                return None;
            }
            let was_open = inode.opens > 0;
            (inode.opens, inode.writers) = (0, 0);
            if was_open {
                next.reclaim(id);
            }
        }
        next.now_unix_s += 1;
        next.watches.clear();
        next.notices.clear();
        Some(next)
    }

    /// Everything that recovery can see of a file system after a power cut, in a few bits: inodes
    /// by their names, not by their places in the table, which nobody outside learns.
    pub fn digest(&self) -> Digest {
        let mut digest = Digest::default();
        for number in [self.kind as u64, self.now_unix_s, self.next_number, self.births.into()] {
            digest.add(number);
        }
        digest.add(self.free_numbers.len() as u64);
        for &(number, generation) in &self.free_numbers {
            digest.add(number);
            digest.add(generation.into());
        }
        self.digest_of(ROOT, &mut digest);
        digest
    }

    fn digest_of(&self, id: u32, digest: &mut Digest) {
        let inode = self.inode(id);
        debug_assert!(inode.cached == inode.durable && inode.entries == inode.durable_entries);
        let Ownership { mode, owner, group } = inode.ownership;
        for number in [inode.number, inode.links, inode.ctime_unix_s as u64, inode.born_ns as u64] {
            digest.add(number);
        }
        for number in [inode.generation, mode, owner, group, u32::from(inode.is_directory)] {
            digest.add(number.into());
        }
        digest.add(inode.durable.size);
        for block in &inode.durable.blocks {
            // A hole reads as zeros.
            let zeros = [0; BLOCK_BYTES];
            digest.add_bytes(block.as_deref().unwrap_or(&zeros));
        }
        digest.add(inode.entries.len() as u64);
        for (name, &entry) in &inode.entries {
            digest.add_bytes(name);
            self.digest_of(entry, digest);
        }
    }

    /// Somebody changes a file some time after the mount: its bytes, or another file in its place.
    /// Gives its name and what it holds now.
    pub fn tamper(&mut self, random: &mut Random) -> Option<(Vec<u8>, Vec<u8>)> {
        let directory = self.lookup(b"/d").ok()?;
        let names: Vec<Vec<u8>> = self.inode(directory).entries.keys().cloned().collect();
        let name = names.get(random.below(names.len()))?.clone();
        // Recovery's own temporary files are nobody's.
        if name.len() != 1 {
            return None;
        }
        let before = self.now_unix_s;
        self.now_unix_s -= 500;
        if random.one_in(2) {
            self.remove(directory, &name).ok()?;
            self.add(directory, &name, 0o644).ok()?;
        }
        let id = self.inode(directory).entries[&name];
        self.write(id, 3, b"somebody else's bytes");
        self.sync_everything();
        self.now_unix_s = before;
        let bytes = self.inode(id).cached.bytes();
        Some((name, bytes))
    }

    fn settle_inode(&mut self, id: u32, links: u64, left: Left, random: &mut impl Choices) {
        let resized = self.first_resized(id);
        let is_touched = {
            let inode = self.inode(id);
            inode.is_directory
                || inode.is_dirty()
                || inode.opens > 0
                || inode.links != links
                || inode.errors > 0
                || inode.cached != inode.durable
        };
        if !is_touched {
            return;
        }
        let inode = self.inode_mut(id);
        let content = match left {
            Left::Synced | Left::Names => inode.durable.clone(),
            Left::Everything | Left::Bytes if inode.is_dirty() => inode.newest(resized),
            Left::Everything | Left::Bytes => inode.durable.clone(),
            Left::Any => inode.any(resized, random),
        };
        inode.links = links;
        inode.opens = 0;
        inode.writers = 0;
        inode.cached = content.clone();
        inode.durable = content;
        inode.versions.clear();
        inode.sizes.clear();
        inode.entries = inode.durable_entries.clone();
        inode.errors = 0;
        inode.is_error_news = false;
        inode.fails_next = false;
        inode.refuses_next = false;
    }
}

impl Inode {
    /// The sizes that may be on disk while a truncation made at that time is not.
    fn sizes_before(&self, resized: u64) -> Vec<u64> {
        self.sizes.iter().filter(|(at, _)| *at < resized).map(|(_, size)| *size).collect()
    }

    /// The disk has got everything that is dirty.
    fn newest(&self, resized: u64) -> Content {
        let mut content = self.durable.clone();
        for version in &self.versions {
            content.set_block(version.index as usize, version.block.clone());
        }
        content.size = self.sizes_before(resized).last().copied().unwrap_or(content.size);
        content.trim();
        content
    }

    /// The disk has got some version of each block, and some size.
    fn any(&self, resized: u64, random: &mut impl Choices) -> Content {
        let mut content = self.durable.clone();
        let mut blocks: Vec<u32> = self.versions.iter().map(|version| version.index).collect();
        blocks.sort_unstable();
        blocks.dedup();
        for index in blocks {
            let versions: Vec<_> = self.versions.iter().filter(|version| version.index == index).collect();
            if let Some(version) = versions.get(random.choose(versions.len() + 1)) {
                content.set_block(index as usize, version.block.clone());
            }
        }
        let sizes = self.sizes_before(resized);
        if let Some(size) = sizes.get(random.choose(sizes.len() + 1)) {
            content.size = *size;
        }
        content.trim();
        content
    }
}
