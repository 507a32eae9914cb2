//! The write path of state Through.
//!
//! Room in the log (may sleep, and holds no lock) -> announcement on the lane -> state of the file
//! and generation of its slot -> page locks -> seq -> record, one fence -> the program's own call
//! -> a cancel record if that failed or was short -> everything opened. The record is fenced before
//! the call is made (invariant 1).

use core::sync::atomic::Ordering;

use holdfast_board::{FileRow, FileState, NO_SIZE};
use holdfast_canary::{Canary, on};
use holdfast_media::{Bytes, Nvm};

use crate::behind::Written as Behind;
use crate::client::{Client, Errno, FileRef, Outcome, Place};
use crate::lane::{Entry, Lane, atomic_write_bytes_max};

/// How the part under the locks ended.
pub(crate) enum Written {
    /// Logged and in the page cache.
    Done { bytes: usize, offset: u64 },
    /// The kernel put it elsewhere than the record says: the record is cancelled, the file must be
    /// settled.
    Misplaced { bytes: usize },
    /// Nothing happened: nobody knows where an append would go.
    SizeUnknown,
}

impl<N: Nvm> Client<N> {
    /// Absorbs a write: durable when it returns, visible only once durable (invariant 1).
    ///
    /// `raw` is the program's own call, without sync flags; `cursor` reads the description's
    /// cursor. Writes of more than an eighth of the pool go around the log and are synced before
    /// they return.
    ///
    /// # Errors
    /// What `raw` reported, or `EIO` when the keeper is dead (nothing is acknowledged then) or the
    /// disk failed.
    pub fn write(
        &self,
        file: FileRef,
        place: Place,
        parts: &[Bytes<'_>],
        raw: impl FnMut() -> Result<usize, Errno>,
        cursor: impl Fn() -> Result<u64, Errno>,
    ) -> Result<Outcome, Errno> {
        self.write_with(file, place, parts, raw, cursor, None)
    }

    /// As [`Client::write`]; `seek` sets the description's cursor, so that writes at it can do
    /// without `raw` (state Behind).
    ///
    /// # Errors
    /// As [`Client::write`].
    pub fn write_seeking(
        &self,
        file: FileRef,
        place: Place,
        parts: &[Bytes<'_>],
        raw: impl FnMut() -> Result<usize, Errno>,
        cursor: impl Fn() -> Result<u64, Errno>,
        seek: impl Fn(u64) -> Result<(), Errno>,
    ) -> Result<Outcome, Errno> {
        self.write_with(file, place, parts, raw, cursor, Some(&seek))
    }

    fn write_with(
        &self,
        file: FileRef,
        place: Place,
        parts: &[Bytes<'_>],
        mut raw: impl FnMut() -> Result<usize, Errno>,
        cursor: impl Fn() -> Result<u64, Errno>,
        seek: Option<&dyn Fn(u64) -> Result<(), Errno>>,
    ) -> Result<Outcome, Errno> {
        let total: usize = parts.iter().map(Bytes::len).sum();
        if total == 0 {
            return Ok(Outcome::Kernel);
        }
        if let Some(outcome) = self.write_unsynced(file, &mut raw)? {
            return Ok(outcome);
        }
        // Before any lock: the record is not to be durable ahead of what is pending (invariant 10).
        self.follow_pending(file)?;
        if total as u64 > atomic_write_bytes_max(&self.layout) {
            return self.write_around(file, place, raw, cursor);
        }
        #[cfg(not(shuttle))]
        if let Place::At(offset) = place
            && self.row(file).state() == FileState::Behind
        {
            self.board.prefetch_page(file.slot, offset / holdfast_board::PAGE_BYTES);
        }
        // Step 0: space before any lock.
        let reserved = if on(Canary::ReserveLate) { self.take_lane() } else { self.reserve(total as u64) };
        let mut lane = match reserved {
            Err(Errno::ENOSPC) => return self.write_around(file, place, raw, cursor),
            lane => lane?,
        };
        let written = match lane.enter(file, false)? {
            Entry::Behind => {
                match self.write_behind(&mut lane, file, place, parts, total as u64, &cursor, seek) {
                    Ok(Behind::Done { offset }) => Ok(Written::Done { bytes: total, offset }),
                    Ok(Behind::Apart { offset }) => {
                        let range = (offset, total as u64);
                        self.log_and_call(&mut lane, file, place, range, parts, &mut raw, &cursor)
                    }
                    Ok(Behind::Alone) => {
                        lane.finish(file);
                        drop(lane);
                        return self.write_alone(file, place, parts, &mut raw, &cursor);
                    }
                    Err(errno) => Err(errno),
                }
            }
            Entry::Through => {
                self.write_entered(&mut lane, file, place, parts, total as u64, &mut raw, &cursor)
            }
            // It was left to the kernel and taken back a moment ago.
            Entry::Unsynced => {
                lane.leave();
                return Ok(Outcome::Stale);
            }
            Entry::Kernel => return Ok(Outcome::Kernel),
            Entry::Stale => return Ok(Outcome::Stale),
        };
        let is_taken = self.is_taken(file);
        lane.finish(file);
        drop(lane);
        match written {
            // Nothing was done: whoever has the file now is asked anew.
            Err(Errno::TAKEN) => return Ok(Outcome::Stale),
            Ok(Written::Done { bytes, .. } | Written::Misplaced { bytes }) if is_taken => {
                return Ok(Outcome::Passed { bytes });
            }
            _ => {}
        }
        match written? {
            // Invariant: nothing is acknowledged after the keeper's death. The record was durable
            // before this look, so recovery, which starts later, finds every acknowledged one
            // (history 11).
            _ if !self.keeper_alive() => Err(Errno::EIO),
            Written::Done { bytes, offset } => Ok(Outcome::Absorbed { bytes, offset }),
            Written::Misplaced { bytes } => {
                // Invariant 5, in the rare race with a foreign append: on disk and expired before
                // it counts.
                self.settle(file, false)?;
                Ok(Outcome::Absorbed { bytes, offset: cursor()?.saturating_sub(bytes as u64) })
            }
            // A record at a guessed place would be replayed there if a crash came before its
            // cancel.
            Written::SizeUnknown => self.write_around(file, place, raw, cursor),
        }
    }

    /// Announces, locks, and writes: all but the clearing of announcement and locks, which the
    /// caller does whatever happens here.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn write_entered(
        &self,
        lane: &mut Lane<'_, N>,
        file: FileRef,
        place: Place,
        parts: &[Bytes<'_>],
        total: u64,
        raw: &mut impl FnMut() -> Result<usize, Errno>,
        cursor: &impl Fn() -> Result<u64, Errno>,
    ) -> Result<Written, Errno> {
        let row = self.row(file);
        let offset = match place {
            Place::At(offset) => {
                // Not while an append is under way, whose record says already where the file ends.
                if offset.saturating_add(total) > row.size_hint.load(Ordering::SeqCst) {
                    self.lock_cursor(row, lane)?;
                }
                offset
            }
            Place::Cursor { known } => {
                self.lock_cursor(row, lane)?;
                known.map_or_else(cursor, Ok)?
            }
            Place::Append => {
                self.lock_cursor(row, lane)?;
                match row.size_hint.load(Ordering::SeqCst) {
                    NO_SIZE => return Ok(Written::SizeUnknown),
                    size => size,
                }
            }
        };
        if offset.checked_add(total).is_none_or(|end| end > i64::MAX as u64) {
            // The kernel knows the right error; nothing will be written.
            return raw().map(|bytes| Written::Misplaced { bytes });
        }
        lane.lock_pages(file, offset, total)?;
        self.log_and_call(lane, file, place, (offset, total), parts, raw, cursor)
    }

    /// Logs a write and has the kernel make it, under the page locks.
    #[allow(clippy::too_many_arguments)]
    fn log_and_call(
        &self,
        lane: &mut Lane<'_, N>,
        file: FileRef,
        place: Place,
        (offset, total): (u64, u64),
        parts: &[Bytes<'_>],
        raw: &mut impl FnMut() -> Result<usize, Errno>,
        cursor: &impl Fn() -> Result<u64, Errno>,
    ) -> Result<Written, Errno> {
        let row = self.row(file);
        let total =
            if on(Canary::RoomUnchecked) { parts.iter().map(|part| part.len() as u64).sum() } else { total };
        if on(Canary::ReserveLate) {
            lane.make_room(total)?;
        }
        self.forget_loaded(file, offset, total);
        let seq = lane.append_write(file, offset, total, parts)?;
        if row.state() == FileState::Behind {
            row.written_ns.store(lane.written_ns(), Ordering::Relaxed);
        }
        let result = raw();
        let bytes = *result.as_ref().unwrap_or(&0);
        let end = offset + bytes as u64;
        let landed = match place {
            Place::Cursor { known: None } | Place::Append if bytes > 0 => cursor()?,
            _ => end,
        };
        let kept = if landed == end { bytes as u64 } else { 0 };
        if kept < total {
            lane.cancel(file, seq, kept);
        }
        if bytes == 0 {
            return result.map(|bytes| Written::Done { bytes, offset });
        }
        if landed != end {
            self.forget_loaded(file, landed.saturating_sub(bytes as u64), bytes as u64);
            row.size_hint.store(landed, Ordering::SeqCst);
            return Ok(Written::Misplaced { bytes });
        }
        if row.size_hint.load(Ordering::SeqCst) < end {
            row.size_hint.fetch_max(end, Ordering::SeqCst);
        }
        self.note_recorded(row);
        lane.count_write(bytes as u64);
        Ok(Written::Done { bytes, offset })
    }

    pub(crate) fn lock_cursor(&self, row: &FileRow, lane: &Lane<'_, N>) -> Result<(), Errno> {
        let header = self.board.header();
        if on(Canary::CursorOpen) || row.lock_cursor(lane.index(), header) {
            Ok(())
        } else {
            Err(self.unlocked())
        }
    }

    /// Why a lock was not to be had: the keeper is dead, or takes the file from who has the lock
    /// and stands still.
    pub(crate) fn unlocked(&self) -> Errno {
        if self.keeper_alive() { Errno::TAKEN } else { Errno::EIO }
    }

    /// A write too large for the log, or an append to an unknown end: settled before (invariant 5)
    /// and on disk when it returns.
    pub(crate) fn write_around(
        &self,
        file: FileRef,
        place: Place,
        mut raw: impl FnMut() -> Result<usize, Errno>,
        cursor: impl Fn() -> Result<u64, Errno>,
    ) -> Result<Outcome, Errno> {
        if !self.is_current(file) {
            return Ok(Outcome::Stale);
        }
        let size_after = |written: &Result<usize, Errno>| match (place, written) {
            (Place::Append, Ok(_)) => cursor().unwrap_or(NO_SIZE),
            _ => NO_SIZE,
        };
        // Left to the kernel meanwhile: what it promises is the program's own to ask for.
        let Ok(written) = self.around_log(file, true, &mut raw, size_after)? else {
            return Ok(Outcome::Kernel);
        };
        let bytes = written?;
        let offset = match place {
            Place::At(offset) => offset,
            Place::Cursor { .. } | Place::Append => cursor()?.saturating_sub(bytes as u64),
        };
        Ok(self.outcome(file, Outcome::Absorbed { bytes, offset }))
    }
}
