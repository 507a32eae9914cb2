//! Bringing what page rows hold to the page cache (state Behind).
//!
//! Draining writes to files and expires nothing: that is the business of the sync that follows. A
//! row leaves the table only after its bytes are in the page cache, under its page lock. Nothing
//! here waits for a client. Rows with bytes of records up to S go together, neighbours in one
//! write; `sync_file` computes S, drains, and syncs.

use holdfast_pool::{Seq, Slot};
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;

#[cfg(shuttle)]
use holdfast_board::model::{Mutation, mutated};
use holdfast_board::{Content, FilePage, PAGE_BYTES, Page, Source};
use holdfast_cache::behind::fetch;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::file::{Draining, ManagedFile};
use super::state::{Durable, KEEPER_LANE};
use super::sums::Summed;
use super::sync::{Pace, Writers};
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile};

/// Pages locked and written at once: a writer waits at most for so many.
const PIECE_PAGES: u64 = if cfg!(shuttle) { 1 } else { 32 };
/// The disk begins with what was drained after so many bytes.
const WRITE_BACK_BYTES: u64 = 4 << 20;
/// With fewer than one in this many segments free nobody waits for the writers any more.
const HURRY_FREE_FRACTION: u32 = 4;

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// [`Durable::drain`], of what page rows have.
    pub(super) fn drain_rows(
        &self,
        file: &ManagedFile<D::File>,
        seq: Seq,
        pace: Pace,
    ) -> io::Result<Option<D::File>> {
        let Some(_draining) = self.begin_drain(file) else { return Ok(None) };
        self.drain_pages(file, &self.pages_to_drain(file, seq), seq, pace)
    }

    /// Notes a drain until the result is dropped; `None` when the slot was given back: its rows are
    /// another file's by now, or will be.
    pub(super) fn begin_drain<'a>(&self, file: &'a ManagedFile<D::File>) -> Option<Draining<'a>> {
        let draining = file.note_draining();
        // After the note: whoever gives the slot back changes its generation first, and then waits
        // for who noted a drain.
        self.is_current(file).then_some(draining)
    }

    /// Drains pages of any files. Of a file that its disk refuses the rows stay. `done` hears of
    /// each file.
    pub(super) fn drain_of_files(
        &self,
        mut pages: Vec<FilePage>,
        pace: Pace,
        done: impl Fn(&ManagedFile<D::File>),
    ) {
        pages.sort_unstable();
        pages.dedup();
        for of_file in pages.chunk_by(|a, b| a.slot == b.slot) {
            let Some(file) = self.file_now(of_file[0].slot) else { continue };
            let Some(_draining) = self.begin_drain(&file) else { continue };
            let pages: Vec<Page> = of_file.iter().map(|of_file| of_file.page).collect();
            let _ = self
                .drain_pages(&file, &pages, Seq::MAX, pace)
                .inspect_err(|error| self.drain_failed(&file, error));
            done(&file);
        }
    }

    /// Drains these pages, which are in order.
    fn drain_pages(
        &self,
        file: &ManagedFile<D::File>,
        pages: &[Page],
        seq: Seq,
        pace: Pace,
    ) -> io::Result<Option<D::File>> {
        if pages.is_empty() {
            return Ok(None);
        }
        let target = self.open_for_writing(file)?;
        let (mut buffer, mut summed) = (Vec::new(), Summed::default());
        let (mut begun, mut since) = (pages[0].offset(), 0);
        for piece in
            pages.chunk_by(|a, b| a.next() == Some(*b)).flat_map(|run| run.chunks(PIECE_PAGES as usize))
        {
            let (offset, bytes) = (piece[0].offset(), piece.len() as u64 * PAGE_BYTES);
            // What was written over meanwhile has died in the log.
            if pace == Pace::Gentle && !piece.iter().any(|&page| self.is_due(file.slot, page, seq)) {
                continue;
            }
            let locked = !on(Canary::DrainStale);
            #[cfg(shuttle)]
            let locked = locked && !mutated(Mutation::DrainUnlocked);
            if locked && !self.lock_pages(file.slot, offset, bytes) {
                return Err(io::Error::other("the keeper is stopping"));
            }
            // Recovery tells others' changes by their time: this one is ours.
            self.beat();
            let drained = self.drain_piece((&target, file), piece, seq, &mut buffer, &mut summed);
            if !locked {
                drained?;
                continue;
            }
            self.unlock_pages(file.slot, offset, bytes);
            drained?;
            since += bytes;
            if since >= WRITE_BACK_BYTES && pace != Pace::Shown {
                target.begin_write_back(&(begun..offset + bytes));
                (begun, since) = (offset + bytes, 0);
            }
            let segments = self.superblock.layout.segment_count;
            if pace == Pace::Gentle && self.count_free() >= segments / HURRY_FREE_FRACTION {
                self.events.breathe();
            }
        }
        Ok(Some(target))
    }

    /// Whether a page has bytes from records up to `seq`, as far as can be seen without its lock.
    fn is_due(&self, slot: Slot, page: Page, seq: Seq) -> bool {
        let table = self.board.pages();
        !table.is_sound(slot, page) || table.find(slot, page).is_some_and(|row| row.oldest_seq <= seq)
    }

    /// Pages of a file with bytes from records up to `seq`, in order. Pages entered since are not
    /// among them. Those are whose rows, or others that could have been theirs, do not hold: who
    /// has their locks will see.
    fn pages_to_drain(&self, file: &ManagedFile<D::File>, seq: Seq) -> Vec<Page> {
        let row = self.board.row(file.slot);
        let table = self.board.pages();
        let mut pages = Vec::new();
        let rows = row.page_rows().get();
        // A stray store may say that there are none, and records that rows have would expire
        // (invariant 2).
        if rows == 0 && !self.is_dirty(file) {
            return pages;
        }
        let (size, mut found) = (row.end(), 0);
        if size.div_ceil(PAGE_BYTES) <= table.sets() {
            // As cheap as a look at the whole table, page by page.
            for page in Page::range(0, size) {
                let row = table.find(file.slot, page);
                found += u32::from(row.is_some());
                if row.is_some_and(|row| row.oldest_seq <= seq) || !table.is_sound(file.slot, page) {
                    pages.push(page);
                }
            }
            if found >= rows {
                return pages;
            }
            // Some are gone since, or lie where the file does not end by its size.
            pages.clear();
        }
        let mut broken = Vec::new();
        table.scan(
            file.slot,
            |of, row| {
                if of.slot == file.slot && row.oldest_seq <= seq {
                    pages.push(of.page);
                }
            },
            |page| broken.push(page),
        );
        pages.append(&mut broken);
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// Drains neighbouring pages, whose locks the caller holds: adjacent intervals in one write.
    pub(super) fn drain_piece(
        &self,
        (target, file): (&D::File, &ManagedFile<D::File>),
        piece: &[Page],
        seq: Seq,
        buffer: &mut Vec<u8>,
        summed: &mut Summed,
    ) -> io::Result<()> {
        let table = self.board.pages();
        let mut rows = Vec::with_capacity(piece.len());
        let mut offset = 0;
        buffer.clear();
        for &page in piece {
            if !table.is_sound(file.slot, page) && !on(Canary::RowsBelieved) {
                return Err(stored_into(page));
            }
            let Some(row) = table.find(file.slot, page).filter(|row| row.oldest_seq <= seq) else { continue };
            if !self.is_in_range(&row.content) && !on(Canary::RangesBelieved) {
                return Err(io::Error::other("the board says nonsense of its newest bytes"));
            }
            let at = page.offset() + u64::from(row.content.lo);
            if at != offset + buffer.len() as u64 {
                self.write_drained((target, file), offset, buffer, &mut rows, summed)?;
                offset = at;
            }
            let filled = buffer.len();
            buffer.resize(filled + (row.content.hi - row.content.lo) as usize, 0);
            fetch(&self.board, &self.nvm, &row.content, row.content.lo, &mut buffer[filled..]);
            rows.push(row);
        }
        self.write_drained((target, file), offset, buffer, &mut rows, summed)
    }

    /// Whether the bytes of a row are where there are any: clients enter rows, and may be wrong.
    fn is_in_range(&self, content: &Content) -> bool {
        let bytes = u64::from(content.hi - content.lo);
        match content.source {
            Source::Log(offset) => offset.checked_add(bytes).is_some_and(|end| end <= self.nvm.len()),
            Source::Frame(frame) => frame.index() < self.board.frames().len(),
        }
    }

    fn write_drained(
        &self,
        (target, file): (&D::File, &ManagedFile<D::File>),
        offset: u64,
        buffer: &mut Vec<u8>,
        rows: &mut Vec<holdfast_board::Row>,
        summed: &mut Summed,
    ) -> io::Result<()> {
        if !buffer.is_empty() {
            self.check_sums(file, offset, (rows, buffer), summed)?;
            self.unseen_in_times(file, target, |_| target.write_all_at(buffer, offset))?;
            self.drained_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        }
        let slot = file.slot;
        let count = &self.board.row(slot).page_rows();
        let mut at = 0;
        for row in rows.drain(..) {
            let bytes = &buffer[at..at + (row.content.hi - row.content.lo) as usize];
            let page = Page::of(offset + at as u64);
            // What is read often stays at hand when its record goes.
            self.board.loaded().refill(KEEPER_LANE, slot, page, bytes);
            at += bytes.len();
            self.board.pages().remove(row.index, count);
            if let Source::Frame(frame) = row.content.source {
                self.board.frames().free(frame);
            }
        }
        buffer.clear();
        Ok(())
    }

    /// Drains the pages of a range whose locks a dead lane holds. It may say any range: those are
    /// looked at that have rows.
    pub(super) fn drain_held(
        &self,
        target: &D::File,
        file: &ManagedFile<D::File>,
        (offset, bytes): (u64, u64),
    ) -> io::Result<()> {
        let (first, end) = (Page::of(offset), offset.saturating_add(bytes).div_ceil(PAGE_BYTES));
        let table = self.board.pages();
        let mut pages = Vec::new();
        if end - first.number() <= table.sets() || on(Canary::RangesBelieved) {
            pages.extend(Page::range(offset, bytes));
        } else {
            let mut broken = Vec::new();
            table.scan(
                file.slot,
                |of, _| {
                    if of.slot == file.slot && (first..Page::new(end)).contains(&of.page) {
                        pages.push(of.page);
                    }
                },
                |page| broken.push(page),
            );
            pages.append(&mut broken);
            pages.sort_unstable();
            pages.dedup();
        }
        let (mut buffer, mut summed) = (Vec::new(), Summed::default());
        for piece in pages.chunks(PIECE_PAGES as usize) {
            self.drain_piece((target, file), piece, Seq::MAX, &mut buffer, &mut summed)?;
        }
        Ok(())
    }

    /// Drains all of a file whose writers are kept out.
    pub fn drain_all(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        let target = self.drain(file, Seq::MAX, Pace::Shown)?;
        // A client that died between counting a row and entering it left the count too high. A
        // drain beside this one may have taken its last row out, and be about to count that.
        let is_last = !file.is_draining() && self.is_current(file);
        #[cfg(shuttle)]
        let is_last = is_last || mutated(Mutation::CountClearedAmidDrain);
        if is_last {
            self.board.row(file.slot).page_rows().clear();
        }
        self.hand_times_over(file, target, Writers::KeptOut)
    }

    /// Whether page rows still say that the log alone has bytes, though everything seems to be on
    /// the disk: something stored into what says whose they are. That is told of the files. Nobody
    /// writes any more.
    pub fn has_rows_left(&self) -> bool {
        let (mut slots, mut is_any) = (BTreeSet::new(), false);
        self.board.pages().scan(Slot::new(0), |of, _| _ = slots.insert(of.slot), |_| is_any = true);
        for slot in &slots {
            let file = self.file_now(*slot).map(|file| file.meta().path.display().to_string());
            self.events.trouble(format!(
                "{}: something stored into what memory says of it: the log alone has bytes of it, and keeps them",
                file.as_deref().unwrap_or("a file")
            ));
        }
        is_any || !slots.is_empty()
    }

    /// Drops all loaded pages of a file: whoever reads without a lock finds nothing from here on,
    /// before the page cache can change without us. The caller keeps the file's writers and readers
    /// out.
    pub(super) fn drop_loaded(&self, file: &ManagedFile<D::File>) {
        let row = self.board.row(file.slot);
        if row.may_be_loaded() {
            self.board.loaded().drop_file(file.slot, Page::FIRST);
            row.set_loaded(false);
        }
    }
}

/// Nothing of a set of rows is believed of which one does not hold: nobody knows which page it was
/// of, so each file fails that has a page there.
fn stored_into(page: Page) -> io::Error {
    let message = format!(
        "something stored into what memory says of where its newest bytes are, at byte {} or beside it; none of \
         them goes to the file, and the log has what was written",
        page.offset()
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}
