//! What to do with each slot: a total decision table. It decides and does nothing else.
//!
//! Every combination of facts fits exactly one row; a test enumerates them all. The rule behind the rows: what is
//! proven is done, what would be a guess is set aside, and only a person's word (`--force`, `--discard`) overrides.

use Tri::{Any, No, Yes};

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

/// All that a decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// What a person asked for.
    pub(super) request: Request,
    /// Slot words, identity and at least one path hint are whole.
    pub(super) sound: bool,
    /// Recovery had the whole file under a temporary name and was about to give it its own.
    pub(super) rebuilt: bool,
    /// The last link is gone for good.
    pub(super) void: bool,
    /// An earlier recovery set it aside.
    pub(super) aside: bool,
    /// An outsider opened it.
    pub(super) conflict: bool,
    /// It has live records.
    pub(super) live: bool,
    /// The newest hint says that its last name is being removed.
    pub(super) unlinking: bool,
    /// The program created it and nothing of it was ever expired: the log holds all of it.
    pub(super) created: bool,
    /// Where it is.
    pub(super) place: Place,
    /// It is there, but was touched after the pool's last sign of life.
    pub(super) changed: bool,
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
    /// Another file stands at its path.
    Replaced,
    /// It is gone though nobody removed it under our eyes.
    Missing,
    /// Its file system or directory is not there, or cannot be examined.
    Absent,
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tri {
    Yes,
    No,
    Any,
}

impl Tri {
    fn fits(self, fact: bool) -> bool {
        match self {
            Yes => fact,
            No => !fact,
            Any => true,
        }
    }
}

const NONE: u8 = 1;
const FORCE: u8 = 2;
const DISCARD: u8 = 4;
const SAME: u8 = 1;
const TAKEN: u8 = 2;
const EMPTY: u8 = 4;
const ORPHAN: u8 = 8;
const ABSENT: u8 = 16;
const ANYWHERE: u8 = SAME | TAKEN | EMPTY | ORPHAN | ABSENT;

struct Row {
    request: u8,
    sound: Tri,
    rebuilt: Tri,
    void: Tri,
    aside: Tri,
    conflict: Tri,
    live: Tri,
    unlinking: Tri,
    created: Tri,
    place: u8,
    changed: Tri,
    outcome: Outcome,
}

#[expect(clippy::too_many_arguments, reason = "one argument for each column of the table")]
const fn row(
    request: u8,
    sound: Tri,
    rebuilt: Tri,
    void: Tri,
    aside: Tri,
    conflict: Tri,
    live: Tri,
    unlinking: Tri,
    created: Tri,
    place: u8,
    changed: Tri,
    outcome: Outcome,
) -> Row {
    Row { request, sound, rebuilt, void, aside, conflict, live, unlinking, created, place, changed, outcome }
}

use Outcome::{
    Discard, FinishRebuild, Gone, LeaveFile, Rebuild, Release, Replay, ReplayInto, SetAside, UnlinkAgain,
};

#[rustfmt::skip]
const TABLE: &[Row] = &[
    //  request       sound rebuilt void aside conflict live unlinking created place          changed outcome
    row(DISCARD,      Any,  Any,    Any, Any,  Any,     Any, Any,      Any,    ANYWHERE,      Any,    Discard),
    // A slot that cannot be read.
    row(NONE | FORCE, No,   Any,    Any, Any,  Any,     No,  Any,      Any,    ANYWHERE,      Any,    Release),
    row(NONE,         No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    ANYWHERE,      Any,    SetAside(Aside::Damaged)),
    row(FORCE,        No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    SAME,          Any,    Replay),
    row(FORCE,        No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    TAKEN,         Any,    ReplayInto),
    row(FORCE,        No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    EMPTY | ORPHAN,Any,    Rebuild),
    row(FORCE,        No,   Any,    Any, Any,  Any,     Yes, Any,      Any,    ABSENT,        Any,    SetAside(Aside::Absent)),
    // A recovery crashed between building a file and naming it. The name is taken only if it is free.
    row(NONE | FORCE, Yes,  Yes,    Any, Any,  Any,     Any, Any,      Any,    SAME | TAKEN | EMPTY, Any, FinishRebuild),
    row(NONE | FORCE, Yes,  Yes,    Any, Any,  Any,     Any, Any,      Any,    ORPHAN | ABSENT,Any,    SetAside(Aside::Absent)),
    // The file was removed for good; its records are void.
    row(NONE | FORCE, Yes,  No,     Yes, Any,  Any,     Any, Any,      Any,    TAKEN | EMPTY | ORPHAN, Any,    Gone),
    row(NONE | FORCE, Yes,  No,     Yes, Any,  Any,     Any, Any,      Any,    ABSENT,        Any,    SetAside(Aside::Absent)),
    row(NONE,         Yes,  No,     Yes, Yes,  Any,     Any, Any,      Any,    SAME,          Any,    SetAside(Aside::Earlier)),
    row(FORCE,        Yes,  No,     Yes, Yes,  Any,     Any, Any,      Any,    SAME,          Any,    UnlinkAgain),
    row(NONE | FORCE, Yes,  No,     Yes, No,   Yes,     Any, Any,      Any,    SAME,          Any,    LeaveFile),
    row(NONE | FORCE, Yes,  No,     Yes, No,   No,      Any, Any,      Any,    SAME,          Yes,    LeaveFile),
    row(NONE | FORCE, Yes,  No,     Yes, No,   No,      Any, Any,      Any,    SAME,          No,     UnlinkAgain),
    // Nothing of it is live: what is in the file is all there is.
    row(NONE | FORCE, Yes,  No,     No,  Any,  Any,     No,  Any,      Any,    ANYWHERE,      Any,    Release),
    // A person wants the log's contents.
    row(FORCE,        Yes,  No,     No,  Any,  Any,     Yes, Any,      Any,    SAME,          Any,    Replay),
    row(FORCE,        Yes,  No,     No,  Any,  Any,     Yes, Any,      Any,    TAKEN,         Any,    ReplayInto),
    row(FORCE,        Yes,  No,     No,  Any,  Any,     Yes, Any,      Any,    EMPTY | ORPHAN,Any,    Rebuild),
    row(FORCE,        Yes,  No,     No,  Any,  Any,     Yes, Any,      Any,    ABSENT,        Any,    SetAside(Aside::Absent)),
    // Live records, and nobody said anything.
    row(NONE,         Yes,  No,     No,  Yes,  Any,     Yes, Any,      Any,    ANYWHERE,      Any,    SetAside(Aside::Earlier)),
    row(NONE,         Yes,  No,     No,  No,   Yes,     Yes, Any,      Any,    ANYWHERE,      Any,    SetAside(Aside::Conflict)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    SAME,          No,     Replay),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    SAME,          Yes,    SetAside(Aside::Changed)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    ABSENT,        Any,    SetAside(Aside::Absent)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Any,    TAKEN,         Any,    SetAside(Aside::Replaced)),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Any,      Yes,    EMPTY | ORPHAN,Any,    Rebuild),
    // Another name was known when the removal of one was announced, and it is gone as well.
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, Yes,      No,     EMPTY | ORPHAN,Any,    Gone),
    row(NONE,         Yes,  No,     No,  No,   No,      Yes, No,       No,     EMPTY | ORPHAN,Any,    SetAside(Aside::Missing)),
];

impl Row {
    fn fits(&self, facts: &Facts) -> bool {
        let request = match facts.request {
            Request::None => NONE,
            Request::Force => FORCE,
            Request::Discard => DISCARD,
        };
        let place = match facts.place {
            Place::Same => SAME,
            Place::Taken => TAKEN,
            Place::Empty => EMPTY,
            Place::Orphaned => ORPHAN,
            Place::Absent => ABSENT,
        };
        self.request & request != 0
            && self.place & place != 0
            && self.sound.fits(facts.sound)
            && self.rebuilt.fits(facts.rebuilt)
            && self.void.fits(facts.void)
            && self.aside.fits(facts.aside)
            && self.conflict.fits(facts.conflict)
            && self.live.fits(facts.live)
            && self.unlinking.fits(facts.unlinking)
            && self.created.fits(facts.created)
            && self.changed.fits(facts.changed)
    }
}

/// Decides. The table is total, as the test proves; setting aside is what a hole in it would mean.
pub(super) fn decide(facts: &Facts) -> Outcome {
    TABLE.iter().find(|row| row.fits(facts)).map_or(SetAside(Aside::Damaged), |row| row.outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Facts> {
        let requests = [Request::None, Request::Force, Request::Discard];
        let places = [Place::Same, Place::Taken, Place::Empty, Place::Orphaned, Place::Absent];
        requests.into_iter().flat_map(move |request| {
            places.into_iter().flat_map(move |place| {
                (0..512u32).map(move |bits| {
                    let bit = |index: u32| bits >> index & 1 == 1;
                    Facts {
                        request,
                        place,
                        sound: bit(0),
                        rebuilt: bit(1),
                        void: bit(2),
                        aside: bit(3),
                        conflict: bit(4),
                        live: bit(5),
                        unlinking: bit(6),
                        created: bit(7),
                        changed: bit(8),
                    }
                })
            })
        })
    }

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
                    assert!(facts.void || facts.unlinking && is_nowhere && !facts.created);
                }
                LeaveFile | UnlinkAgain => assert!(facts.void),
                FinishRebuild => assert!(facts.rebuilt),
                _ => {}
            }
        }
    }

    #[test]
    fn without_a_word_from_a_person_no_touched_file_is_written() {
        for facts in all().filter(|facts| facts.request == Request::None) {
            let outcome = decide(&facts);
            assert_ne!(outcome, ReplayInto);
            if facts.changed || facts.conflict || facts.aside {
                assert!(!matches!(outcome, Replay | UnlinkAgain) || facts.place != Place::Same, "{facts:?}");
            }
            if matches!(outcome, Replay | UnlinkAgain) {
                assert_eq!(facts.place, Place::Same);
            }
        }
    }
}
