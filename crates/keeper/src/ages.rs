//! When a dirty file is brought to disk by its age alone. Pure: it knows files by their slots and
//! is told the time.
//!
//! In state Through a file is due a moment after its first record: the bytes are in the page cache
//! already, and only its sync is missing. In state Behind draining costs a copy and a disk write
//! for each page, and most pages of a file that is written again and again are written over before
//! that: such a file is due once it has come to rest, or, as a bound, after [`BUSY_FACTOR`] times
//! that age; then only what is as old as that.

use holdfast_pool::{Generation, Seq, Slot};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A file that does not come to rest is due after so many times the age limit: with the default of
/// a second about when the kernel, too, writes dirty pages back.
pub(crate) const BUSY_FACTOR: u32 = 30;

/// What there is to know of a dirty file.
pub(crate) struct Dirty {
    pub slot: Slot,
    pub generation: Generation,
    pub newest_seq: Seq,
    pub is_behind: bool,
}

/// Whether a file is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Now, with its records up to this seq.
    Now(Seq),
    /// Not before.
    At(Instant),
}

struct Age {
    generation: Generation,
    newest_seq: Seq,
    written: Instant,
    /// Everything up to this seq is at least as old as `since`.
    seq: Seq,
    since: Instant,
}

/// The ages of all dirty files.
pub(crate) struct Ages {
    limit: Duration,
    files: HashMap<Slot, Age>,
}

impl Ages {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { limit, files: HashMap::new() }
    }

    /// After how long what is in state Through is due.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Looks at a dirty file. `settled` tells the seq up to which all of its operations are over.
    pub(crate) fn look(&mut self, dirty: &Dirty, settled: impl Fn() -> Seq, now: Instant) -> Due {
        let fresh = || Age {
            generation: dirty.generation,
            newest_seq: dirty.newest_seq,
            written: now,
            seq: settled(),
            since: now,
        };
        let age = self.files.entry(dirty.slot).or_insert_with(fresh);
        if age.generation != dirty.generation {
            *age = fresh();
        }
        if age.newest_seq != dirty.newest_seq {
            (age.newest_seq, age.written) = (dirty.newest_seq, now);
        }
        let (rest, bound) = match dirty.is_behind {
            true => (age.written + self.limit, age.since + self.limit.saturating_mul(BUSY_FACTOR)),
            false => (age.since + self.limit, age.since + self.limit),
        };
        match () {
            () if rest <= now => Due::Now(Seq::MAX),
            () if bound <= now => Due::Now(age.seq),
            () => Due::At(rest.min(bound)),
        }
    }

    /// Since when a dirty file has had what is not on disk.
    pub(crate) fn since(&self, slot: Slot, generation: Generation) -> Option<Instant> {
        self.files.get(&slot).filter(|age| age.generation == generation).map(|age| age.since)
    }

    /// The file was brought to disk; what it is written from now on has a new age.
    pub(crate) fn done(&mut self, slot: Slot) {
        self.files.remove(&slot);
    }

    /// Forgets the files that are not dirty any more.
    pub(crate) fn keep(&mut self, is_dirty: impl Fn(Slot) -> bool) {
        self.files.retain(|&slot, _| is_dirty(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn dirty(newest_seq: u64, is_behind: bool) -> Dirty {
        let (generation, newest_seq) = (Generation::new(1), Seq::new(newest_seq));
        Dirty { slot: Slot::new(3), generation, newest_seq, is_behind }
    }

    #[test]
    fn a_file_behind_is_due_when_it_rests_and_one_through_when_it_is_old() {
        for (is_behind, written_on) in [(true, false), (false, false), (false, true)] {
            let (mut ages, start) = (Ages::new(LIMIT), Instant::now());
            let mut newest = 5;
            for step in 0..10 {
                let now = start + step * LIMIT / 10;
                newest += u64::from(written_on);
                assert_eq!(ages.look(&dirty(newest, is_behind), || Seq::new(5), now), Due::At(start + LIMIT));
            }
            assert_eq!(
                ages.look(&dirty(newest, is_behind), || Seq::new(5), start + LIMIT),
                Due::Now(Seq::MAX)
            );
        }
    }

    #[test]
    fn a_file_that_is_written_on_and_on_is_due_late_with_what_is_old() {
        let (mut ages, start) = (Ages::new(LIMIT), Instant::now());
        let steps = 2 * BUSY_FACTOR;
        for step in 0..steps {
            let now = start + step * LIMIT / 2;
            let settled = || Seq::new(100).after(step.into());
            assert!(
                matches!(ages.look(&dirty(u64::from(step), true), settled, now), Due::At(at) if at > now)
            );
        }
        let late = start + LIMIT * BUSY_FACTOR;
        assert_eq!(ages.look(&dirty(999, true), || Seq::new(777), late), Due::Now(Seq::new(100)));
        ages.done(Slot::new(3));
        assert_eq!(ages.look(&dirty(1000, true), || Seq::new(888), late), Due::At(late + LIMIT));
        // It comes to rest.
        assert_eq!(ages.look(&dirty(1000, true), || Seq::new(888), late + LIMIT), Due::Now(Seq::MAX));
    }

    #[test]
    fn another_file_in_the_same_slot_has_an_age_of_its_own() {
        let (mut ages, start) = (Ages::new(LIMIT), Instant::now());
        ages.look(&dirty(5, false), || Seq::new(5), start);
        let other = Dirty { generation: Generation::new(2), ..dirty(9, false) };
        assert_eq!(ages.look(&other, || Seq::new(5), start + LIMIT), Due::At(start + 2 * LIMIT));
        ages.keep(|_| false);
        assert_eq!(ages.look(&other, || Seq::new(5), start + 3 * LIMIT), Due::At(start + 4 * LIMIT));
    }
}
