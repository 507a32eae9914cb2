//! A write, up to where the designs part: room in the log, the announcement, the state of the file;
//! and what all of them can fall back on.
//!
//! Room in the log (may sleep, and holds no lock) -> announcement on the lane -> state of the file
//! and generation of its slot -> the design of the state writes -> everything opened.

use crate::stop::NoRoom;
use crate::stop::Stop;

use holdfast_board::NO_SIZE;
#[cfg(not(shuttle))]
use holdfast_board::Page;
use holdfast_canary::{Canary, on};
use holdfast_media::{Bytes, Nvm};

use crate::calls::{WriteCall, Writing};
use crate::client::Client;
use crate::design::{Design, Designs, ToWrite, Write, Written};
use crate::errno::Errno;
use crate::file::{FileRef, Outcome, Place};
use crate::lane::{Entry, Lane, atomic_write_bytes_max};
use crate::stock::Stock;
use crate::through::Through;

type NoSeek = fn(u64) -> Result<(), Errno>;

impl<N: Nvm> Client<N> {
    /// As [`Client::write_by`], with the program's own call (without sync flags) and its cursor as
    /// functions; only writes at an offset can do without that call.
    ///
    /// # Errors
    /// As [`Client::write_by`].
    pub fn write(
        &self,
        file: FileRef,
        place: Place,
        parts: &[Bytes<'_>],
        raw: impl FnMut() -> Result<usize, Errno>,
        cursor: impl Fn() -> Result<u64, Errno>,
    ) -> Result<Outcome, Errno> {
        self.write_by::<Stock>(file, place, parts, &mut Writing(raw, cursor, None::<NoSeek>))
    }

    /// As [`Client::write`]; `seek` sets the description's cursor, so that writes at it can do
    /// without `raw` (state Behind).
    ///
    /// # Errors
    /// As [`Client::write_by`].
    pub fn write_seeking(
        &self,
        file: FileRef,
        place: Place,
        parts: &[Bytes<'_>],
        raw: impl FnMut() -> Result<usize, Errno>,
        cursor: impl Fn() -> Result<u64, Errno>,
        seek: impl Fn(u64) -> Result<(), Errno>,
    ) -> Result<Outcome, Errno> {
        self.write_by::<Stock>(file, place, parts, &mut Writing(raw, cursor, Some(seek)))
    }

    /// Absorbs a write: durable when it returns, visible only once durable (invariant 1). Writes of
    /// more than an eighth of the pool go around the log and are synced before they return.
    ///
    /// # Errors
    /// What the program's own call reported, or `EIO` when the keeper is dead (nothing is
    /// acknowledged then) or the disk failed.
    #[inline]
    pub fn write_by<D: Designs>(
        &self,
        file: FileRef,
        place: Place,
        parts: &[Bytes<'_>],
        call: &mut impl WriteCall,
    ) -> Result<Outcome, Errno> {
        let total: usize = parts.iter().map(Bytes::len).sum();
        if total == 0 {
            return Ok(Outcome::Kernel);
        }
        if let Some(outcome) = self.write_unsynced(file, call)? {
            return Ok(outcome);
        }
        // Before any lock: the record is not to be durable ahead of what is pending (invariant 10).
        self.follow_pending(file)?;
        let write = Write { file, place, parts, total: total as u64 };
        if write.total > atomic_write_bytes_max(&self.layout) {
            return self.write_around(&write, call);
        }
        #[cfg(not(shuttle))]
        if let Place::At(offset) = place
            && self.row(file).state().lags()
        {
            self.board.prefetch_page(file.slot, Page::of(offset));
        }
        // Step 0: space before any lock.
        let reserved = if on(Canary::ReserveLate) { self.take_lane() } else { self.reserve(write.total) };
        let mut lane = match reserved {
            Err(NoRoom::Full) => return self.write_around(&write, call),
            lane => lane?,
        };
        let state = match lane.enter(file, false)? {
            Entry::Absorbed(state) => state,
            // It was left to the kernel and taken back a moment ago.
            Entry::Unsynced => {
                lane.leave();
                return Ok(Outcome::Stale);
            }
            Entry::Kernel => return Ok(Outcome::Kernel),
            Entry::Stale => return Ok(Outcome::Stale),
        };
        let to_write = ToWrite { lane: &mut lane, write: &write, call: &mut *call };
        let Some(written) = D::dispatch(state, to_write) else {
            // Nobody here knows where its newest bytes are.
            lane.leave();
            return Err(Errno::EIO);
        };
        let is_taken = self.is_taken(file);
        lane.finish(file);
        drop(lane);
        match written {
            // Nothing was done: whoever has the file now is asked anew.
            Err(Stop::Taken) => return Ok(Outcome::Stale),
            Ok(Written::Done { bytes, .. } | Written::Misplaced { bytes }) if is_taken => {
                return Ok(Outcome::Passed { bytes });
            }
            _ => {}
        }
        match written? {
            Written::Alone => self.write_alone(&write, call),
            // Invariant: nothing is acknowledged after the keeper's death. The record was durable
            // before this look, so recovery, which starts later, finds every acknowledged one
            // (history 11).
            _ if !self.keeper_alive() => Err(Errno::EIO),
            Written::Done { bytes, offset } => Ok(Outcome::Absorbed { bytes, offset }),
            Written::Misplaced { bytes } => {
                // Invariant 5, in the rare race with a foreign append: on disk and expired before
                // it counts.
                self.settle(file, false)?;
                Ok(Outcome::Absorbed { bytes, offset: call.landed()?.saturating_sub(bytes as u64) })
            }
            // A record at a guessed place would be replayed there if a crash came before its
            // cancel.
            Written::SizeUnknown => self.write_around(&write, call),
        }
    }

    /// Logs a write and has the kernel make it, under the page locks of its range.
    ///
    /// # Errors
    /// What the kernel reported, or `EIO` when the keeper is dead.
    pub fn log_and_call(
        &self,
        lane: &mut Lane<'_, N>,
        write: &Write<'_>,
        offset: u64,
        call: &mut impl WriteCall,
    ) -> Result<Written, Stop> {
        let Write { file, place, parts, total } = *write;
        let row = self.row(file);
        let total =
            if on(Canary::RoomUnchecked) { parts.iter().map(|part| part.len() as u64).sum() } else { total };
        if on(Canary::ReserveLate) {
            lane.make_room(total).map_err(Errno::from)?;
        }
        self.forget_loaded(file, offset, total);
        let seq = lane.append_write(file, offset, total, parts)?;
        if row.state().lags() {
            row.note_written(lane.written_ns());
        }
        let result = call.write();
        let bytes = *result.as_ref().unwrap_or(&0);
        let end = offset + bytes as u64;
        let landed = match place {
            Place::Cursor { known: None } | Place::Append if bytes > 0 => call.landed()?,
            _ => end,
        };
        let kept = if landed == end { bytes as u64 } else { 0 };
        if kept < total {
            lane.cancel(file, seq, kept);
        }
        if bytes == 0 {
            return Ok(Written::Done { bytes: result?, offset });
        }
        if landed != end {
            self.forget_loaded(file, landed.saturating_sub(bytes as u64), bytes as u64);
            row.set_end(landed);
            return Ok(Written::Misplaced { bytes });
        }
        row.raise_end(end);
        self.note_recorded(row);
        lane.count_write(bytes as u64);
        Ok(Written::Done { bytes, offset })
    }

    /// A write too large for the log, or an append to an unknown end: settled before (invariant 5)
    /// and on disk when it returns.
    fn write_around(&self, write: &Write<'_>, call: &mut impl WriteCall) -> Result<Outcome, Errno> {
        let (file, place) = (write.file, write.place);
        if !self.is_current(file) {
            return Ok(Outcome::Stale);
        }
        let made = core::cell::RefCell::new(call);
        let size_after = |written: &Result<usize, Errno>| match (place, written) {
            (Place::Append, Ok(_)) => made.borrow().landed().unwrap_or(NO_SIZE),
            _ => NO_SIZE,
        };
        // Left to the kernel meanwhile: what it promises is the program's own to ask for.
        let Ok(written) = self.around_log(file, true, || made.borrow_mut().write(), size_after)? else {
            return Ok(Outcome::Kernel);
        };
        let bytes = written?;
        let offset = match place {
            Place::At(offset) => offset,
            Place::Cursor { .. } | Place::Append => made.borrow().landed()?.saturating_sub(bytes as u64),
        };
        Ok(self.outcome(file, Outcome::Absorbed { bytes, offset }))
    }

    /// A write of state Through in a file of which the page cache has everything, and whose other
    /// writers are kept out meanwhile.
    fn write_alone(&self, write: &Write<'_>, call: &mut impl WriteCall) -> Result<Outcome, Errno> {
        let file = write.file;
        let mut lane = match self.reserve(write.total) {
            Err(NoRoom::Full) => return self.write_around(write, call),
            lane => lane?,
        };
        if !self.board.lock_file(file.slot, self.id) {
            return Err(Errno::EIO);
        }
        let drained = self.drain_rows_for_call(file);
        let is_told = matches!(drained, Ok(true));
        lane.tell_calls(is_told);
        let result = drained.map_err(Stop::Error).and_then(|_| match lane.enter(file, true)? {
            Entry::Absorbed(_) => {
                let written = Through::write(&mut lane, write, call);
                lane.finish(file);
                if let Ok(Written::Misplaced { .. }) = written {
                    // Invariant 5, as in state Through.
                    self.settle(file, true).map_err(Errno::from)?;
                }
                written.map(Ok)
            }
            Entry::Unsynced | Entry::Kernel => Ok(Err(Outcome::Kernel)),
            Entry::Stale => Ok(Err(Outcome::Stale)),
        });
        let is_taken = self.is_taken(file);
        if is_told {
            self.tell_left(file);
        }
        self.unlock_file(file);
        drop(lane);
        match result {
            Err(Stop::Taken) => return Ok(Outcome::Stale),
            Ok(Ok(Written::Done { bytes, .. } | Written::Misplaced { bytes })) if is_taken => {
                return Ok(Outcome::Passed { bytes });
            }
            _ => {}
        }
        match result? {
            _ if !self.keeper_alive() => Err(Errno::EIO),
            Ok(Written::Done { bytes, offset }) => Ok(Outcome::Absorbed { bytes, offset }),
            Ok(Written::Misplaced { bytes }) => {
                Ok(Outcome::Absorbed { bytes, offset: call.landed()?.saturating_sub(bytes as u64) })
            }
            // It left state Behind meanwhile, and then lost its size.
            Ok(Written::SizeUnknown | Written::Alone) => self.write_around(write, call),
            Err(outcome) => Ok(outcome),
        }
    }
}
