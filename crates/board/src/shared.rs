//! A board that processes share: made by the keeper, opened by clients.
//!
//! It must never take a board for one whose rows are others than those of this code.

use holdfast_pool::Slot;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::board::Board;
use crate::map::{MAGIC, Tables, sealed_memory};
use crate::own::Own;
use crate::page::Page;
use crate::plan::{BoardError, Plan};
use crate::sync::Ordering;

impl Board {
    /// Makes an empty board; the descriptor is passed to clients, none of which can change its
    /// size: what is mapped stays there for everybody.
    pub fn create(plan: Plan) -> Result<(Self, OwnedFd), BoardError> {
        let fd = sealed_memory(plan.bytes())?;
        let board = Self { plan, tables: Tables::map(fd.as_fd(), plan)?, own: Own::default() };
        board.write_plan(&plan, MAGIC);
        Ok((board, fd))
    }

    /// Makes this board as it was when it was created; nobody may use it meanwhile.
    pub fn reset(&self) {
        let (magic, plan) = (self.header().magic.load(Ordering::Relaxed), self.plan);
        self.tables.clear();
        self.write_plan(&plan, magic);
        self.begin_anew();
    }

    /// The board was made as it was when it was created: no number of before counts here, either.
    pub fn begin_anew(&self) {
        self.own.note(0);
    }

    fn write_plan(&self, plan: &Plan, magic: u64) {
        let header = self.header();
        // Whoever makes a board keeps it, by whichever thread it says next.
        header.begin_keeper(1);
        header.slot_count.store(plan.slot_count, Ordering::Relaxed);
        header.segment_count.store(plan.segment_count, Ordering::Relaxed);
        header.lane_count.store(plan.lane_count, Ordering::Relaxed);
        header.lock_count.store(plan.lock_count, Ordering::Relaxed);
        header.bucket_count.store(plan.bucket_count, Ordering::Relaxed);
        header.request_count.store(plan.request_count, Ordering::Relaxed);
        header.frame_count.store(plan.frame_count, Ordering::Relaxed);
        header.loaded_count.store(plan.loaded_count, Ordering::Relaxed);
        self.clear_table();
        header.magic.store(magic, Ordering::Release);
    }

    /// Maps a board that the keeper made.
    pub fn open(fd: BorrowedFd<'_>, slot_count: u32, segment_count: u32) -> Result<Self, BoardError> {
        let plan = Plan::new(slot_count, segment_count);
        let board = Self { plan, tables: Tables::map(fd, plan)?, own: Own::default() };
        let frame_count = board.header().frame_count.load(Ordering::Acquire);
        let loaded_count = board.header().loaded_count.load(Ordering::Acquire);
        let plan = plan.with_frames(frame_count).with_loaded(loaded_count);
        let board = match frame_count + loaded_count {
            0 => board,
            _ => Self { plan, tables: Tables::map(fd, plan)?, own: Own::default() },
        };
        let header = board.header();
        let same = header.magic.load(Ordering::Acquire) == MAGIC
            && header.slot_count.load(Ordering::Relaxed) == plan.slot_count
            && header.segment_count.load(Ordering::Relaxed) == plan.segment_count
            && header.lane_count.load(Ordering::Relaxed) == plan.lane_count
            && header.lock_count.load(Ordering::Relaxed) == plan.lock_count
            && header.bucket_count.load(Ordering::Relaxed) == plan.bucket_count
            && header.request_count.load(Ordering::Relaxed) == plan.request_count;
        if same { Ok(board) } else { Err(BoardError::Unknown) }
    }

    /// Bytes of the whole board.
    pub fn bytes(&self) -> usize {
        self.tables.bytes()
    }

    /// Puts what a write to a random page touches (locks, counts of changes, page rows) into huge
    /// pages, for all processes: in small ones such a write misses the processor's translation
    /// cache four times. The memory is taken at once. Advice: nothing depends on its success, and
    /// it may be given while others use the board.
    pub fn use_huge_pages(&self) {
        self.tables.use_huge_pages();
    }

    /// Has the processor fetch the seq counter for writing: it is about to be read and then drawn
    /// from, and other processors do the same.
    #[inline]
    pub fn prefetch_counter(&self) {
        self.tables.prefetch_counter();
    }

    /// Has the processor fetch what the board says of a page, which is about to be needed.
    #[inline]
    pub fn prefetch_page(&self, slot: Slot, page: Page) {
        self.tables.prefetch_page(slot, page);
    }

    /// Puts an empty board of this process alone in the place of this one, for who may go on using
    /// it: its keeper is dead, and nothing that is written there reaches anybody.
    pub fn cover(&self) {
        self.tables.cover();
    }
}
