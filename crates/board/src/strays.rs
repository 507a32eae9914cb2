//! Owner words that name nobody who has what they are about: a stray store left them, and whoever
//! waits for them would wait for ever.
//!
//! One look proves nothing, since owners come and go while it is taken. The keeper looks again and
//! again before it opens such a word (`keeper/src/stalls.rs`).

use crate::board::Board;
use crate::lanes::Locked;
use crate::numbers::LaneIndex;
use crate::owner::{WAITERS, unlock_word};
use crate::requests::{RequestCell, RequestState};
use crate::sync::Ordering;
use holdfast_pool::{Seq, Slot};

/// Such a word, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stray {
    /// The page lock with this number names this owner.
    Page(usize, u32),
    /// So does the lock of a file's cursor.
    Cursor(Slot, u32),
    /// Somebody keeps a file's writers out who is nobody.
    File(Slot, u32),
    /// A lane that is nobody's says that an operation is under way.
    Announced(LaneIndex, Seq),
    /// A lane is that of nobody.
    Owner(LaneIndex, u32),
    /// The request cell with this number has this word and is this client's, who is nobody; or the
    /// word is none.
    Cell(usize, u32, u32),
    /// The table that finds files seems to be in the midst of a change.
    Table(u64),
}

/// Pages of a file that the keeper locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ours {
    /// The slot.
    pub slot: Slot,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// It has all of them; before that it may wait for some.
    pub is_held: bool,
}

impl Board {
    /// The owner words that name nobody who has what they are about, as far as one look tells.
    /// `keeper` is the lane in whose name the keeper locks pages, `ours` what it locks; `is_known`
    /// knows whom it has heard of, and `has_file` who may keep a file's writers out. The table's
    /// word is the caller's to judge.
    pub fn strays(
        &self,
        keeper: LaneIndex,
        ours: &[Ours],
        is_known: &dyn Fn(u32) -> bool,
        has_file: &dyn Fn(Slot, u32) -> bool,
    ) -> Vec<Stray> {
        let mut found = Vec::new();
        let locks = self.page_locks();
        for (index, word) in locks.words.iter().enumerate() {
            let owner = word.load(Ordering::SeqCst) & !WAITERS;
            if owner == 0 {
                continue;
            }
            let is_ours = ours.iter().any(|of| {
                (of.is_held || owner == keeper.word()) && locks.covers(of.slot, (of.offset, of.bytes), index)
            });
            let lane = self.lanes().get(owner as usize - 1);
            let has_it = lane.is_some_and(|lane| {
                let covers = |held: Locked| locks.covers(lane.slot(), (held.offset, held.bytes), index);
                lane.owner() != 0 && lane.locks().is_some_and(covers)
            });
            if !is_ours && !has_it {
                found.push(Stray::Page(index, owner));
            }
        }
        for (slot, row) in (0..).map(Slot::new).zip(self.files()) {
            let cursor = row.cursor_lock.load(Ordering::SeqCst) & !WAITERS;
            let lane = self.lanes().get((cursor as usize).wrapping_sub(1));
            if cursor != 0 && lane.is_none_or(|lane| lane.announces(slot).is_none()) {
                found.push(Stray::Cursor(slot, cursor));
            }
            // That somebody waits for nobody is said by no one but a stray store.
            let holder = row.holder();
            if row.is_exclusive() && (holder == 0 || !has_file(slot, holder)) {
                found.push(Stray::File(slot, holder));
            }
        }
        for (index, lane) in (0..).map(LaneIndex::new).zip(self.lanes()) {
            let (owner, announced) = (lane.owner(), lane.announced());
            if owner == 0 && announced != Seq::ZERO {
                found.push(Stray::Announced(index, announced));
            } else if owner != 0 && !is_known(owner) {
                found.push(Stray::Owner(index, owner));
            }
        }
        for (index, cell) in self.requests().iter().enumerate() {
            let (word, client) = (cell.word(), cell.client());
            if !RequestCell::is_state(word) || word != RequestState::Free as u32 && !is_known(client) {
                found.push(Stray::Cell(index, word, client));
            }
        }
        found
    }

    /// Opens such a word, if it still says what it did. What a lane says that is nobody's is the
    /// caller's to finish, as that of a dead client.
    pub fn open_stray(&self, stray: Stray) {
        match stray {
            Stray::Page(index, owner) => _ = unlock_word(&self.page_locks().words[index], owner),
            Stray::Cursor(slot, owner) => _ = unlock_word(&self.files()[slot.index()].cursor_lock, owner),
            Stray::File(slot, owner) => _ = self.files()[slot.index()].unlock_exclusive(owner),
            Stray::Announced(index, _) => {
                let lane = &self.lanes()[index.index()];
                // Who takes the lane from here on announces itself anew.
                if lane.try_take(u32::MAX) {
                    lane.free();
                    self.header().wake_for_lanes();
                }
            }
            Stray::Cell(index, word, client) => self.requests()[index].free_if(word, client),
            Stray::Table(_) | Stray::Owner(..) => (),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Plan;

    const KEEPER: LaneIndex = LaneIndex::new(999);

    #[test]
    fn who_has_what_a_word_is_about_is_no_stray_and_anybody_else_is() {
        let (board, _fd) = Board::create(Plan::new(256, 16)).unwrap();
        let look = |ours: &[Ours]| board.strays(KEEPER, ours, &|id| id < 10, &|_, id| id < 10);
        assert!(look(&[]).is_empty());
        let (slot, lane) = (Slot::new(3), &board.lanes()[1]);
        assert!(lane.try_take(7));
        lane.note_locks(Locked { offset: 8192, bytes: 4096 });
        lane.announce(Slot::new(3), Seq::new(5));
        assert!(board.page_locks().lock(LaneIndex::new(1), slot, 8192, 4096));
        assert!(board.files()[3].lock_cursor(LaneIndex::new(1), board.header()));
        assert!(board.lock_file(Slot::new(4), 7));
        assert!(look(&[]).is_empty(), "all of it is somebody's: {:?}", look(&[]));

        // Of the keeper's the words that say so while it waits, and all once it has them.
        let mut ours = Ours { slot, offset: 40_960, bytes: 8192, is_held: false };
        assert!(board.page_locks().lock(KEEPER, slot, 40_960, 4096));
        assert!(board.page_locks().lock(LaneIndex::new(70), slot, 45_056, 4096));
        let [Stray::Page(other, 71)] = look(&[ours])[..] else { panic!("{:?}", look(&[ours])) };
        ours.is_held = true;
        assert!(look(&[ours]).is_empty());
        assert_eq!(look(&[]).len(), 2);
        board.open_stray(Stray::Page(other, 70));
        assert_eq!(look(&[]).len(), 2, "it says something else");
        board.open_stray(Stray::Page(other, 71));
        board.page_locks().unlock(KEEPER, slot, 40_960, 4096);
        assert!(look(&[]).is_empty());

        // The same lane, elsewhere; a lane that is free; nobody's lane.
        assert!(board.page_locks().lock(LaneIndex::new(1), slot, 4096, 4096));
        assert!(board.page_locks().lock(LaneIndex::new(0), slot, 0, 4096));
        board.files()[5].cursor_lock.store(2 | WAITERS, Ordering::SeqCst);
        board.files()[6].exclusive.store(11, Ordering::SeqCst);
        board.files()[7].exclusive.store(WAITERS, Ordering::SeqCst);
        board.lanes()[2].announce(Slot::new(0), Seq::new(9));
        let found = look(&[]);
        assert_eq!(found.len(), 6, "{found:?}");
        found.into_iter().for_each(|stray| board.open_stray(stray));
        assert!(look(&[]).is_empty(), "{:?}", look(&[]));
        // Cells: of who is known, of nobody, and in no state.
        assert!(board.requests()[0].claim(7) && board.requests()[1].claim(77));
        board.requests()[2].state.store(99, Ordering::SeqCst);
        let found = look(&[]);
        assert_eq!(found, [Stray::Cell(1, 1, 77), Stray::Cell(2, 99, 0)]);
        found.into_iter().for_each(|stray| board.open_stray(stray));
        assert!(look(&[]).is_empty(), "{:?}", look(&[]));
        assert!(board.lanes()[3].try_take(12));
        assert_eq!(look(&[]), [Stray::Owner(LaneIndex::new(3), 12)]);
    }
}
