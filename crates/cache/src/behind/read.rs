//! Reading a file in state Behind: what page rows cover comes from the log or a frame, the rest from the kernel. Nothing
//! here waits for the keeper.

use core::sync::atomic::Ordering;

use holdfast_board::{FileState, PAGE_BYTES, pieces};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::publish::fetch;
use crate::client::{Client, Errno, FileRef, Place};
use crate::lane::{Entry, Lane};

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
    /// `raw` reads from the file itself at an offset, `cursor` reads the description's cursor and `seek` sets it; of a
    /// `place` at the end of the file there is nothing to read, so it counts as the cursor.
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
        if !self.has_rows(file) {
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
        if bytes == 0 {
            return Ok(0);
        }
        self.fill(file, offset, &mut buffer[..bytes], raw)?;
        if at_cursor {
            seek(offset + bytes as u64)?;
        }
        Ok(bytes)
    }

    /// Fills all of `buffer`, which ends within the file, under the page locks.
    fn fill(
        &self,
        file: FileRef,
        offset: u64,
        buffer: &mut [u8],
        mut raw: impl FnMut(&mut [u8], u64) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let pages = self.board.pages();
        let bytes = buffer.len() as u64;
        let is_whole = |(page, lo, hi): (u64, u32, u32)| {
            pages.find(file.slot, page).is_some_and(|row| row.content.lo <= lo && hi <= row.content.hi)
        };
        if !pieces(offset, bytes).all(is_whole) {
            let mut done = 0;
            while done < buffer.len() {
                match raw(&mut buffer[done..], offset + done as u64)? {
                    // The page cache ends here; what lies between it and the rows was never written.
                    0 => break,
                    more => done += more,
                }
            }
            buffer[done..].fill(0);
        }
        for (page, lo, hi) in pieces(offset, bytes) {
            let Some(row) = pages.find(file.slot, page) else { continue };
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
