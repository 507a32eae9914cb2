//! Reading a file in state Behind under its page locks: what is loaded or covered by page rows comes from memory, the
//! rest from the kernel. Nothing here waits for the keeper. Most reads of hot pages end before they come here (`glance.rs`).

use core::sync::atomic::Ordering;

use holdfast_board::{FileState, PAGE_BYTES, Row, pieces};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::loaded::read_whole;
use super::publish::fetch;
use crate::client::{Client, Errno, FileRef, Place};
use crate::lane::{Entry, Lane};

/// Reads of more bytes load no pages: they come once, and are the kernel's strength.
const LOAD_BYTES_MAX: usize = 16 << 10;

/// What became of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// This many bytes are in the buffer.
    Done(usize),
    /// The kernel knows all of the file: make the call.
    Kernel,
    /// The slot was given back meanwhile: look the file up again.
    Stale,
}

impl<N: Nvm> Client<N> {
    /// Reads into `buffer` what the file holds now: every write that was acknowledged before the call, in any process.
    ///
    /// `raw` reads from the file itself at an offset, `cursor` reads the description's cursor and `seek` sets it, always after
    /// `cursor`: so `cursor` may move it ahead to where it will most likely be. Of a `place` at the end of the file there
    /// is nothing to read, so it counts as the cursor.
    ///
    /// # Errors
    /// What `raw` reported, or `EIO` when the keeper is dead.
    pub fn read(
        &self,
        file: FileRef,
        place: Place,
        buffer: &mut [u8],
        raw: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
        cursor: impl Fn() -> Result<u64, Errno>,
        seek: impl Fn(u64) -> Result<(), Errno>,
    ) -> Result<Reading, Errno> {
        if !self.is_current(file) {
            return Ok(Reading::Stale);
        }
        if !self.reads_here(file) || buffer.len() > LOAD_BYTES_MAX && !self.has_rows(file) {
            return Ok(Reading::Kernel);
        }
        let mut lane = self.take_lane()?;
        match lane.enter_reading(file)? {
            Entry::Behind => {}
            Entry::Stale => return Ok(Reading::Stale),
            Entry::Through | Entry::Kernel => return Ok(Reading::Kernel),
        }
        let read = self.read_entered(&lane, file, place, buffer, raw, cursor, seek);
        lane.finish(file);
        drop(lane);
        let bytes = read?;
        if self.keeper_alive() { Ok(Reading::Done(bytes)) } else { Err(Errno::EIO) }
    }

    /// Whether the page cache may lack bytes of the file, or its size.
    pub(crate) fn has_rows(&self, file: FileRef) -> bool {
        // Without rows all of it is in the page cache: a row is counted before it is there and until its bytes are.
        matches!(self.row(file).state(), FileState::Behind | FileState::Failed)
            && self.row(file).page_rows.load(Ordering::SeqCst) > 0
    }

    /// Whether reads of the file are answered here: from the log, from loaded pages, or by loading them.
    #[inline]
    pub fn reads_here(&self, file: FileRef) -> bool {
        self.has_rows(file) || self.row(file).state() == FileState::Behind && !self.board.loaded().is_empty()
    }

    #[allow(clippy::too_many_arguments)]
    fn read_entered(
        &self,
        lane: &Lane<'_, N>,
        file: FileRef,
        place: Place,
        buffer: &mut [u8],
        raw: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
        cursor: impl Fn() -> Result<u64, Errno>,
        seek: impl Fn(u64) -> Result<(), Errno>,
    ) -> Result<usize, Errno> {
        let at_cursor = !matches!(place, Place::At(_));
        let offset = match place {
            Place::At(offset) => offset,
            Place::Cursor { .. } | Place::Append => {
                self.lock_cursor(self.row(file), lane)?;
                cursor()?
            }
        };
        let read = self.read_at(lane, file, offset, buffer, raw);
        if at_cursor {
            // Whatever came of it: `cursor` may have moved it ahead.
            seek(offset + *read.as_ref().unwrap_or(&0) as u64)?;
        }
        read
    }

    fn read_at(
        &self,
        lane: &Lane<'_, N>,
        file: FileRef,
        offset: u64,
        buffer: &mut [u8],
        mut raw: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let room = (i64::MAX as u64).saturating_sub(offset).min(buffer.len() as u64);
        if room == 0 {
            return Ok(0);
        }
        if !on(Canary::ReadsUnlocked) {
            lane.lock_pages(file, offset, room)?;
        }
        // Under the locks: who raised the size this far has entered all that lies below it in our pages.
        let size = self.row(file).size_hint.load(Ordering::SeqCst);
        let bytes = size.saturating_sub(offset).min(room) as usize;
        if bytes > 0 {
            self.fill(lane, file, offset, &mut buffer[..bytes], &mut raw)?;
        }
        Ok(bytes)
    }

    /// Fills all of `buffer`, which ends within the file, under the page locks: page by page what is loaded or covered by
    /// a row, and runs of pages that are neither from the page cache.
    fn fill(
        &self,
        lane: &Lane<'_, N>,
        file: FileRef,
        offset: u64,
        buffer: &mut [u8],
        raw: &mut impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let bytes = buffer.len() as u64;
        let is_few = bytes <= LOAD_BYTES_MAX as u64;
        let mut missed = 0..0;
        for (page, lo, hi) in pieces(offset, bytes) {
            let at = (page * PAGE_BYTES + u64::from(lo) - offset) as usize;
            let part = at..at + (hi - lo) as usize;
            if self.is_at_hand(file, page, lo, &mut buffer[part.clone()])
                || is_few && self.load_and_read(lane, file, page, lo, &mut buffer[part.clone()], raw)?
            {
                self.fill_missed(file, offset, buffer, missed, raw)?;
                missed = part.end..part.end;
            } else {
                missed.end = part.end;
            }
        }
        self.fill_missed(file, offset, buffer, missed, raw)
    }

    /// Copies bytes of one page from where they are in memory; false when that is nowhere.
    fn is_at_hand(&self, file: FileRef, page: u64, lo: u32, part: &mut [u8]) -> bool {
        if self.read_loaded(file, page, lo, part) {
            return true;
        }
        let row = self.board.pages().find(file.slot, page);
        let covers = |row: &Row| row.content.lo <= lo && lo + part.len() as u32 <= row.content.hi;
        let Some(row) = row.filter(covers) else { return false };
        fetch(&self.board, &self.nvm, &row.content, lo, part);
        true
    }

    /// Fills a range of `buffer` from the page cache, and lays over it what rows have.
    fn fill_missed(
        &self,
        file: FileRef,
        offset: u64,
        buffer: &mut [u8],
        missed: core::ops::Range<usize>,
        raw: &mut impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        if missed.is_empty() {
            return Ok(());
        }
        let (offset, buffer) = (offset + missed.start as u64, &mut buffer[missed]);
        read_whole(buffer, offset, raw)?;
        for (page, lo, hi) in pieces(offset, buffer.len() as u64) {
            let Some(row) = self.board.pages().find(file.slot, page) else { continue };
            let (from, to) = (row.content.lo.max(lo), row.content.hi.min(hi));
            if from < to {
                let at = (page * PAGE_BYTES + u64::from(from) - offset) as usize;
                let part = &mut buffer[at..at + (to - from) as usize];
                fetch(&self.board, &self.nvm, &row.content, from, part);
            }
        }
        Ok(())
    }

    /// Whether files may be in state Behind at all.
    #[inline]
    pub fn writes_behind(&self) -> bool {
        self.board.header().write_behind.word.load(Ordering::Relaxed) != 0
    }

    /// Whether there is a file of which the page cache may lack bytes: one load.
    #[inline]
    pub fn may_hide_bytes(&self) -> bool {
        self.board.header().behind_files.word.load(Ordering::SeqCst) != 0
    }

    /// Whether the page cache may lack bytes of this file. The answer is no for a slot that was given back.
    #[inline]
    pub fn hides_bytes(&self, file: FileRef) -> bool {
        self.has_rows(file)
    }

    /// Size, and time of the last write in nanoseconds since 1970 (0: as the kernel says), of a file of which the kernel
    /// does not know them.
    pub fn look(&self, file: FileRef) -> Option<(u64, u64)> {
        let row = self.row(file);
        let (size, written_ns) =
            (row.size_hint.load(Ordering::SeqCst), row.written_ns.load(Ordering::SeqCst));
        (self.has_rows(file) && self.is_current(file)).then_some((size, written_ns))
    }
}
