//! Damage in the log: which files lost a record by it, or may have.
//!
//! Where records stood and none is valid, their headers tell whose they were if they lead from one
//! to the next over all of it. Else nobody can tell, and every file that may have had one there
//! counts. It judges numbers and does nothing else; docs/crash/damage.md argues why.

use holdfast_pool::{Generation, Seq, Slot};
use std::collections::BTreeSet;

use holdfast_log::{Gap, Header, headers_in_gap};

use super::entry::SEQ_MAX;
use super::slots::SlotState;

/// A number that differs from another one in so few bits may be that one, damaged.
const FLIPPED_BITS_MAX: u32 = 2;

/// A part of the log that is lost.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    /// Headers of the records that stood there; `None` if they are not known.
    headers: Option<Vec<Header>>,
    /// The numbers of these records are below this.
    below: Seq,
}

/// Whose a damaged record was.
enum Whose {
    /// That of a slot's present use.
    Of(Slot),
    /// Its header looks damaged: that of one of these.
    OneOf(Vec<Slot>),
    /// That of an earlier use of its slot, which is void.
    Nobodys,
    /// Anybody's.
    Unknown,
}

impl Loss {
    /// Damage of which nobody can tell whose records it took.
    pub(super) fn of_anybody(below: Option<Seq>) -> Self {
        Self { headers: None, below: below.unwrap_or(Seq::MAX) }
    }

    /// A gap in the bytes of a segment.
    pub(super) fn of_gap(bytes: &[u8], generation: Generation, gap: Gap, below: Option<Seq>) -> Self {
        Self { headers: headers_in_gap(bytes, generation, gap), ..Self::of_anybody(below) }
    }

    /// Adds the slots whose files lost a record by it, or may have.
    pub(super) fn add_to(&self, lost: &mut BTreeSet<Slot>, states: &[SlotState]) {
        let Some(headers) = &self.headers else { return self.add_all(lost, states) };
        for header in headers {
            match whose(header, states) {
                Whose::Of(slot) => lost.extend(self.may_have(slot, states).then_some(slot)),
                Whose::OneOf(slots) => {
                    lost.extend(slots.into_iter().filter(|&slot| self.may_have(slot, states)))
                }
                Whose::Nobodys => {}
                Whose::Unknown => self.add_all(lost, states),
            }
        }
    }

    fn add_all(&self, lost: &mut BTreeSet<Slot>, states: &[SlotState]) {
        lost.extend(Slot::first(states.len() as u32).filter(|&slot| self.may_have(slot, states)));
    }

    /// Whether a file can have had a live record among those that are lost.
    fn may_have(&self, slot: Slot, states: &[SlotState]) -> bool {
        match states[slot.index()] {
            SlotState::Free | SlotState::Blank => false,
            SlotState::Damaged => true,
            SlotState::InUse { generation, expired_seq } => generation.seq().max(expired_seq) < self.below,
        }
    }
}

fn whose(header: &Header, states: &[SlotState]) -> Whose {
    let named = header.slot_generation;
    let uses = (0..).map(Slot::new).zip(states).filter_map(|(slot, state)| match *state {
        SlotState::InUse { generation, .. } => Some((slot, generation)),
        _ => None,
    });
    match states.get(header.slot.index()) {
        Some(&SlotState::InUse { generation, .. }) if generation == named => Whose::Of(header.slot),
        Some(SlotState::Damaged) => Whose::Of(header.slot),
        None | Some(SlotState::Blank) => Whose::Unknown,
        Some(SlotState::Free | SlotState::InUse { .. }) => {
            let is_near = |&(slot, generation): &(Slot, Generation)| {
                generation == named
                    || slot == header.slot
                        && (generation.get() ^ named.get()).count_ones() <= FLIPPED_BITS_MAX
            };
            let near: Vec<Slot> = uses.filter(is_near).map(|(slot, _)| slot).collect();
            match near.is_empty() {
                false => Whose::OneOf(near),
                // A slot is taken before its records get their numbers.
                true if !named.is_none() && named.seq() < header.seq && header.seq <= SEQ_MAX => {
                    Whose::Nobodys
                }
                true => Whose::Unknown,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_log::Kind;

    use super::*;

    fn lost(loss: &Loss) -> Vec<u32> {
        let in_use = |generation, expired_seq| SlotState::InUse {
            generation: Generation::new(generation),
            expired_seq: Seq::new(expired_seq),
        };
        let states =
            [in_use(1000, 1100), SlotState::Free, in_use(1001, 1001), in_use(1200, 1300), SlotState::Blank];
        let mut lost = BTreeSet::new();
        loss.add_to(&mut lost, &states);
        lost.into_iter().map(Slot::number).collect()
    }

    #[test]
    fn whoever_may_have_had_records_there_may_have_lost_some() {
        assert_eq!(lost(&Loss::of_anybody(None)), [0, 2, 3]);
        assert_eq!(lost(&Loss::of_anybody(Some(Seq::new(1150)))), [0, 2], "taken later");
        assert_eq!(lost(&Loss::of_anybody(Some(Seq::new(1050)))), [2], "expired");
    }

    #[test]
    fn headers_name_who_lost_something() {
        let header = |slot, slot_generation| Header {
            kind: Kind::Write,
            payload_bytes: 1,
            slot,
            slot_generation: Generation::new(slot_generation),
            seq: Seq::new(1400),
            file_offset: 0,
            segment_generation: Generation::new(900),
            extent: 1,
            unix_time_ns: 0,
            group_index: 0,
            group_count: 1,
            is_called: false,
        };
        let of = |slot, generation| {
            lost(&Loss { headers: Some(vec![header(slot, generation)]), ..Loss::of_anybody(None) })
        };
        assert_eq!(of(Slot::new(0), 1000), [0]);
        assert_eq!(of(Slot::new(2), 1001 ^ 1 << 40), [2], "a bit of it is damaged, too");
        assert_eq!(of(Slot::new(1), 1200), [3], "so is the slot's number");
        assert_eq!(of(Slot::new(0), 500), [] as [u32; 0], "of an older use");
        assert_eq!(of(Slot::new(0), 0), [0, 2, 3], "no generation");
        assert_eq!(of(Slot::new(0), 1 << 60), [0, 2, 3], "no generation");
        assert_eq!(of(Slot::new(4), 1000), [0, 2, 3], "of a slot that was never used");
    }
}
