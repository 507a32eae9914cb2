//! Files that the keeper took from clients that stand still: who had them, and has not gone on yet.
//!
//! A client that keeps a file to itself, or is about to remove its name, may be stopped in the
//! midst of that. The keeper then ends the use of the file's slot ([`crate::FileRow::exclusive`] is
//! its own meanwhile), and says so here. The client finds on its way out that its hold is gone and
//! takes the row away. Until then no other file gets the slot, and something counts as pending on
//! every file system: the change of a name that it is still to make is noted by nobody else. Must
//! never be waited for.

use crate::sync::{AtomicU64, Ordering};
use holdfast_pool::Slot;

/// Holds that can be taken at a time; further ones are waited for.
pub(crate) const TAKEN_ROWS: usize = if cfg!(shuttle) { 2 } else { 64 };

/// All holds that were taken.
#[repr(C)]
pub struct Taken {
    /// The client in the upper half, slot + 1 in the lower; 0 for none.
    rows: [AtomicU64; TAKEN_ROWS],
}

impl Default for Taken {
    fn default() -> Self {
        Self { rows: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

fn row_of(slot: Slot, client: u32) -> u64 {
    u64::from(client) << 32 | u64::from(slot.word())
}

impl Taken {
    /// Notes that the hold of `client` on a slot is taken; false when there is no room.
    pub fn note(&self, slot: Slot, client: u32) -> bool {
        let taken = row_of(slot, client);
        self.rows.iter().any(|row| row.load(Ordering::SeqCst) == taken)
            || self
                .rows
                .iter()
                .any(|row| row.compare_exchange(0, taken, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }

    /// Whether it was.
    pub fn is_from(&self, slot: Slot, client: u32) -> bool {
        self.rows.iter().any(|row| row.load(Ordering::SeqCst) == row_of(slot, client))
    }

    /// The client has gone on, and noted what it did.
    pub fn end(&self, slot: Slot, client: u32) {
        let taken = row_of(slot, client);
        for row in &self.rows {
            let _ = row.compare_exchange(taken, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Takes away what a dead client has.
    pub fn clear(&self, client: u32) {
        for row in &self.rows {
            let taken = row.load(Ordering::SeqCst);
            if taken >> 32 == u64::from(client) {
                let _ = row.compare_exchange(taken, 0, Ordering::SeqCst, Ordering::SeqCst);
            }
        }
    }

    /// Whether anybody may still act on a slot that was taken from them.
    pub(crate) fn has(&self, slot: Slot) -> bool {
        self.rows.iter().any(|row| row.load(Ordering::SeqCst) as u32 == slot.word())
    }

    /// Whether nobody may.
    pub fn is_empty(&self) -> bool {
        self.rows.iter().all(|row| row.load(Ordering::SeqCst) == 0)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_gone_until_its_client_goes_on_or_dies() {
        let taken = Taken::default();
        assert!(
            taken.is_empty()
                && taken.note(Slot::new(3), 7)
                && taken.note(Slot::new(3), 7)
                && taken.note(Slot::new(0), 8)
        );
        assert!(
            taken.has(Slot::new(3))
                && taken.has(Slot::new(0))
                && !taken.has(Slot::new(1))
                && taken.is_from(Slot::new(3), 7)
                && !taken.is_from(Slot::new(3), 8)
        );
        taken.end(Slot::new(3), 8);
        assert!(taken.has(Slot::new(3)));
        taken.end(Slot::new(3), 7);
        assert!(!taken.has(Slot::new(3)) && !taken.is_empty());
        taken.clear(8);
        assert!(taken.is_empty());
    }

    #[test]
    fn more_than_there_is_room_for_are_not_taken() {
        let taken = Taken::default();
        assert!((0..TAKEN_ROWS as u32).all(|slot| taken.note(Slot::new(slot), 1)));
        assert!(!taken.note(Slot::new(1000), 1));
        taken.end(Slot::new(5), 1);
        assert!(taken.note(Slot::new(1000), 1));
    }
}
