//! Truncate, punch, and calls that no record can express.

use crate::stop::NoRoom;

use holdfast_board::NO_SIZE;
use holdfast_canary::{Canary, on};
use holdfast_log::Kind;
use holdfast_media::Nvm;

use crate::client::Client;
use crate::design::{Designs, Resize, ToResize, ToSeeIdle};
use crate::errno::Errno;
use crate::file::{FileRef, Outcome};
use crate::lane::{Entry, Lane};
use crate::stock::Stock;

impl<N: Nvm> Client<N> {
    /// Absorbs a truncation to `size`: durable intent, the kernel's call, cancel on failure
    /// (invariant 7).
    ///
    /// # Errors
    /// What `raw` reported, or `EIO` when the keeper is dead.
    pub fn truncate(
        &self,
        file: FileRef,
        size: u64,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Outcome, Errno> {
        self.resize_by::<Stock>(&Resize { file, kind: Kind::Truncate, offset: size, extent: 0 }, raw)
    }

    /// Absorbs a punched hole of `bytes` from `offset` on; as [`Client::truncate`].
    ///
    /// # Errors
    /// What `raw` reported, or `EIO` when the keeper is dead.
    pub fn punch(
        &self,
        file: FileRef,
        offset: u64,
        bytes: u64,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Outcome, Errno> {
        self.resize_by::<Stock>(&Resize { file, kind: Kind::Punch, offset, extent: bytes }, raw)
    }

    /// [`Client::truncate`] and [`Client::punch`], with a set of designs.
    ///
    /// # Errors
    /// What `raw` reported, or `EIO` when the keeper is dead.
    pub fn resize_by<D: Designs>(
        &self,
        resize: &Resize,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Outcome, Errno> {
        let (file, offset) = (resize.file, resize.offset);
        // Before any lock: as a write's (invariant 10).
        self.follow_pending(file)?;
        let mut lane = match self.reserve(0) {
            Err(NoRoom::Full) => return self.change_around(file, offset, raw),
            lane => lane?,
        };
        if !self.board.lock_file(file.slot, self.id) {
            return Err(Errno::EIO);
        }
        let row = self.row(file);
        let is_idle = D::dispatch(row.state(), ToSeeIdle(self, resize)) == Some(true);
        let drained = if is_idle { Ok(false) } else { self.drain_rows_for_call(file) };
        let is_told = matches!(drained, Ok(true));
        lane.tell_calls(is_told);
        let entered = drained.and_then(|_| lane.enter(file, true));
        let result = match entered {
            Ok(Entry::Absorbed(state)) => {
                let resized = D::dispatch(state, ToResize { lane: &mut lane, resize, is_idle, raw });
                lane.finish(file);
                // Nobody here knows where its newest bytes are.
                let resized = resized.unwrap_or(Err(Errno::EIO));
                resized.map(|()| Outcome::Absorbed { bytes: 0, offset })
            }
            Ok(Entry::Kernel) => Ok(Outcome::Kernel),
            Ok(Entry::Stale) => Ok(Outcome::Stale),
            Ok(Entry::Unsynced) => {
                let result = raw();
                lane.finish(file);
                result.map(|()| Outcome::Passed { bytes: 0 })
            }
            Err(errno) => Err(errno),
        };
        let result = result.map(|outcome| self.outcome(file, outcome));
        if is_told {
            self.tell_left(file);
        }
        self.unlock_file(file);
        if result.is_ok() && !self.keeper_alive() {
            return Err(Errno::EIO);
        }
        result
    }

    /// Logs a resize and has the kernel make it. The caller has the file exclusively, and the page
    /// cache has all of it.
    ///
    /// # Errors
    /// What the kernel reported.
    pub fn log_resize(
        &self,
        lane: &mut Lane<'_, N>,
        resize: &Resize,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Resize { file, kind, offset, extent } = *resize;
        let row = self.row(file);
        let changed = if kind == Kind::Punch { extent } else { u64::MAX - offset };
        self.forget_loaded(file, offset, changed);
        self.board.header().note_resize();
        let (seq, result) = if on(Canary::ResizeLoggedLate) {
            let result = raw();
            (lane.append_called(file, kind, offset, extent), result)
        } else {
            (lane.append_called(file, kind, offset, extent), raw())
        };
        match result {
            Err(_) => {
                lane.cancel(file, seq, 0);
                // A kernel whose disk refuses may have cut the file all the same: that is no
                // outsider's doing.
                if kind == Kind::Truncate && row.state().keeps_up() {
                    row.forget_end();
                }
            }
            Ok(()) if kind == Kind::Truncate => {
                row.set_end(offset);
            }
            Ok(()) => {}
        }
        self.board.header().note_resize();
        if result.is_ok() {
            self.note_recorded(row);
        }
        self.board.header().truncates_absorbed.add(1);
        result
    }

    /// A truncation or a punched hole without room in the log: on disk when it returns.
    fn change_around(
        &self,
        file: FileRef,
        offset: u64,
        raw: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<Outcome, Errno> {
        if !self.is_current(file) {
            return Ok(Outcome::Stale);
        }
        match self.around_log(file, true, raw, |_| NO_SIZE)? {
            Ok(result) => result.map(|()| self.outcome(file, Outcome::Absorbed { bytes: 0, offset })),
            Err(raw) => raw().map(|()| Outcome::Kernel),
        }
    }

    /// Makes a call that changes the file in a way the log cannot hold: everything before it is on
    /// disk and expired, and so is its own effect when this returns (invariant 5).
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed; the call was then perhaps not made.
    pub fn around<R>(&self, file: FileRef, raw: impl FnOnce() -> R) -> Result<R, Errno> {
        Ok(self.around_log(file, true, raw, |_| NO_SIZE)?.unwrap_or_else(|raw| raw()))
    }

    /// As [`Client::around`], for calls that fill in content from elsewhere (`copy_file_range`,
    /// `sendfile`, `splice`): their effect is durable at the next sync, as natively. Records
    /// written later are newer, so a replay never covers it.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed; the call was then perhaps not made.
    pub fn around_content<R>(&self, file: FileRef, raw: impl FnOnce() -> R) -> Result<R, Errno> {
        Ok(self.around_log(file, false, raw, |_| NO_SIZE)?.unwrap_or_else(|raw| raw()))
    }

    /// Gives `raw` back unused when the file is left to the kernel. `size_after` tells the file's
    /// size after the call, or [`NO_SIZE`].
    pub(crate) fn around_log<R, F: FnOnce() -> R>(
        &self,
        file: FileRef,
        durable: bool,
        raw: F,
        size_after: impl FnOnce(&R) -> u64,
    ) -> Result<Result<R, F>, Errno> {
        let state = self.row(file).state();
        if !self.is_current(file) {
            return Ok(Err(raw));
        }
        // Its records cannot be expired, and a replay would cover what the call does (invariant 5).
        if state.is_failed() {
            return Err(Errno::EIO);
        }
        if !state.is_managed() {
            return Ok(Err(raw));
        }
        if !self.board.lock_file(file.slot, self.id) {
            return Err(Errno::EIO);
        }
        let row = self.row(file);
        let left = if self.is_current(file) { self.leave_behind_locked(file, false) } else { Ok(()) };
        let result = if let Err(errno) = left {
            Err(errno)
        } else if self.is_current(file) && row.state().keeps_up() {
            // With the writers out, a file without live records has none until the call is over.
            let has_records = row.has_live_records();
            let settles = has_records && !on(Canary::AroundUnsettled);
            let settled = if settles { self.settle(file, true) } else { Ok(()) };
            settled.map_err(Errno::from).and_then(|()| {
                // Should we die in the call, nobody knows the size.
                row.forget_end();
                let done = raw();
                row.set_end(size_after(&done));
                row.note_unlogged();
                if durable && !on(Canary::AroundUnsynced) {
                    self.settle(file, true)?;
                }
                Ok(Ok(done))
            })
        } else if self.is_current(file) && row.state().is_unsynced() {
            // As durable as it is natively; whoever asks for more waits for the lock.
            Ok(Ok(raw()))
        } else {
            Ok(Err(raw))
        };
        self.unlock_file(file);
        result
    }
}
