//! Page rows: which bytes of a file are newer than the kernel's page cache, and where they are
//! (state Behind).
//!
//! A set-associative table with one set per page lock: a row is read and changed only under the
//! page lock of its page, so it needs no protocol of its own. A row holds one interval of bytes of
//! one page, and a check of all that it says: a stray store leaves a row that does not hold, which
//! nobody believes, and neither does a client that dies while it changes one (`Pages::mend`). A key
//! that was cleared leaves its check behind. Rows are hints where to find what the log holds:
//! nothing is in them alone.

use crate::census::Census;
use crate::mix::mix;
use crate::numbers::{AtomicSeq, Frame};
use crate::page::{FilePage, PAGE_BYTES, Page, home};
use crate::sync::{AtomicU64, Ordering};
use crate::versions::note_change;
use holdfast_pool::{Seq, Slot};

/// Rows per set: their keys fill one cache line.
pub const WAYS: usize = 8;
/// No file has so many pages.
const PAGES_MAX: u64 = 1 << 51;
/// Media offsets of larger pools do not fit a row.
pub const ROW_MEDIA_BYTES_MAX: u64 = 1 << 39;

/// Check of a row that is not in use.
const BLANK: u64 = 0;

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
    oldest_seq: AtomicSeq,
    /// [`check_of`] the key and these; [`BLANK`] of a row that is not in use.
    check: AtomicU64,
}

/// A row found in the table. Its number stays the same as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub index: usize,
    /// What it says.
    pub content: Content,
    /// No byte in it comes from an older record than this.
    pub oldest_seq: Seq,
    /// Whether it says what was put there; else nothing of it is to be believed.
    pub holds: bool,
}

/// What a row's words come to.
#[inline]
fn check_of(key: u64, content: u64, oldest_seq: Seq) -> u64 {
    let check = mix(key, content, oldest_seq.get());
    if check == BLANK { !BLANK } else { check }
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
        Some(self.get(first + way, key))
    }

    #[inline]
    fn get(&self, index: usize, key: u64) -> Row {
        let row = &self.rows[index];
        let oldest_seq = row.oldest_seq.load(Ordering::Acquire);
        let content = row.content.load(Ordering::Acquire);
        let holds = row.check.load(Ordering::Acquire) == check_of(key, content, oldest_seq);
        Row { index, content: Content::decode(content), oldest_seq, holds }
    }

    /// A way of the set that begins at `first` that has no row, nor what a cleared key left.
    #[inline]
    fn free_way(&self, first: usize) -> Option<usize> {
        (first..first + WAYS).find(|&index| {
            self.keys[index].load(Ordering::Relaxed) == 0
                && self.rows[index].check.load(Ordering::Relaxed) == BLANK
        })
    }

    /// Whether a row for one more page of this set fits.
    pub fn has_room(&self, slot: Slot, page: Page) -> bool {
        self.free_way(self.locate(slot, page).0).is_some()
    }

    /// Whether all rows hold that could be that of this page, whatever their keys say by now: if
    /// so, and it is not found, it has none. Without the page's lock the answer may be no in vain.
    pub fn is_sound(&self, slot: Slot, page: Page) -> bool {
        self.is_sound_from(self.locate(slot, page).0)
    }

    fn is_sound_from(&self, first: usize) -> bool {
        (first..first + WAYS).all(|index| match self.keys[index].load(Ordering::Acquire) {
            0 => self.rows[index].check.load(Ordering::Acquire) == BLANK,
            key => self.get(index, key).holds,
        })
    }

    /// Enters a page that has no row; false when its set is full. `count` counts the rows of the
    /// file: it is raised before the row is there and lowered after it has gone, so that it is
    /// never too low.
    pub fn insert(&self, slot: Slot, page: Page, content: Content, seq: Seq, count: &Census) -> bool {
        let (first, key) = self.locate(slot, page);
        let Some(index) = self.free_way(first) else { return false };
        let (row, content) = (&self.rows[index], content.encode());
        row.content.store(content, Ordering::Relaxed);
        row.oldest_seq.store(seq, Ordering::Relaxed);
        row.check.store(check_of(key, content, seq), Ordering::Release);
        count.enter();
        note_change(&self.changes[first / WAYS]);
        self.keys[index].store(key, Ordering::Release);
        true
    }

    /// The record `seq` holds all of `content`: nothing older is needed any more.
    pub fn replace(&self, index: usize, content: Content, seq: Seq) {
        self.change(index, content.encode(), seq);
    }

    /// The newest record has bytes in `content`, beside those that were there.
    pub fn extend(&self, index: usize, content: Content) {
        self.redirect(index, content);
    }

    /// The bytes of a row were copied to `content`, durably and with their seqs.
    pub fn redirect(&self, index: usize, content: Content) {
        self.change(index, content.encode(), self.rows[index].oldest_seq.load(Ordering::Relaxed));
    }

    /// The check goes first: whoever dies in between leaves what was there before, or a part of
    /// what was to come, with the check of what was to come ([`Pages::mend`]).
    #[inline]
    fn change(&self, index: usize, content: u64, oldest_seq: Seq) {
        // Who reads without a lock may be copying from the old place, which is about to be reused.
        note_change(&self.changes[index / WAYS]);
        let (row, key) = (&self.rows[index], self.keys[index].load(Ordering::Relaxed));
        row.check.store(check_of(key, content, oldest_seq), Ordering::Release);
        row.content.store(content, Ordering::Release);
        row.oldest_seq.store(oldest_seq, Ordering::Release);
    }

    /// Puts right what somebody left of the row of a page who died in the midst of a change of it,
    /// for the record `seq`, whose bytes of the page are `of_record`. `joined` are the frames that
    /// it may have been about to join them in. What a stray store left stays as it is. Returns the
    /// frame that the row does not need any more.
    pub fn mend(
        &self,
        (slot, page): (Slot, Page),
        of_record: Content,
        seq: Seq,
        joined: impl IntoIterator<Item = Frame>,
    ) -> Option<Frame> {
        let (first, key) = self.locate(slot, page);
        let Some(row) = self.find(slot, page) else {
            for index in first..first + WAYS {
                // Its key was the last that would have been stored.
                if self.keys[index].load(Ordering::Relaxed) == 0 && self.get(index, key).holds {
                    self.rows[index].check.store(BLANK, Ordering::Release);
                }
            }
            return None;
        };
        if row.holds {
            return None;
        }
        let check = self.rows[row.index].check.load(Ordering::Relaxed);
        let (old, Content { lo, hi, .. }) = (row.content, of_record);
        let own = match old.source {
            Source::Frame(frame) => Some(frame),
            Source::Log(_) => None,
        };
        if check == check_of(key, of_record.encode(), seq) {
            self.replace(row.index, of_record, seq);
            return own;
        }
        let was_to_be = |frame| {
            let merged = Content { lo: lo.min(old.lo), hi: hi.max(old.hi), source: Source::Frame(frame) };
            check == check_of(key, merged.encode(), row.oldest_seq)
        };
        if own.into_iter().chain(joined).any(was_to_be) {
            self.extend(row.index, old);
        }
        None
    }

    /// Whether the row of a page says that `lo..hi` of it come from records newer than `seq`. Needs
    /// no lock: its check is that of one moment.
    pub fn is_newer(&self, slot: Slot, page: Page, (lo, hi): (u32, u32), seq: Seq) -> bool {
        self.find(slot, page).is_some_and(|row| {
            let Row { content, oldest_seq, holds, .. } = row;
            holds && oldest_seq > seq && content.lo <= lo && hi <= content.hi
        })
    }

    /// Takes a row out.
    pub fn remove(&self, index: usize, count: &Census) {
        note_change(&self.changes[index / WAYS]);
        self.keys[index].store(0, Ordering::Release);
        self.rows[index].check.store(BLANK, Ordering::Release);
        count.leave();
    }

    /// Visits page and row of all rows, without any lock: what is found may have gone, what was
    /// there before the call and is not found has gone. Of each set in which something does not
    /// hold, `broken` hears, with a page of `slot` that has its lock.
    pub fn scan(&self, slot: Slot, mut visit: impl FnMut(FilePage, Row), mut broken: impl FnMut(Page)) {
        let sets = self.set_count();
        for first in (0..self.keys.len()).step_by(WAYS) {
            // Nothing was ever there: it need not be fetched.
            let is_new = self.changes[first / WAYS].load(Ordering::Acquire) == 0;
            let mut is_sound = true;
            for index in first..first + WAYS {
                let key = self.keys[index].load(Ordering::Acquire);
                if key == 0 {
                    is_sound &= is_new || self.rows[index].check.load(Ordering::Acquire) == BLANK;
                    continue;
                }
                let row = self.get(index, key);
                is_sound &= row.holds;
                if let Some(page) = self.page_of_key(index, key) {
                    visit(page, row);
                }
            }
            if !is_sound {
                broken(self.first_page(slot, first / WAYS, sets));
            }
        }
    }

    /// The first page of a file that lies in a set.
    fn first_page(&self, slot: Slot, set: usize, sets: u64) -> Page {
        Page::new((set as u64 + sets - home(slot, Page::FIRST, sets)) % sets)
    }

    /// The page of the row with this number, without any lock.
    pub fn page_of(&self, index: usize) -> Option<FilePage> {
        self.page_of_key(index, self.keys.get(index)?.load(Ordering::Acquire))
    }

    fn page_of_key(&self, index: usize, key: u64) -> Option<FilePage> {
        let slot = Slot::from_word(key as u32 & ((1 << SLOT_BITS) - 1))?;
        let sets = self.set_count();
        let low = self.first_page(slot, index / WAYS, sets).number();
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
                            pages.extend(row.index, content);
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
        pages.scan(
            Slot::new(3),
            |page, row| assert!(found.insert((page.slot, page.page), row.oldest_seq).is_none() && row.holds),
            |page| panic!("{page} is broken"),
        );
        let expected: HashMap<_, _> = model.into_iter().map(|(key, (_, seq))| (key, seq)).collect();
        assert_eq!(found, expected);
    }

    /// Whatever one store changes: the page's row does not hold, or it cannot be found and one
    /// beside it does not hold.
    #[test]
    fn a_row_that_something_was_stored_into_is_not_believed() {
        let (table, count) = (Table::new(), Census::default());
        let pages = table.pages();
        let (slot, page) = (Slot::new(3), Page::new(1000));
        let content = Content { lo: 7, hi: 4000, source: Source::Log(12_345) };
        assert!(pages.insert(slot, page, content, Seq::new(9), &count));
        let index = pages.find(slot, page).unwrap().index;
        let row = &table.1[index];
        let words = [&table.0[index], &row.content, &row.check];
        let seqs = [0, 1, 8, 10, 1 << 40, u64::MAX].map(Seq::new);
        let broken = || {
            let mut broken = Vec::new();
            pages.scan(slot, |_, _| (), |page| broken.push(page));
            broken
        };
        let is_seen = |what: &str| {
            assert!(!pages.is_sound(slot, page), "{what}");
            assert!(pages.find(slot, page).is_none_or(|row| !row.holds), "{what}");
            assert!(!pages.is_newer(slot, page, (7, 4000), Seq::new(1)), "{what}");
            let [of_set] = broken()[..] else { panic!("{what}: {:?}", broken()) };
            assert!(of_set.number() % SETS as u64 == page.number() % SETS as u64, "{what}: {of_set}");
        };
        for (which, word) in words.into_iter().enumerate() {
            let was = word.load(Ordering::Relaxed);
            let flips = (0..64).map(|bit| was ^ 1 << bit);
            for stray in flips.chain([0, u64::MAX, was << 8, u64::from(u32::MAX)]) {
                word.store(stray, Ordering::Relaxed);
                is_seen(&format!("word {which}: {was:#x} to {stray:#x}"));
                // Nobody enters another page where it was.
                for way in 0..WAYS as u64 {
                    let other = Page::new(page.number() + (way + 1) * SETS as u64);
                    if pages.insert(slot, other, content, Seq::new(9), &count) {
                        let other = pages.find(slot, other).unwrap();
                        assert!(other.index != index);
                        pages.remove(other.index, &count);
                    }
                }
                word.store(was, Ordering::Relaxed);
            }
        }
        for seq in seqs {
            row.oldest_seq.store(seq, Ordering::Relaxed);
            is_seen(&format!("seq {seq:?}"));
        }
        row.oldest_seq.store(Seq::new(9), Ordering::Relaxed);
        assert!(pages.is_sound(slot, page) && broken().is_empty());
        assert!(pages.is_newer(slot, page, (7, 4000), Seq::new(1)));
        // The highest bits of two words do not make up for each other.
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            for word in [words[one], words[other]] {
                word.fetch_xor(1 << 63, Ordering::Relaxed);
            }
            is_seen("two bits");
            for word in [words[one], words[other]] {
                word.fetch_xor(1 << 63, Ordering::Relaxed);
            }
        }
    }

    /// Of a change, the words that were stored before its writer died.
    #[test]
    fn a_change_that_somebody_died_in_is_put_right_and_a_stray_store_is_not() {
        const SEQ: Seq = Seq::new(20);
        let of_record = Content { lo: 100, hi: 200, source: Source::Log(777) };
        let in_frame = |lo, hi, frame| Content { lo, hi, source: Source::Frame(Frame::new(frame)) };
        let olds = [
            Content { lo: 120, hi: 130, source: Source::Log(5) },
            in_frame(110, 150, 4),
            in_frame(50, 110, 4),
            Content { lo: 150, hi: 300, source: Source::Log(5) },
        ];
        for old in olds {
            let is_replaced = old.is_within(100, 200);
            let own = if let Source::Frame(frame) = old.source { Some(frame) } else { None };
            let frame = own.unwrap_or(Frame::new(9)).number();
            let merged = in_frame(old.lo.min(100), old.hi.max(200), frame);
            let (new, seq) = if is_replaced { (of_record, SEQ) } else { (merged, Seq::new(3)) };
            // Check, content, seq.
            for stored in 0..=3 {
                for is_stray in [false, true] {
                    let (table, count) = (Table::new(), Census::default());
                    let (pages, at) = (table.pages(), (Slot::new(3), Page::new(5)));
                    assert!(pages.insert(at.0, at.1, old, Seq::new(3), &count));
                    let (index, key) = (pages.find(at.0, at.1).unwrap().index, pages.locate(at.0, at.1).1);
                    let row = &table.1[index];
                    if stored > 0 {
                        row.check.store(check_of(key, new.encode(), seq), Ordering::Relaxed);
                    }
                    if stored > 1 {
                        row.content.store(new.encode(), Ordering::Relaxed);
                    }
                    if stored > 2 {
                        row.oldest_seq.store(seq, Ordering::Relaxed);
                    }
                    if is_stray {
                        row.check.fetch_xor(1 << (stored * 20), Ordering::Relaxed);
                    }
                    let left = pages.mend(at, of_record, SEQ, [8, 9].map(Frame::new));
                    let row = pages.find(at.0, at.1).unwrap();
                    assert_eq!(row.holds, !is_stray, "{old:?} {stored}");
                    if !is_stray {
                        assert!([old, new].contains(&row.content), "{row:?}");
                        assert!(row.oldest_seq == if row.content == of_record { SEQ } else { Seq::new(3) });
                        assert_eq!(left, own.filter(|_| is_replaced && stored == 1), "{old:?} {stored}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_whose_writer_died_before_its_key_leaves_its_way_free() {
        let (table, count) = (Table::new(), Census::default());
        let (pages, at) = (table.pages(), (Slot::new(3), Page::new(5)));
        let content = Content { lo: 0, hi: 9, source: Source::Log(0) };
        assert!(pages.insert(at.0, at.1, content, Seq::new(3), &count));
        let index = pages.find(at.0, at.1).unwrap().index;
        table.0[index].store(0, Ordering::Relaxed);
        assert!(!pages.is_sound(at.0, at.1));
        pages.mend((at.0, Page::new(6 + SETS as u64)), content, Seq::new(3), []);
        assert!(!pages.is_sound(at.0, at.1), "it was none of that page");
        pages.mend(at, content, Seq::new(3), []);
        assert!(pages.is_sound(at.0, at.1) && pages.free_way(index / WAYS * WAYS) == Some(index));
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
