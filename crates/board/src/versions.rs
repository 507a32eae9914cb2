//! Versions: how a reader without locks knows that nobody changed a page while it looked.
//!
//! A page's version can be had while nobody holds its lock, and stays the same until somebody who
//! held it changed what the board says of the page: each change of a row or a loaded page is
//! counted before the lock is opened. So a reader takes the versions of all its pages, copies, and
//! asks whether all stand: then there was a moment, the one between, at which all that was copied
//! was true at once. A holder that dies leaves the lock locked, hence no version.

use crate::page::{Page, home};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use holdfast_pool::Slot;

/// A version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version(u64);

/// The versions of all pages.
#[derive(Clone, Copy)]
pub struct Versions<'a> {
    pub(crate) locks: &'a [AtomicU32],
    pub(crate) changes: &'a [AtomicU64],
}

/// Counts a change of a page whose lock the caller holds.
#[inline]
pub(crate) fn note_change(changes: &AtomicU64) {
    #[cfg(shuttle)]
    if crate::model::mutated(crate::model::Mutation::ChangeUncounted) {
        return;
    }
    // Not a read-modify-write: nobody else stores here while the lock is held.
    changes.store(changes.load(Ordering::Relaxed) + 1, Ordering::Release);
}

impl Versions<'_> {
    #[inline]
    fn set(&self, slot: Slot, page: Page) -> usize {
        home(slot, page, self.locks.len() as u64) as usize
    }

    /// The version of a page; `None` while somebody holds its lock.
    #[inline]
    pub fn get(&self, slot: Slot, page: Page) -> Option<Version> {
        let set = self.set(slot, page);
        // First the count: what is counted under the lock that is then found open was seen.
        let version = Version(self.changes[set].load(Ordering::Acquire));
        (self.locks[set].load(Ordering::Acquire) == 0).then_some(version)
    }

    /// Whether nobody changed the page since its version was taken, as far as was read before this
    /// call.
    #[inline]
    pub fn stands(&self, slot: Slot, page: Page, version: Version) -> bool {
        fence(Ordering::Acquire);
        let set = self.set(slot, page);
        // First the lock: who is found to have opened it has counted before.
        self.locks[set].load(Ordering::Acquire) == 0 && self.changes[set].load(Ordering::Acquire) == version.0
    }

    /// Counts a change of a page whose lock the caller holds.
    #[inline]
    pub fn note(&self, slot: Slot, page: Page) {
        note_change(&self.changes[self.set(slot, page)]);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::{Board, Census, LaneIndex, Page, Plan};
    use holdfast_pool::{Seq, Slot};

    #[test]
    fn a_version_stands_until_somebody_changes_the_page() {
        let (board, _fd) = Board::create(Plan::new(256, 16)).unwrap();
        let page = Page::new(7);
        let (versions, locks) = (board.versions(), board.page_locks());
        let version = versions.get(Slot::new(3), page).unwrap();
        assert!(locks.lock(LaneIndex::new(1), Slot::new(3), 7 * 4096, 1));
        assert!(versions.get(Slot::new(3), page).is_none() && !versions.stands(Slot::new(3), page, version));
        locks.unlock(LaneIndex::new(1), Slot::new(3), 7 * 4096, 1);
        assert!(versions.stands(Slot::new(3), page, version), "nothing was changed");
        assert!(locks.lock(LaneIndex::new(1), Slot::new(3), 7 * 4096, 1));
        let count = Census::default();
        let content = crate::Content { lo: 0, hi: 1, source: crate::Source::Log(0) };
        assert!(board.pages().insert(Slot::new(3), page, content, Seq::new(1), &count));
        locks.unlock(LaneIndex::new(1), Slot::new(3), 7 * 4096, 1);
        assert!(!versions.stands(Slot::new(3), page, version));
        assert_ne!(versions.get(Slot::new(3), page).unwrap(), version);
    }
}
