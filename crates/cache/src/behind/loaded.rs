//! What reads and writes do to loaded pages (`holdfast_board::Loaded`): a page is loaded by a read
//! that missed it, is kept as it is now by every write, and is dropped before anything else can
//! change it. All of it under the page's lock, or with the file's writers and readers kept out.

#[cfg(shuttle)]
use holdfast_board::model::{Mutation, mutated};
use holdfast_board::{PAGE_BYTES, Page, pieces};
use holdfast_media::Nvm;

use super::publish::{Payload, fetch};
use crate::calls::ReadCall;
use crate::client::Client;
use crate::errno::Errno;
use crate::file::FileRef;
use crate::lane::Lane;

/// Bytes move from the log to a frame in steps of this many.
const STEP_BYTES: usize = 512;

impl<N: Nvm> Client<N> {
    /// Whether pages of the file may be loaded.
    #[inline]
    pub(crate) fn has_loaded(&self, file: FileRef) -> bool {
        self.row(file).may_be_loaded()
    }

    /// Copies bytes of a loaded page, under its lock; false when it is not loaded.
    pub(super) fn read_loaded(&self, file: FileRef, page: Page, at: u32, buffer: &mut [u8]) -> bool {
        let loaded = self.board.loaded();
        let Some(found) = loaded.find(file.slot, page).filter(|_| self.has_loaded(file)) else {
            return false;
        };
        loaded.read(found, at, buffer);
        loaded.note_use(found);
        // It may have been evicted meanwhile.
        loaded.is_still(found)
    }

    /// Loads a page and copies bytes of it, under its lock; false when it cannot be loaded now.
    ///
    pub(super) fn load_and_read(
        &self,
        lane: &Lane<'_, N>,
        file: FileRef,
        page: Page,
        at: u32,
        buffer: &mut [u8],
        call: &mut impl ReadCall,
    ) -> Result<bool, Errno> {
        let loaded = self.board.loaded();
        if !self.row(file).state().lags() || !loaded.admits(file.slot, page) {
            return Ok(false);
        }
        let Some(taken) = loaded.take(lane.index(), file.slot, page) else { return Ok(false) };
        let filled = loaded.fill(&taken, |bytes| {
            read_whole(bytes, page.offset(), call)?;
            if let Some(row) = self.row_of_page(file, page)? {
                let (lo, hi) = (row.content.lo as usize, row.content.hi as usize);
                fetch(&self.board, &self.nvm, &row.content, row.content.lo, &mut bytes[lo..hi]);
            }
            buffer.copy_from_slice(&bytes[at as usize..][..buffer.len()]);
            Ok(())
        });
        match filled {
            Ok(()) => {
                // Before the page is there: who leaves the state looks at it with all others out.
                self.row(file).set_loaded(true);
                // A reader without the lock may have found the page here before it was evicted: the
                // frame has had another since.
                self.board.versions().note(file.slot, page);
                loaded.keep(taken);
                Ok(true)
            }
            Err(errno) => {
                loaded.give_back(taken);
                Err(errno)
            }
        }
    }

    /// Brings a durable record, entered in the page rows, to the loaded pages among its own. One
    /// that it covers whole is read straight from the log until it is drained, and need not be
    /// copied now.
    pub(super) fn refresh_loaded(&self, lane: &Lane<'_, N>, file: FileRef, payload: &Payload<'_>) {
        if !self.has_loaded(file) {
            return;
        }
        #[cfg(shuttle)]
        if mutated(Mutation::LoadedUnrefreshed) {
            return;
        }
        let loaded = self.board.loaded();
        for (page, lo, hi) in pieces(payload.offset, payload.bytes) {
            if hi - lo == PAGE_BYTES as u32 {
                loaded.note_stale(file.slot, page);
                continue;
            }
            let Some(taken) = loaded.take_loaded(lane.index(), file.slot, page) else { continue };
            let skip = page.offset() + u64::from(lo) - payload.offset;
            match payload.copy {
                Some(copy) => loaded.write(&taken, lo, &copy[skip as usize..][..(hi - lo) as usize]),
                None => {
                    let mut buffer = [0u8; STEP_BYTES];
                    let mut at = lo;
                    while at < hi {
                        let step = ((hi - at) as usize).min(STEP_BYTES);
                        let from = payload.media_offset + skip + u64::from(at - lo);
                        self.nvm.read(from, &mut buffer[..step]);
                        loaded.write(&taken, at, &buffer[..step]);
                        at += step as u32;
                    }
                }
            }
            loaded.keep(taken);
        }
    }

    /// Drops the loaded pages of a range, before the page cache changes there. The caller holds
    /// their locks or keeps everybody else out of the file.
    pub(crate) fn forget_loaded(&self, file: FileRef, offset: u64, bytes: u64) {
        if !self.has_loaded(file) {
            return;
        }
        let loaded = self.board.loaded();
        if bytes / PAGE_BYTES > loaded.len() as u64 {
            loaded.drop_file(file.slot, Page::of(offset));
        } else {
            pieces(offset, bytes).for_each(|(page, ..)| loaded.drop_page(file.slot, page));
        }
    }
}

/// Reads all of `bytes` from the page cache. What lies beyond its end of the file was never
/// written.
pub(super) fn read_whole(bytes: &mut [u8], offset: u64, call: &mut impl ReadCall) -> Result<(), Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match call.read(&mut bytes[done..], offset + done as u64)? {
            0 => break,
            more => done += more,
        }
    }
    bytes[done..].fill(0);
    Ok(())
}
