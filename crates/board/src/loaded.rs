//! Loaded pages: whole pages of files in state Behind in DRAM, as they are now. Reads of hot pages
//! are copies from here, without a lock and without a system call.
//!
//! A set-associative table of frames; the tag of a frame says which page it holds. Within a set the
//! victim is found by a clock: a hand passes the frames, takes away their marks of use, and stops
//! at the first that has none. A full set lets in one missed page of seven.
//!
//! Who holds the lock of a page may load it, change it and drop it. A frame being filled or changed
//! is *taken*: it has no page meanwhile, and belongs to the lane that is noted in its tag. Anybody
//! may evict a page that is not taken. Readers hold nothing: they copy, and look afterwards whether
//! the frame still has the page and whether anybody was at the page ([`crate::Version`]). Nothing
//! here is the only copy of anything, and no page is loaded of a file that is not in state Behind
//! (or failed in it).
//!
//! Source: NVCache (DSN'21, II.C, table II): loaded, unloaded-dirty and unloaded-clean pages, an
//! approximated LRU.
#![allow(unsafe_code)] // Copies in and out of shared memory.

use crate::numbers::{Frame, LaneIndex};
use core::marker::PhantomData;
use core::ptr::NonNull;
use holdfast_pool::Slot;

use crate::page::{PAGE_BYTES, Page, home};
use crate::sync::{AtomicU32, AtomicU64, Ordering, moment};

/// Frames of a set: their tags fill one cache line.
pub(crate) const LOADED_WAYS: usize = 8;
/// Pages of larger files than this many pages are not loaded.
const PAGES_MAX: u64 = 1 << 44;

const SLOT_BITS: u32 = 17;
/// Used since the clock's hand passed last.
const USED: u64 = 1 << 63;
/// Taken: the rest of the tag is lane + 1.
const TAKEN: u64 = 1 << 62;
/// The page has newer bytes, all of it, in the log; the frame waits for them to be drained.
const STALE: u64 = 1 << 61;

/// The table.
#[derive(Clone, Copy)]
pub struct Loaded<'a> {
    pub(crate) tags: &'a [AtomicU64],
    pub(crate) hands: &'a [AtomicU32],
    pub(crate) base: NonNull<u8>,
    pub(crate) life: PhantomData<&'a ()>,
}

/// A page found loaded; a hint until [`Loaded::is_still`] says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    frame: Frame,
    tag: u64,
}

/// A frame that its lane has taken. Must end by [`Loaded::keep`] or [`Loaded::give_back`].
#[derive(Debug)]
pub struct TakenFrame {
    frame: Frame,
    tag: u64,
}

fn tag(slot: Slot, page: Page) -> Option<u64> {
    (page.number() < PAGES_MAX).then(|| u64::from(slot.word()) | page.number() << SLOT_BITS)
}

impl Loaded<'_> {
    /// Pages there is room for.
    pub fn len(&self) -> usize {
        self.tags.len()
    }

    /// Whether there is no room for any.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }

    fn set(&self, slot: Slot, page: Page) -> usize {
        home(slot, page, self.hands.len() as u64) as usize
    }

    /// Finds a page, with or without its lock.
    #[inline]
    pub fn find(&self, slot: Slot, page: Page) -> Option<Found> {
        if self.tags.is_empty() {
            return None;
        }
        let (set, wanted) = (self.set(slot, page), tag(slot, page)?);
        let first = set * LOADED_WAYS;
        let tags = &self.tags[first..first + LOADED_WAYS];
        let way = tags.iter().position(|held| held.load(Ordering::Acquire) & !USED == wanted)?;
        Some(Found { frame: Frame::new((first + way) as u32), tag: wanted })
    }

    /// Whether the frame had the page all the time since it was found there; only if its version
    /// did not change either.
    #[inline]
    pub fn is_still(&self, found: Found) -> bool {
        self.tags[found.frame.index()].load(Ordering::Acquire) & !USED == found.tag
    }

    /// Keeps the page from being the clock's next victim.
    #[inline]
    pub fn note_use(&self, found: Found) {
        let held = &self.tags[found.frame.index()];
        if held.load(Ordering::Relaxed) == found.tag {
            let _ = held.compare_exchange(found.tag, found.tag | USED, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn at(&self, frame: Frame, at: u32, bytes: usize) -> *mut u8 {
        assert!(frame.index() < self.tags.len() && at as usize + bytes <= PAGE_BYTES as usize);
        // Neighbouring pages have neighbouring sets: their frames lie side by side, one way of all
        // sets after the other, or they would share few of the processor's address translations.
        let (set, way) = (frame.index() / LOADED_WAYS, frame.index() % LOADED_WAYS);
        let place = way * self.hands.len() + set;
        // SAFETY: frames lie behind `base`, as many as there are tags, within the board's mapping;
        // `place` is one of them, since there are as many tags as ways of all sets.
        unsafe { self.base.as_ptr().add(place * PAGE_BYTES as usize + at as usize) }
    }

    /// Copies bytes of a page out of its frame. Without the page's lock they count only if nothing
    /// changed meanwhile.
    #[inline]
    pub fn read(&self, found: Found, at: u32, bytes: &mut [u8]) {
        let from = self.at(found.frame, at, bytes.len());
        for part in halves(bytes.len()) {
            moment();
            // SAFETY: the range lies within the frame (checked) and within `bytes`. Others may
            // store to the frame meanwhile; the copy then yields a mix, which the caller throws
            // away.
            unsafe { copy(from.add(part.start), bytes.as_mut_ptr().add(part.start), part.len()) };
        }
    }

    /// Takes a frame for a page whose lock the caller holds by `lane`, and which is not loaded: a
    /// free one, or that of the clock's victim.
    pub fn take(&self, lane: LaneIndex, slot: Slot, page: Page) -> Option<TakenFrame> {
        if self.tags.is_empty() {
            return None;
        }
        let (set, wanted) = (self.set(slot, page), tag(slot, page)?);
        let first = set * LOADED_WAYS;
        let tags = &self.tags[first..first + LOADED_WAYS];
        let mine = TAKEN | u64::from(lane.word());
        let swap = |way: usize, from: u64, to: u64| {
            tags[way].compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let taken = |way: usize| TakenFrame { frame: Frame::new((first + way) as u32), tag: wanted };
        let is_free = |way: &usize| tags[*way].load(Ordering::Relaxed) == 0 && swap(*way, 0, mine);
        if let Some(way) = (0..LOADED_WAYS).find(is_free) {
            return Some(taken(way));
        }
        for _ in 0..2 * LOADED_WAYS {
            let way = self.hands[set].fetch_add(1, Ordering::Relaxed) as usize % LOADED_WAYS;
            let held = tags[way].load(Ordering::Relaxed);
            if held & TAKEN != 0 {
                continue;
            }
            if held & USED != 0 {
                swap(way, held, held & !USED);
            } else if swap(way, held, mine) {
                return Some(taken(way));
            }
        }
        None
    }

    /// Whether a page that was missed is worth a frame: always while one is free in its set, else
    /// one time in seven, so that a file read once from end to end hardly displaces what is read
    /// again and again.
    pub fn admits(&self, slot: Slot, page: Page) -> bool {
        if self.tags.is_empty() || cfg!(shuttle) {
            return !self.tags.is_empty();
        }
        let set = self.set(slot, page);
        let first = set * LOADED_WAYS;
        self.tags[first..first + LOADED_WAYS].iter().any(|held| held.load(Ordering::Relaxed) == 0)
            || self.hands[set].fetch_add(1, Ordering::Relaxed).is_multiple_of(7)
    }

    /// Takes the frame of a loaded page, to change it. The caller holds the page's lock by `lane`.
    pub fn take_loaded(&self, lane: LaneIndex, slot: Slot, page: Page) -> Option<TakenFrame> {
        let found = self.find(slot, page)?;
        let held = &self.tags[found.frame.index()];
        let mine = TAKEN | u64::from(lane.word());
        // A second try where a reader notes its use; else the page is being evicted.
        [found.tag, found.tag | USED, found.tag]
            .into_iter()
            .any(|from| held.compare_exchange(from, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok())
            .then_some(TakenFrame { frame: found.frame, tag: found.tag })
    }

    /// Copies into a taken frame.
    pub fn write(&self, taken: &TakenFrame, at: u32, bytes: &[u8]) {
        let to = self.at(taken.frame, at, bytes.len());
        for part in halves(bytes.len()) {
            if !effective() {
                return;
            }
            // SAFETY: as for `read`, in the other direction; nobody else stores to a taken frame.
            unsafe { copy(bytes.as_ptr().add(part.start), to.add(part.start), part.len()) };
        }
    }

    /// The bytes of a taken frame, to be filled.
    pub fn fill<R>(&self, taken: &TakenFrame, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let from = self.at(taken.frame, 0, PAGE_BYTES as usize);
        // SAFETY: the range lies within the frame (checked), and nobody else stores to a taken
        // frame. Readers that found another page in it before only copy from it by `copy`, which no
        // compiler looks into.
        fill(unsafe { core::slice::from_raw_parts_mut(from, PAGE_BYTES as usize) })
    }

    /// The taken frame holds its page now, as it is.
    pub fn keep(&self, taken: TakenFrame) {
        self.tags[taken.frame.index()].store(taken.tag, Ordering::Release);
    }

    /// The taken frame holds nothing.
    pub fn give_back(&self, taken: TakenFrame) {
        self.tags[taken.frame.index()].store(0, Ordering::Release);
    }

    /// The log has all of a loaded page anew: it is read from there, and its frame waits for
    /// [`Loaded::refill`]. The caller holds the page's lock.
    pub fn note_stale(&self, slot: Slot, page: Page) {
        if let Some(found) = self.find(slot, page) {
            let held = &self.tags[found.frame.index()];
            // As in `take_loaded`.
            let _ = [found.tag, found.tag | USED, found.tag].into_iter().any(|from| {
                held.compare_exchange(from, from | STALE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            });
        }
    }

    /// Fills the frame that waits for a page, whose lock the caller holds by `lane` and whose row
    /// it is about to remove: all of its bytes are `bytes`, if they are a whole page.
    pub fn refill(&self, lane: LaneIndex, slot: Slot, page: Page, bytes: &[u8]) {
        if self.tags.is_empty() || bytes.len() as u64 != PAGE_BYTES {
            return;
        }
        let Some(wanted) = tag(slot, page) else { return };
        let first = self.set(slot, page) * LOADED_WAYS;
        for frame in first..first + LOADED_WAYS {
            let held = self.tags[frame].load(Ordering::Relaxed);
            let mine = TAKEN | u64::from(lane.word());
            if held & !USED == wanted | STALE
                && self.tags[frame].compare_exchange(held, mine, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                let taken = TakenFrame { frame: Frame::new(frame as u32), tag: wanted };
                self.write(&taken, 0, bytes);
                return self.keep(taken);
            }
        }
    }

    /// Drops a page. The caller holds its lock.
    pub fn drop_page(&self, slot: Slot, page: Page) {
        if let Some(found) = self.find(slot, page) {
            self.drop_frame(found.frame.index(), |held| held == found.tag);
        }
    }

    /// Drops the pages of a range, as long as that may be. The caller holds their locks, or all of
    /// them when it is longer than the table of locks.
    pub fn drop_pages(&self, slot: Slot, offset: u64, bytes: u64) {
        let end = offset.saturating_add(bytes).div_ceil(PAGE_BYTES);
        if end - Page::of(offset).number() <= self.tags.len() as u64 {
            Page::range(offset, bytes).for_each(|page| self.drop_page(slot, page));
        } else {
            self.drop_file(slot, Page::of(offset));
        }
    }

    fn drop_frame(&self, frame: usize, is_it: impl Fn(u64) -> bool) {
        let tag = &self.tags[frame];
        loop {
            let held = tag.load(Ordering::SeqCst);
            if held == 0
                || held & TAKEN != 0
                || !is_it(held & !USED)
                || tag.compare_exchange(held, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
            {
                return;
            }
        }
    }

    /// Drops all pages of a file from `page` on. The caller keeps all others out of the file.
    pub fn drop_file(&self, slot: Slot, page: Page) {
        let is_it = |held: u64| {
            held & ((1 << SLOT_BITS) - 1) == u64::from(slot.word()) && held >> SLOT_BITS >= page.number()
        };
        for (frame, tag) in self.tags.iter().enumerate() {
            // A taken frame is of another file: nobody is in this one.
            let held = tag.load(Ordering::SeqCst);
            if held & TAKEN == 0 && is_it(held & !USED) {
                self.drop_frame(frame, is_it);
            }
        }
    }

    /// Gives back what a dead lane had taken.
    pub fn free_taken(&self, lane: LaneIndex) {
        let mine = TAKEN | u64::from(lane.word());
        for tag in self.tags {
            if tag.load(Ordering::Relaxed) == mine {
                let _ = tag.compare_exchange(mine, 0, Ordering::Release, Ordering::Relaxed);
            }
        }
    }
}

/// A copy is one step, but for the model checker, which may let others in between.
fn halves(bytes: usize) -> impl Iterator<Item = core::ops::Range<usize>> {
    let middle = if cfg!(shuttle) { bytes / 2 } else { 0 };
    [0..middle, middle..bytes].into_iter().filter(|part| !part.is_empty())
}

#[cfg(not(shuttle))]
#[inline(always)]
fn effective() -> bool {
    true
}

#[cfg(shuttle)]
fn effective() -> bool {
    moment();
    crate::sync::model::step()
}

/// Copies bytes that others may change.
///
/// # Safety
/// Both ranges must be mapped, `from` readable and `to` writable, and not overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // Not memcpy: 4 KiB that are in no cache take it half as long again, and no compiler looks into
    // this. SAFETY: the caller's promise; the direction flag is clear by the calling convention.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::{Board, LaneIndex, Page, Plan};
    use holdfast_pool::Slot;

    fn load(board: &Board, slot: Slot, number: u64, byte: u8) -> bool {
        let Some(taken) = board.loaded().take(LaneIndex::new(3), slot, Page::new(number)) else {
            return false;
        };
        board.loaded().fill(&taken, |bytes| bytes.fill(byte));
        board.loaded().keep(taken);
        true
    }

    fn byte_of(board: &Board, slot: Slot, number: u64) -> Option<u8> {
        let found = board.loaded().find(slot, Page::new(number))?;
        let mut bytes = [0; 2];
        board.loaded().read(found, 4094, &mut bytes);
        assert!(board.loaded().is_still(found) && bytes[0] == bytes[1]);
        Some(bytes[0])
    }

    #[test]
    fn pages_are_found_as_they_are_until_they_are_dropped() {
        let (board, fd) = Board::create(Plan::new(256, 16).with_loaded(64)).unwrap();
        let other = Board::open(rustix::fd::AsFd::as_fd(&fd), 256, 16).unwrap();
        for page in 0..32 {
            assert!(
                load(&board, Slot::new(5), page, page as u8)
                    && load(&board, Slot::new(6), page, 100 + page as u8)
            );
        }
        for page in 0..32 {
            assert_eq!(byte_of(&other, Slot::new(5), page), Some(page as u8));
        }
        let taken = other.loaded().take_loaded(LaneIndex::new(2), Slot::new(5), Page::new(7)).unwrap();
        assert_eq!(byte_of(&board, Slot::new(5), 7), None, "nobody reads what is being changed");
        other.loaded().write(&taken, 4094, &[77, 77]);
        other.loaded().keep(taken);
        assert_eq!(byte_of(&board, Slot::new(5), 7), Some(77));
        board.loaded().drop_page(Slot::new(5), Page::new(7));
        board.loaded().drop_file(Slot::new(5), Page::new(20));
        for page in 0..32 {
            let is_there = page != 7 && page < 20;
            assert_eq!(byte_of(&other, Slot::new(5), page), is_there.then_some(page as u8));
            assert_eq!(byte_of(&other, Slot::new(6), page), Some(100 + page as u8));
        }
        assert!(!load(&board, Slot::new(5), 1 << 46, 1), "too large a file");
    }

    #[test]
    fn the_clock_spares_what_was_used_and_the_dead_give_back() {
        let (board, _fd) = Board::create(Plan::new(256, 16).with_loaded(8)).unwrap();
        for page in 0..8 {
            assert!(load(&board, Slot::new(0), page, page as u8));
        }
        for page in [1, 4] {
            let found = board.loaded().find(Slot::new(0), Page::new(page)).unwrap();
            board.loaded().note_use(found);
        }
        for page in 8..14 {
            assert!(load(&board, Slot::new(0), page, page as u8));
        }
        let left: Vec<u64> = (0..8).filter(|&page| byte_of(&board, Slot::new(0), page).is_some()).collect();
        assert_eq!(left, [1, 4]);
        let taken: Vec<_> = (20..28)
            .map_while(|page| board.loaded().take(LaneIndex::new(9), Slot::new(0), Page::new(page)))
            .collect();
        assert_eq!(taken.len(), 8);
        assert!(
            board.loaded().take(LaneIndex::new(1), Slot::new(0), Page::new(30)).is_none(),
            "all are taken"
        );
        board.loaded().free_taken(LaneIndex::new(9));
        assert!(load(&board, Slot::new(0), 30, 1));
    }
}
