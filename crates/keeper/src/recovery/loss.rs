//! Damage in the log: which files lost a record by it, or may have.
//!
//! Where records stood and none is valid, their headers tell whose they were if they lead from one
//! to the next over all of it. Else nobody can tell, and every file that may have had one there
//! counts. It judges numbers and does nothing else; docs/crash.md, section 8, argues why.

use std::collections::BTreeSet;

use holdfast_log::{Gap, headers_in_gap};

use super::scan::SlotState;

/// A number that differs from another one in so few bits may be that one, damaged.
const FLIPPED_BITS_MAX: u32 = 2;

/// A part of the log that is lost.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    /// Generations of the slots whose records stood there; `None` if that is not known.
    generations: Option<Vec<u64>>,
    /// The numbers of these records are below this.
    below: u64,
}

impl Loss {
    /// Damage of which nobody can tell whose records it took.
    pub(super) fn of_anybody(below: Option<u64>) -> Self {
        Self { generations: None, below: below.unwrap_or(u64::MAX) }
    }

    /// A gap in the bytes of a segment.
    pub(super) fn of_gap(bytes: &[u8], generation: u64, gap: Gap, below: Option<u64>) -> Self {
        let headers = headers_in_gap(bytes, generation, gap);
        let generations = headers.map(|found| found.into_iter().map(|(_, generation)| generation).collect());
        Self { generations, ..Self::of_anybody(below) }
    }

    /// Adds the slots whose files lost a record by it, or may have.
    pub(super) fn add_to(&self, lost: &mut BTreeSet<u32>, states: &[SlotState]) {
        let may_have = |state: &SlotState| match *state {
            SlotState::Free | SlotState::Blank => false,
            SlotState::Damaged => true,
            SlotState::InUse { generation, expired_seq } => {
                let has_numbers_below = generation < self.below && expired_seq < self.below;
                let is_named = self.generations.as_ref().is_none_or(|found| {
                    found.iter().any(|named| (named ^ generation).count_ones() <= FLIPPED_BITS_MAX)
                });
                has_numbers_below && is_named
            }
        };
        lost.extend((0..).zip(states).filter(|(_, state)| may_have(state)).map(|(slot, _)| slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(loss: &Loss) -> Vec<u32> {
        let in_use = |generation, expired_seq| SlotState::InUse { generation, expired_seq };
        let states = [in_use(1000, 1100), SlotState::Free, in_use(1007, 1007), in_use(1200, 1300), SlotState::Blank];
        let mut lost = BTreeSet::new();
        loss.add_to(&mut lost, &states);
        lost.into_iter().collect()
    }

    #[test]
    fn whoever_may_have_had_records_there_may_have_lost_some() {
        assert_eq!(lost(&Loss::of_anybody(None)), [0, 2, 3]);
        assert_eq!(lost(&Loss::of_anybody(Some(1150))), [0, 2], "taken later");
        assert_eq!(lost(&Loss::of_anybody(Some(1050))), [2], "expired");
    }

    #[test]
    fn headers_name_who_lost_something() {
        let named = |generations| Loss { generations: Some(generations), ..Loss::of_anybody(None) };
        assert_eq!(lost(&named(vec![1000])), [0]);
        assert_eq!(lost(&named(vec![1200 ^ 1 << 40])), [3], "a bit of it is damaged, too");
        assert_eq!(lost(&named(vec![500])), [] as [u32; 0], "of an older use");
    }
}
