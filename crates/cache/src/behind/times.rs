//! Looking at files that are or were in state Behind: size and times that the kernel does not know,
//! or knows as of when the keeper brought it the bytes.

use holdfast_board::{Account, Changes, PAGE_BYTES, Seen, Times};
use holdfast_media::Nvm;

use crate::client::Client;
use crate::file::FileRef;

/// What the board says of a file's size and times.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether the page cache lacked bytes of it.
    hides: bool,
    /// That it had all of them.
    all: Option<Seen>,
    /// Pages of which the newest bytes are in the log alone.
    pages: u32,
    size: u64,
    /// Not known while whoever writes it stands still in that.
    account: Option<Account>,
    changes: Changes,
}

impl Look {
    /// Whether the kernel's answer before this look may have been of another moment than the
    /// look's: then it must be asked again. `before`: an earlier look, made before the kernel was
    /// asked.
    pub fn is_doubtful(&self, kernel: Times, before: Option<&Self>) -> bool {
        let is_about = |account: Account| account.is_in_hand() || account.is_as_left(kernel);
        let is_certain = self.hides && self.account.is_some_and(is_about);
        let found = |look: &Self| (look.hides, look.all, look.account);
        !is_certain && before.is_none_or(|before| found(before) != found(self))
    }

    /// The size, if the kernel does not know it.
    pub fn size(&self) -> Option<u64> {
        self.hides.then_some(self.size)
    }

    /// How many blocks of 512 bytes the file has on the disk, or will have: who finds none where
    /// there are bytes takes them for a hole. What the kernel knows, and the pages that it does not
    /// know of, since nobody tells which of them it has a block for; but no more than a file
    /// without holes.
    pub fn blocks(&self, kernel: u64) -> u64 {
        const PAGE_BLOCKS: u64 = PAGE_BYTES / 512;
        if !self.hides {
            return kernel;
        }
        let whole = self.size.div_ceil(PAGE_BYTES) * PAGE_BLOCKS;
        kernel.max((kernel + u64::from(self.pages) * PAGE_BLOCKS).min(whole))
    }

    /// The times of a file of which the kernel says `kernel`.
    pub fn times(&self, kernel: Times) -> Times {
        self.account.map_or(kernel, |account| account.times(kernel, self.changes))
    }
}

impl<N: Nvm> Client<N> {
    /// Whether the kernel may be wrong about any file's size or times: one load, to be made after
    /// it was asked.
    #[inline]
    pub fn knows_better(&self) -> bool {
        self.board.header().times_kept.is_on()
    }

    /// What the board says of a file's size and times; `None`: what the kernel says is right.
    pub fn look(&self, file: FileRef) -> Option<Look> {
        let row = self.row(file);
        // First: a page row leaves the table after the times of its drain came to the board.
        let (hides, all, pages) = (self.has_rows(file), row.page_rows().none(), row.page_rows().get());
        let changes = row.changes();
        let size = row.end();
        let account = self.board.times()[file.slot.index()].look(file.generation);
        let is_known = self.is_current(file) && (hides || account.is_some());
        is_known.then_some(Look { hides, all, pages, size, account, changes })
    }

    /// The size of a file of which the kernel does not know it.
    pub fn hidden_size(&self, file: FileRef) -> Option<u64> {
        let size = self.row(file).end();
        (self.has_rows(file) && self.is_current(file)).then_some(size)
    }

    /// Makes a program's call that sets times of a file: what it wrote before comes to the kernel
    /// before. `kernel` tells the kernel's times.
    pub fn set_times(
        &self,
        file: FileRef,
        raw: impl FnOnce() -> isize,
        kernel: impl FnOnce() -> Option<Times>,
    ) -> isize {
        let times = &self.board.times()[file.slot.index()];
        let is_kept = |client: &Self| {
            client.is_current(file)
                && (client.row(file).state().lags() || times.look(file.generation).is_some())
        };
        if !is_kept(self) || !self.board.lock_file(file.slot, self.id) {
            return raw();
        }
        if !is_kept(self) {
            self.unlock_file(file);
            return raw();
        }
        // Fails only when the keeper is dead or the disk refuses; then writes to the file fail,
        // too.
        let drained = self.drain_rows_for_call(file);
        let row = self.row(file);
        let result = raw();
        if result >= 0 && drained.is_ok() {
            // A write in the same tick of the clock is to be told from those before.
            row.forget_written();
            let before = row.changes();
            if let Some(kernel) = kernel() {
                times.settle(file.generation, kernel, before);
            }
        }
        if matches!(drained, Ok(true)) {
            self.tell_left(file);
        }
        self.unlock_file(file);
        result
    }
}
