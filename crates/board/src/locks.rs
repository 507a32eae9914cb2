//! Page locks: a table of owner words, found by (slot, page).
//!
//! Neighbouring pages of a file lie beside each other, so a range is one run of words (two when it
//! wraps) and is always locked in the order of the table: no two writers can wait for each other. A
//! word holds lane.word(), so that the keeper can open the locks of a dead client. Collisions cost
//! time, never correctness.

use crate::LaneIndex;
use core::time::Duration;
use holdfast_pool::Slot;

use crate::files::FileRow;
use crate::header::Header;
use crate::page::Page;
use crate::stalls::Stall;
use crate::sync::{AtomicU32, Ordering, spin_loop, wait, wake};

/// Bytes covered by one lock.
pub const PAGE_BYTES: u64 = 4096;

pub(crate) const WAITERS: u32 = 0x8000_0000;
/// Spins before sleeping: about as long as a page write takes.
const SPINS: u32 = if cfg!(shuttle) { 1 } else { 200 };

/// Place of a page in a table of `count`. A large odd stride keeps files apart while pages of one
/// file stay neighbours.
#[inline]
pub(crate) fn home(slot: Slot, page: Page, count: u64) -> u64 {
    (u64::from(slot).wrapping_mul(0x9e37_79b1).wrapping_add(page.number())) % count
}

/// The table.
#[derive(Clone, Copy)]
pub struct PageLocks<'a> {
    pub(crate) words: &'a [AtomicU32],
    /// Without a keeper nobody opens the locks of the dead.
    pub(crate) header: &'a Header,
    pub(crate) files: &'a [FileRow],
}

/// Who waits for a word.
pub(crate) struct Waiter<'a> {
    pub header: &'a Header,
    /// The file that the word is about.
    pub row: Option<&'a FileRow>,
    /// Who has the word keeps it when the file is taken from who stands still: the wait ends then.
    pub may_be_taken: bool,
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

/// Locks one owner word for `owner` (never 0); false when the keeper has died meanwhile, or takes
/// the file.
#[cold]
fn lock_slow(word: &AtomicU32, owner: u32, waiter: &Waiter<'_>) -> bool {
    let (mut spins, mut stall) = (0, Stall::default());
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen == 0 {
            // Whoever slept must assume that others still sleep.
            let value = if spins > SPINS { owner | WAITERS } else { owner };
            if word.compare_exchange(0, value, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return true;
            }
            continue;
        }
        spins += 1;
        if spins <= SPINS {
            spin_loop();
            continue;
        }
        let is_taken = waiter.may_be_taken && waiter.row.is_some_and(FileRow::is_being_taken);
        if !waiter.header.keeper_alive() || is_taken {
            return false;
        }
        stall.goes_on(waiter.header, waiter.row);
        if seen & WAITERS != 0
            || word.compare_exchange(seen, seen | WAITERS, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            wait(word, seen | WAITERS, Duration::from_millis(50));
        }
    }
}

/// Takes an owner word, sleeping while another owner holds it; false when the keeper has died, or
/// takes the file.
#[inline]
pub(crate) fn lock_word(word: &AtomicU32, owner: u32, waiter: &Waiter<'_>) -> bool {
    word.compare_exchange(0, owner, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        || lock_slow(word, owner, waiter)
}

/// Lets an owner word go if `owner` holds it; returns whether it did.
#[inline]
pub(crate) fn unlock_word(word: &AtomicU32, owner: u32) -> bool {
    let mut seen = word.load(Ordering::Relaxed);
    // Not a plain swap: the keeper may take the word from an owner that goes on just now.
    while seen & !WAITERS == owner {
        match word.compare_exchange(seen, 0, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                if seen & WAITERS != 0 {
                    wake(word, u32::MAX);
                }
                return true;
            }
            Err(now) => seen = now,
        }
    }
    false
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

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
