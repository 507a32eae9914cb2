//! Owning a lane for one operation: log space is reserved before any lock, records are appended, and the note
//! the keeper needs for repair is kept true at every step.

use core::sync::atomic::Ordering;
use core::time::Duration;

use holdfast_board::{FileState, GROUP_SEGMENTS_MAX, LaneRow, SegmentState, wait, wake};
use holdfast_log::{Draft, Kind, RECORD_HEADER_BYTES, Tail, append, record_bytes};
use holdfast_media::{Bytes, Nvm};
use holdfast_pool::{SEGMENT_BYTES, SEGMENT_HEADER_BYTES, segment_seed, set_segment_generation};
use rustix::thread::Timespec;

use crate::client::{Client, Errno, FileRef};

/// Longer payloads fill up a segment and go on in the next; shorter ones leave its rest unused.
pub(crate) const SPLIT_BYTES_MIN: u64 = 256 << 10;
/// A cancel record must always fit behind the last record of an operation.
const CANCEL_BYTES: u64 = RECORD_HEADER_BYTES;
/// Payload of a record that has a fresh segment for itself.
const MEMBER_BYTES_MAX: u64 = SEGMENT_BYTES - SEGMENT_HEADER_BYTES - RECORD_HEADER_BYTES - CANCEL_BYTES;

/// May the operation go on?
pub(crate) enum Entry {
    /// Yes, in state Through; the lane announces it.
    Through,
    /// Yes, in state Behind; the lane announces it.
    Behind,
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
    /// Media offset of the payload of the record written last.
    payload_offset: u64,
    /// When it was written, in nanoseconds since 1970.
    written_ns: u64,
}

/// The longest write of this pool that is all there or not at all after a crash, in bytes.
pub(crate) fn atomic_write_bytes_max(pool_bytes: u64) -> u64 {
    (pool_bytes / 8).min(GROUP_SEGMENTS_MAX as u64 * MEMBER_BYTES_MAX)
}

impl<N: Nvm> Client<N> {
    /// Takes a lane and reserves room for a record of `bytes` and its cancel record. Sleeps while the log is
    /// full; holds nothing meanwhile that anybody waits for (history 13).
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Lane<'_, N>, Errno> {
        let mut lane = self.take_lane()?;
        lane.make_room(bytes)?;
        Ok(lane)
    }

    /// Takes a lane, without room.
    pub(crate) fn take_lane(&self) -> Result<Lane<'_, N>, Errno> {
        let lanes = self.board.lanes();
        // Stacks of different threads lie megabytes apart: a hint that needs no thread-local storage.
        let here = 0u8;
        let hint = ((core::ptr::from_ref(&here) as usize) >> 20).wrapping_mul(0x9e37_79b1) >> 7;
        let wanted = &self.board.header().lanes_wanted.word;
        loop {
            if !self.keeper_alive() {
                return Err(Errno::EIO);
            }
            for step in 0..lanes.len() {
                let index = (hint + step) % lanes.len();
                if lanes[index].try_take(self.id) {
                    let row = &lanes[index];
                    return Ok(Lane {
                        client: self,
                        row,
                        index: index as u32,
                        first: row.segment.load(Ordering::Relaxed),
                        more_count: 0,
                        more_used: 0,
                        payload_offset: 0,
                        written_ns: 0,
                    });
                }
            }
            wanted.store(1, Ordering::SeqCst);
            wait(wanted, 1, Duration::from_millis(1));
        }
    }
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
            _ => SEGMENT_BYTES - u64::from(self.row.at.load(Ordering::Relaxed)),
        }
    }

    fn make_room(&mut self, bytes: u64) -> Result<(), Errno> {
        if record_bytes(bytes) + CANCEL_BYTES <= self.room() {
            return Ok(());
        }
        let here = if bytes > SPLIT_BYTES_MIN { self.payload_room() } else { 0 };
        let count = (bytes - here).div_ceil(MEMBER_BYTES_MAX).max(1) as usize;
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
    /// translation caches. Sleeps until the keeper frees some; before that it slows down (throttling).
    fn take_segments(&mut self, count: usize) -> Result<(), Errno> {
        let header = self.client.board.header();
        let rows = self.client.board.segments();
        let freed = &header.segments_freed.word;
        let throttle_ns = header.throttle_ns.get();
        if throttle_ns > 0 {
            self.stalled(|| sleep_ns(throttle_ns * count as u64));
        }
        loop {
            let seen = freed.load(Ordering::SeqCst);
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
            if !self.client.keeper_alive() {
                return Err(Errno::EIO);
            }
            ring_expirer(&self.client.board);
            self.stalled(|| wait(freed, seen, Duration::from_millis(50)));
        }
    }

    /// Gives back the reserved segments that were not used.
    fn give_back(&mut self) {
        for segment in &self.row.reserved[self.more_used..self.more_count] {
            let segment = segment.load(Ordering::Relaxed);
            self.client.board.segments()[segment as usize].set_state(SegmentState::Free);
        }
        self.more_count = self.more_used;
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
        let generation = client.board.header().counter.add(1);
        rows[segment as usize].clear_summary();
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
            FileState::Failed => Err(Errno::EIO),
            _ => Ok(Entry::Kernel),
        })
    }

    /// As `enter`, to read a file of which the page cache may lack bytes.
    pub(crate) fn enter_reading(&self, file: FileRef) -> Result<Entry, Errno> {
        self.enter_if(file, false, |_| {
            Ok(if self.client.has_rows(file) { Entry::Behind } else { Entry::Kernel })
        })
    }

    fn enter_if(
        &self,
        file: FileRef,
        exclusive: bool,
        judge: impl Fn(FileState) -> Result<Entry, Errno>,
    ) -> Result<Entry, Errno> {
        let row = self.client.row(file);
        loop {
            // Only the announcement is a full barrier: whoever sees it sees the slot.
            self.row.slot.store(file.slot, Ordering::Release);
            self.row.announce.store(self.client.board.header().counter.get() + 1, Ordering::SeqCst);
            let kept_out = !exclusive && row.is_exclusive();
            if !kept_out && row.generation.load(Ordering::SeqCst) == file.generation {
                let entry = judge(row.state());
                if !matches!(entry, Ok(Entry::Through | Entry::Behind)) {
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
        let seq = header.counter.add(1);
        self.row.seq.store(seq, Ordering::Release);
        self.client.row(file).newest_seq.fetch_max(seq, Ordering::SeqCst);
        if header.expirer_idle.word.load(Ordering::SeqCst) != 0
            && header.expirer_idle.word.swap(0, Ordering::SeqCst) != 0
        {
            wake(&header.expirer_idle.word, 1);
        }
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
        self.client.nvm.fence();
        seq
    }

    /// Members a payload takes that fills the present segment and goes on in fresh ones.
    fn members(&self, payload: u64) -> u16 {
        1 + payload.saturating_sub(self.payload_room()).div_ceil(MEMBER_BYTES_MAX) as u16
    }

    /// Makes only the first `kept` bytes of the record `seq` count, durably, before the program hears of it
    /// (history 6).
    pub(crate) fn cancel(&mut self, file: FileRef, seq: u64, kept: u64) {
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
        self.client.nvm.fence();
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
        self.client.board.segments()[segment as usize].note(draft.slot, draft.seq);
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
        self.row.owner.store(0, Ordering::Release);
        let wanted = &board.header().lanes_wanted.word;
        if wanted.load(Ordering::Relaxed) != 0 {
            wanted.store(0, Ordering::SeqCst);
            wake(wanted, u32::MAX);
        }
        if self.more_used > 0 {
            ring_expirer(board);
        }
    }
}

fn ring_expirer(board: &holdfast_board::Board) {
    let bell = &board.header().expirer_wake.word;
    bell.fetch_add(1, Ordering::SeqCst);
    wake(bell, 1);
}

fn sleep_ns(ns: u64) {
    let span = Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let _ = rustix::thread::nanosleep(&span);
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Seconds since 1970 from the kernel's coarse clock, which also stamps files: no system call.
fn now_s() -> u32 {
    rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec as u32
}
