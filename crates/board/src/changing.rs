//! Calls under way that change what a journal has: names, sizes, attributes. Whoever dies in the
//! midst of one may have made the change without noting it, so something is pending then; whoever
//! ends outside of any leaves nothing behind (invariant 10).
//!
//! A row is taken before the call, and before what notes it in the ledger; it is given back behind
//! the last note. It is its thread's: what a thread that ended in the midst left is taken again by
//! the next one that has its memory, or cleared with its process. When no row is free the call is
//! only counted, and while one is, every process that ends counts as one that died in such a call.
//! Nobody waits here.

use crate::mix::{mix, upper};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Calls that can be told apart at a time.
pub(crate) const CHANGING_ROWS: usize = if cfg!(shuttle) { 2 } else { 64 };

/// What a call under way is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Names, or a file that nobody asks for.
    Any,
    /// The last name, perhaps, or the attributes of the file with this inode number.
    File(u64),
    /// It may make a file, on a file system that is not known yet.
    Making,
}

/// Above all inode numbers that file systems give.
const MAKING: u64 = u64::MAX;

impl Change {
    fn to_raw(self) -> u64 {
        match self {
            Self::Any => 0,
            Self::File(ino) => ino,
            Self::Making => MAKING,
        }
    }
}

/// One call under way.
#[repr(C, align(64))]
#[derive(Default)]
pub(crate) struct ChangingRow {
    /// The client that makes it, 0 when there is none.
    owner: AtomicU32,
    /// Its thread, by a number of the client's own.
    thread: AtomicU64,
    /// A [`Change`].
    about: AtomicU64,
    /// 1: until the call is over, it may have changed a name that no sync of others covers as it
    /// would natively ([`crate::TreeLog`]).
    relogs: AtomicU32,
}

/// A call under way. It ends by [`Changing::end`] alone: a thread that does not come so far has not
/// noted what it did.
#[must_use]
pub struct Changing<'a> {
    row: Option<&'a ChangingRow>,
    who: (u32, u64),
    uncounted: &'a AtomicU32,
}

/// All calls under way.
#[repr(C)]
pub struct Calls {
    rows: [ChangingRow; CHANGING_ROWS],
    /// Calls that found no row and are not over.
    uncounted: AtomicU32,
}

impl Default for Calls {
    fn default() -> Self {
        Self { rows: core::array::from_fn(|_| ChangingRow::default()), uncounted: AtomicU32::new(0) }
    }
}

impl Calls {
    /// A thread of `client` begins such a call. One thread makes one at a time.
    pub fn begin(&self, client: u32, thread: u64, change: Change) -> Changing<'_> {
        let first = upper(mix(thread, 0, 0)) as usize;
        let row = (0..CHANGING_ROWS)
            .map(|step| &self.rows[first.wrapping_add(step) % CHANGING_ROWS])
            .find(|row| row.take(client, thread));
        match row {
            Some(row) => {
                row.relogs.store(0, Ordering::SeqCst);
                row.about.store(change.to_raw(), Ordering::SeqCst);
            }
            None => _ = self.uncounted.fetch_add(1, Ordering::SeqCst),
        }
        Changing { row, who: (client, thread), uncounted: &self.uncounted }
    }

    /// Whether a client that ended may have died in the midst of such a call.
    pub(crate) fn has(&self, client: u32) -> bool {
        let is_its_own = |row: &ChangingRow| row.owner.load(Ordering::SeqCst) == client;
        self.rows.iter().any(is_its_own) || self.uncounted.load(Ordering::SeqCst) != 0
    }

    /// Takes away what a dead client has.
    pub fn clear(&self, client: u32) {
        self.rows.iter().filter(|row| row.owner.load(Ordering::SeqCst) == client).for_each(ChangingRow::free);
    }

    /// The call that a thread is in may change a name which it has to have logged again.
    pub fn note_relogs(&self, client: u32, thread: u64) {
        self.rows
            .iter()
            .filter(|row| row.is_of(client, thread))
            .for_each(|row| row.relogs.store(1, Ordering::SeqCst));
    }

    /// Whether somebody is in such a call; not among those that found no row.
    pub fn is_relogging(&self) -> bool {
        self.rows.iter().any(|row| row.relogs.load(Ordering::SeqCst) != 0)
    }

    /// Whether somebody is making a file, nobody knows where.
    pub fn is_making(&self) -> bool {
        self.is_about(MAKING)
    }

    /// Whether somebody may be removing the file with this inode number, or changing its
    /// attributes.
    pub fn is_changing(&self, ino: u64) -> bool {
        self.is_about(ino)
    }

    fn is_about(&self, about: u64) -> bool {
        self.rows.iter().any(|row| row.about.load(Ordering::SeqCst) == about)
            || self.uncounted.load(Ordering::SeqCst) != 0
    }
}

impl ChangingRow {
    fn take(&self, client: u32, thread: u64) -> bool {
        match self.owner.load(Ordering::Relaxed) {
            0 => {
                let taken = self.owner.compare_exchange(0, client, Ordering::SeqCst, Ordering::Relaxed);
                taken.inspect(|_| self.thread.store(thread, Ordering::SeqCst)).is_ok()
            }
            // Left by one that did not live to its end.
            _ => self.is_of(client, thread),
        }
    }

    fn is_of(&self, client: u32, thread: u64) -> bool {
        self.owner.load(Ordering::SeqCst) == client && self.thread.load(Ordering::SeqCst) == thread
    }

    fn free(&self) {
        self.relogs.store(0, Ordering::SeqCst);
        self.about.store(0, Ordering::SeqCst);
        self.thread.store(0, Ordering::SeqCst);
        self.owner.store(0, Ordering::SeqCst);
    }
}

impl Changing<'_> {
    /// The call is over, and what it changed is noted.
    pub fn end(self) {
        match self.row {
            Some(row) if row.is_of(self.who.0, self.who.1) => row.free(),
            Some(_) => {}
            None => _ = self.uncounted.fetch_sub(1, Ordering::SeqCst),
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn who_ends_outside_of_a_call_leaves_nothing() {
        let changes = Calls::default();
        assert!(!changes.has(1));
        let (first, second) = (changes.begin(1, 10, Change::Any), changes.begin(2, 10, Change::Any));
        first.end();
        assert!(!changes.has(1) && changes.has(2));
        changes.clear(2);
        assert!(!changes.has(2));
        drop(second);
    }

    #[test]
    fn a_thread_takes_again_what_the_one_before_it_left() {
        let changes = Calls::default();
        for _ in 0..2 * CHANGING_ROWS {
            drop(changes.begin(1, 7, Change::Any));
        }
        changes.begin(1, 7, Change::Any).end();
        assert!(!changes.has(1) && !changes.has(2));
    }

    #[test]
    fn without_a_free_row_everybody_may_have_died_in_a_call() {
        let changes = Calls::default();
        let all: Vec<_> =
            (0..CHANGING_ROWS as u64).map(|thread| changes.begin(1, thread + 1, Change::Any)).collect();
        assert!(!changes.has(2));
        let further = changes.begin(3, 1, Change::Any);
        assert!(changes.has(2));
        further.end();
        all.into_iter().for_each(Changing::end);
        assert!(![1, 2, 3].into_iter().any(|client| changes.has(client)));
    }

    #[test]
    fn who_has_a_name_logged_again_is_seen_until_the_end() {
        let changes = Calls::default();
        let (first, second) = (changes.begin(1, 1, Change::Any), changes.begin(2, 1, Change::Any));
        changes.note_relogs(1, 1);
        assert!(changes.is_relogging());
        first.end();
        assert!(!changes.is_relogging());
        changes.note_relogs(2, 1);
        assert!(changes.is_relogging());
        changes.clear(2);
        assert!(!changes.is_relogging());
        drop(second);
    }

    #[test]
    fn what_it_is_about_is_told_until_it_is_over() {
        let changes = Calls::default();
        let making = changes.begin(1, 1, Change::Making);
        let attributes = changes.begin(1, 2, Change::File(55));
        assert!(changes.is_making() && changes.is_changing(55) && !changes.is_changing(56));
        making.end();
        attributes.end();
        assert!(!changes.is_making() && !changes.is_changing(55));
    }
}
