//! Reading without a lock, a lane or a system call: from loaded pages and from the log, under
//! versions (versions of the pages -> size -> copies -> versions again).
//!
//! A read that it cannot answer (a page that is neither loaded nor covered by a record,
//! somebody at work on a page, the end of the file) is left to `read.rs`. What it returns was
//! all true at one moment within the call.

use holdfast_board::{Found, PAGE_BYTES, Version, pieces};
use holdfast_media::Nvm;

use super::publish::fetch;
use crate::client::Client;
use crate::file::FileRef;

/// Pages that an optimistic read takes in.
const PAGES_MAX: usize = 5;
/// A read of more bytes is not made so.
pub const OPTIMISTIC_BYTES_MAX: usize = (PAGES_MAX - 1) * PAGE_BYTES as usize;

impl<N: Nvm> Client<N> {
    /// Fills `buffer`, of at most [`OPTIMISTIC_BYTES_MAX`] bytes, from `offset` on; returns how
    /// many bytes the file has there. `None`: ask [`Client::read`].
    #[inline]
    pub fn read_optimistically(&self, file: FileRef, offset: u64, buffer: &mut [u8]) -> Option<usize> {
        let row = self.row(file);
        let (has_loaded, has_rows) = (self.has_loaded(file), row.page_rows().hint() > 0);
        if !has_loaded && !has_rows
            || buffer.is_empty()
            || offset > i64::MAX as u64 - OPTIMISTIC_BYTES_MAX as u64
        {
            return None;
        }
        let (versions, loaded, pages) = (self.board.versions(), self.board.loaded(), self.board.pages());
        let mut seen = [(Version::default(), None::<Found>); PAGES_MAX];
        // All versions before any byte: if all stand afterwards, none of the pages changed between
        // the last of the first looks and the first of the second ones.
        for ((page, ..), seen) in pieces(offset, buffer.len() as u64).zip(&mut seen) {
            seen.0 = versions.get(file.slot, page)?;
        }
        // Between the looks, too: who makes the file longer within these pages changes them, who
        // cuts it drops them.
        let size = row.end_of_rows();
        let bytes = size.saturating_sub(offset).min(buffer.len() as u64);
        if bytes == 0 {
            return None;
        }
        for ((page, lo, hi), seen) in pieces(offset, bytes).zip(&mut seen) {
            let at = (page.offset() + u64::from(lo) - offset) as usize;
            let part = &mut buffer[at..at + (hi - lo) as usize];
            seen.1 = if has_loaded { loaded.find(file.slot, page) } else { None };
            if let Some(found) = seen.1 {
                loaded.read(found, lo, part);
            } else {
                let row = pages.find(file.slot, page).filter(|_| has_rows)?;
                if row.content.lo > lo || hi > row.content.hi || !row.holds {
                    return None;
                }
                fetch(&self.board, &self.nvm, &row.content, lo, part);
            }
        }
        for ((page, ..), seen) in pieces(offset, bytes).zip(&seen) {
            if !versions.stands(file.slot, page, seen.0)
                || seen.1.is_some_and(|found| !loaded.is_still(found))
            {
                return None;
            }
        }
        seen.iter().filter_map(|seen| seen.1).for_each(|found| loaded.note_use(found));
        (self.is_current(file) && self.keeper_alive()).then_some(bytes as usize)
    }
}
