//! Frames: pages of DRAM in the board, for pages whose newest bytes do not lie in one piece in the
//! log.
//!
//! A frame belongs to one page row and is touched only under that row's page lock. It never holds
//! the only copy of anything: every byte in it is in the log. It has a sum of the bytes that its
//! row says are in it: whoever brings them to a file sees what else stored there.
#![allow(unsafe_code)] // Copies in and out of shared memory.

use crate::numbers::{Frame, LaneIndex};
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;

use crate::frame_sum::sum_of;
use crate::page::PAGE_BYTES;
use crate::sync::{AtomicU32, Ordering};

/// Frames looked at before a search is given up.
const LOOKS: u32 = 64;
/// With the number of the row: owner of a frame that a row points to; while it is being filled,
/// lane + 1 stands there.
const IN_ROW: u32 = 0x8000_0000;

/// All frames.
#[derive(Clone, Copy)]
pub struct Frames<'a> {
    pub(crate) owners: &'a [AtomicU32],
    /// Like the bytes, nobody else's under the page lock of the row.
    pub(crate) sums: &'a [core::sync::atomic::AtomicU64],
    pub(crate) hand: &'a AtomicU32,
    pub(crate) base: NonNull<u8>,
    pub(crate) life: PhantomData<&'a ()>,
}

impl Frames<'_> {
    /// Number of frames.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Takes a free frame for `lane`, if one is found soon.
    pub fn take(&self, lane: LaneIndex) -> Option<Frame> {
        if self.owners.is_empty() {
            return None;
        }
        (0..LOOKS.min(self.owners.len() as u32)).find_map(|_| {
            let frame = Frame::new(self.hand.fetch_add(1, Ordering::Relaxed) % self.owners.len() as u32);
            let owner = &self.owners[frame.index()];
            (owner.load(Ordering::Relaxed) == 0
                && owner.compare_exchange(0, lane.word(), Ordering::Acquire, Ordering::Relaxed).is_ok())
            .then_some(frame)
        })
    }

    /// This row points to the frame now.
    pub fn keep(&self, frame: Frame, row: usize) {
        self.owners[frame.index()].store(IN_ROW | row as u32, Ordering::Relaxed);
    }

    /// Whether another quarter of the frames was taken since this was last so: the keeper likes to
    /// hear of it.
    pub fn is_milestone(&self, frame: Frame) -> bool {
        frame.index().is_multiple_of((self.owners.len() / 4).max(1))
    }

    /// Numbers of the rows that have frames. Hints: they change all the time.
    pub fn rows(&self) -> impl Iterator<Item = usize> {
        let held = self.owners.iter().map(|owner| owner.load(Ordering::Relaxed));
        held.filter(|held| held & IN_ROW != 0).map(|held| (held & !IN_ROW) as usize)
    }

    /// Gives a frame back, if there is one of that number.
    pub fn free(&self, frame: Frame) {
        if let Some(owner) = self.owners.get(frame.index()) {
            owner.store(0, Ordering::Release);
        }
    }

    /// As [`Frames::free`], if it is that of this row.
    pub fn free_of(&self, frame: Frame, row: usize) {
        if let Some(owner) = self.owners.get(frame.index()) {
            let _ = owner.compare_exchange(IN_ROW | row as u32, 0, Ordering::Release, Ordering::Relaxed);
        }
    }

    /// What a dead lane had taken, and what it had not kept yet.
    pub fn taken_by(&self, lane: LaneIndex) -> impl Iterator<Item = Frame> {
        let owners = (0..).map(Frame::new).zip(self.owners);
        owners.filter(move |(_, owner)| owner.load(Ordering::Relaxed) == lane.word()).map(|(frame, _)| frame)
    }

    /// Gives back what a dead lane had taken; no row points to it.
    pub fn free_taken(&self, lane: LaneIndex) {
        for owner in self.owners {
            let _ = owner.compare_exchange(lane.word(), 0, Ordering::Release, Ordering::Relaxed);
        }
    }

    fn at(&self, frame: Frame, at: u32, bytes: usize) -> *mut u8 {
        assert!(frame.index() < self.owners.len() && at as usize + bytes <= PAGE_BYTES as usize);
        // SAFETY: frames lie one after the other behind `base`, as many as there are owners, within
        // the board's mapping.
        unsafe { self.base.as_ptr().add(frame.index() * PAGE_BYTES as usize + at as usize) }
    }

    /// Has a frame hold these bytes and nothing else. The caller holds the page lock of its row.
    pub fn fill(&self, frame: Frame, at: u32, bytes: &[u8]) {
        self.write(frame, at, bytes);
        self.set_sum(frame, sum_of(at, bytes));
    }

    /// Puts `bytes` into a frame that holds those of `held`, beside and over them.
    /// The caller holds the page lock of its row.
    pub fn merge(&self, frame: Frame, held: Range<u32>, at: u32, bytes: &[u8]) {
        let (from, to) = (held.start.max(at), held.end.min(at.saturating_add(bytes.len() as u32)));
        let covered = if from < to { self.sum_in(frame, from, to) } else { 0 };
        self.write(frame, at, bytes);
        let sum = self.sum(frame).wrapping_sub(covered).wrapping_add(sum_of(at, bytes));
        self.set_sum(frame, sum);
    }

    /// Takes a frame for what its row says, as it is: whoever died may have changed its bytes and
    /// not its sum. The caller has the page lock of its row.
    pub fn believe(&self, frame: Frame, held: Range<u32>) {
        self.set_sum(frame, self.sum_in(frame, held.start, held.end));
    }

    /// Whether `bytes`, copied out of a frame from `at` on and all that its row says are in it, are
    /// what was put there.
    pub fn held(&self, frame: Frame, at: u32, bytes: &[u8]) -> bool {
        self.sum(frame) == sum_of(at, bytes)
    }

    fn sum(&self, frame: Frame) -> u64 {
        self.sums[frame.index()].load(Ordering::Relaxed)
    }

    fn set_sum(&self, frame: Frame, sum: u64) {
        self.sums[frame.index()].store(sum, Ordering::Relaxed);
    }

    fn sum_in(&self, frame: Frame, lo: u32, hi: u32) -> u64 {
        let mut bytes = [0; PAGE_BYTES as usize];
        let bytes = &mut bytes[..hi.saturating_sub(lo) as usize];
        self.read(frame, lo, bytes);
        sum_of(lo, bytes)
    }

    fn write(&self, frame: Frame, at: u32, bytes: &[u8]) {
        let to = self.at(frame, at, bytes.len());
        // SAFETY: the range lies within the frame (checked); nobody else touches it under the page
        // lock; `bytes` is ordinary memory or at least not this frame, to which no references
        // exist.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies out of a frame. The caller holds the page lock of its row.
    pub fn read(&self, frame: Frame, at: u32, bytes: &mut [u8]) {
        let from = self.at(frame, at, bytes.len());
        // SAFETY: as for `write`, in the other direction.
        unsafe { core::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::{Board, Frame, LaneIndex, Plan};

    #[test]
    fn a_frame_knows_what_was_put_into_it() {
        let (board, _fd) = Board::create(Plan::new(256, 16).with_frames(1)).unwrap();
        let (frames, frame) = (board.frames(), Frame::new(0));
        let read = |lo: u32, hi: u32| {
            let mut bytes = vec![0; (hi - lo) as usize];
            frames.read(frame, lo, &mut bytes);
            bytes
        };
        frames.fill(frame, 1003, &[1; 500]);
        assert!(frames.held(frame, 1003, &read(1003, 1503)) && !frames.held(frame, 1003, &read(1003, 1502)));
        // Behind, before and in the midst of what it holds, and over an end of it.
        let (mut lo, mut hi) = (1003u32, 1503u32);
        for (at, bytes) in [(1503, 77), (900, 103), (1100, 9), (1500, 200), (1001, 3), (899, 2000), (0, 4096)]
        {
            frames.merge(frame, lo..hi, at, &vec![at as u8; bytes as usize]);
            (lo, hi) = (lo.min(at), hi.max(at + bytes));
            assert!(frames.held(frame, lo, &read(lo, hi)), "{bytes} at {at}");
        }
        frames.write(frame, 2000, b"of nobody");
        assert!(!frames.held(frame, 0, &read(0, 4096)));
        // Nor does what is written over a part of it make it well.
        frames.merge(frame, 0..4096, 2000, b"of no");
        assert!(!frames.held(frame, 0, &read(0, 4096)));
        frames.believe(frame, 0..4096);
        assert!(frames.held(frame, 0, &read(0, 4096)));
    }

    #[test]
    fn frames_are_taken_once_and_hold_what_is_put_in() {
        let (board, fd) = Board::create(Plan::new(256, 16).with_frames(3)).unwrap();
        let other = Board::open(rustix::fd::AsFd::as_fd(&fd), 256, 16).unwrap();
        let mut taken: Vec<Frame> = (0..3).map(|_| board.frames().take(LaneIndex::new(4)).unwrap()).collect();
        assert_eq!(other.frames().take(LaneIndex::new(5)), None);
        for &frame in &taken {
            board.frames().fill(frame, 4000, &[frame.number() as u8 + 1; 96]);
        }
        for &frame in &taken {
            let mut bytes = [0; 97];
            other.frames().read(frame, 3999, &mut bytes);
            assert_eq!(
                (bytes[0], bytes[1], bytes[96]),
                (0, frame.number() as u8 + 1, frame.number() as u8 + 1)
            );
        }
        board.frames().keep(taken[0], 77);
        assert_eq!(other.frames().rows().collect::<Vec<_>>(), [77]);
        board.frames().free_taken(LaneIndex::new(4));
        let again: Vec<Frame> = (0..2).map(|_| other.frames().take(LaneIndex::new(5)).unwrap()).collect();
        taken.remove(0);
        taken.sort_unstable();
        let mut sorted = again;
        sorted.sort_unstable();
        assert_eq!(sorted, taken, "the one in a row stays");
        let (none, _fd) = Board::create(Plan::new(256, 16)).unwrap();
        assert!(none.frames().is_empty() && none.frames().take(LaneIndex::new(0)).is_none());
    }
}
