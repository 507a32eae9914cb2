//! Owning a lane for one operation: log space is reserved before any lock, records are appended, and the note
//! the keeper needs for repair is kept true at every step.

use core::sync::atomic::Ordering;
use core::time::Duration;

#[cfg(shuttle)]
use holdfast_board::model::{Mutation, mutated};
use holdfast_board::{FileState, GROUP_SEGMENTS_MAX, LaneRow, SegmentRow, SegmentState, pause, wait, wake};
use holdfast_canary::{Canary, on};
use holdfast_log::{Draft, Kind, RECORD_HEADER_BYTES, Tail, append, record_bytes};
use holdfast_media::{Bytes, Nvm};
use holdfast_pool::{Layout, SEGMENT_HEADER_BYTES, segment_generation, segment_seed, set_segment_generation};

use crate::client::{Client, Errno, FileRef};

/// Payloads of more than this part of a segment fill one up and go on in the next; shorter ones leave its rest unused.
const SPLIT_FRACTION: u64 = 8;
/// A cancel record must always fit behind the last record of an operation.
const CANCEL_BYTES: u64 = RECORD_HEADER_BYTES;
/// Bytes of a segment that no payload can have.
const OVERHEAD_BYTES: u64 = SEGMENT_HEADER_BYTES + RECORD_HEADER_BYTES + CANCEL_BYTES;

/// Rounds of expiry that free nothing, after which a writer gives up waiting for space: the first of them may have begun
/// before it came.
const ROUNDS_IN_VAIN: u64 = 2;
/// Rounds after which it gives up, though others found some.
const ROUNDS_MAX: u64 = 16;
/// How long to sleep before looking whether the keeper still lives.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// May the operation go on?
pub(crate) enum Entry {
    /// Yes, in state Through; the lane announces it.
    Through,
    /// Yes, in state Behind; the lane announces it.
    Behind,
    /// Yes, by the kernel alone, in state Unsynced; the lane announces it.
    Unsynced,
    /// The file is left to the kernel.
    Kernel,
    /// The slot is used for another file by now.
    Stale,
}

/// A lane, owned until dropped, with room for one operation.
pub(crate) struct Lane<'a, N: Nvm> {
    client: &'a Client<N>,
    row: &'a LaneRow,
    index: u32,
    /// Segment + 1 the lane had when the operation began.
    first: u32,
    /// Segments reserved for this operation (`LaneRow::reserved`), and how many of them are in use.
    more_count: usize,
    more_used: usize,
    /// A seq drawn too early, on purpose.
    #[cfg(shuttle)]
    early: core::cell::Cell<Option<u64>>,
    /// Media offset of the payload of the record written last.
    payload_offset: u64,
    /// When it was written, in nanoseconds since 1970.
    written_ns: u64,
}

/// The longest write of this pool that is all there or not at all after a crash, in bytes.
pub(crate) fn atomic_write_bytes_max(layout: &Layout) -> u64 {
    // Half of the segments: lanes keep a quarter, and the rest can always become free.
    let segments = (GROUP_SEGMENTS_MAX as u64).min(u64::from(layout.segment_count) / 2);
    (layout.pool_bytes / 8).min(segments * member_bytes_max(layout))
}

/// Whether a payload may lie in more than one segment.
pub(crate) fn is_split(layout: &Layout, bytes: u64) -> bool {
    bytes > layout.segment_bytes / SPLIT_FRACTION
}

/// Payload of a record that has a fresh segment for itself.
fn member_bytes_max(layout: &Layout) -> u64 {
    layout.segment_bytes - OVERHEAD_BYTES
}

impl<N: Nvm> Client<N> {
    /// Takes a lane and reserves room for a record of `bytes` and its cancel record. Sleeps while the log is
    /// full; holds nothing meanwhile that anybody waits for (history 13). `ENOSPC` when expiry cannot make room, because
    /// recovery set most of the log aside or a disk refuses what is in it: the call must go around the log.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Lane<'_, N>, Errno> {
        let mut lane = self.take_lane()?;
        lane.make_room(bytes)?;
        Ok(lane)
    }

    /// Takes a lane, without room.
    pub(crate) fn take_lane(&self) -> Result<Lane<'_, N>, Errno> {
        let wanted = &self.board.header().lanes_wanted.word;
        loop {
            if !self.keeper_alive() {
                return Err(Errno::EIO);
            }
            if let Some(lane) = self.try_lanes() {
                return Ok(lane);
            }
            wanted.store(1, Ordering::SeqCst);
            // Whoever lets a lane go looks at the word afterwards; we look at the lanes after we set it.
            if let Some(lane) = self.try_lanes() {
                return Ok(lane);
            }
            wait(wanted, 1, LOOK_AGAIN);
        }
    }

    fn try_lanes(&self) -> Option<Lane<'_, N>> {
        let lanes = self.board.lanes();
        let hint = self.first_lane.unwrap_or_else(lane_hint);
        (0..lanes.len())
            .map(|step| (hint + step) % lanes.len())
            .find(|&index| lanes[index].try_take(self.id))
            .map(|index| Lane {
                client: self,
                row: &lanes[index],
                index: index as u32,
                first: lanes[index].segment.load(Ordering::Relaxed),
                more_count: 0,
                more_used: 0,
                #[cfg(shuttle)]
                early: core::cell::Cell::new(None),
                payload_offset: 0,
                written_ns: 0,
            })
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

impl<N: Nvm> Lane<'_, N> {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Where on the media the bytes of the record written last begin.
    pub(crate) fn payload_offset(&self) -> u64 {
        self.payload_offset
    }

    /// When it was written.
    pub(crate) fn written_ns(&self) -> u64 {
        self.written_ns
    }

    fn room(&self) -> u64 {
        match self.row.segment.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.client.layout.segment_bytes - u64::from(self.row.at.load(Ordering::Relaxed)),
        }
    }

    pub(crate) fn make_room(&mut self, bytes: u64) -> Result<(), Errno> {
        if record_bytes(bytes) + CANCEL_BYTES <= self.room() {
            return Ok(());
        }
        let layout = &self.client.layout;
        let here = if is_split(layout, bytes) { self.payload_room() } else { 0 };
        let count = (bytes - here).div_ceil(member_bytes_max(layout)).max(1) as usize;
        self.take_segments(count)?;
        if here == 0 {
            self.next_segment();
        }
        Ok(())
    }

    /// Payload bytes that fit into the rest of the present segment.
    fn payload_room(&self) -> u64 {
        self.room().saturating_sub(RECORD_HEADER_BYTES + CANCEL_BYTES)
    }

    /// Takes `count` free segments, all or none, lowest first: a small working set stays in the processor's
    /// translation caches. Sleeps until some are freed; before that it slows down (throttling).
    fn take_segments(&mut self, count: usize) -> Result<(), Errno> {
        let header = self.client.board.header();
        let rows = self.client.board.segments();
        let freed = &header.segments_freed.word;
        let throttle_ns = header.throttle_ns.get();
        if throttle_ns > 0 {
            self.stalled(|| pause(Duration::from_nanos(throttle_ns * count as u64)));
        }
        let mut fell_short = false;
        let mut shortage = (0, 0);
        loop {
            let seen = freed.load(Ordering::SeqCst);
            // After the first try nothing is taken that would have to be given back: two that wait for several
            // segments each would wake one another without end.
            let is_free = |row: &&SegmentRow| row.state() == SegmentState::Free;
            if !fell_short || rows.iter().filter(is_free).take(count).count() == count {
                for (segment, row) in rows.iter().enumerate() {
                    if self.more_count == count {
                        break;
                    }
                    if row.try_take(self.index) {
                        self.row.reserved[self.more_count].store(segment as u32, Ordering::Relaxed);
                        self.more_count += 1;
                    }
                }
                if self.more_count == count {
                    return Ok(());
                }
                self.give_back();
                if !fell_short {
                    shortage = (header.rounds.get(), freed.load(Ordering::SeqCst));
                }
                fell_short = true;
            }
            let rounds = header.rounds.get() - shortage.0;
            if rounds >= ROUNDS_MAX || rounds >= ROUNDS_IN_VAIN && shortage.1 == freed.load(Ordering::SeqCst)
            {
                header.no_room.add(1);
                return Err(Errno::ENOSPC);
            }
            if !self.client.keeper_alive() {
                return Err(Errno::EIO);
            }
            header.ring_expirer();
            self.stalled(|| wait(freed, seen, LOOK_AGAIN));
        }
    }

    /// Gives back the reserved segments that were not used; somebody may wait for just as many.
    fn give_back(&mut self) {
        if self.more_used == self.more_count {
            return;
        }
        for segment in &self.row.reserved[self.more_used..self.more_count] {
            let segment = segment.load(Ordering::Relaxed);
            self.client.board.segments()[segment as usize].set_state(SegmentState::Free);
        }
        self.more_count = self.more_used;
        self.client.board.header().announce_free_segments();
    }

    fn stalled(&self, sleep: impl FnOnce()) {
        let before = now_ns();
        sleep();
        LaneRow::count(&self.row.stalls, 1);
        LaneRow::count(&self.row.stall_ns, now_ns().saturating_sub(before));
    }

    /// Goes on in the next of the segments reserved, under a new generation. The one before stays with the
    /// lane until the operation is over: the keeper must find all members of a group there.
    fn next_segment(&mut self) {
        let client = self.client;
        let rows = client.board.segments();
        let segment = self.row.reserved[self.more_used].load(Ordering::Relaxed);
        self.more_used += 1;
        self.row.segment.store(0, Ordering::SeqCst);
        let mut generation = client.board.header().counter.add(1);
        if on(Canary::GenerationKept) {
            generation = segment_generation(&client.nvm, &client.layout, segment).unwrap_or(generation);
        }
        rows[segment as usize].clear_summary();
        #[cfg(shuttle)]
        if mutated(Mutation::RecordBeforeGeneration) {
            let offset = client.layout.segment_offset(segment);
            client.nvm.store_u64(offset, holdfast_pool::encode(generation));
        }
        #[cfg(shuttle)]
        let set_segment_generation = |nvm, layout, segment, generation| {
            if !mutated(Mutation::RecordBeforeGeneration) {
                set_segment_generation(nvm, layout, segment, generation);
            }
        };
        set_segment_generation(&client.nvm, &client.layout, segment, generation);
        self.row.generation.store(generation, Ordering::Relaxed);
        self.row.seed.store(segment_seed(&client.uuid, segment, generation), Ordering::Relaxed);
        self.row.at.store(SEGMENT_HEADER_BYTES as u32, Ordering::Relaxed);
        self.row.segment.store(segment + 1, Ordering::SeqCst);
    }

    /// Announces an operation on `file` and checks that it may go on. A transition that keeps writers out is
    /// waited for without an announcement. `exclusive` says that the caller itself keeps them out.
    pub(crate) fn enter(&self, file: FileRef, exclusive: bool) -> Result<Entry, Errno> {
        self.enter_if(file, exclusive, |state| match state {
            FileState::Through => Ok(Entry::Through),
            FileState::Behind => Ok(Entry::Behind),
            FileState::Unsynced => Ok(Entry::Unsynced),
            FileState::Failed => Err(Errno::EIO),
            _ => Ok(Entry::Kernel),
        })
    }

    /// As `enter`, to read a file of which the page cache may lack bytes.
    pub(crate) fn enter_reading(&self, file: FileRef) -> Result<Entry, Errno> {
        self.enter_if(file, false, |_| {
            Ok(if self.client.reads_here(file) { Entry::Behind } else { Entry::Kernel })
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
            self.early.set(Some(self.client.board.header().counter.add(1)));
        }
        loop {
            #[cfg(shuttle)]
            let looked = row.is_exclusive();
            // Only the announcement is a full barrier: whoever sees it sees the slot.
            self.row.slot.store(file.slot, Ordering::Release);
            let above = if on(Canary::AnnouncedTooHigh) { 1 << 20 } else { 1 };
            self.row.announce.store(self.client.board.header().counter.get() + above, Ordering::SeqCst);
            let kept_out = !exclusive && row.is_exclusive() && !on(Canary::WritersStayIn);
            #[cfg(shuttle)]
            let kept_out =
                if mutated(Mutation::LookBeforeAnnouncing) { !exclusive && looked } else { kept_out };
            let is_current = row.generation.load(Ordering::SeqCst) == file.generation;
            if !kept_out && (is_current || on(Canary::SlotGenerationUnchecked)) {
                let entry = judge(row.state());
                if !matches!(entry, Ok(Entry::Through | Entry::Behind | Entry::Unsynced)) {
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
            row.wait_shared();
        }
    }

    /// Ends the announcement. What was done under it is visible to whoever sees its end.
    pub(crate) fn leave(&self) {
        self.row.announce.store(0, Ordering::Release);
    }

    /// Locks the pages of a range, noting first what may be held.
    pub(crate) fn lock_pages(&self, file: FileRef, offset: u64, bytes: u64) -> Result<(), Errno> {
        if on(Canary::PageLocksOpen) {
            return Ok(());
        }
        self.row.lock_offset.store(offset, Ordering::Relaxed);
        self.row.lock_bytes.store(bytes, Ordering::Release);
        let locked = self.client.board.page_locks().lock(self.index, file.slot, offset, bytes);
        if locked { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Opens what `lock_pages` locked.
    pub(crate) fn unlock_pages(&self, file: FileRef) {
        let bytes = self.row.lock_bytes.load(Ordering::Relaxed);
        if bytes > 0 {
            let offset = self.row.lock_offset.load(Ordering::Relaxed);
            self.client.board.page_locks().unlock(self.index, file.slot, offset, bytes);
            self.row.lock_bytes.store(0, Ordering::Release);
        }
    }

    /// Draws a seq under the announcement and writes the record or group durably: one fence.
    pub(crate) fn append(
        &mut self,
        file: FileRef,
        kind: Kind,
        file_offset: u64,
        extent: u64,
        parts: &[Bytes<'_>],
    ) -> u64 {
        let header = self.client.board.header();
        #[cfg(shuttle)]
        let seq = self.early.take().unwrap_or_else(|| header.counter.add(1));
        #[cfg(not(shuttle))]
        let seq = header.counter.add(1);
        self.row.seq.store(seq, Ordering::Release);
        self.client.row(file).newest_seq.fetch_max(seq, Ordering::SeqCst);
        header.wake_idle_expirer();
        let payload = if kind == Kind::Write { extent } else { 0 };
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        self.written_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        let mut draft = Draft {
            kind,
            slot: file.slot,
            slot_generation: file.generation,
            seq,
            file_offset,
            extent,
            unix_time_s: now.tv_sec as u32,
            group_index: 0,
            group_count: 1,
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

    /// Members a payload takes that fills the present segment and goes on in fresh ones.
    fn members(&self, payload: u64) -> u16 {
        let rest = payload.saturating_sub(self.payload_room());
        1 + rest.div_ceil(member_bytes_max(&self.client.layout)) as u16
    }

    /// Makes only the first `kept` bytes of the record `seq` count, durably, before the program hears of it
    /// (history 6).
    pub(crate) fn cancel(&mut self, file: FileRef, seq: u64, kept: u64) {
        if on(Canary::NoCancel) {
            return;
        }
        let cancel_seq = self.client.board.header().counter.add(1);
        self.client.row(file).newest_seq.fetch_max(cancel_seq, Ordering::SeqCst);
        let draft = Draft {
            kind: Kind::Cancel,
            slot: file.slot,
            slot_generation: file.generation,
            seq: cancel_seq,
            file_offset: seq,
            extent: kept,
            unix_time_s: now_s(),
            group_index: 0,
            group_count: 1,
        };
        self.write_record(&draft, &[], 0, 0);
        if !on(Canary::CancelUnfenced) {
            self.client.nvm.fence();
        }
        LaneRow::count(&self.row.cancels, 1);
    }

    fn write_record(&mut self, draft: &Draft, parts: &[Bytes<'_>], from: u64, bytes: u64) {
        let segment = self.row.segment.load(Ordering::Relaxed) - 1;
        let at = self.row.at.load(Ordering::Relaxed);
        let tail = Tail {
            segment_offset: self.client.layout.segment_offset(segment),
            at,
            generation: self.row.generation.load(Ordering::Relaxed),
            seed: self.row.seed.load(Ordering::Relaxed),
        };
        if draft.group_index == 0 || !on(Canary::GroupMemberUnnoted) {
            self.client.board.segments()[segment as usize].note(draft.slot, draft.seq);
        }
        let taken = append(&self.client.nvm, &tail, draft, parts, from as usize, bytes as usize);
        self.row.at.store(at + taken as u32, Ordering::Release);
        self.payload_offset = tail.segment_offset + u64::from(at) + RECORD_HEADER_BYTES;
        LaneRow::count(&self.row.nvm_bytes, taken);
    }

    /// Counts an acknowledged write.
    pub(crate) fn count_write(&self, bytes: u64) {
        LaneRow::count(&self.row.writes, 1);
        LaneRow::count(&self.row.bytes, bytes);
    }

    /// The operation is over: its seq is settled and its segments are the log's.
    pub(crate) fn finish(&mut self, file: FileRef) {
        #[cfg(shuttle)]
        if mutated(Mutation::OpenBeforeSettling) {
            self.unlock_pages(file);
        }
        // Before the locks open: from here on a dead owner's write must not be rolled forward any more, or it
        // would land on top of what somebody else writes to these pages (history 15).
        self.row.seq.store(0, Ordering::Release);
        self.unlock_pages(file);
        self.client.row(file).unlock_cursor(self.index);
        self.leave();
    }
}

impl<N: Nvm> Drop for Lane<'_, N> {
    fn drop(&mut self) {
        let board = &self.client.board;
        let rows = board.segments();
        self.give_back();
        if self.more_used > 0 {
            if self.first > 0 {
                rows[self.first as usize - 1].set_state(SegmentState::Sealed);
            }
            for segment in &self.row.reserved[..self.more_used - 1] {
                rows[segment.load(Ordering::Relaxed) as usize].set_state(SegmentState::Sealed);
            }
        }
        // Not a plain store: the look at the word must not overtake it, or a waiter would sleep on.
        self.row.owner.swap(0, Ordering::AcqRel);
        let wanted = &board.header().lanes_wanted.word;
        if wanted.load(Ordering::SeqCst) != 0 {
            wanted.store(0, Ordering::SeqCst);
            wake(wanted, u32::MAX);
        }
        if self.more_used > 0 {
            board.header().note_sealed();
        }
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Seconds since 1970 from the kernel's coarse clock, which also stamps files: no system call.
fn now_s() -> u32 {
    rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec as u32
}
