//! Page rows: which bytes of a file are newer than the kernel's page cache, and where they are
//! (state Behind).
//!
//! A set-associative table with one set per page lock: a row is read and changed only under the
//! page lock of its page, so it needs no protocol of its own. A row holds one interval of bytes of
//! one page. What it says is one word, so a client that dies while it changes a row leaves the old
//! row or the new one, never a mixture. Rows are hints where to find what the log holds: nothing is
//! in them alone.

use crate::census::Census;
use crate::numbers::{AtomicSeq, Frame};
use crate::page::{FilePage, PAGE_BYTES, Page, home};
use crate::stamps::note_change;
use crate::sync::{AtomicU64, Ordering};
use holdfast_pool::{Seq, Slot};

/// Rows per set: their keys fill one cache line.
pub const WAYS: usize = 8;
/// No file has so many pages.
const PAGES_MAX: u64 = 1 << 51;
/// Media offsets of larger pools do not fit a row.
pub const ROW_MEDIA_BYTES_MAX: u64 = 1 << 39;

const SLOT_BITS: u32 = 17;
const IN_FRAME: u64 = 1 << 39;

/// Where the bytes of a row are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the log: media offset of the interval's first byte.
    Log(u64),
    /// In this frame, at their place within the page.
    Frame(Frame),
}

/// Bytes of a page that are newer than the page cache: `lo..hi`, never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// First byte within the page.
    pub lo: u32,
    /// One past the last byte within the page.
    pub hi: u32,
    /// Where they are.
    pub source: Source,
}

impl Content {
    fn encode(self) -> u64 {
        let source = match self.source {
            Source::Log(offset) => offset,
            Source::Frame(frame) => IN_FRAME | u64::from(frame),
        };
        source | u64::from(self.lo) << 40 | u64::from(self.hi - self.lo - 1) << 52
    }

    fn decode(word: u64) -> Self {
        let lo = (word >> 40) as u32 & 0xfff;
        let value = word & (IN_FRAME - 1);
        let source =
            if word & IN_FRAME != 0 { Source::Frame(Frame::new(value as u32)) } else { Source::Log(value) };
        // Clients can store here whatever they like.
        let hi = (lo + (word >> 52) as u32 + 1).min(PAGE_BYTES as u32);
        Self { lo, hi, source }
    }

    /// Whether `lo..hi` covers all of these bytes.
    pub fn is_within(&self, lo: u32, hi: u32) -> bool {
        lo <= self.lo && self.hi <= hi
    }

    /// Whether `lo..hi` shares a byte with these.
    pub fn overlaps(&self, lo: u32, hi: u32) -> bool {
        lo < self.hi && self.lo < hi
    }

    /// Whether `lo..hi` and these bytes together are one interval.
    pub fn joins(&self, lo: u32, hi: u32) -> bool {
        lo <= self.hi && self.lo <= hi
    }
}

/// One row, beside its key.
#[repr(C)]
#[derive(Default)]
pub(crate) struct PageRow {
    content: AtomicU64,
    newest_seq: AtomicSeq,
    oldest_seq: AtomicSeq,
}

/// A row found in the table. Its number stays the same as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub index: usize,
    /// What it says.
    pub content: Content,
    /// Seq of the newest record with bytes in it.
    pub newest_seq: Seq,
    /// No byte in it comes from an older record than this.
    pub oldest_seq: Seq,
}

/// The table.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    pub(crate) keys: &'a [AtomicU64],
    pub(crate) rows: &'a [PageRow],
    /// Of each set, which is that of one page lock: how often anything in it changed.
    pub(crate) changes: &'a [AtomicU64],
}

impl<'a> Pages<'a> {
    fn set_count(&self) -> u64 {
        (self.keys.len() / WAYS) as u64
    }

    /// Rows there is room for.
    pub fn capacity(&self) -> usize {
        self.rows.len()
    }

    /// Number of sets: that many pages of a file in a row never share one.
    pub fn sets(&self) -> u64 {
        self.set_count()
    }

    fn locate(&self, slot: Slot, page: Page) -> (usize, u64) {
        let set = home(slot, page, self.set_count());
        let key = u64::from(slot.word()) | (page.number() / self.set_count()) << SLOT_BITS;
        (set as usize * WAYS, key)
    }

    /// The row of a page.
    #[inline]
    pub fn find(&self, slot: Slot, page: Page) -> Option<Row> {
        let (first, key) = self.locate(slot, page);
        let way =
            self.keys[first..first + WAYS].iter().position(|held| held.load(Ordering::Acquire) == key)?;
        Some(self.get(first + way))
    }

    fn get(&self, index: usize) -> Row {
        let row = &self.rows[index];
        Row {
            index,
            content: Content::decode(row.content.load(Ordering::Relaxed)),
            newest_seq: row.newest_seq.load(Ordering::Relaxed),
            oldest_seq: row.oldest_seq.load(Ordering::Relaxed),
        }
    }

    /// Whether a row for one more page of this set fits.
    pub fn has_room(&self, slot: Slot, page: Page) -> bool {
        let (first, _) = self.locate(slot, page);
        self.keys[first..first + WAYS].iter().any(|held| held.load(Ordering::Relaxed) == 0)
    }

    /// Enters a page that has no row; false when its set is full. `count` counts the rows of the
    /// file: it is raised before the row is there and lowered after it has gone, so that it is
    /// never too low.
    pub fn insert(&self, slot: Slot, page: Page, content: Content, seq: Seq, count: &Census) -> bool {
        let (first, key) = self.locate(slot, page);
        let free = self.keys[first..first + WAYS].iter().position(|held| held.load(Ordering::Relaxed) == 0);
        let Some(way) = free else { return false };
        let row = &self.rows[first + way];
        row.content.store(content.encode(), Ordering::Relaxed);
        row.newest_seq.store(seq, Ordering::Relaxed);
        row.oldest_seq.store(seq, Ordering::Relaxed);
        count.enter();
        note_change(&self.changes[first / WAYS]);
        self.keys[first + way].store(key, Ordering::Release);
        true
    }

    /// The record `seq` holds all of `content`: nothing older is needed any more.
    pub fn replace(&self, index: usize, content: Content, seq: Seq) {
        note_change(&self.changes[index / WAYS]);
        let row = &self.rows[index];
        row.content.store(content.encode(), Ordering::Release);
        row.newest_seq.store(seq, Ordering::Release);
        row.oldest_seq.store(seq, Ordering::Release);
    }

    /// The record `seq` has bytes in `content`, beside those that were there.
    pub fn extend(&self, index: usize, content: Content, seq: Seq) {
        note_change(&self.changes[index / WAYS]);
        let row = &self.rows[index];
        row.content.store(content.encode(), Ordering::Release);
        row.newest_seq.store(seq, Ordering::Release);
    }

    /// The bytes of a row were copied to `content`, durably and with their seqs.
    pub fn redirect(&self, index: usize, content: Content) {
        // Who reads without a lock may be copying from the old place, which is about to be reused.
        note_change(&self.changes[index / WAYS]);
        self.rows[index].content.store(content.encode(), Ordering::Release);
    }

    /// Whether the row of a page says that `lo..hi` of it come from records newer than `seq`. Needs
    /// no lock.
    ///
    /// As long as a row is there its content only grows and its oldest seq only rises, the content
    /// first. So an oldest seq holds for the content that is read after it. A row that is entered
    /// anew in between holds newer records still.
    pub fn is_newer(&self, slot: Slot, page: Page, (lo, hi): (u32, u32), seq: Seq) -> bool {
        let (first, key) = self.locate(slot, page);
        let held = &self.keys[first..first + WAYS];
        let Some(way) = held.iter().position(|held| held.load(Ordering::Acquire) == key) else {
            return false;
        };
        let row = &self.rows[first + way];
        let oldest_seq = row.oldest_seq.load(Ordering::Acquire);
        let content = Content::decode(row.content.load(Ordering::Acquire));
        oldest_seq > seq && content.lo <= lo && hi <= content.hi && held[way].load(Ordering::Acquire) == key
    }

    /// Takes a row out.
    pub fn remove(&self, index: usize, count: &Census) {
        note_change(&self.changes[index / WAYS]);
        self.keys[index].store(0, Ordering::Release);
        count.leave();
    }

    /// Visits page and oldest seq of all rows, without any lock: what is found may have gone,
    /// what was there before the call and is not found has gone.
    pub fn scan(&self, mut visit: impl FnMut(FilePage, Seq)) {
        for index in 0..self.keys.len() {
            if let Some(page) = self.page_of(index) {
                visit(page, self.rows[index].oldest_seq.load(Ordering::Acquire));
            }
        }
    }

    /// The page of the row with this number, without any lock.
    pub fn page_of(&self, index: usize) -> Option<FilePage> {
        let key = self.keys.get(index)?.load(Ordering::Acquire);
        let slot = Slot::from_word(key as u32 & ((1 << SLOT_BITS) - 1))?;
        let (set, sets) = ((index / WAYS) as u64, self.set_count());
        let low = (set + sets - home(slot, Page::FIRST, sets)) % sets;
        let page = (key >> SLOT_BITS).checked_mul(sets)?.checked_add(low)?;
        (page < PAGES_MAX).then_some(FilePage { slot, page: Page::new(page) })
    }
}

/// The parts of the byte range `offset..offset + bytes` by page: page, first and one past the last
/// byte within it. What lies beyond the end of all files is left out.
pub fn pieces(offset: u64, bytes: u64) -> impl Iterator<Item = (Page, u32, u32)> {
    let end = offset.saturating_add(bytes).min(PAGES_MAX * PAGE_BYTES);
    (offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |number| {
        let page = Page::new(number);
        let start = page.offset();
        (page, offset.saturating_sub(start) as u32, (end - start).min(PAGE_BYTES) as u32)
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const SETS: usize = 64;

    struct Table(Vec<AtomicU64>, Vec<PageRow>, Vec<AtomicU64>);

    impl Table {
        fn new() -> Self {
            let rows = (0..SETS * WAYS).map(|_| PageRow::default()).collect();
            let words = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
            Self(words(SETS * WAYS), rows, words(SETS))
        }

        fn pages(&self) -> Pages<'_> {
            Pages { keys: &self.0, rows: &self.1, changes: &self.2 }
        }
    }

    #[test]
    fn what_a_row_says_survives_being_packed_at_every_limit() {
        for source in [
            Source::Log(0),
            Source::Log(ROW_MEDIA_BYTES_MAX - 1),
            Source::Frame(Frame::new(0)),
            Source::Frame(Frame::new(u32::MAX)),
        ] {
            for (lo, hi) in [(0, 1), (0, 4096), (4095, 4096), (17, 1234)] {
                let content = Content { lo, hi, source };
                assert_eq!(Content::decode(content.encode()), content);
            }
        }
    }

    #[test]
    fn rows_are_found_by_slot_and_page_and_the_scan_names_them() {
        let (table, count) = (Table::new(), Census::default());
        let pages = table.pages();
        let mut model = HashMap::new();
        let mut state = 1u64;
        for round in 0..20_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let slot = Slot::new([0, 3, 65_535][(state >> 33) as usize % 3]);
            let page = [0, 1 << 20, (1 << 51) - 200][(state >> 40) as usize % 3] + (state >> 50) % 100;
            let page = Page::new(page);
            let content = Content { lo: 1, hi: 2 + (state >> 60) as u32, source: Source::Log(round) };
            let round = Seq::new(round);
            match (pages.find(slot, page), model.get(&(slot, page))) {
                (None, None) => {
                    let room = pages.has_room(slot, page);
                    assert_eq!(pages.insert(slot, page, content, round, &count), room);
                    if room {
                        model.insert((slot, page), (content, round));
                    }
                }
                (Some(row), Some(&(known, seq))) => {
                    assert_eq!((row.content, row.oldest_seq), (known, seq));
                    match state >> 62 {
                        0 => {
                            pages.remove(row.index, &count);
                            model.remove(&(slot, page));
                        }
                        1 => {
                            pages.extend(row.index, content, round);
                            model.insert((slot, page), (content, seq));
                        }
                        _ => {
                            pages.replace(row.index, content, round);
                            model.insert((slot, page), (content, round));
                        }
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(model.len() > 200, "the test fills the table");
        assert_eq!(count.get() as usize, model.len());
        let mut found = HashMap::new();
        pages.scan(|page, oldest| assert!(found.insert((page.slot, page.page), oldest).is_none()));
        let expected: HashMap<_, _> = model.into_iter().map(|(key, (_, seq))| (key, seq)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_full_set_refuses_and_its_neighbours_do_not() {
        let (table, count) = (Table::new(), Census::default());
        let pages = table.pages();
        let content = Content { lo: 0, hi: 4096, source: Source::Log(5) };
        for turn in 0..WAYS as u64 {
            assert!(pages.insert(
                Slot::new(2),
                Page::new(7 + turn * SETS as u64),
                content,
                Seq::new(1),
                &count
            ));
        }
        assert!(!pages.has_room(Slot::new(2), Page::new(7)));
        assert!(!pages.insert(Slot::new(2), Page::new(7 + 8 * SETS as u64), content, Seq::new(1), &count));
        assert!(pages.insert(Slot::new(2), Page::new(8), content, Seq::new(1), &count));
    }

    #[test]
    fn a_range_is_cut_at_page_boundaries() {
        let cut = |offset, bytes| {
            pieces(offset, bytes).map(|(page, lo, hi)| (page.number(), lo, hi)).collect::<Vec<_>>()
        };
        assert_eq!(cut(0, 4096), [(0, 0, 4096)]);
        assert_eq!(cut(4095, 2), [(0, 4095, 4096), (1, 0, 1)]);
        assert_eq!(cut(5000, 10_000), [(1, 904, 4096), (2, 0, 4096), (3, 0, 2712)]);
        assert_eq!(cut(u64::MAX - 1, 2), []);
        assert_eq!(cut((1 << 63) - 1, u64::MAX), [((1 << 51) - 1, 4095, 4096)]);
    }
}
