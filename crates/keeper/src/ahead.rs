//! Settling ahead: a program that links or renames one of several files which it has just made in a
//! directory is about to do the same with the others (a compiler with its objects, a package
//! manager with what it unpacked). Each has to be settled before its name changes
//! ([`holdfast_cache`]'s `renaming`), and the program waits for each in turn. So with the first the
//! others are begun, several at once as the disk likes it, and most are settled when they are asked
//! for.
//!
//! It is what the expirer does with these files within the age limit anyway, only sooner: which
//! files are settled when is no matter of safety. Each new file is settled ahead at most once, as
//! it is no new file then. Must never keep a request waiting that is not about the very file that
//! is being settled, nor wait for a file that somebody has.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use holdfast_cache::{FileRef, FileRequest, Request};
use holdfast_media::Nvm;
use holdfast_pool::MARK_CREATED;

use holdfast_disk::Disk;
use holdfast_durable::{Durable, ManagedFile, Writers, is_held};

/// So many files are settled ahead at a time. Disks that take one sync in 300 us take one in 170
/// from two threads.
pub(crate) const THREADS_MAX: usize = 2;
/// A look at all files pays only if some are found: then the next look comes when these are done,
/// else after this long.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Files to be settled ahead, and those that just are.
#[derive(Default)]
pub(crate) struct Ahead {
    waiting: VecDeque<FileRef>,
    under_way: Vec<FileRef>,
    looked: Option<Instant>,
}

impl Ahead {
    /// The next one, unless as many as may be are under way.
    pub fn begin(&mut self) -> Option<FileRef> {
        if self.under_way.len() >= THREADS_MAX {
            return None;
        }
        let place = self.waiting.pop_front()?;
        self.under_way.push(place);
        Some(place)
    }

    /// One is over. When the disk refused it, the others are left to the expirer, who knows how to
    /// go on.
    pub fn end(&mut self, place: FileRef, well: bool) {
        self.under_way.retain(|other| *other != place);
        if !well {
            self.waiting.clear();
        }
    }

    /// A request does what was to be done for `place`, unless that is under way: true, ask again
    /// when it is over.
    pub fn overtaken(&mut self, place: FileRef) -> bool {
        self.waiting.retain(|other| *other != place);
        self.under_way.contains(&place)
    }

    /// Whether a look for more may be worth its time.
    pub fn may_look(&mut self, now: Instant) -> bool {
        let rested = self.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_AGAIN);
        let may = rested && self.waiting.is_empty();
        if may {
            self.looked = Some(now);
        }
        may
    }

    /// More to do.
    pub fn put(&mut self, places: Vec<FileRef>) {
        self.waiting.extend(places);
    }
}

/// The file that a request wants settled because its name is about to change: its asker keeps the
/// writers out.
pub(crate) fn place_asked_for(request: &Request) -> Option<FileRef> {
    match request {
        Request::File(file, FileRequest::Settle { held: true }) => Some(*file),
        _ => None,
    }
}

/// The files that may be next, if this is a new one: the other new ones of its directory, by name,
/// those behind it first.
pub(crate) fn siblings<N: Nvm, D: Disk>(durable: &Durable<N, D>, place: FileRef) -> Vec<FileRef> {
    let Some(asked) = durable.file(place) else { return Vec::new() };
    let path = asked.meta().path.clone();
    if !is_new(durable, &asked) {
        return Vec::new();
    }
    let mut found: Vec<_> = durable
        .managed()
        .iter()
        .filter(|file| file.slot != place.slot && is_new(durable, file))
        .filter_map(|file| {
            let meta = file.meta();
            let is_sibling = meta.path.parent() == path.parent() && meta.unlinking.is_none();
            is_sibling.then(|| (meta.path <= path, meta.path.clone(), file.place()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, _, place)| place).collect()
}

/// Whether a file was created and not settled since.
fn is_new<N: Nvm, D: Disk>(durable: &Durable<N, D>, file: &ManagedFile<D::File>) -> bool {
    let state = durable.board.row(file.slot).state();
    state.keeps_up() && file.meta().marks & MARK_CREATED != 0
}

/// Settles a file if that is still of use. False when the disk refused.
pub(crate) fn settle<N: Nvm, D: Disk>(durable: &Durable<N, D>, place: FileRef) -> bool {
    let Some(file) = durable.file(place) else { return true };
    let is_wanted = is_new(durable, &file) && file.meta().unlinking.is_none();
    !is_wanted || durable.settle(&file, Writers::MayBeIn).map_or_else(|error| is_held(&error), |()| true)
}

/// Whether nothing of a file, whose writers are kept out, is live.
pub(crate) fn is_settled<N: Nvm, D: Disk>(durable: &Durable<N, D>, place: FileRef) -> bool {
    durable.file(place).is_some_and(|file| !durable.is_dirty(&file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_pool::{Generation, Slot};

    fn place(slot: Slot) -> FileRef {
        FileRef { slot, generation: Generation::new(1) }
    }

    #[test]
    fn no_more_are_under_way_than_may_be() {
        let mut ahead = Ahead::default();
        ahead.put(vec![place(Slot::new(1)), place(Slot::new(2)), place(Slot::new(3))]);
        assert_eq!(
            [ahead.begin(), ahead.begin(), ahead.begin()],
            [Some(place(Slot::new(1))), Some(place(Slot::new(2))), None]
        );
        ahead.end(place(Slot::new(1)), true);
        assert_eq!([ahead.begin(), ahead.begin()], [Some(place(Slot::new(3))), None]);
    }

    #[test]
    fn who_asks_waits_for_what_is_under_way_and_for_nothing_else() {
        let mut ahead = Ahead::default();
        ahead.put(vec![place(Slot::new(1)), place(Slot::new(2)), place(Slot::new(3))]);
        let begun = ahead.begin().unwrap();
        assert!(ahead.overtaken(begun) && !ahead.overtaken(place(Slot::new(2))));
        ahead.end(begun, true);
        assert!(!ahead.overtaken(begun));
        // The second is its asker's now.
        assert_eq!([ahead.begin(), ahead.begin()], [Some(place(Slot::new(3))), None]);
    }

    #[test]
    fn a_disk_that_refuses_ends_it() {
        let mut ahead = Ahead::default();
        ahead.put(vec![place(Slot::new(1)), place(Slot::new(2))]);
        let begun = ahead.begin().unwrap();
        ahead.end(begun, false);
        assert_eq!(ahead.begin(), None);
    }

    #[test]
    fn looks_are_rare_unless_they_find_something() {
        let (mut ahead, now) = (Ahead::default(), Instant::now());
        assert!(ahead.may_look(now) && !ahead.may_look(now));
        assert!(ahead.may_look(now + LOOK_AGAIN));
        ahead.put(vec![place(Slot::new(1))]);
        assert!(!ahead.may_look(now + LOOK_AGAIN * 2));
        ahead.begin().unwrap();
        assert!(ahead.may_look(now + LOOK_AGAIN * 2));
    }
}
