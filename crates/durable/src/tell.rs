//! Telling the kernel that files in state Behind have changed: their size and times, which
//! outsiders look at without opening them.
//!
//! It does so by an ordinary drain of a page or two, under their locks: the end of a file that
//! grew, else what was written last. So it has no rules of its own, and a truncation or a program's
//! `utimens`, which drain first, come after it or before it.

use holdfast_pool::Seq;
use std::io;

use holdfast_board::{PAGE_BYTES, Page};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use super::file::ManagedFile;
use super::state::Durable;
use super::sums::Summed;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile};

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// [`Durable::tell`], of what page rows have.
    pub(super) fn tell_by_rows(&self, file: &ManagedFile<D::File>) -> io::Result<()> {
        let row = self.board.row(file.slot);
        if row.page_rows().get() == 0 {
            return Ok(());
        }
        let size = row.end();
        let mut pages = vec![row.written_page()];
        if file.held().stat()?.size < size {
            pages.insert(0, Page::of(size - 1));
            pages.dedup();
        }
        let Some(_draining) = self.begin_drain(file) else { return Ok(()) };
        let mut target = None;
        let mut buffer = Vec::new();
        for page in pages {
            if self.board.pages().find(file.slot, page).is_none() {
                continue;
            }
            let target = match &target {
                Some(target) => target,
                None => target.insert(self.open_for_writing(file)?),
            };
            let offset = page.offset();
            let locked = !on(Canary::TellUnlocked);
            if locked && !self.lock_pages(file.slot, offset, PAGE_BYTES) {
                return Err(io::Error::other("the keeper is stopping"));
            }
            // Recovery tells others' changes by their time: this one is ours.
            self.beat();
            let told =
                self.drain_piece((target, file), &[page], Seq::MAX, &mut buffer, &mut Summed::default());
            if locked {
                self.unlock_pages(file.slot, offset, PAGE_BYTES);
            }
            told?;
        }
        Ok(())
    }
}
