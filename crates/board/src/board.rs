//! The board: its tables, wherever they lie, and what needs more than one of them.

use crate::numbers::LaneIndex;
use core::time::Duration;
use holdfast_pool::{Seq, Slot};

use holdfast_canary::{Canary, on};

use crate::files::{FileRow, TAKER_ID};
use crate::frames::Frames;
use crate::header::Header;
use crate::lanes::{LaneRow, Locked};
use crate::loaded::Loaded;
use crate::locks::PageLocks;
#[cfg(not(shuttle))]
use crate::map::Tables;
#[cfg(shuttle)]
use crate::ordinary::Tables;
use crate::own::Own;
use crate::pages::Pages;
use crate::plan::Plan;
use crate::requests::RequestCell;
use crate::segments::SegmentRow;
use crate::stalls::Stall;
use crate::sync::{pause, spin_loop};
use crate::times::TimesRow;
use crate::versions::Versions;

/// Looks at a lane before letting time pass: about as long as an operation takes.
const SPINS: u32 = if cfg!(shuttle) { 1 } else { 1000 };

/// Whoever must not wait for others waits for their operations so long. Who stands still has been
/// taken the file from by then.
const TRY_NS: u64 = 1_000_000_000;

/// Whether the writers of a file are out.
enum Out {
    /// They are.
    All,
    /// They are not, and the keeper wants the file first, or it takes too long.
    Wanted,
    /// The keeper is dead.
    Stopped,
}

/// The board of one keeper.
#[cfg_attr(shuttle, derive(Clone))]
pub struct Board {
    pub(crate) plan: Plan,
    pub(crate) tables: Tables,
    pub(crate) own: Own,
}

impl Board {
    /// An empty board in ordinary memory; its clones share it.
    #[cfg(shuttle)]
    pub fn ordinary(plan: Plan) -> Self {
        let board = Self { plan, tables: Tables::ordinary(plan), own: Own::default() };
        board.clear_table();
        board
    }

    /// Sizes of the tables.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The first page.
    #[inline]
    pub fn header(&self) -> &Header {
        self.tables.header()
    }

    /// All lanes.
    #[inline]
    pub fn lanes(&self) -> &[LaneRow] {
        self.tables.lanes()
    }

    /// The row of a slot, which there must be: one that a client or a record names is looked up in
    /// [`Board::files`].
    #[inline]
    pub fn row(&self, slot: Slot) -> &FileRow {
        &self.files()[slot.index()]
    }

    /// All file rows.
    #[inline]
    pub fn files(&self) -> &[FileRow] {
        self.tables.files()
    }

    /// The times of files, by slot.
    #[inline]
    pub fn times(&self) -> &[TimesRow] {
        self.tables.times()
    }

    /// All segment rows.
    #[inline]
    pub fn segments(&self) -> &[SegmentRow] {
        self.tables.segments()
    }

    /// All request cells.
    #[inline]
    pub fn requests(&self) -> &[RequestCell] {
        self.tables.requests()
    }

    /// The page rows.
    #[inline]
    pub fn pages(&self) -> Pages<'_> {
        self.tables.pages()
    }

    /// The frames of page rows.
    #[inline]
    pub fn frames(&self) -> Frames<'_> {
        self.tables.frames()
    }

    /// The loaded pages.
    #[inline]
    pub fn loaded(&self) -> Loaded<'_> {
        self.tables.loaded()
    }

    /// The versions of pages.
    #[inline]
    pub fn versions(&self) -> Versions<'_> {
        Versions { locks: self.tables.locks(), changes: self.tables.changes() }
    }

    /// The page locks.
    #[inline]
    pub fn page_locks(&self) -> PageLocks<'_> {
        PageLocks { words: self.tables.locks(), header: self.header(), files: self.files() }
    }

    /// Keeps new writers out of a file and waits for those under way. `who` is a client id or the
    /// keeper's. False, with nothing held, when the keeper has died.
    pub fn lock_file(&self, slot: Slot, who: u32) -> bool {
        let row = &self.files()[slot.index()];
        loop {
            if !row.lock_exclusive(who, self.header()) {
                return false;
            }
            match self.wait_for_writers(slot, u64::MAX) {
                Out::All => return true,
                Out::Stopped => {
                    self.unlock_file(slot, who);
                    return false;
                }
                // The keeper takes it, from one of those who are waited for.
                Out::Wanted => _ = self.unlock_file(slot, who),
            }
            pause(Duration::from_millis(1));
        }
    }

    /// Lets the writers of a file in again; false when the file was taken from `who`, which stood
    /// still: from here on it may be given to others.
    pub fn unlock_file(&self, slot: Slot, who: u32) -> bool {
        let held = self.files()[slot.index()].unlock_exclusive(who);
        if !held {
            self.header().taken.end(slot, who);
        }
        held
    }

    /// Takes a file from `from`, which stands still and keeps its writers out (0: nobody does), for
    /// [`TAKER_ID`]. False when that is not who has it.
    pub fn seize_file(&self, slot: Slot, from: u32) -> bool {
        let row = &self.files()[slot.index()];
        if from == 0 {
            return row.seize(0, TAKER_ID);
        }
        // First: no other file is to get the slot before it has gone on.
        if !self.header().taken.note(slot, from) {
            return false;
        }
        let seized = row.seize(from, TAKER_ID);
        if !seized {
            self.header().taken.end(slot, from);
        }
        seized
    }

    /// The lanes with an operation on a slot under way, and whose they are.
    pub fn lanes_on(&self, slot: Slot) -> impl Iterator<Item = (LaneIndex, u32)> {
        let on_it = (0..)
            .map(LaneIndex::new)
            .zip(self.lanes())
            .filter(move |(_, lane)| lane.announces(slot).is_some());
        on_it.map(|(index, lane)| (index, lane.owner()))
    }

    /// Opens the page locks of a lane that stands still in an operation on a slot whose use has
    /// ended: pages of other files have the same locks.
    pub fn open_pages_of(&self, lane: LaneIndex, slot: Slot) {
        let row = &self.lanes()[lane.index()];
        if let Some(Locked { offset, bytes }) = row.locks() {
            self.page_locks().unlock(lane, slot, offset, bytes);
        }
    }

    /// Whether somebody may still act on a slot by what it knew of its last use: no other file gets
    /// it then.
    pub fn lingers(&self, slot: Slot) -> bool {
        self.header().taken.has(slot) || self.lanes_on(slot).next().is_some()
    }

    /// As [`Board::lock_file`], but gives up when somebody has the file: for those who must not
    /// wait for who may wait for them.
    pub fn try_lock_file(&self, slot: Slot, who: u32) -> bool {
        let row = &self.files()[slot.index()];
        if !row.try_lock_exclusive(who) {
            return false;
        }
        let all_out = matches!(self.wait_for_writers(slot, TRY_NS), Out::All);
        if !all_out {
            self.unlock_file(slot, who);
        }
        all_out
    }

    /// Has whoever wants the file for itself wait, without waiting for its writers. False when
    /// somebody has it. Ends with [`FileRow::unlock_exclusive`].
    pub fn try_claim_file(&self, slot: Slot, who: u32) -> bool {
        self.files()[slot.index()].try_lock_exclusive(who)
    }

    /// Waits until no lane has an operation on `slot` under way, at most for `ns_max`.
    fn wait_for_writers(&self, slot: Slot, ns_max: u64) -> Out {
        let (row, mut stall) = (&self.files()[slot.index()], Stall::default());
        for lane in self.lanes() {
            let mut spins = 0u32;
            while lane.announces(slot).is_some() {
                spins += 1;
                if spins < SPINS {
                    spin_loop();
                } else if !self.header().keeper_alive() {
                    return Out::Stopped;
                } else if !row.state().is_in_use() {
                    // It was taken from who stands still there, and is nobody's.
                    return Out::All;
                } else if row.is_wanted() || stall.goes_on(self.header(), Some(row)) > ns_max {
                    return Out::Wanted;
                } else {
                    // Nobody wakes us: the announcing lane must not pay for the rare waiter.
                    pause(Duration::from_micros(50));
                }
            }
        }
        Out::All
    }

    /// Sleeps until nobody keeps the writers of a file out, or a moment has passed; `stall` is the
    /// caller's wait for that.
    pub fn wait_shared(&self, slot: Slot, stall: &mut Stall) {
        let row = &self.files()[slot.index()];
        stall.goes_on(self.header(), Some(row));
        row.wait_shared();
    }

    /// S for one file: every record of it with a seq up to S has been written to the page cache.
    ///
    /// The counter is read first, then all announcements; a writer announces a bound before it
    /// draws, so a seq below the counter read here was announced before (history 14).
    pub fn settled_seq(&self, slot: Slot) -> Seq {
        let drawn = self.next_seq().before();
        let announced = self.lanes().iter().filter_map(|lane| lane.announces(slot)).min();
        #[cfg(shuttle)]
        let drawn = match crate::model::mutated(crate::model::Mutation::AnnouncementsBeforeCounter) {
            true => self.next_seq().before(),
            false => drawn,
        };
        announced
            .filter(|_| !on(Canary::AnnouncementsIgnored))
            .map_or(drawn, |bound| drawn.min(bound.before()))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::Ordering;
    use holdfast_pool::Generation;

    #[test]
    fn files_are_found_until_they_are_removed() {
        let (board, fd) = Board::create(Plan::new(256, 16)).unwrap();
        let other = Board::open(rustix::fd::AsFd::as_fd(&fd), 256, 16).unwrap();
        for slot in 0..256u32 {
            let row = &board.files()[slot as usize];
            row.begin_use(Generation::new(1));
            board.insert(Slot::new(slot), u64::from(slot % 3), 1000 + u64::from(slot / 3));
        }
        for removed in (0..256u32).step_by(2) {
            board.remove(Slot::new(removed), u64::from(removed % 3), 1000 + u64::from(removed / 3));
        }
        for slot in 0..256u32 {
            let found = other.find(u64::from(slot % 3), 1000 + u64::from(slot / 3));
            assert_eq!(found, (slot % 2 == 1).then_some(Slot::new(slot)));
        }
        assert!(Board::open(rustix::fd::AsFd::as_fd(&fd), 512, 16).is_err());
    }

    #[test]
    fn who_finds_the_table_in_a_change_for_long_says_so_and_goes_on_behind_its_end() {
        let (board, _fd) = Board::create(Plan::new(256, 16)).unwrap();
        board.header().begin_keeper(1);
        board.insert(Slot::new(7), 0, 70);
        board.header().table_version.store(41, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let finder = scope.spawn(|| board.find(0, 70));
            while board.header().stalled.rung() == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(!finder.is_finished());
            assert_eq!(board.table_change(), Some(crate::Stray::Table(41)));
            board.end_table_change();
            assert_eq!(finder.join().unwrap(), Some(Slot::new(7)));
        });
        assert_eq!(board.table_change(), None);
        board.end_table_change();
        assert_eq!(board.table_change(), None, "there was none to end");
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
        board.raise_counter(Seq::new(100));
        assert_eq!(board.settled_seq(Slot::new(7)), Seq::new(99));
        board.lanes()[1].announce(Slot::new(7), Seq::new(51));
        assert_eq!(board.settled_seq(Slot::new(7)), Seq::new(49));
        assert_eq!(board.settled_seq(Slot::new(8)), Seq::new(99));
    }
}
