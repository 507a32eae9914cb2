//! Mapping the board and finding its tables. All pointers into it are made here.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::Timespec;

use crate::files::FileRow;
use crate::frames::Frames;
use crate::header::Header;
use crate::lanes::LaneRow;
use crate::locks::{PAGE_BYTES, PageLocks};
use crate::pages::{PageRow, Pages, WAYS};
use crate::requests::RequestCell;
use crate::segments::SegmentRow;

/// Names the layout: a keeper and a library whose rows differ must not share a board.
const MAGIC: u64 = u64::from_le_bytes(*b"HFBOARD1")
    ^ (size_of::<Header>() as u64)
    ^ ((size_of::<LaneRow>() as u64) << 12)
    ^ ((size_of::<FileRow>() as u64) << 24)
    ^ ((size_of::<SegmentRow>() as u64) << 36)
    ^ ((size_of::<RequestCell>() as u64) << 48);
const LANES_MAX: u32 = 64;
/// Page locks, and sets of page rows, at least and at most.
const SETS_MIN: u32 = 4096;
const SETS_MAX: u32 = 1 << 20;
const REQUESTS: u32 = 64;

/// Why a board cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoardError {
    /// A system call failed with this errno.
    Os(i32),
    /// The memory does not hold a board this code knows.
    Unknown,
}

/// Sizes of a board's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// File rows.
    pub slot_count: u32,
    /// Segment rows.
    pub segment_count: u32,
    /// Lanes.
    pub lane_count: u32,
    /// Frames of DRAM for page rows.
    pub frame_count: u32,
    lock_count: u32,
    bucket_count: u32,
    request_count: u32,
}

impl Plan {
    /// The tables a pool of this geometry needs. A quarter of the segments at most sits in lanes.
    pub fn new(slot_count: u32, segment_count: u32) -> Self {
        Self {
            slot_count,
            segment_count,
            lane_count: (segment_count / 4).clamp(1, LANES_MAX),
            frame_count: 0,
            lock_count: sets(segment_count),
            bucket_count: (slot_count * 4).next_power_of_two(),
            request_count: REQUESTS,
        }
    }

    /// With this many frames.
    pub fn with_frames(self, frame_count: u32) -> Self {
        Self { frame_count, ..self }
    }

    fn offsets(&self) -> Offsets {
        let mut end = 4096;
        let mut table = |count: u32, size: usize| {
            let start = end;
            end += (count as usize * size).next_multiple_of(4096);
            start
        };
        Offsets {
            lanes: table(self.lane_count, size_of::<LaneRow>()),
            files: table(self.slot_count, size_of::<FileRow>()),
            segments: table(self.segment_count, size_of::<SegmentRow>()),
            locks: table(self.lock_count, 4),
            buckets: table(self.bucket_count, 4),
            requests: table(self.request_count, size_of::<RequestCell>()),
            keys: table(self.lock_count * WAYS as u32, 8),
            pages: table(self.lock_count * WAYS as u32, size_of::<PageRow>()),
            owners: table(self.frame_count, 4),
            frames: table(self.frame_count, PAGE_BYTES as usize),
            end,
        }
    }

    /// Bytes of the whole board.
    pub fn bytes(&self) -> usize {
        self.offsets().end
    }
}

/// A set of page rows for every [`WAYS`] pages of the pool, or nearly.
fn sets(segment_count: u32) -> u32 {
    const SETS_PER_SEGMENT: u32 = 64;
    // Three quarters, rounded up to a power of two: between 3/4 and 3/2 of the pool's pages.
    segment_count.saturating_mul(SETS_PER_SEGMENT / 4 * 3).next_power_of_two().clamp(SETS_MIN, SETS_MAX)
}

const _: () = assert!(size_of::<Header>() <= 4096);

struct Offsets {
    lanes: usize,
    files: usize,
    segments: usize,
    locks: usize,
    buckets: usize,
    requests: usize,
    keys: usize,
    pages: usize,
    owners: usize,
    frames: usize,
    end: usize,
}

/// A mapped board.
pub struct Board {
    base: NonNull<u8>,
    plan: Plan,
    offsets: Offsets,
}

// SAFETY: all of the board's memory is reached through atomics, except request paths, which `RequestCell`
// hands over by its state word.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Makes an empty board; the descriptor is passed to clients.
    pub fn create(plan: Plan) -> Result<(Self, OwnedFd), BoardError> {
        let fd = rustix::fs::memfd_create("holdfast-board", rustix::fs::MemfdFlags::CLOEXEC).map_err(os)?;
        rustix::fs::ftruncate(&fd, plan.bytes() as u64).map_err(os)?;
        let board = Self::map(rustix::fd::AsFd::as_fd(&fd), plan)?;
        let header = board.header();
        header.slot_count.store(plan.slot_count, Ordering::Relaxed);
        header.segment_count.store(plan.segment_count, Ordering::Relaxed);
        header.lane_count.store(plan.lane_count, Ordering::Relaxed);
        header.lock_count.store(plan.lock_count, Ordering::Relaxed);
        header.bucket_count.store(plan.bucket_count, Ordering::Relaxed);
        header.request_count.store(plan.request_count, Ordering::Relaxed);
        header.frame_count.store(plan.frame_count, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok((board, fd))
    }

    /// Maps a board that the keeper made.
    pub fn open(fd: BorrowedFd<'_>, slot_count: u32, segment_count: u32) -> Result<Self, BoardError> {
        let board = Self::map(fd, Plan::new(slot_count, segment_count))?;
        let frame_count = board.header().frame_count.load(Ordering::Acquire);
        let board =
            if frame_count == 0 { board } else { Self::map(fd, board.plan.with_frames(frame_count))? };
        let header = board.header();
        let same = header.magic.load(Ordering::Acquire) == MAGIC
            && header.slot_count.load(Ordering::Relaxed) == board.plan.slot_count
            && header.segment_count.load(Ordering::Relaxed) == board.plan.segment_count
            && header.lane_count.load(Ordering::Relaxed) == board.plan.lane_count
            && header.lock_count.load(Ordering::Relaxed) == board.plan.lock_count
            && header.bucket_count.load(Ordering::Relaxed) == board.plan.bucket_count
            && header.request_count.load(Ordering::Relaxed) == board.plan.request_count;
        if same { Ok(board) } else { Err(BoardError::Unknown) }
    }

    fn map(fd: BorrowedFd<'_>, plan: Plan) -> Result<Self, BoardError> {
        let offsets = plan.offsets();
        if rustix::fs::fstat(fd).map_err(os)?.st_size < offsets.end as i64 {
            return Err(BoardError::Unknown);
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap(
                core::ptr::null_mut(),
                offsets.end,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }
        .map_err(os)?;
        // SAFETY: the range was just mapped; the advice only keeps it out of core dumps.
        let _ = unsafe { rustix::mm::madvise(base, offsets.end, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast()).ok_or(BoardError::Unknown)?;
        Ok(Self { base, plan, offsets })
    }

    /// Sizes of the tables.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes of the whole board.
    pub fn bytes(&self) -> usize {
        self.offsets.end
    }

    /// The first page.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping is at least a page, page-aligned, lives as long as `self`, holds only atomics.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    #[inline]
    fn table<T>(&self, offset: usize, count: u32) -> &[T] {
        // SAFETY: `offsets` lays the tables out page-aligned within the mapping with room for `count` rows;
        // every row type consists of atomics (or hands its bytes over by one), for which any bytes are valid.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).cast::<T>().as_ptr(), count as usize) }
    }

    /// All lanes.
    #[inline]
    pub fn lanes(&self) -> &[LaneRow] {
        self.table(self.offsets.lanes, self.plan.lane_count)
    }

    /// All file rows.
    #[inline]
    pub fn files(&self) -> &[FileRow] {
        self.table(self.offsets.files, self.plan.slot_count)
    }

    /// All segment rows.
    #[inline]
    pub fn segments(&self) -> &[SegmentRow] {
        self.table(self.offsets.segments, self.plan.segment_count)
    }

    /// All request cells.
    #[inline]
    pub fn requests(&self) -> &[RequestCell] {
        self.table(self.offsets.requests, self.plan.request_count)
    }

    /// The page rows.
    #[inline]
    pub fn pages(&self) -> Pages<'_> {
        let count = self.plan.lock_count * WAYS as u32;
        Pages { keys: self.table(self.offsets.keys, count), rows: self.table(self.offsets.pages, count) }
    }

    /// The frames of page rows.
    #[inline]
    pub fn frames(&self) -> Frames<'_> {
        Frames {
            owners: self.table(self.offsets.owners, self.plan.frame_count),
            hand: &self.header().frame_hand,
            // SAFETY: `offsets` lays the frames out within the mapping.
            base: unsafe { self.base.add(self.offsets.frames) },
            life: PhantomData,
        }
    }

    /// The page locks.
    #[inline]
    pub fn page_locks(&self) -> PageLocks<'_> {
        PageLocks {
            words: self.table(self.offsets.locks, self.plan.lock_count),
            keeper: &self.header().keeper.word,
        }
    }

    /// Keeps new writers out of a file and waits for those under way. `who` is a client id or the keeper's.
    /// False, with nothing held, when the keeper has died.
    pub fn lock_file(&self, slot: u32, who: u32) -> bool {
        let row = &self.files()[slot as usize];
        if !row.lock_exclusive(who, &self.header().keeper.word) {
            return false;
        }
        let all_out = self.wait_for_writers(slot);
        if !all_out {
            row.unlock_exclusive(who);
        }
        all_out
    }

    /// As [`Board::lock_file`], but gives up when somebody has the file: for those who must not wait for who may wait for
    /// them.
    pub fn try_lock_file(&self, slot: u32, who: u32) -> bool {
        let row = &self.files()[slot as usize];
        if !row.try_lock_exclusive(who) {
            return false;
        }
        let all_out = self.wait_for_writers(slot);
        if !all_out {
            row.unlock_exclusive(who);
        }
        all_out
    }

    /// Waits until no lane has an operation on `slot` under way.
    fn wait_for_writers(&self, slot: u32) -> bool {
        for lane in self.lanes() {
            let mut spins = 0u32;
            while lane.announces(slot).is_some() {
                spins += 1;
                if spins < 1000 {
                    core::hint::spin_loop();
                } else if !self.header().keeper_alive() {
                    return false;
                } else {
                    // Nobody wakes us: the announcing lane must not pay for the rare waiter.
                    let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: 50_000 });
                }
            }
        }
        true
    }

    /// S for one file: every record of it with a seq up to S has been written to the page cache.
    ///
    /// The counter is read first, then all announcements; a writer announces a bound before it draws, so a
    /// seq below the counter read here was announced before (history 14).
    pub fn settled_seq(&self, slot: u32) -> u64 {
        let mut settled = self.header().counter.get() - 1;
        for lane in self.lanes() {
            if let Some(bound) = lane.announces(slot) {
                settled = settled.min(bound.saturating_sub(1));
            }
        }
        settled
    }

    fn buckets(&self) -> &[AtomicU32] {
        self.table(self.offsets.buckets, self.plan.bucket_count)
    }

    fn bucket_of(&self, dev: u64, ino: u64) -> usize {
        let mixed = (ino ^ dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.plan.bucket_count as usize - 1)
    }

    /// The slot of a file, by device and inode.
    pub fn find(&self, dev: u64, ino: u64) -> Option<u32> {
        let version = &self.header().table_version;
        loop {
            let before = version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let found = self.probe(dev, ino);
                core::sync::atomic::fence(Ordering::Acquire);
                if version.load(Ordering::Relaxed) == before {
                    return found;
                }
            }
            if !self.header().keeper_alive() {
                return None;
            }
            core::hint::spin_loop();
        }
    }

    fn probe(&self, dev: u64, ino: u64) -> Option<u32> {
        let buckets = self.buckets();
        let mut at = self.bucket_of(dev, ino);
        for _ in 0..buckets.len() {
            let slot = buckets[at].load(Ordering::Acquire).checked_sub(1)?;
            let row = self.files().get(slot as usize)?;
            if row.ino.load(Ordering::Relaxed) == ino && row.dev.load(Ordering::Relaxed) == dev {
                return Some(slot);
            }
            at = (at + 1) & (buckets.len() - 1);
        }
        None
    }

    /// Enters a file row, whose device and inode are set, into the table. Only the keeper's one writer calls it.
    pub fn insert(&self, slot: u32) {
        let row = &self.files()[slot as usize];
        let buckets = self.buckets();
        let mut at = self.bucket_of(row.dev.load(Ordering::Relaxed), row.ino.load(Ordering::Relaxed));
        while buckets[at].load(Ordering::Relaxed) != 0 {
            at = (at + 1) & (buckets.len() - 1);
        }
        buckets[at].store(slot + 1, Ordering::Release);
    }

    /// Takes a file row out of the table, closing the gap it leaves. Only the keeper's one writer calls it.
    pub fn remove(&self, slot: u32) {
        let row = &self.files()[slot as usize];
        let buckets = self.buckets();
        let mask = buckets.len() - 1;
        let mut gap = self.bucket_of(row.dev.load(Ordering::Relaxed), row.ino.load(Ordering::Relaxed));
        while buckets[gap].load(Ordering::Relaxed) != slot + 1 {
            if buckets[gap].load(Ordering::Relaxed) == 0 {
                return;
            }
            gap = (gap + 1) & mask;
        }
        let version: &AtomicU64 = &self.header().table_version;
        version.fetch_add(1, Ordering::AcqRel);
        let mut at = (gap + 1) & mask;
        loop {
            let held = buckets[at].load(Ordering::Relaxed);
            if held == 0 {
                break;
            }
            let other = &self.files()[held as usize - 1];
            let home = self.bucket_of(other.dev.load(Ordering::Relaxed), other.ino.load(Ordering::Relaxed));
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                buckets[gap].store(held, Ordering::Release);
                gap = at;
            }
            at = (at + 1) & mask;
        }
        buckets[gap].store(0, Ordering::Release);
        version.fetch_add(1, Ordering::AcqRel);
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        // SAFETY: `base` and the length are those of the mapping made in `map`; no reference outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.offsets.end) };
    }
}

fn os(errno: rustix::io::Errno) -> BoardError {
    BoardError::Os(errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_until_they_are_removed() {
        let (board, fd) = Board::create(Plan::new(256, 16)).unwrap();
        let other = Board::open(rustix::fd::AsFd::as_fd(&fd), 256, 16).unwrap();
        for slot in 0..256u32 {
            let row = &board.files()[slot as usize];
            row.dev.store(u64::from(slot % 3), Ordering::Relaxed);
            row.ino.store(1000 + u64::from(slot / 3), Ordering::Relaxed);
            board.insert(slot);
        }
        for removed in (0..256u32).step_by(2) {
            board.remove(removed);
        }
        for slot in 0..256u32 {
            let found = other.find(u64::from(slot % 3), 1000 + u64::from(slot / 3));
            assert_eq!(found, (slot % 2 == 1).then_some(slot));
        }
        assert!(Board::open(rustix::fd::AsFd::as_fd(&fd), 512, 16).is_err());
    }

    #[test]
    fn the_board_stays_within_its_share_of_the_pool() {
        for shift in 24..44 {
            let pool_bytes = 1u64 << shift;
            let slots = (pool_bytes >> 17).clamp(256, 65_536) as u32;
            let plan = Plan::new(slots, (pool_bytes >> 21) as u32);
            assert!(plan.bytes() as u64 <= pool_bytes / 64 + (8 << 20), "{pool_bytes}: {}", plan.bytes());
        }
    }

    #[test]
    fn settled_seq_stays_below_announced_writers_of_the_same_file() {
        let (board, _fd) = Board::create(Plan::new(256, 16)).unwrap();
        board.header().counter.raise(100);
        assert_eq!(board.settled_seq(7), 99);
        board.lanes()[1].slot.store(7, Ordering::SeqCst);
        board.lanes()[1].announce.store(51, Ordering::SeqCst);
        assert_eq!(board.settled_seq(7), 49);
        assert_eq!(board.settled_seq(8), 99);
    }
}
