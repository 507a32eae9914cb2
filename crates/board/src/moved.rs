//! Which files of a btrfs got names since its last commit that its log has perhaps not.
//!
//! btrfs' sync of a directory has what was moved into it stand there, and takes it away from where
//! it was only if its log has that file, too. So before the keeper syncs a directory it syncs what
//! is remembered here and stands there. Whoever changes a name notes the file before the call, and
//! once more behind it if a commit has begun in between, which may have missed the change.
//!
//! Must never forget a file before a commit that began behind the change of its name (invariant 9).

use crate::sync::{AtomicU64, Ordering};

/// Files that are remembered; of more than these nobody knows which they are.
const FILES: usize = if cfg!(shuttle) { 1 } else { 64 };

/// The files.
#[repr(C)]
pub struct Moved {
    noted: AtomicU64,
    /// Of these a commit that began may have missed nothing that was done behind their notes.
    begun: AtomicU64,
    committed: AtomicU64,
    /// Inode numbers, by the place of their notes.
    inodes: [AtomicU64; FILES],
}

/// The place of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note(u64);

impl Default for Moved {
    fn default() -> Self {
        Self {
            noted: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            inodes: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Moved {
    /// A name of the file is about to change.
    pub fn note(&self, ino: u64) -> Note {
        let place = self.noted.fetch_add(1, Ordering::SeqCst);
        self.inodes[place as usize % FILES].store(ino, Ordering::SeqCst);
        Note(place)
    }

    /// It has changed.
    pub fn note_changed(&self, note: Note, ino: u64) {
        if self.begun.load(Ordering::SeqCst) > note.0 {
            self.note(ino);
        }
    }

    /// Files may be among them of which nobody made a note.
    pub fn forget_which(&self) {
        self.noted.fetch_add(FILES as u64 + 1, Ordering::SeqCst);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.noted.load(Ordering::SeqCst) == self.committed.load(Ordering::SeqCst)
    }

    /// Calls `each` with their inode numbers; false where nobody knows all of them. One whose note
    /// is just being made may be missing: its name has not changed yet.
    pub fn inodes(&self, mut each: impl FnMut(u64)) -> bool {
        let from = self.committed.load(Ordering::SeqCst);
        let to = self.noted.load(Ordering::SeqCst);
        (from..to).take(FILES).for_each(|at| each(self.inodes[at as usize % FILES].load(Ordering::SeqCst)));
        // Notes that were made meanwhile may have taken the places of these.
        self.noted.load(Ordering::SeqCst).saturating_sub(from) <= FILES as u64
    }

    /// A commit is about to begin. One at a time, or what they say counts for less.
    pub fn begin_commit(&self) -> u64 {
        let noted = self.noted.load(Ordering::SeqCst);
        self.begun.fetch_max(noted, Ordering::SeqCst);
        noted
    }

    /// It has succeeded; `begun` is what [`Moved::begin_commit`] said.
    pub fn end_commit(&self, begun: u64) {
        self.committed.fetch_max(begun, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn known(moved: &Moved) -> Option<Vec<u64>> {
        let mut inodes = Vec::new();
        moved.inodes(|ino| inodes.push(ino)).then_some(inodes)
    }

    #[test]
    fn what_moves_during_a_commit_is_not_covered() {
        let moved = Moved::default();
        assert!(moved.is_empty());
        let note = moved.note(10);
        let begun = moved.begin_commit();
        moved.note(11);
        moved.note_changed(note, 10);
        moved.end_commit(begun);
        assert_eq!(known(&moved), Some(vec![11, 10]));
        moved.end_commit(moved.begin_commit());
        assert!(moved.is_empty());
        // One that began earlier ends last.
        moved.end_commit(begun);
        assert!(moved.is_empty());
    }

    #[test]
    fn of_too_many_nobody_knows_which() {
        let moved = Moved::default();
        (0..FILES as u64).for_each(|ino| _ = moved.note(ino));
        assert_eq!(known(&moved).map(|inodes| inodes.len()), Some(FILES));
        let note = moved.note(100);
        assert_eq!(known(&moved), None);
        moved.note_changed(note, 100);
        moved.end_commit(moved.begin_commit());
        assert_eq!(known(&moved), Some(Vec::new()));
        moved.forget_which();
        assert!(!moved.is_empty() && known(&moved).is_none());
    }
}
