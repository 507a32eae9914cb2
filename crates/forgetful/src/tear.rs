//! A page of a database that a power cut finds half written: its first block is new, the others are
//! old.
//!
//! Chance rarely cuts there, so a test that is about such pages has the disk lose its power in the
//! midst of one.

/// How pages of a database are known: by two bytes in the first block of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Bytes of a page, which begins with a block.
    pub bytes: usize,
    /// Where the mark stands.
    pub mark_at: usize,
    /// The mark.
    pub mark: [u8; 2],
}

impl Page {
    fn is_marked(&self, bytes: &[u8]) -> bool {
        bytes.get(self.mark_at..self.mark_at + 2) == Some(&self.mark)
    }

    /// The end of the first block of the first page in `new` that differs from `old` in both its
    /// first and its last block. `old` is what is there before, with the same beginning and length,
    /// which is a block's.
    pub fn torn_at(&self, block_bytes: usize, old: &[u8], new: &[u8]) -> Option<usize> {
        let starts = (0..new.len()).step_by(block_bytes);
        let mut pages = starts.filter_map(|start| {
            let end = start + self.bytes;
            Some((start, old.get(start..end)?, new.get(start..end)?))
        });
        let differ = |old: &[u8], new: &[u8]| {
            let last = self.bytes - block_bytes;
            old[..block_bytes] != new[..block_bytes] && old[last..] != new[last..]
        };
        pages
            .find(|(_, old, new)| self.is_marked(old) && self.is_marked(new) && differ(old, new))
            .map(|(start, ..)| start + block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 512;
    const PAGE: Page = Page { bytes: 4 * BLOCK, mark_at: 24, mark: [0x45, 0xbf] };

    fn page(filler: u8) -> Vec<u8> {
        let mut page = vec![filler; PAGE.bytes];
        page[24..26].copy_from_slice(&PAGE.mark);
        page
    }

    #[test]
    fn a_page_is_torn_where_it_changes_from_its_first_block_to_its_last() {
        let (old, new) = ([page(1), page(2)].concat(), [page(1), page(3)].concat());
        assert_eq!(PAGE.torn_at(BLOCK, &old, &new), Some(PAGE.bytes + BLOCK));
        assert_eq!(PAGE.torn_at(BLOCK, &old, &old), None, "nothing changes");
        let mut head = old.clone();
        head[0] = 9;
        assert_eq!(PAGE.torn_at(BLOCK, &old, &head), None, "only one block changes");
        assert_eq!(PAGE.torn_at(BLOCK, &vec![0; old.len()], &new), None, "no page was there before");
        assert_eq!(PAGE.torn_at(BLOCK, &old[..BLOCK], &new[..BLOCK]), None, "less than a page");
    }
}
