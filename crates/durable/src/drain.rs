//! Bringing what page rows hold to the page cache (state Behind), and entering and leaving that
//! state.
//!
//! Draining writes to files and expires nothing: that is the business of the sync that follows. A
//! row leaves the table only after its bytes are in the page cache, under its page lock. Nothing
//! here waits for a client. Rows with bytes of records up to S go together, neighbours in one
//! write; `sync_file` computes S, drains, and syncs.

use holdfast_pool::Slot;
use std::io;
use std::sync::atomic::Ordering;

#[cfg(shuttle)]
use holdfast_board::model::{Mutation, mutated};
use holdfast_board::{
    Content, FilePage, LaneIndex, NO_SIZE, PAGE_BYTES, Page, ROW_MEDIA_BYTES_MAX, Source, Way,
};
use holdfast_cache::behind::fetch;
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::file::Draining;
use super::settle::Synced;
use super::sums::Summed;
use super::{Durable, KEEPER_ID, ManagedFile, Upkeeps, Writers};
use holdfast_disk::{Disk, DiskFile};

/// Owner of page locks in the keeper's name; no lane has this number.
pub(super) const KEEPER_LANE: LaneIndex = LaneIndex::new(KEEPER_ID - 1);
/// Pages locked and written at once: a writer waits at most for so many.
const PIECE_PAGES: u64 = if cfg!(shuttle) { 1 } else { 32 };
/// Value of the board's `write_behind` with which new files do not wait.
pub const BEHIND_AT_ONCE: u32 = 2;
/// Space that must be left on a file system beyond what the log can hold.
const FREE_MARGIN_BYTES: u64 = 64 << 20;
/// The disk begins with what was drained after so many bytes.
const WRITE_BACK_BYTES: u64 = 4 << 20;
/// With fewer than one in this many segments free nobody waits for the writers any more.
const HURRY_FREE_FRACTION: u32 = 4;

/// How fast to drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Somebody waits until it is on the disk.
    Full,
    /// Somebody waits to see it: the disk is not asked for anything, whose queue they would wait
    /// for.
    Shown,
    /// Nobody does: the writers come first.
    Gentle,
}

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// [`Durable::drain`], of what page rows have.
    pub(super) fn drain_rows(
        &self,
        file: &ManagedFile<D::File>,
        seq: u64,
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

    /// Brings what lies in frames to the page cache once half of them are in use, so that there are
    /// always some for what is written next: without, a write that joins others goes to the page
    /// cache itself. Their records stay.
    pub fn drain_frames(&self) {
        let frames = self.board.frames();
        if frames.is_empty() || frames.rows().count() * 2 < frames.len() {
            return;
        }
        let table = self.board.pages();
        let is_behind =
            |slot: Slot| self.board.files().get(slot.index()).is_some_and(|row| row.state().lags());
        let pages = frames.rows().filter_map(|row| table.page_of(row)).filter(|page| is_behind(page.slot));
        self.drain_of_files(pages.collect(), Pace::Full, |file| {
            if on(Canary::FramesTakenForSync) {
                self.expire(file, Synced::of(self.board.settled_seq(file.slot)));
            }
        });
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
                .drain_pages(&file, &pages, u64::MAX, pace)
                .inspect_err(|error| self.drain_failed(&file, error));
            done(&file);
        }
    }

    /// Drains these pages, which are in order.
    pub(super) fn drain_pages(
        &self,
        file: &ManagedFile<D::File>,
        pages: &[Page],
        seq: u64,
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
            if locked && !self.board.page_locks().lock(KEEPER_LANE, file.slot, offset, bytes) {
                return Err(io::Error::other("the keeper is stopping"));
            }
            // Recovery tells others' changes by their time: this one is ours.
            self.beat();
            let drained = self.drain_piece((&target, file), piece, seq, &mut buffer, &mut summed);
            if !locked {
                drained?;
                continue;
            }
            self.board.page_locks().unlock(KEEPER_LANE, file.slot, offset, bytes);
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
    fn is_due(&self, slot: Slot, page: Page, seq: u64) -> bool {
        self.board.pages().find(slot, page).is_some_and(|row| row.oldest_seq <= seq)
    }

    /// Pages of a file with bytes from records up to `seq`, in order. Pages entered since are not
    /// among them.
    fn pages_to_drain(&self, file: &ManagedFile<D::File>, seq: u64) -> Vec<Page> {
        let row = self.board.row(file.slot);
        let table = self.board.pages();
        let mut pages = Vec::new();
        if row.page_rows.get() == 0 {
            return pages;
        }
        let size = row.size_hint.load(Ordering::SeqCst);
        if size.div_ceil(PAGE_BYTES) <= table.sets() {
            // As cheap as a look at the whole table, page by page.
            pages.extend(
                Page::range(0, size)
                    .filter(|&page| table.find(file.slot, page).is_some_and(|row| row.oldest_seq <= seq)),
            );
        } else {
            table.scan(|of, oldest| {
                if of.slot == file.slot && oldest <= seq {
                    pages.push(of.page);
                }
            });
            pages.sort_unstable();
        }
        pages
    }

    /// Drains neighbouring pages, whose locks the caller holds: adjacent intervals in one write.
    pub(super) fn drain_piece(
        &self,
        (target, file): (&D::File, &ManagedFile<D::File>),
        piece: &[Page],
        seq: u64,
        buffer: &mut Vec<u8>,
        summed: &mut Summed,
    ) -> io::Result<()> {
        let table = self.board.pages();
        let mut rows = Vec::with_capacity(piece.len());
        let mut offset = 0;
        buffer.clear();
        for &page in piece {
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
        let count = &self.board.row(slot).page_rows;
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
            table.scan(|of, _| {
                if of.slot == file.slot && (first..Page::new(end)).contains(&of.page) {
                    pages.push(of.page);
                }
            });
            pages.sort_unstable();
        }
        let (mut buffer, mut summed) = (Vec::new(), Summed::default());
        for piece in pages.chunks(PIECE_PAGES as usize) {
            self.drain_piece((target, file), piece, u64::MAX, &mut buffer, &mut summed)?;
        }
        Ok(())
    }

    /// Drains all of a file whose writers are kept out.
    pub fn drain_all(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        let target = self.drain(file, u64::MAX, Pace::Shown)?;
        // A client that died between counting a row and entering it left the count too high. A
        // drain beside this one may have taken its last row out, and be about to count that.
        let is_last = !file.is_draining() && self.is_current(file);
        #[cfg(shuttle)]
        let is_last = is_last || mutated(Mutation::CountClearedAmidDrain);
        if is_last {
            self.board.row(file.slot).page_rows.clear();
        }
        self.hand_times_over(file, target, Writers::KeptOut)
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

    /// Back to state Through. The caller keeps the file's writers out.
    pub fn leave_behind(&self, file: &ManagedFile<D::File>, for_good: bool) -> io::Result<()> {
        if for_good {
            file.meta().may_be_behind = false;
        }
        if let Some(way) = self.way_back(file)
            && self.is_current(file)
        {
            self.drain_all(file).inspect_err(|error| self.drain_failed(file, error))?;
            self.drop_loaded(file);
            self.board.go(file.slot, way);
            self.forget_left(file);
            let mut meta = file.meta();
            let must_rewrite = meta.rewrite;
            self.set_ahead(file, &mut meta, must_rewrite);
        }
        if for_good && file.lent().is_some() { self.end_lease(file) } else { Ok(()) }
    }

    /// As `leave_behind`, when a sync follows: the disk is at work meanwhile.
    pub(super) fn leave_behind_for_disk(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        if self.board.row(file.slot).state().lags() {
            self.drain(file, u64::MAX, Pace::Full).inspect_err(|error| self.drain_failed(file, error))?;
        }
        self.leave_behind(file, false)
    }

    /// Behind -> Through for good: somebody reads the file where we do not see it. Who reads a file
    /// may also sync it, and be told in our place that pages were lost: from here on we have a
    /// description of our own that is told as well (invariant 4).
    pub fn show(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        if !on(Canary::ReaderUnheard) {
            let opens = &self.board.row(file.slot).client_opens;
            file.description(opens).map(drop).inspect_err(|_| file.meta().rewrite = true)?;
        }
        if self.never_behind(file) && file.lent().is_none() {
            return Ok(());
        }
        if !self.hold(file)? {
            return Ok(());
        }
        let left = self.leave_behind(file, true);
        self.let_go(file);
        left
    }

    /// Whether [`Durable::show`] was called before, or has nothing to do: whoever reads the file
    /// sees everything. Waits for nobody.
    pub fn is_shown(&self, file: &ManagedFile<D::File>) -> bool {
        file.is_described() && self.never_behind(file) && file.lent().is_none()
    }

    /// Nobody but clients can see what a file holds from now on, and nobody had it open but who
    /// registered it: it may be in state Behind. A file that was just created waits for the next
    /// round of expiry, unless all shall go there `at_once`: most of those that live shorter are
    /// journals, which would only come back.
    pub fn allow_behind(&self, file: &ManagedFile<D::File>, created: bool) {
        file.meta().may_be_behind = true;
        if !created || self.board.header().write_behind.word.load(Ordering::SeqCst) == BEHIND_AT_ONCE {
            self.enter_behind(file);
        }
    }

    /// Through -> Behind, if the file may be (invariant 6) and write-behind is on.
    pub fn enter_behind(&self, file: &ManagedFile<D::File>) {
        let row = self.board.row(file.slot);
        if row.state().keeps_up() && self.may_be_behind(file) {
            self.enter(file, Way::EnterBehind);
        }
    }

    /// Takes a file from state Through to one in which the page cache may lag, if that can be now:
    /// nobody else can see what it lacks, and whoever asks may take it there. Whether it is there.
    pub fn enter(&self, file: &ManagedFile<D::File>, way: Way) -> bool {
        let row = self.board.row(file.slot);
        if self.open_for_writing(file).is_err() {
            // Its mode may keep us from draining it, though its writer has it open.
            file.meta().may_be_behind = false;
            return false;
        }
        // Never waiting: a client that has the file may wait for the thread we are on.
        if !matches!(self.try_hold(file), Ok(true)) {
            return false;
        }
        let stat = file.held().stat();
        // Held until the state is set: a removal that is announced afterwards sees it.
        let mut meta = file.meta();
        if let Ok(stat) = stat
            && row.state().keeps_up()
            && self.is_current(file)
            && stat.size < NO_SIZE
            // The kernel and the dynamic linker read programs and libraries without any hook, and a
            // write takes set-user-ID away.
            && stat.ownership.mode & 0o6111 == 0
            && meta.may_be_behind
        {
            // Before the state: readers and writers take the size from here.
            row.size_hint.store(stat.size, Ordering::SeqCst);
            // As before: who finds it in the state finds what is kept.
            self.keep_times(file);
            // Before the first write that only the log has.
            self.set_ahead(file, &mut meta, true);
            meta.seen.begin_behind(stat.size, self.board.header().resizes.get());
            self.board.go(file.slot, way);
            let header = self.board.header();
            meta.may_be_behind = !header.shown.has(stat.dev, stat.ino);
            if header.write_behind.word.load(Ordering::SeqCst) == 0 || !meta.may_be_behind {
                // A client forbade it, before or meanwhile. Nobody could enter yet.
                if let Some(way) = self.way_back(file) {
                    self.board.go(file.slot, way);
                }
                let must_rewrite = meta.rewrite;
                self.set_ahead(file, &mut meta, must_rewrite);
            }
        }
        drop(meta);
        let is_there = row.state().lags();
        row.unlock_exclusive(KEEPER_ID);
        is_there
    }

    /// Keeps a file out of state Behind for good; false when it is in it, and must leave it first.
    pub fn never_behind(&self, file: &ManagedFile<D::File>) -> bool {
        let mut meta = file.meta();
        meta.may_be_behind = false;
        !self.board.row(file.slot).state().lags()
    }

    /// Whether a file may be in state Behind now.
    pub fn may_be_behind(&self, file: &ManagedFile<D::File>) -> bool {
        let pool_bytes = self.superblock.layout.pool_bytes;
        let meta = file.meta();
        let named = meta.may_be_behind && meta.unlinking.is_none() && meta.bypass.is_none() && !meta.rewrite;
        drop(meta);
        named
            && self.board.header().write_behind.word.load(Ordering::SeqCst) != 0
            && pool_bytes <= ROW_MEDIA_BYTES_MAX
            && file.held().free_bytes().is_ok_and(|free| free >= pool_bytes + FREE_MARGIN_BYTES)
    }

    /// Takes files into state Behind and out of it, as the space on their disks allows (invariant
    /// 6).
    pub fn review_behind(&self) {
        if self.board.header().write_behind.word.load(Ordering::SeqCst) == 0 {
            return;
        }
        for file in self.managed() {
            let row = self.board.row(file.slot);
            let state = row.state();
            if state.keeps_up() {
                self.enter_behind(&file);
            } else if state.lags() && !self.may_be_behind(&file) && matches!(self.try_hold(&file), Ok(true)) {
                // What fails is reported, and tried again in the next round, as is a file that
                // somebody has now.
                let _ = self.leave_behind(&file, false);
                row.unlock_exclusive(KEEPER_ID);
            }
        }
    }
}
