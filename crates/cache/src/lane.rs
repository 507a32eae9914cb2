//! Owning a lane for one operation: log space is reserved before any lock, records are appended,
//! and the note the keeper needs for repair is kept true at every step.

mod fit;
mod room;

use crate::stop::NoRoom;
use crate::stop::Stop;
use holdfast_pool::{Segment, Seq};

#[cfg(shuttle)]
use holdfast_board::model::{Mutation, mutated};
use holdfast_board::{FileState, LaneEnd, LaneIndex, LaneRow, Locked, SegmentState, Stall};
use holdfast_canary::{Canary, on};
use holdfast_log::{Draft, Kind, RECORD_HEADER_BYTES, Tail, append, record_bytes};
use holdfast_media::{Bytes, Nvm};

use crate::client::Client;
use crate::errno::Errno;
use crate::file::FileRef;
use fit::{CANCEL_BYTES, LOOK_AGAIN};
pub(crate) use fit::{atomic_write_bytes_max, is_split};

/// May the operation go on?
pub(crate) enum Entry {
    /// Yes, as the design of this state does it; the lane announces it.
    Absorbed(FileState),
    /// Yes, by the kernel alone, in state Unsynced; the lane announces it.
    Unsynced,
    /// The file is left to the kernel.
    Kernel,
    /// The slot is used for another file by now.
    Stale,
}

/// A lane, owned until dropped, with room for one operation.
pub struct Lane<'a, N: Nvm> {
    client: &'a Client<N>,
    row: &'a LaneRow,
    index: LaneIndex,
    /// The segment that the lane had when the operation began.
    first: Option<Segment>,
    /// Where it goes on.
    end: Option<LaneEnd>,
    /// Segments reserved for this operation (`LaneRow::reserved`), and how many of them are in use.
    more_count: usize,
    more_used: usize,
    /// A seq drawn too early, on purpose.
    #[cfg(shuttle)]
    early: core::cell::Cell<Option<Seq>>,
    /// Media offset of the payload of the record written last.
    payload_offset: u64,
    /// When it was written, in nanoseconds since 1970.
    written_ns: u64,
    /// Whether the keeper is told when the calls behind its records are over.
    tells_calls: bool,
}

impl<N: Nvm> Client<N> {
    /// Takes a lane and reserves room for a record of `bytes` and its cancel record. Sleeps while
    /// the log is full; holds nothing meanwhile that anybody waits for (history 13).
    /// [`NoRoom::Full`] when expiry cannot make room, because recovery set most of the log aside or
    /// a disk refuses what is in it: the call must go around the log.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Lane<'_, N>, NoRoom> {
        let mut lane = self.take_lane()?;
        lane.make_room(bytes)?;
        Ok(lane)
    }

    /// Takes a lane, without room.
    pub(crate) fn take_lane(&self) -> Result<Lane<'_, N>, NoRoom> {
        let header = self.board.header();
        loop {
            if !self.keeper_alive() {
                return Err(NoRoom::Stopped);
            }
            if let Some(lane) = self.try_lanes() {
                return Ok(lane);
            }
            header.want_lane();
            if let Some(lane) = self.try_lanes() {
                return Ok(lane);
            }
            header.sleep_for_lane(LOOK_AGAIN);
        }
    }

    fn try_lanes(&self) -> Option<Lane<'_, N>> {
        let lanes = self.board.lanes();
        let hint = self.first_lane.unwrap_or_else(lane_hint);
        (0..lanes.len())
            .map(|step| (hint + step) % lanes.len())
            .find(|&index| lanes[index].try_take(self.id))
            .map(|index| (index, self.end_of(&lanes[index], LaneIndex::at(index))))
            .map(|(index, end)| Lane {
                client: self,
                row: &lanes[index],
                index: LaneIndex::at(index),
                first: end.map(|end| end.segment),
                end,
                more_count: 0,
                more_used: 0,
                #[cfg(shuttle)]
                early: core::cell::Cell::new(None),
                payload_offset: 0,
                written_ns: 0,
                tells_calls: false,
            })
    }

    /// Where a lane that was just taken goes on.
    #[inline]
    fn end_of(&self, lane: &LaneRow, index: LaneIndex) -> Option<LaneEnd> {
        let end = lane.end();
        if end.is_none() && lane.has_segment() {
            self.end_segments_of(lane, index);
        }
        end
    }

    /// A stray store left the end of a lane: nobody knows where its segment goes on, and nothing is
    /// appended to it any more.
    #[cold]
    fn end_segments_of(&self, lane: &LaneRow, index: LaneIndex) {
        lane.leave_segment();
        let held = self.board.segments().iter().filter(|row| row.state() == SegmentState::Lane(index));
        held.for_each(|row| row.set_state(SegmentState::Sealed));
        self.board.header().note_sealed();
    }
}

/// Stacks of different threads lie megabytes apart: a hint that needs no thread-local storage.
pub(crate) fn lane_hint() -> usize {
    if cfg!(shuttle) {
        // The checker repeats schedules; addresses do not repeat.
        return 0;
    }
    let here = 0u8;
    ((core::ptr::from_ref(&here) as usize) >> 20).wrapping_mul(0x9e37_79b1) >> 7
}

impl<'a, N: Nvm> Lane<'a, N> {
    /// Whose it is.
    #[inline]
    pub fn client(&self) -> &'a Client<N> {
        self.client
    }
}

impl<N: Nvm> Lane<'_, N> {
    /// Its number: who holds what it locks.
    pub fn index(&self) -> LaneIndex {
        self.index
    }

    /// Locks the cursor of a file, and with it the file's end.
    ///
    /// # Errors
    /// `EIO` when the keeper is dead; [`Stop::Taken`] when it takes the file from whoever has the
    /// lock and stands still.
    #[inline]
    pub fn lock_cursor(&self, file: FileRef) -> Result<(), Stop> {
        let header = self.client.board.header();
        if on(Canary::CursorOpen) || self.client.row(file).lock_cursor(self.index, header) {
            Ok(())
        } else {
            Err(self.client.unlocked())
        }
    }

    /// Where on the media the bytes of the record written last begin.
    pub fn payload_offset(&self) -> u64 {
        self.payload_offset
    }

    /// When it was written.
    pub fn written_ns(&self) -> u64 {
        self.written_ns
    }

    /// Announces an operation on `file` and checks that it may go on. A transition that keeps
    /// writers out is waited for without an announcement. `exclusive` says that the caller itself
    /// keeps them out.
    pub(crate) fn enter(&self, file: FileRef, exclusive: bool) -> Result<Entry, Errno> {
        self.enter_if(file, exclusive, |state| match state {
            state if state.is_absorbed() => Ok(Entry::Absorbed(state)),
            state if state.is_unsynced() => Ok(Entry::Unsynced),
            state if state.is_failed() => Err(Errno::EIO),
            _ => Ok(Entry::Kernel),
        })
    }

    /// As `enter`, to read a file of which the page cache may lack bytes.
    pub(crate) fn enter_reading(&self, file: FileRef) -> Result<Entry, Errno> {
        self.enter_if(file, false, |state| {
            Ok(if self.client.reads_here(file) { Entry::Absorbed(state) } else { Entry::Kernel })
        })
    }

    fn enter_if(
        &self,
        file: FileRef,
        exclusive: bool,
        judge: impl Fn(FileState) -> Result<Entry, Errno>,
    ) -> Result<Entry, Errno> {
        let row = self.client.row(file);
        #[cfg(shuttle)]
        if mutated(Mutation::DrawBeforeAnnouncing) {
            self.early.set(Some(self.client.board.draw_seq(row)));
        }
        #[cfg(not(shuttle))]
        self.client.board.prefetch_counter();
        let mut stall = Stall::default();
        loop {
            #[cfg(shuttle)]
            let looked = row.is_exclusive();
            let above = if on(Canary::AnnouncedTooHigh) { 1 << 20 } else { 1 };
            self.row.announce(file.slot, self.client.board.next_seq().after(above));
            let kept_out = !exclusive && row.is_exclusive() && !on(Canary::WritersStayIn);
            #[cfg(shuttle)]
            let kept_out =
                if mutated(Mutation::LookBeforeAnnouncing) { !exclusive && looked } else { kept_out };
            let is_current = row.generation() == file.generation;
            if !kept_out && (is_current || on(Canary::SlotGenerationUnchecked)) {
                let entry = judge(row.state());
                if !matches!(entry, Ok(Entry::Absorbed(_) | Entry::Unsynced)) {
                    self.leave();
                }
                return entry;
            }
            self.leave();
            if !self.client.keeper_alive() {
                return Err(Errno::EIO);
            }
            if !kept_out {
                return Ok(Entry::Stale);
            }
            self.client.board.wait_shared(file.slot, &mut stall);
        }
    }

    /// Ends the announcement.
    pub(crate) fn leave(&self) {
        self.row.end_announcement();
    }

    /// Locks the pages of a range, noting first what may be held.
    ///
    /// # Errors
    /// As of [`Lane::lock_cursor`].
    pub fn lock_pages(&self, file: FileRef, offset: u64, bytes: u64) -> Result<(), Stop> {
        if on(Canary::PageLocksOpen) {
            return Ok(());
        }
        self.row.note_locks(Locked { offset, bytes });
        let locked = self.client.board.page_locks().lock(self.index, file.slot, offset, bytes);
        if locked { Ok(()) } else { Err(self.client.unlocked()) }
    }

    /// Opens what `lock_pages` locked.
    pub(crate) fn unlock_pages(&self, file: FileRef) {
        if let Some(Locked { offset, bytes }) = self.row.own_locks() {
            self.client.board.page_locks().unlock(self.index, file.slot, offset, bytes);
            self.row.clear_locks();
        }
    }

    /// Logs `bytes` of `parts` for a file's content at `offset`, as `append` does. `EIO`, with
    /// nothing logged, should that be more than was reserved: whoever reserves and whoever logs
    /// must mean the same bytes.
    ///
    /// # Errors
    /// As said.
    pub fn append_write(
        &mut self,
        file: FileRef,
        offset: u64,
        bytes: u64,
        parts: &[Bytes<'_>],
    ) -> Result<Seq, Errno> {
        if !self.has_room(bytes) && !on(Canary::RoomUnchecked) {
            return Err(Errno::EIO);
        }
        Ok(self.append_as(file, (Kind::Write, !self.tells_calls), (offset, bytes), parts))
    }

    /// Logs a resize, which the kernel's call follows.
    pub(crate) fn append_called(&mut self, file: FileRef, kind: Kind, offset: u64, extent: u64) -> Seq {
        self.append_as(file, (kind, !self.tells_calls), (offset, extent), &[])
    }

    /// Whether the keeper is told when the calls that follow are over: then recovery need not look
    /// for them in the file.
    pub(crate) fn tell_calls(&mut self, tells: bool) {
        self.tells_calls = tells;
    }

    /// Draws a seq under the announcement and writes the record or group durably: one fence.
    pub(crate) fn append(
        &mut self,
        file: FileRef,
        kind: Kind,
        file_offset: u64,
        extent: u64,
        parts: &[Bytes<'_>],
    ) -> Seq {
        self.append_as(file, (kind, false), (file_offset, extent), parts)
    }

    /// As `append`; `is_called`: the call of the kernel's that makes the change follows.
    #[inline]
    fn append_as(
        &mut self,
        file: FileRef,
        (kind, is_called): (Kind, bool),
        (file_offset, extent): (u64, u64),
        parts: &[Bytes<'_>],
    ) -> Seq {
        let header = self.client.board.header();
        #[cfg(shuttle)]
        let seq = self.early.take().unwrap_or_else(|| self.client.board.draw_seq(self.client.row(file)));
        #[cfg(not(shuttle))]
        let seq = self.client.board.draw_seq(self.client.row(file));
        self.row.note_seq(seq);
        self.client.row(file).raise_newest(seq);
        header.wake_idle_expirer();
        let payload = if kind == Kind::Write { extent } else { 0 };
        self.written_ns = self.client.record_ns();
        let mut draft = Draft {
            kind,
            slot: file.slot,
            slot_generation: file.generation,
            seq,
            file_offset,
            extent,
            unix_time_ns: self.written_ns,
            group_index: 0,
            group_count: 1,
            is_called,
        };
        if record_bytes(payload) + CANCEL_BYTES <= self.room() {
            self.write_record(&draft, parts, 0, payload);
        } else {
            draft.group_count = self.members(payload);
            let mut from = 0;
            while from < payload {
                if from > 0 {
                    self.next_segment();
                }
                let bytes = (payload - from).min(self.payload_room());
                draft.file_offset = file_offset + from;
                self.write_record(&draft, parts, from, bytes);
                draft.group_index += 1;
                from += bytes;
            }
            debug_assert_eq!(draft.group_index, draft.group_count);
        }
        if !on(Canary::DropFence) {
            self.client.nvm.fence();
        }
        seq
    }

    /// Makes only the first `kept` bytes of the record `seq` count, durably, before the program
    /// hears of it (history 6).
    pub(crate) fn cancel(&mut self, file: FileRef, seq: Seq, kept: u64) {
        if on(Canary::NoCancel) {
            return;
        }
        self.write_behind_last(file, Kind::Cancel, seq.get(), kept);
        if !on(Canary::CancelUnfenced) {
            self.client.nvm.fence();
        }
        self.row.count_cancel();
    }

    /// Logs the size of a file behind the record of the same operation that has its content, which
    /// is not cancelled any more.
    pub(crate) fn append_size(&mut self, file: FileRef, bytes: u64) {
        self.write_behind_last(file, Kind::Truncate, bytes, 0);
        self.client.nvm.fence();
    }

    /// Writes a record without bytes into the room that every operation leaves behind its last one.
    fn write_behind_last(&mut self, file: FileRef, kind: Kind, file_offset: u64, extent: u64) {
        let seq = self.client.board.draw_seq(self.client.row(file));
        self.client.row(file).raise_newest(seq);
        let draft = Draft {
            kind,
            slot: file.slot,
            slot_generation: file.generation,
            seq,
            file_offset,
            extent,
            unix_time_ns: self.client.record_ns(),
            group_index: 0,
            group_count: 1,
            is_called: false,
        };
        self.write_record(&draft, &[], 0, 0);
    }

    fn write_record(&mut self, draft: &Draft, parts: &[Bytes<'_>], from: u64, bytes: u64) {
        let Some(end) = &mut self.end else { unreachable!("room was made before") };
        let (segment, at) = (end.segment, end.at);
        let tail = Tail {
            segment_offset: self.client.layout.segment_offset(segment),
            at,
            generation: end.generation,
            seed: end.seed,
        };
        if draft.group_index == 0 || !on(Canary::GroupMemberUnnoted) {
            self.client.board.segments()[segment.index()].note(draft.slot, draft.seq);
        }
        let taken = append(&self.client.nvm, &tail, draft, parts, from as usize, bytes as usize);
        end.at += taken as u32;
        self.row.move_end(end);
        self.payload_offset = tail.segment_offset + u64::from(at) + RECORD_HEADER_BYTES;
        self.row.count_nvm(taken);
    }

    /// Counts an acknowledged write.
    pub fn count_write(&self, bytes: u64) {
        self.row.count_write(bytes);
    }

    /// The operation is over: its seq is settled and its segments are the log's.
    pub(crate) fn finish(&mut self, file: FileRef) {
        #[cfg(shuttle)]
        if mutated(Mutation::OpenBeforeSettling) {
            self.unlock_pages(file);
        }
        // Before the locks open.
        self.row.settle_seq();
        self.unlock_pages(file);
        self.client.row(file).unlock_cursor(self.index);
        self.leave();
    }
}

impl<N: Nvm> Drop for Lane<'_, N> {
    fn drop(&mut self) {
        let board = &self.client.board;
        self.give_back();
        if self.more_used > 0 {
            if let Some(first) = self.first {
                self.seal(first);
            }
            for place in 0..self.more_used - 1 {
                self.seal(self.row.reserved(place));
            }
        }
        self.row.let_go();
        board.header().lane_let_go();
        if self.more_used > 0 {
            board.header().note_sealed();
        }
    }
}
