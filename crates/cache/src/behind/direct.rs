//! What state Behind leaves to the page cache: draining a file with its writers kept out, and
//! leaving the state.
use holdfast_pool::Slot;

use holdfast_canary::{Canary, on};
use holdfast_media::Nvm;

use crate::client::Client;
use crate::errno::Errno;
use crate::file::FileRef;
use crate::request::FileRequest;

impl<N: Nvm> Client<N> {
    /// Has the keeper bring all page rows of a file to the page cache. The caller holds the file
    /// exclusively, and no page lock.
    fn drain_rows(&self, file: FileRef) -> Result<(), Errno> {
        self.drain_rows_if_any(file, false).map(|_| ())
    }

    /// As `drain_rows`, for a call of the program's own that changes the file. True: how the keeper
    /// left the file says nothing from here on, and the call is to be followed by
    /// [`Client::tell_left`].
    pub(crate) fn drain_rows_for_call(&self, file: FileRef) -> Result<bool, Errno> {
        self.drain_rows_if_any(file, true)
    }

    fn drain_rows_if_any(&self, file: FileRef, is_for_call: bool) -> Result<bool, Errno> {
        let row = self.row(file);
        if !row.state().lags() || row.page_rows().get() == 0 {
            return Ok(false);
        }
        let counts = self.board.header().has_times.seems_on();
        self.ask_about(file, FileRequest::Drain { for_call: is_for_call })?;
        Ok(is_for_call && counts)
    }

    /// The call is over: from here on whatever is done to the file is somebody else's doing, as
    /// recovery will judge it. The caller still holds the file exclusively.
    pub(crate) fn tell_left(&self, file: FileRef) {
        if !on(Canary::LeftUntold) {
            // Fails only when the keeper is dead: then nothing is acknowledged.
            let _ = self.ask_about(file, FileRequest::Left);
        }
    }

    /// As `drain_rows`, and leaves state Behind; `for_good`: never to come back to it.
    pub(crate) fn leave_behind_locked(&self, file: FileRef, for_good: bool) -> Result<(), Errno> {
        let state = self.row(file).state();
        let is_about = state.lags() || for_good && (state.is_absorbed() || state.is_unsynced());
        if !is_about {
            return Ok(());
        }
        self.ask_about(file, FileRequest::Through { for_good })?;
        Ok(())
    }

    /// Brings what only the log has to the page cache and leaves state Behind, for a call that
    /// reads the file where we cannot see it; `for_good` when it may go on doing so (a mapping).
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    pub fn leave_behind(&self, file: FileRef, for_good: bool) -> Result<(), Errno> {
        let (state, on) = (self.row(file).state(), self.writes_behind() || self.leases_files());
        // One in another state may be about to enter this one, or may after its first sync.
        let may_enter = on && (state.is_absorbed() || state.is_unsynced());
        if !self.is_current(file) || !(state.lags() || for_good && may_enter) {
            return Ok(());
        }
        if !self.board.lock_file(file.slot, self.id) {
            return Err(Errno::EIO);
        }
        let left = if self.is_current(file) { self.leave_behind_locked(file, for_good) } else { Ok(()) };
        self.row(file).unlock_exclusive(self.id);
        left
    }

    /// Brings what only the log has to the page cache, for a call that looks at the file once.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead or the disk failed.
    pub fn bring_to_kernel(&self, file: FileRef) -> Result<(), Errno> {
        if !self.is_current(file) || !self.row(file).state().lags() {
            return Ok(());
        }
        if !self.board.lock_file(file.slot, self.id) {
            return Err(Errno::EIO);
        }
        let drained = if self.is_current(file) { self.drain_rows(file) } else { Ok(()) };
        self.row(file).unlock_exclusive(self.id);
        drained
    }

    /// [`Client::bring_to_kernel`] for all files, before a call that syncs file systems.
    ///
    /// # Errors
    /// `EIO` when the bytes of some could not be brought there.
    pub fn bring_all_to_kernel(&self) -> Result<(), Errno> {
        let mut result = Ok(());
        for (slot, row) in self.board.files().iter().enumerate() {
            let file = FileRef { slot: Slot::at(slot), generation: row.generation() };
            let brought = self.bring_to_kernel(file);
            result = result.and(brought);
        }
        result
    }

    /// Keeps all files out of state Behind, from now on and for every client.
    pub fn forbid_behind(&self) {
        // Before the files are looked at: the keeper looks at it after it has let one into the
        // state.
        if !self.board.header().write_behind.put_out() {
            return;
        }
        for (slot, row) in self.board.files().iter().enumerate() {
            let file = FileRef { slot: Slot::at(slot), generation: row.generation() };
            // Fails only when the keeper is dead or the disk refuses; then writes to the file fail,
            // too.
            let _ = self.leave_behind(file, true);
        }
    }
}
