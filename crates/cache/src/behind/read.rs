//! Reading a file in state Behind under its page locks: what is loaded or covered by page rows
//! comes from memory, the rest from the kernel. Nothing here waits for the keeper. Most reads of
//! hot pages end before they come here (`optimistic.rs`).
//!
//! Announcement on a lane -> page locks -> size -> what is loaded or in a row, the rest by `pread`,
//! which loads the page -> everything opened. Of a file without page rows larger reads, or all
//! where no page can be loaded, are the kernel's, and count if no row came meanwhile.

#[cfg(shuttle)]
use holdfast_board::model::{Mutation, mutated};
use holdfast_board::{Page, Row, pieces};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::loaded::read_whole;
use super::publish::fetch;
use crate::calls::{Buffers, ReadCall};
use crate::client::Client;
use crate::design::Read;
use crate::errno::Errno;
use crate::file::{FileRef, Place};
use crate::lane::Lane;

/// Reads of more bytes load no pages: they come once, and are the kernel's strength.
const LOAD_BYTES_MAX: usize = 16 << 10;

/// [`crate::Design::read`] of state Behind.
pub(super) fn read<N: Nvm, B: Buffers + ?Sized>(
    lane: &Lane<'_, N>,
    read: &Read,
    buffers: &mut B,
    call: &mut impl ReadCall,
) -> Result<usize, Errno> {
    let client = lane.client();
    let Read { file, place, bytes } = *read;
    let Place::At(offset) = place else {
        lane.lock_cursor(file)?;
        let offset = call.cursor()?;
        let read = match buffers.part(0) {
            // As for those at an offset, which the kernel was asked for before.
            Some(whole) if whole.len() >= bytes && client.leaves_to_kernel(file, bytes) => {
                client.read_by_kernel(file, || call.read(&mut whole[..bytes], offset))
            }
            _ => None,
        };
        let read = match read {
            Some(read) => read,
            None => client.read_locked(lane, file, (offset, bytes), buffers, call),
        };
        // Whatever came of it: `cursor` may have moved it ahead.
        call.set_cursor(offset + *read.as_ref().unwrap_or(&0) as u64)?;
        return read;
    };
    client.read_locked(lane, file, (offset, bytes), buffers, call)
}

impl<N: Nvm> Client<N> {
    /// Has the kernel read a file of which it has all bytes. `None` when it had not, or not all the
    /// time: what it read may then be half of a write, or a newer write without an older one, and
    /// counts for nothing.
    ///
    /// While there is no row, every change of the page cache is one call of the kernel's, which
    /// keeps its own promises: a write, a truncation, a punched hole. What makes one write of
    /// several calls (draining it, writing it again after a failed sync) is done while rows are
    /// counted. So a read during which none was counted is the kernel's own.
    #[inline]
    pub fn read_by_kernel<R>(&self, file: FileRef, raw: impl FnOnce() -> R) -> Option<R> {
        let rows = &self.row(file).page_rows();
        let seen = rows.none()?;
        let read = raw();
        #[cfg(shuttle)]
        if mutated(Mutation::KernelReadUnchecked) {
            return Some(read);
        }
        rows.still_none(seen).then_some(read)
    }

    /// Whether the kernel should be asked first ([`Client::read_by_kernel`]) for so many bytes at
    /// an offset.
    #[inline]
    pub fn leaves_to_kernel(&self, file: FileRef, bytes: usize) -> bool {
        let row = self.row(file);
        row.page_rows().hint() == 0
            && (bytes > LOAD_BYTES_MAX || self.board.loaded().is_empty() || !row.state().lags())
    }

    /// Whether the page cache may lack bytes of the file, or its size.
    pub(crate) fn has_rows(&self, file: FileRef) -> bool {
        // Without rows all of it is in the page cache: a row is counted before it is there and
        // until its bytes are.
        let row = self.row(file);
        let state = row.state();
        (state.lags() || state.is_failed()) && row.page_rows().get() > 0
    }

    /// Whether reads of the file may be answered here: from the log, from loaded pages, or by
    /// loading them. Those at the cursor are: what the kernel read there cannot be read again,
    /// should it count for nothing.
    #[inline]
    pub fn reads_here(&self, file: FileRef) -> bool {
        self.row(file).state().lags() || self.has_rows(file)
    }

    /// Whether the kernel can be asked at once. Not while rows are counted in state Through either:
    /// the keeper writes the log to the file again, and older bytes are back for that long.
    #[inline]
    pub fn is_in_kernel(&self, file: FileRef) -> bool {
        !self.reads_here(file) && self.row(file).page_rows().get() == 0
    }

    fn read_locked<B: Buffers + ?Sized>(
        &self,
        lane: &Lane<'_, N>,
        file: FileRef,
        (offset, bytes): (u64, usize),
        buffers: &mut B,
        call: &mut impl ReadCall,
    ) -> Result<usize, Errno> {
        let room = (i64::MAX as u64).saturating_sub(offset).min(bytes as u64);
        if room == 0 {
            return Ok(0);
        }
        if !on(Canary::ReadsUnlocked) {
            lane.lock_pages(file, offset, room)?;
        }
        // Under the locks: who raised the size this far has entered all that lies below it in our
        // pages.
        let size = self.row(file).end();
        let bytes = size.saturating_sub(offset).min(room) as usize;
        let (mut done, mut index) = (0, 0);
        while done < bytes
            && let Some(part) = buffers.part(index)
        {
            let take = part.len().min(bytes - done);
            self.fill(lane, file, offset + done as u64, &mut part[..take], bytes <= LOAD_BYTES_MAX, call)?;
            (done, index) = (done + take, index + 1);
        }
        Ok(done)
    }

    /// Fills all of `buffer`, which ends within the file, under the page locks: page by page what
    /// is loaded or covered by a row, and runs of pages that are neither from the page cache.
    fn fill(
        &self,
        lane: &Lane<'_, N>,
        file: FileRef,
        offset: u64,
        buffer: &mut [u8],
        is_few: bool,
        call: &mut impl ReadCall,
    ) -> Result<(), Errno> {
        let bytes = buffer.len() as u64;
        let mut missed = 0..0;
        for (page, lo, hi) in pieces(offset, bytes) {
            let at = (page.offset() + u64::from(lo) - offset) as usize;
            let part = at..at + (hi - lo) as usize;
            if self.is_at_hand(file, page, lo, &mut buffer[part.clone()])?
                || is_few && self.load_and_read(lane, file, page, lo, &mut buffer[part.clone()], call)?
            {
                self.fill_missed(file, offset, buffer, missed, call)?;
                missed = part.end..part.end;
            } else {
                missed.end = part.end;
            }
        }
        self.fill_missed(file, offset, buffer, missed, call)
    }

    /// Copies bytes of one page from where they are in memory; false when that is nowhere.
    fn is_at_hand(&self, file: FileRef, page: Page, lo: u32, part: &mut [u8]) -> Result<bool, Errno> {
        if self.read_loaded(file, page, lo, part) {
            return Ok(true);
        }
        let covers = |row: &Row| row.content.lo <= lo && lo + part.len() as u32 <= row.content.hi;
        let Some(row) = self.row_of_page(file, page)?.filter(covers) else { return Ok(false) };
        fetch(&self.board, &self.nvm, &row.content, lo, part);
        Ok(true)
    }

    /// The row of a page, under its lock. `EIO` when something stored into it: what it says of the
    /// newest bytes is not read, and older ones are not returned for them.
    pub(super) fn row_of_page(&self, file: FileRef, page: Page) -> Result<Option<Row>, Errno> {
        match self.board.pages().find(file.slot, page) {
            Some(row) if !row.holds => Err(Errno::EIO),
            found => Ok(found),
        }
    }

    /// Fills a range of `buffer` from the page cache, and lays over it what rows have.
    fn fill_missed(
        &self,
        file: FileRef,
        offset: u64,
        buffer: &mut [u8],
        missed: core::ops::Range<usize>,
        call: &mut impl ReadCall,
    ) -> Result<(), Errno> {
        if missed.is_empty() {
            return Ok(());
        }
        let (offset, buffer) = (offset + missed.start as u64, &mut buffer[missed]);
        read_whole(buffer, offset, call)?;
        for (page, lo, hi) in pieces(offset, buffer.len() as u64) {
            let Some(row) = self.row_of_page(file, page)? else { continue };
            let (from, to) = (row.content.lo.max(lo), row.content.hi.min(hi));
            if from < to {
                let at = (page.offset() + u64::from(from) - offset) as usize;
                let part = &mut buffer[at..at + (to - from) as usize];
                fetch(&self.board, &self.nvm, &row.content, from, part);
            }
        }
        Ok(())
    }

    /// Whether files may be in state Behind at all.
    #[inline]
    pub fn writes_behind(&self) -> bool {
        self.board.header().write_behind.seems_on()
    }

    /// Whether there is a file of which the page cache may lack bytes: one load.
    #[inline]
    pub fn may_hide_bytes(&self) -> bool {
        self.board.header().behind_files().get() != 0
    }

    /// Whether the page cache may lack bytes of this file. The answer is no for a slot that was
    /// given back.
    #[inline]
    pub fn hides_bytes(&self, file: FileRef) -> bool {
        self.has_rows(file)
    }
}
