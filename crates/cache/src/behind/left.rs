//! How a file in state Behind is left by calls of a program's own: recovery tells by it whether
//! anybody else changed the file after a death.
//!
//! Whoever makes such a call has the file for itself, and no page row is left: so no write of the
//! keeper's is under way, which says the same of its own writes.

use holdfast_board::{FileTime, Times};
use holdfast_media::Nvm;
use holdfast_pool::{Left, LeftAt, Slots};

use crate::client::{Client, FileRef};

/// How a file of which the kernel says these times was left.
pub fn left_at(kernel: Times) -> Left {
    let us = |time: FileTime| {
        time.parts()
            .and_then(|(seconds, ns)| Some(u64::try_from(seconds).ok()? * 1_000_000 + ns as u64 / 1000))
    };
    match (us(kernel.changed), us(kernel.modified)) {
        (Some(changed_us), Some(modified_us)) => Left::At(LeftAt { changed_us, modified_us }),
        _ => Left::Unknown,
    }
}

impl<N: Nvm> Client<N> {
    /// A call follows that moves the file's times, and its caller has the file for itself.
    pub(crate) fn forget_left(&self, file: FileRef) {
        self.set_left(file, Left::Unknown);
    }

    /// The call was made, and the kernel says these times since; its caller still has the file for
    /// itself.
    pub fn note_left(&self, file: FileRef, kernel: impl FnOnce() -> Option<Times>) {
        if self.keeps_left(file)
            && let Some(kernel) = kernel()
        {
            self.set_left(file, left_at(kernel));
        }
    }

    fn keeps_left(&self, file: FileRef) -> bool {
        let row = self.row(file);
        self.board.header().has_times.word.load(core::sync::atomic::Ordering::Relaxed) != 0
            && row.state().lags()
            && row.page_rows.get() == 0
            && self.is_current(file)
    }

    fn set_left(&self, file: FileRef, left: Left) {
        if !self.keeps_left(file) {
            return;
        }
        let slots = Slots { nvm: &self.nvm, layout: &self.layout };
        if left != Left::Unknown || slots.left(file.slot) != Left::Unknown {
            slots.set_left(file.slot, left);
        }
    }
}
