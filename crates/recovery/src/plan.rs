//! What to do with each slot: a total decision table. It decides and does nothing else.
//!
//! Every combination of facts fits exactly one row; a test enumerates them all. The rule behind the
//! rows: what is proven is done, what would be a guess is set aside, and only a person's word
//! (`--force`, `--discard`) overrides.

use std::marker::PhantomData;
use std::ops::BitOr;
use std::sync::LazyLock;

use holdfast_canary::{Canary, on};

use super::judge::{Changed, Witness};

/// What a person asked for this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Nothing.
    None,
    /// `--force`: the log's contents are wanted whatever happened to the file.
    Force,
    /// `--discard`: the log's contents are not wanted.
    Discard,
}

/// What was found at the slot's path hints, and by its handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The file itself, under a hinted or another name.
    Same,
    /// Not the file; other files stand at every path it could be built at.
    Taken,
    /// Not the file; nothing stands at one of its paths.
    Empty,
    /// Neither the file nor its directory, though their file system is there.
    Orphaned,
    /// Its file system is not there, or its path cannot be examined: nothing can be said.
    Absent,
}

/// Why a file is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aside {
    /// The slot cannot be read.
    Damaged,
    /// An earlier recovery did it.
    Earlier,
    /// An outsider opened the file while records were live.
    Conflict,
    /// It was changed after the crash.
    Changed,
    /// The clock was set back: it may have been changed after the crash.
    Unclear,
    /// An older state of its file system stands there than the last that was known to be on disk.
    Older,
    /// A record of it is damaged, or may be: nobody can tell what it was last.
    Lost,
    /// What was written to it since would be written over.
    Superseded,
    /// It is gone, and somebody changed the names in its directory after the crash.
    Vacated,
    /// Another file stands at its path.
    Replaced,
    /// It is gone though nobody removed it under our eyes.
    Missing,
    /// Its file system or directory is not there, or cannot be examined: the next recovery tries
    /// again.
    Absent,
}

impl Aside {
    /// Whether it takes a person to decide, and stays so until one has. What only stands in the way
    /// may be gone the next time.
    pub(super) fn is_for_a_person(self) -> bool {
        self != Self::Absent
    }
}

/// What is done with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing of it is live: give the slot back.
    Release,
    /// Its removal was under way and is done: sync the directory, give the slot back.
    Gone,
    /// It came back in the crash: remove it again.
    UnlinkAgain,
    /// It was removed, came back and somebody used it since: leave it alone.
    LeaveFile,
    /// The page cache has all of it: sync it, and nothing else.
    Sync,
    /// Write its records into it.
    Replay,
    /// Write its records into the file that stands at its path.
    ReplayInto,
    /// Build it anew from its records.
    Rebuild,
    /// Give the built file its name.
    FinishRebuild,
    /// Forget its records.
    Discard,
    /// Keep its records for a person to decide.
    SetAside(Aside),
}

/// A fact: one of a few values.
trait Fact: Copy + 'static {
    /// All of them.
    #[cfg(test)]
    const ALL: &'static [Self];

    /// Its bit in a [`Set`].
    fn bit(self) -> u8;
}

/// Some of the values that a fact can have.
struct Set<T> {
    bits: u8,
    of: PhantomData<T>,
}

impl<T> Set<T> {
    const fn only(number: u8) -> Self {
        Self { bits: 1 << number, of: PhantomData }
    }

    const fn or(self, other: Self) -> Self {
        Self { bits: self.bits | other.bits, of: PhantomData }
    }
}

impl<T: Fact> Set<T> {
    fn has(&self, fact: T) -> bool {
        self.bits & fact.bit() != 0
    }
}

impl<T> BitOr for Set<T> {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.or(other)
    }
}

/// The values of a fact, and what the table calls each of them alone.
macro_rules! values {
    ($fact:ty: $($name:ident = $value:expr,)*) => {
        impl Fact for $fact {
            #[cfg(test)]
            const ALL: &'static [Self] = &[$($value,)*];

            fn bit(self) -> u8 {
                1 << self as u8
            }
        }
        $(const $name: Set<$fact> = Set::only($value as u8);)*
    };
}

impl Fact for bool {
    #[cfg(test)]
    const ALL: &'static [Self] = &[false, true];

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

#[expect(non_upper_case_globals, reason = "the table reads better so")]
const No: Set<bool> = Set::only(0);
#[expect(non_upper_case_globals, reason = "the table reads better so")]
const Yes: Set<bool> = Set::only(1);
#[expect(non_upper_case_globals, reason = "the table reads better so")]
const Any: Set<bool> = No.or(Yes);
values! { Request: NONE = Request::None, FORCE = Request::Force, DISCARD = Request::Discard, }
values! {
    Place:
    SAME = Place::Same,
    TAKEN = Place::Taken,
    EMPTY = Place::Empty,
    ORPHAN = Place::Orphaned,
    ABSENT = Place::Absent,
}
values! {
    Witness:
    RUNS = Witness::Running,
    AHEAD = Witness::Ahead,
    CUT = Witness::Cut,
    OLDER = Witness::Older,
}
values! { Changed: OURS = Changed::No, THEIRS = Changed::Yes, OPEN = Changed::Unclear, }

const NOWHERE: Set<Place> = TAKEN.or(EMPTY).or(ORPHAN);
const ANYWHERE: Set<Place> = SAME.or(NOWHERE).or(ABSENT);
const ALL: Set<Witness> = RUNS.or(AHEAD).or(CUT).or(OLDER);
const ANY: Set<Changed> = OURS.or(THEIRS).or(OPEN);

/// Says the facts once: those of the table, in the order of its columns, and those that are looked
/// at behind it.
macro_rules! facts {
    (
        table { $($(#[$doc:meta])* $name:ident: $fact:ty,)* }
        behind { $($(#[$late_doc:meta])* $late_name:ident: $late_fact:ty,)* }
    ) => {
        /// All that a decision depends on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) struct Facts {
            $($(#[$doc])* pub(super) $name: $fact,)*
            $($(#[$late_doc])* pub(super) $late_name: $late_fact,)*
        }

        struct Row {
            $($name: Set<$fact>,)*
            outcome: Outcome,
        }

        #[expect(clippy::too_many_arguments, reason = "one argument for each column of the table")]
        const fn row($($name: Set<$fact>,)* outcome: Outcome) -> Row {
            Row { $($name,)* outcome }
        }

        impl Row {
            fn fits(&self, facts: &Facts) -> bool {
                $(self.$name.has(facts.$name))&&*
            }
        }

        /// Every combination of facts.
        #[cfg(test)]
        fn all() -> impl Iterator<Item = Facts> {
            let first = Facts {
                $($name: <$fact as Fact>::ALL[0],)*
                $($late_name: <$late_fact as Fact>::ALL[0],)*
            };
            let all = core::iter::once(first);
            $(let all = all.flat_map(|facts| {
                <$fact as Fact>::ALL.iter().map(move |&$name| Facts { $name, ..facts })
            });)*
            $(let all = all.flat_map(|facts| {
                <$late_fact as Fact>::ALL.iter().map(move |&$late_name| Facts { $late_name, ..facts })
            });)*
            all
        }
    };
}

facts! {
    table {
        /// What a person asked for.
        request: Request,
        /// Slot words, identity and at least one path hint are whole.
        sound: bool,
        /// Recovery had the whole file under a temporary name and was about to give it its own.
        rebuilt: bool,
        /// The last link is gone for good.
        void: bool,
        /// An earlier recovery set it aside.
        aside: bool,
        /// An outsider opened it.
        conflict: bool,
        /// It has live records.
        live: bool,
        /// The newest hint says that its last name is being removed.
        unlinking: bool,
        /// The program created it and nothing of it was ever expired: the log holds all of it.
        created: bool,
        /// Where it is.
        place: Place,
        /// Where the page cache is that the keeper knew.
        witness: Witness,
        /// Somebody else changed it, as far as can be told: the file, or the names in the directory
        /// that it is missing from.
        changed: Changed,
        /// An earlier recovery set this use of it aside or was kept from it, and it was served
        /// again since.
        superseded: bool,
    }
    behind {
        /// A record of it was lost where the log is damaged, or may have been.
        lost: bool,
    }
}

use Outcome::{
    Discard, FinishRebuild, Gone, LeaveFile, Rebuild, Release, Replay, ReplayInto, SetAside, Sync,
    UnlinkAgain,
};

#[rustfmt::skip]
static TABLE: LazyLock<Vec<Row>> = LazyLock::new(|| vec![
    //  request sound rebuilt void aside conflict live unlinking created place witness changed
    //  superseded outcome
    row(DISCARD,      Any,  Any,    Any, Any,  Any,     Any, Any,      Any,    ANYWHERE,     ALL,         ANY,         Any, Discard),
    // A slot that cannot be read.
    row(NONE | FORCE, No,   Any,    Any, Any,  Any,     No,  Any,      Any,    ANYWHERE,     ALL,         ANY,         Any, Release),
    row(NONE,         No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    ANYWHERE,     ALL,         ANY,         Any, SetAside(Aside::Damaged)),
    row(FORCE,        No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    SAME,         ALL,         ANY,         Any, Replay),
    row(FORCE,        No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    TAKEN,        ALL,         ANY,         Any, ReplayInto),
    row(FORCE,        No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    EMPTY | ORPHAN,ALL,        ANY,         Any, Rebuild),
    row(FORCE,        No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    ABSENT,       ALL,         ANY,         Any, SetAside(Aside::Absent)),
    // A recovery crashed between building a file and naming it. The name is taken only if it is
    // free.
    row(NONE,         Yes,  Yes,    Any, Any,  Any,     Any, Any,      Any,    SAME | TAKEN | EMPTY, OLDER, ANY,       Any, SetAside(Aside::Older)),
    row(NONE,         Yes,  Yes,    Any, Any,  Any,     Any, Any,      Any,    SAME | TAKEN | EMPTY, RUNS | AHEAD | CUT, ANY, Any, FinishRebuild),
    row(FORCE,        Yes,  Yes,    Any, Any,  Any,     Any, Any,      Any,    SAME | TAKEN | EMPTY, ALL, ANY,         Any, FinishRebuild),
    row(NONE | FORCE, Yes,  Yes,    Any, Any,  Any,     Any, Any,      Any,    ORPHAN | ABSENT, ALL,      ANY,         Any, SetAside(Aside::Absent)),
    // The file was removed for good; its records are void.
    row(NONE | FORCE, Yes,  No,     Yes, Any,  Any,     Any, Any,      Any,    NOWHERE,      ALL,         ANY,         Any, Gone),
    row(NONE | FORCE, Yes,  No,     Yes, Any,  Any,     Any, Any,      Any,    ABSENT,       ALL,         ANY,         Any, SetAside(Aside::Absent)),
    row(NONE,         Yes,  No,     Yes, Yes,  Any,     Any, Any,      Any,    SAME,         ALL,         ANY,         Any, SetAside(Aside::Earlier)),
    row(FORCE,        Yes,  No,     Yes, Yes,  Any,     Any, Any,      Any,    SAME,         ALL,         ANY,         Any, UnlinkAgain),
    // Its removal was announced and not made, and its program does not live to be told: it stays.
    row(NONE | FORCE, Yes,  No,     Yes, No,   Any,     Any, Any,      Any,    SAME,         RUNS,        ANY,         Any, Sync),
    row(NONE,         Yes,  No,     Yes, No,   Any,     Any, Any,      Any,    SAME,         OLDER,       ANY,         Any, SetAside(Aside::Older)),
    row(FORCE,        Yes,  No,     Yes, No,   Any,     Any, Any,      Any,    SAME,         OLDER,       ANY,         Any, UnlinkAgain),
    row(NONE | FORCE, Yes,  No,     Yes, No,   Any,     Any, Any,      Any,    SAME,         AHEAD | CUT, ANY,         Yes, LeaveFile),
    row(NONE | FORCE, Yes,  No,     Yes, No,   Yes,     Any, Any,      Any,    SAME,         AHEAD | CUT, ANY,         No,  LeaveFile),
    row(NONE | FORCE, Yes,  No,     Yes, No,   No,      Any, Any,      Any,    SAME,         AHEAD | CUT, THEIRS | OPEN, No,  LeaveFile),
    row(NONE | FORCE, Yes,  No,     Yes, No,   No,      Any, Any,      Any,    SAME,         AHEAD | CUT, OURS,        No,  UnlinkAgain),
    // Nothing of it is live: what is in the file is all there is.
    row(NONE | FORCE, Yes,  No,     No,  Any,  Any,     No,  Any,      Any,    ANYWHERE,     ALL,         ANY,         Any, Release),
    // A person wants the log's contents.
    row(FORCE,        Yes,  No,     No,  Any,  Any,     Yes, Any,      Any,    ANYWHERE,     ALL,         ANY,         Yes, SetAside(Aside::Superseded)),
    row(FORCE,        Yes,  No,     No,  Any,  Any,     Yes, Any,      Any,    SAME,         ALL,         ANY,         No,  Replay),
    row(FORCE,        Yes,  No,     No,  Any,  Any,     Yes, Any,      Any,    TAKEN,        ALL,         ANY,         No,  ReplayInto),
    row(FORCE,        Yes,  No,     No,  Any,  Any,     Yes, Any,      Any,    EMPTY | ORPHAN, ALL,       ANY,         No,  Rebuild),
    row(FORCE,        Yes,  No,     No,  Any,  Any,     Yes, Any,      Any,    ABSENT,       ALL,         ANY,         No,  SetAside(Aside::Absent)),
    // Live records, and nobody said anything.
    row(NONE,         Yes,  No,     No,  Yes,  Any,     Yes, Any,      Any,    ANYWHERE,     ALL,         ANY,         Any, SetAside(Aside::Earlier)),
    // An earlier recovery was kept from it, and what was written since is newer.
    row(NONE,         Yes,  No,     No,  No,   Any,     Yes, Any,      Any,    ANYWHERE,     ALL,         ANY,         Yes, SetAside(Aside::Superseded)),
    // Only processes died: the kernel has every byte and name as programs and others made them.
    row(NONE,         Yes,  No,     No,  No,   Any,     Yes, Any,      Any,    SAME,         RUNS,        ANY,         No,  Sync),
    row(NONE,         Yes,  No,     No,  No,   Any,     Yes, Any,      Any,    NOWHERE,      RUNS,        ANY,         No,  Gone),
    row(NONE,         Yes,  No,     No,  No,   Any,     Yes, Any,      Any,    ABSENT,       RUNS,        ANY,         No,  SetAside(Aside::Absent)),
    // Bytes may be in the log alone.
    row(NONE,         Yes,  No,     No,  No,   Yes,     Yes, Any,      Any,    ANYWHERE,     AHEAD | CUT | OLDER, ANY, No,  SetAside(Aside::Conflict)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    ANYWHERE,     OLDER,       ANY,         No,  SetAside(Aside::Older)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    SAME,         AHEAD | CUT, OURS,        No,  Replay),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    SAME,         AHEAD | CUT, THEIRS,      No,  SetAside(Aside::Changed)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    SAME,         AHEAD | CUT, OPEN,        No,  SetAside(Aside::Unclear)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    ABSENT,       AHEAD | CUT, ANY,         No,  SetAside(Aside::Absent)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    TAKEN,        AHEAD | CUT, ANY,         No,  SetAside(Aside::Replaced)),
    // The kernel loses nothing while it runs: whoever removed it was somebody else, or moved it
    // where it cannot be seen.
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    EMPTY,        AHEAD,       ANY,         No,  SetAside(Aside::Missing)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Yes,    EMPTY,        CUT,         OURS,        No,  Rebuild),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Yes,    EMPTY,        CUT,         THEIRS,      No,  SetAside(Aside::Vacated)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Yes,    EMPTY,        CUT,         OPEN,        No,  SetAside(Aside::Unclear)),
    // Another name was known when the removal of one was announced, and it is gone as well.
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Yes,      No,     EMPTY | ORPHAN, CUT,       ANY,         No,  Gone),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, No,       No,     EMPTY,        CUT,         ANY,         No,  SetAside(Aside::Missing)),
    // So is its directory: what is mounted there may be missing.
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    ORPHAN,       AHEAD,       ANY,         No,  SetAside(Aside::Absent)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, No,       No,     ORPHAN,       CUT,         ANY,         No,  SetAside(Aside::Absent)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Yes,    ORPHAN,       CUT,         ANY,         No,  SetAside(Aside::Absent)),
]);

/// Decides. The table is total, as the test proves; setting aside is what a hole in it would mean.
pub(super) fn decide(facts: &Facts) -> Outcome {
    let outcome = by_table(facts);
    let is_lost = facts.lost && facts.request == Request::None && !on(Canary::LossIgnored);
    match outcome {
        Replay | Rebuild if is_lost => SetAside(Aside::Lost),
        // Nothing is left of it in the log, and something was.
        Release if is_lost && !facts.sound => SetAside(Aside::Damaged),
        Release if is_lost => match (facts.witness, facts.place) {
            // The page cache has all of it, whatever the log has.
            (Witness::Running, Place::Same) => Sync,
            (Witness::Running, Place::Taken | Place::Empty | Place::Orphaned) => Gone,
            (_, Place::Absent) => SetAside(Aside::Absent),
            _ => SetAside(Aside::Lost),
        },
        outcome => outcome,
    }
}

fn by_table(facts: &Facts) -> Outcome {
    TABLE.iter().find(|row| row.fits(facts)).map_or(SetAside(Aside::Damaged), |row| row.outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_row_fits_every_combination_and_every_row_is_used() {
        let mut used = vec![0usize; TABLE.len()];
        for facts in all() {
            let fitting: Vec<usize> = (0..TABLE.len()).filter(|&row| TABLE[row].fits(&facts)).collect();
            assert_eq!(fitting.len(), 1, "rows {fitting:?} fit {facts:?}");
            used[fitting[0]] += 1;
        }
        assert!(used.iter().all(|&uses| uses > 0), "unused rows: {used:?}");
    }

    #[test]
    fn nothing_live_is_dropped_without_a_reason() {
        for facts in all().filter(|facts| facts.live && facts.request != Request::Discard) {
            match decide(&facts) {
                Release => panic!("{facts:?} drops live records"),
                Gone => {
                    let is_nowhere = matches!(facts.place, Place::Empty | Place::Orphaned);
                    let removed_here = facts.unlinking && is_nowhere && !facts.created;
                    let by_others = facts.witness == Witness::Running && facts.place != Place::Same;
                    assert!(facts.void || removed_here || by_others);
                }
                LeaveFile | UnlinkAgain => assert!(facts.void),
                FinishRebuild => assert!(facts.rebuilt),
                _ => {}
            }
        }
    }

    #[test]
    fn no_old_records_go_over_a_later_life() {
        for facts in all().filter(|facts| facts.superseded && facts.live && facts.sound) {
            if facts.void || facts.rebuilt || facts.request == Request::Discard {
                continue;
            }
            let earlier = facts.aside && facts.request == Request::None;
            let why = if earlier { Aside::Earlier } else { Aside::Superseded };
            assert_eq!(decide(&facts), SetAside(why));
        }
    }

    #[test]
    fn without_a_word_from_a_person_no_touched_file_is_written() {
        for facts in all().filter(|facts| facts.request == Request::None) {
            let outcome = decide(&facts);
            assert_ne!(outcome, ReplayInto);
            if facts.changed != Changed::No || facts.conflict || facts.aside {
                assert!(!matches!(outcome, Replay | UnlinkAgain) || facts.place != Place::Same, "{facts:?}");
                assert!(outcome != Rebuild || !facts.sound, "{facts:?}");
            }
            if matches!(outcome, Replay | UnlinkAgain | Sync) {
                assert_eq!(facts.place, Place::Same);
            }
            // Nor one of which older bytes may be all that the log has.
            if facts.lost {
                assert!(!matches!(outcome, Replay | Rebuild | Release), "{facts:?}");
            }
            // Where only processes died, nothing is written or built; over an older state, nothing
            // is made at all.
            if facts.witness == Witness::Running && facts.sound && !facts.rebuilt {
                assert!(!matches!(outcome, Replay | Rebuild | UnlinkAgain), "{facts:?}");
            }
            if facts.witness == Witness::Older {
                assert!(
                    !matches!(outcome, Replay | Rebuild | FinishRebuild | UnlinkAgain | Sync),
                    "{facts:?}"
                );
            }
        }
    }
}
