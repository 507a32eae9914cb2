//! Times of files in state Behind: what the keeper brings to the kernel moves them there, and
//! programs must not see that (history 26).
//!
//! Every such write is made between two looks at the kernel's times, of which the board's row is
//! told before a page row leaves the table: whoever has the file for itself and finds no page row,
//! or had it drained, finds no such write under way either. The time of modification itself is set
//! back once a file is drained; the time of change cannot be set.

use std::io;

use holdfast_board::{Changes, FileTime, Times};
use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;
use holdfast_pool::{Left, LeftAt};

use super::file::ManagedFile;
use super::state::Durable;
use super::sync::Writers;
use super::upkeep::Upkeeps;
use holdfast_disk::{Disk, DiskFile, locked};

impl<N: Nvm, D: Disk, U: Upkeeps> Durable<N, D, U> {
    /// What programs see of a file's times now, if the kernel tells its own.
    fn times_shown(&self, file: &ManagedFile<D::File>, kernel: Times, now: Changes) -> Times {
        let account = self.board.times()[file.slot.index()].look(file.generation);
        account.map_or(kernel, |account| account.times(kernel, now))
    }

    /// Has the board keep a file's times, before it enters state Behind.
    pub(super) fn keep_times(&self, file: &ManagedFile<D::File>) {
        if !D::File::HAS_TIMES {
            return;
        }
        let _alone = locked(&file.times);
        let now = self.board.row(file.slot).changes();
        if let Ok(kernel) = file.held().times() {
            let row = &self.board.times()[file.slot.index()];
            row.begin(file.generation, self.times_shown(file, kernel, now), now);
            row.end(kernel);
            if self.is_current(file) {
                self.slots().set_left(file.slot, left_at(kernel));
            }
            self.board.header().times_kept.set(true);
        }
    }

    /// Changes a file through `target`, unseen in its times.
    pub(super) fn unseen_in_times<R>(
        &self,
        file: &ManagedFile<D::File>,
        target: &D::File,
        change: impl FnOnce(Times) -> R,
    ) -> R {
        if !D::File::HAS_TIMES {
            return change(Times::default());
        }
        let _alone = locked(&file.times);
        let now = self.board.row(file.slot).changes();
        let Ok(kernel) = target.times() else { return change(Times::default()) };
        let shown = self.times_shown(file, kernel, now);
        let row = &self.board.times()[file.slot.index()];
        row.begin(file.generation, shown, now);
        // Recovery tells by it whether anybody else changed the file since: should the keeper die,
        // this is the last it said.
        let is_current = self.is_current(file);
        if is_current {
            let since = self.disk.clock().now_ns / 1000;
            self.slots().set_left(file.slot, Left::InHandSince(since, None));
        }
        let done = change(shown);
        let kernel = target.times().unwrap_or_default();
        if is_current {
            self.slots().set_left(file.slot, left_at(kernel));
        }
        row.end(kernel);
        done
    }

    /// From here on programs change the file by calls of their own, or the keeper does in ways that
    /// it does not look at: how it was left says nothing any more, until it is left anew.
    pub(super) fn forget_left(&self, file: &ManagedFile<D::File>) {
        if !D::File::HAS_TIMES {
            return;
        }
        let _alone = locked(&file.times);
        if self.is_current(file) && self.slots().left(file.slot) != Left::Unknown {
            self.slots().set_left(file.slot, Left::Unknown);
        }
    }

    /// The program's own call is over for which that was forgotten, and nobody else may write to
    /// the file yet: how the kernel has it now is how it was left.
    pub(super) fn note_left(&self, file: &ManagedFile<D::File>) {
        let lags = self.board.files()[file.slot.index()].state().lags();
        if !D::File::HAS_TIMES || !lags {
            return;
        }
        let _alone = locked(&file.times);
        if let Ok(kernel) = file.held().times()
            && self.is_current(file)
        {
            self.slots().set_left(file.slot, left_at(kernel));
        }
    }

    /// Sets the kernel's time of modification of a drained file to what programs see. Not where the
    /// keeper may not do that: then outsiders see when the bytes came.
    pub(super) fn hand_times_over(
        &self,
        file: &ManagedFile<D::File>,
        target: Option<D::File>,
        writers: Writers,
    ) -> io::Result<()> {
        if !D::File::HAS_TIMES {
            return Ok(());
        }
        let account = self.board.times()[file.slot.index()].look(file.generation);
        if account.is_none_or(|account| account.owes().is_none()) || on(Canary::TimesKept) {
            return Ok(());
        }
        // Not while a program sets them.
        if writers != Writers::KeptOut && !self.try_claim(file) {
            return Ok(());
        }
        let set = target.map_or_else(|| self.open_for_writing(file), Ok).map(|target| {
            self.unseen_in_times(file, &target, |shown| {
                let _ = target.set_modified(shown.modified);
            });
        });
        if writers != Writers::KeptOut {
            self.let_go(file);
        }
        set
    }
}

/// How the keeper left a file of which the kernel says these times.
fn left_at(kernel: Times) -> Left {
    let us = |time: FileTime| {
        time.parts()
            .and_then(|(seconds, ns)| Some(u64::try_from(seconds).ok()? * 1_000_000 + ns as u64 / 1000))
    };
    match (us(kernel.changed), us(kernel.modified)) {
        (Some(changed_us), Some(modified_us)) => Left::At(LeftAt { changed_us, modified_us }),
        _ => Left::Unknown,
    }
}
