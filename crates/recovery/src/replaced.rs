//! Files over which others were renamed, by a rename that a slot holds: who takes whose name, and
//! what becomes of the file that has it.
//!
//! Must never let a name go from one file before another one has it.

use holdfast_canary::{Canary, on};
use holdfast_pool::{MARK_SET_ASIDE, MARK_SUPERSEDED, MARK_VOID, Replaced, Slot};

use super::file::SlotFile;
use super::plan::Outcome;
use super::planned::Planned;

/// Finds the files whose only names renames gave to others: a slot of one of those says so,
/// whatever its own says.
pub(super) fn mark_replaced(files: &mut [SlotFile]) {
    if on(Canary::ReplacedForgotten) {
        return;
    }
    let takers_of = |file: &SlotFile| -> Vec<Slot> {
        let takes = |taker: &&SlotFile| {
            let by_slot = |it: &Replaced| it.slot == Some((file.slot, file.generation));
            taker.slot != file.slot && (taker.replaced().is_some_and(by_slot) || file.is_base_of(taker))
        };
        let is_of_now = |taker: &&SlotFile| taker.marks & MARK_SUPERSEDED == 0;
        let takers = files.iter().filter(is_of_now).filter(takes);
        let may_be_replaced = file.marks & (MARK_SET_ASIDE | MARK_SUPERSEDED) == 0;
        takers.filter(|_| may_be_replaced).map(|taker| taker.slot).collect()
    };
    let found: Vec<Vec<Slot>> = files.iter().map(takers_of).collect();
    files.iter_mut().zip(found).for_each(|(file, takers)| file.takers = takers);
}

/// Whether a file keeps its name, although slots say that others take it: nobody knows that any
/// did, and none is going to.
pub(super) fn is_left_alone(planned: &Planned, files: &[Planned]) -> bool {
    let file = &planned.file;
    let is_taken = |slot: &Slot| {
        let taker = files.iter().find(|other| other.file.slot == *slot);
        taker.is_some_and(|taker| {
            let is_refused = taker.file.takes_name == Some(false) && file.is_base_of(&taker.file);
            let is_idle = matches!(taker.outcome, Outcome::SetAside(_) | Outcome::Discard | Outcome::Release);
            !is_refused && !is_idle
        })
    };
    !file.takers.is_empty() && file.marks & MARK_VOID == 0 && !file.takers.iter().any(is_taken)
}

/// Whether a file that was removed by a rename still stands, at the name that another one is to
/// take from it or where others moved it since: until that one has its name, or a person has
/// decided, this is all that there is of either.
pub(super) fn is_yielding(planned: &Planned, files: &[Planned]) -> bool {
    planned.outcome == Outcome::UnlinkAgain && takers_of(planned, files).next().is_some()
}

/// Who is to get the name at which a replaced file stands, or the name that it had before others
/// moved it.
pub(super) fn takers_of<'a>(planned: &'a Planned, files: &'a [Planned]) -> impl Iterator<Item = &'a Planned> {
    let (replaced, stands) = (&planned.file, planned.stands.as_deref());
    let is_moved = stands.is_some_and(|path| replaced.hints.iter().all(|hint| hint.path != path));
    files.iter().filter(move |other| {
        let gets = |(_, to): (&[u8], &[u8])| Some(to) == stands;
        let takes = is_moved && replaced.takers.contains(&other.file.slot)
            || !replaced.takers.is_empty() && other.file.rename().is_some_and(gets);
        takes && other.file.slot != replaced.slot && !other.file.is_void()
    })
}
