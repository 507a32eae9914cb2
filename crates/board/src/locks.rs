//! Page locks: a table of owner words, found by (slot, page).
//!
//! Neighbouring pages of a file lie beside each other, so a range is one run of words (two when it
//! wraps) and is always locked in the order of the table: no two writers can wait for each other. A
//! word holds lane + 1, so that the keeper can open the locks of a dead client. Collisions cost
//! time, never correctness.

use crate::files::FileRow;
use crate::header::Header;
use crate::numbers::LaneIndex;
use crate::owner::{Waiter, lock_word, unlock_word};
use crate::page::{Page, home};
use crate::sync::AtomicU32;
use holdfast_pool::Slot;

/// The table.
#[derive(Clone, Copy)]
pub struct PageLocks<'a> {
    pub(crate) words: &'a [AtomicU32],
    /// Without a keeper nobody opens the locks of the dead.
    pub(crate) header: &'a Header,
    pub(crate) files: &'a [FileRow],
}

impl<'a> PageLocks<'a> {
    fn runs(&self, slot: Slot, offset: u64, bytes: u64) -> [&'a [AtomicU32]; 2] {
        let count = self.words.len() as u64;
        let first = Page::of(offset);
        // A dead lane may have said anything.
        let last = Page::of(offset.saturating_add(bytes.max(1) - 1));
        let pages = last.number() - first.number() + 1;
        if pages >= count {
            return [self.words, &[]];
        }
        let start = home(slot, first, count) as usize;
        let end = start + pages as usize;
        let count = count as usize;
        if end <= count {
            [&self.words[start..end], &[]]
        } else {
            [&self.words[..end - count], &self.words[start..]]
        }
    }

    /// Whether the lock with a number is one of those of a range.
    pub(crate) fn covers(&self, slot: Slot, (offset, bytes): (u64, u64), index: usize) -> bool {
        let word = &raw const self.words[index];
        self.runs(slot, offset, bytes).iter().any(|run| run.as_ptr_range().contains(&word))
    }

    /// Locks all pages of a range for `lane`; false, with some of them locked, when the keeper has
    /// died, or takes the file from who stands still.
    #[inline]
    pub fn lock(&self, lane: LaneIndex, slot: Slot, offset: u64, bytes: u64) -> bool {
        let waiter = Waiter { header: self.header, row: self.files.get(slot.index()), may_be_taken: true };
        for run in self.runs(slot, offset, bytes) {
            for word in run {
                if !lock_word(word, lane.word(), &waiter) {
                    return false;
                }
            }
        }
        true
    }

    /// Opens the locks of a range that `lane` holds; others are left alone, so it also serves
    /// repair.
    #[inline]
    pub fn unlock(&self, lane: LaneIndex, slot: Slot, offset: u64, bytes: u64) {
        for run in self.runs(slot, offset, bytes) {
            for word in run {
                unlock_word(word, lane.word());
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::page::PAGE_BYTES;
    use crate::sync::{Ordering, spin_loop};

    fn table(count: usize) -> Vec<AtomicU32> {
        (0..count).map(|_| AtomicU32::new(0)).collect()
    }

    #[test]
    fn every_byte_of_a_range_is_locked_once_also_across_the_end() {
        let (words, header) = (table(64), Header::default());
        let locks = PageLocks { words: &words, header: &header, files: &[] };
        for slot in 0..50 {
            for (offset, bytes, pages) in
                [(0, 1, 1), (4095, 2, 2), (40_960, 4096, 1), (5, 100_000, 25), (9, 1 << 20, 64)]
            {
                assert!(locks.lock(LaneIndex::new(6), Slot::new(slot), offset, bytes));
                assert_eq!(words.iter().filter(|word| word.load(Ordering::Relaxed) == 7).count(), pages);
                locks.unlock(LaneIndex::new(3), Slot::new(slot), offset, bytes);
                assert_eq!(words.iter().filter(|word| word.load(Ordering::Relaxed) == 7).count(), pages);
                locks.unlock(LaneIndex::new(6), Slot::new(slot), offset, bytes);
                assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
            }
        }
    }

    #[test]
    fn overlapping_ranges_exclude_each_other_and_nobody_sleeps_for_ever() {
        let (words, header) = (table(16), Header::default());
        let locks = PageLocks { words: &words, header: &header, files: &[] };
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for lane in 0..4u32 {
                let inside = &inside;
                scope.spawn(move || {
                    for round in 0..2000u64 {
                        let offset = (round % 3) * PAGE_BYTES;
                        assert!(locks.lock(LaneIndex::new(lane), Slot::new(1), offset, 3 * PAGE_BYTES));
                        // Page 2 of the file is in every range.
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        spin_loop();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        locks.unlock(LaneIndex::new(lane), Slot::new(1), offset, 3 * PAGE_BYTES);
                    }
                });
            }
        });
    }
}
