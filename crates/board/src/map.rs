//! The tables of a board in memory shared with other processes. All pointers into it are made here.
#![allow(unsafe_code)]

use core::arch::x86_64::{_MM_HINT_ET0, _MM_HINT_T0, _mm_prefetch};
use core::marker::PhantomData;
use core::ptr::NonNull;
use holdfast_pool::Slot;

use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use crate::files::FileRow;
use crate::frames::Frames;
use crate::header::Header;
use crate::lanes::LaneRow;
use crate::loaded::{LOADED_WAYS, Loaded};
use crate::page::{PAGE_BYTES, Page, home};
use crate::pages::{PageRow, Pages, WAYS};
use crate::plan::{BoardError, Plan};
use crate::requests::RequestCell;
use crate::segments::SegmentRow;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::times::TimesRow;

/// Names the layout: a keeper and a library whose rows differ must not share a board.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"HFBOARD5")
    ^ (size_of::<Header>() as u64)
    ^ ((size_of::<LaneRow>() as u64) << 12)
    ^ ((size_of::<FileRow>() as u64) << 24)
    ^ ((size_of::<SegmentRow>() as u64) << 36)
    ^ ((size_of::<RequestCell>() as u64) << 48);

/// The tables begin on a page of their own.
const HEADER_BYTES: usize = size_of::<Header>().next_multiple_of(4096);

/// The unit that one entry of the processor's translation cache covers at best.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Address space on either side of the board at which stores fault: those of a program that runs
/// over the end of something of its own.
const GUARD_BYTES: usize = 64 << 10;
const MADV_COLLAPSE: libc::c_int = 25;

struct Offsets {
    lanes: usize,
    files: usize,
    times: usize,
    segments: usize,
    locks: usize,
    buckets: usize,
    requests: usize,
    keys: usize,
    pages: usize,
    changes: usize,
    owners: usize,
    sums: usize,
    frames: usize,
    tags: usize,
    hands: usize,
    loaded: usize,
    end: usize,
}

impl Plan {
    fn offsets(&self) -> Offsets {
        let mut end = HEADER_BYTES;
        let mut table = |count: u32, size: usize| {
            let start = end;
            end += (count as usize * size).next_multiple_of(4096);
            start
        };
        Offsets {
            lanes: table(self.lane_count, size_of::<LaneRow>()),
            files: table(self.slot_count, size_of::<FileRow>()),
            times: table(self.slot_count, size_of::<TimesRow>()),
            segments: table(self.segment_count, size_of::<SegmentRow>()),
            buckets: table(self.bucket_count, 8),
            requests: table(self.request_count, size_of::<RequestCell>()),
            // What a write to a random page touches lies together: see `use_huge_pages`.
            locks: table(self.lock_count, 4),
            changes: table(self.lock_count, 8),
            keys: table(self.lock_count * WAYS as u32, 8),
            pages: table(self.lock_count * WAYS as u32, size_of::<PageRow>()),
            owners: table(self.frame_count, 4),
            sums: table(self.frame_count, 8),
            frames: table(self.frame_count, PAGE_BYTES as usize),
            tags: table(self.loaded_count, 8),
            hands: table(self.loaded_count / LOADED_WAYS as u32, 4),
            loaded: table(self.loaded_count, PAGE_BYTES as usize),
            end,
        }
    }

    /// Bytes of the whole board.
    pub fn bytes(&self) -> usize {
        self.offsets().end
    }
}

/// The mapping and where its tables begin.
pub(crate) struct Tables {
    base: NonNull<u8>,
    plan: Plan,
    offsets: Offsets,
}

// SAFETY: all of the board's memory is reached through atomics, except request paths, which
// `RequestCell` hands over by its state word.
unsafe impl Send for Tables {}
// SAFETY: as above.
unsafe impl Sync for Tables {}

impl Tables {
    /// Bytes of the whole board.
    pub(crate) fn bytes(&self) -> usize {
        self.offsets.end
    }

    /// Puts what a write to a random page touches (locks, counts of changes, page rows) into huge
    /// pages, for all processes: in small ones such a write misses the processor's translation
    /// cache four times. The memory is taken at once. Advice: nothing depends on its success, and
    /// it may be given while others use the board.
    pub(crate) fn use_huge_pages(&self) {
        let Offsets { locks, owners, end, .. } = self.offsets;
        let first = locks / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        for at in (first..owners).step_by(HUGE_PAGE_BYTES).filter(|at| at + HUGE_PAGE_BYTES <= end) {
            // SAFETY: within the mapping and aligned for a word; everything in it may be read as an
            // atomic. What is not there at all the kernel would not gather.
            unsafe { self.base.add(at).cast::<AtomicU64>().as_ref() }.load(Ordering::Relaxed);
            // SAFETY: a range of the mapping; the advice leaves its contents as they are. rustix
            // has no name for it.
            unsafe { libc::madvise(self.base.add(at).as_ptr().cast(), HUGE_PAGE_BYTES, MADV_COLLAPSE) };
        }
    }

    /// Has the processor fetch the seq counter for writing: it is about to be read and then drawn
    /// from, and other processors do the same.
    #[inline]
    pub(crate) fn prefetch_counter(&self) {
        // SAFETY: a hint, which touches nothing.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(std::ptr::from_ref(&self.header().counter).cast()) };
    }

    /// Has the processor fetch what the board says of a page, which is about to be needed.
    #[inline]
    pub(crate) fn prefetch_page(&self, slot: Slot, page: Page) {
        const SET_BYTES: usize = size_of::<PageRow>() * WAYS;
        let set = home(slot, page, u64::from(self.plan.lock_count)) as usize;
        let Offsets { locks, changes, keys, pages, .. } = self.offsets;
        let rows = pages + set * SET_BYTES;
        for at in [locks + set * 4, changes + set * 8, keys + set * WAYS * 8, rows, rows + 64, rows + 128] {
            // SAFETY: a hint, which touches nothing; the address lies within the mapping in any
            // case.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.base.add(at).as_ptr().cast()) };
        }
    }
}

impl Tables {
    pub(crate) fn map(fd: BorrowedFd<'_>, plan: Plan) -> Result<Self, BoardError> {
        let offsets = plan.offsets();
        if rustix::fs::fstat(fd).map_err(os)?.st_size < offsets.end as i64 {
            return Err(BoardError::Unknown);
        }
        let base = map_aligned(fd, offsets.end).map_err(os)?;
        // SAFETY: the range was just mapped; the advice only keeps it out of core dumps.
        let _ = unsafe { rustix::mm::madvise(base, offsets.end, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast()).ok_or(BoardError::Unknown)?;
        Ok(Self { base, plan, offsets })
    }

    /// Makes all of it zero; nobody may use it meanwhile.
    pub(crate) fn clear(&self) {
        let base = self.base.as_ptr();
        for page in (0..self.offsets.end).step_by(4096) {
            // Most pages were never touched, and reading is cheaper than writing. SAFETY: a page of
            // the mapping, which consists of whole ones and is aligned to them; everything in it is
            // atomics or handed over by one, all of which may be zero, and by the caller's word
            // nobody else is at it.
            unsafe {
                let words = core::slice::from_raw_parts(base.add(page).cast::<u64>(), 512);
                if words.iter().fold(0, |all, word| all | word) != 0 {
                    core::ptr::write_bytes(base.add(page), 0, 4096);
                }
            }
        }
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: the mapping is at least a page, page-aligned, lives as long as `self`, holds only
        // atomics.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    #[inline]
    fn table<T>(&self, offset: usize, count: u32) -> &[T] {
        // SAFETY: `offsets` lays the tables out page-aligned within the mapping with room for
        // `count` rows; every row type consists of atomics (or hands its bytes over by one), for
        // which any bytes are valid.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).cast::<T>().as_ptr(), count as usize) }
    }

    #[inline]
    pub(crate) fn lanes(&self) -> &[LaneRow] {
        self.table(self.offsets.lanes, self.plan.lane_count)
    }

    #[inline]
    pub(crate) fn files(&self) -> &[FileRow] {
        self.table(self.offsets.files, self.plan.slot_count)
    }

    #[inline]
    pub(crate) fn times(&self) -> &[TimesRow] {
        self.table(self.offsets.times, self.plan.slot_count)
    }

    #[inline]
    pub(crate) fn segments(&self) -> &[SegmentRow] {
        self.table(self.offsets.segments, self.plan.segment_count)
    }

    #[inline]
    pub(crate) fn requests(&self) -> &[RequestCell] {
        self.table(self.offsets.requests, self.plan.request_count)
    }

    /// The page rows.
    #[inline]
    pub(crate) fn pages(&self) -> Pages<'_> {
        let count = self.plan.lock_count * WAYS as u32;
        Pages {
            keys: self.table(self.offsets.keys, count),
            rows: self.table(self.offsets.pages, count),
            changes: self.changes(),
        }
    }

    #[inline]
    pub(crate) fn changes(&self) -> &[AtomicU64] {
        self.table(self.offsets.changes, self.plan.lock_count)
    }

    /// The loaded pages.
    #[inline]
    pub(crate) fn loaded(&self) -> Loaded<'_> {
        Loaded {
            tags: self.table(self.offsets.tags, self.plan.loaded_count),
            hands: self.table(self.offsets.hands, self.plan.loaded_count / LOADED_WAYS as u32),
            // SAFETY: `offsets` lays the frames out within the mapping.
            base: unsafe { self.base.add(self.offsets.loaded) },
            life: PhantomData,
        }
    }

    /// The frames of page rows.
    #[inline]
    pub(crate) fn frames(&self) -> Frames<'_> {
        Frames {
            owners: self.table(self.offsets.owners, self.plan.frame_count),
            sums: self.table(self.offsets.sums, self.plan.frame_count),
            hand: &self.header().frame_hand,
            // SAFETY: `offsets` lays the frames out within the mapping.
            base: unsafe { self.base.add(self.offsets.frames) },
            life: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn locks(&self) -> &[AtomicU32] {
        self.table(self.offsets.locks, self.plan.lock_count)
    }

    #[inline]
    pub(crate) fn buckets(&self) -> &[AtomicU64] {
        self.table(self.offsets.buckets, self.plan.bucket_count)
    }
}

impl Tables {
    /// Puts an empty board of this process alone in the place of this one, for who may go on using
    /// it: its keeper is dead, and nothing that is written there reaches anybody.
    pub(crate) fn cover(&self) {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let bytes = self.offsets.end.next_multiple_of(4096);
        // SAFETY: replaces the mapping; everything in it is atomics, all of which may be zero.
        let _ = unsafe { mmap_anonymous(self.base.as_ptr().cast(), bytes, access, flags) };
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        // SAFETY: `base` and the length are those of the mapping made in `map`; no reference
        // outlives `self`.
        let _ = unsafe {
            let bytes = self.offsets.end.next_multiple_of(4096) + 2 * GUARD_BYTES;
            munmap(self.base.as_ptr().sub(GUARD_BYTES).cast(), bytes)
        };
    }
}

/// Maps `bytes` of `fd` at a 2 MiB boundary, so that huge pages can be used, between guards.
fn map_aligned(fd: BorrowedFd<'_>, bytes: usize) -> Result<*mut core::ffi::c_void, rustix::io::Errno> {
    let room = bytes.next_multiple_of(HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES + 2 * GUARD_BYTES;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: new address space at a place of the kernel's choice, not accessible.
    let start = unsafe { mmap_anonymous(core::ptr::null_mut(), room, ProtFlags::empty(), flags)? };
    let front = start.cast::<u8>().wrapping_add(GUARD_BYTES).align_offset(HUGE_PAGE_BYTES);
    let base = start.cast::<u8>().wrapping_add(GUARD_BYTES + front);
    let end = front + bytes.next_multiple_of(4096) + 2 * GUARD_BYTES;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: replaces and removes parts of the reservation just made, which nobody else knows.
    unsafe {
        let base = mmap(base.cast(), bytes, access, MapFlags::SHARED | MapFlags::FIXED, fd, 0)?;
        if front > 0 {
            munmap(start, front)?;
        }
        munmap(start.cast::<u8>().add(end).cast(), room - end)?;
        Ok(base)
    }
}

/// Memory of this size that can be passed on, and keeps its size.
pub(crate) fn sealed_memory(bytes: usize) -> Result<OwnedFd, BoardError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("holdfast-board", flags).map_err(os)?;
    rustix::fs::ftruncate(&fd, bytes as u64).map_err(os)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).map_err(os)?;
    Ok(fd)
}

fn os(errno: rustix::io::Errno) -> BoardError {
    BoardError::Os(errno.raw_os_error())
}
