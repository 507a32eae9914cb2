//! The ledger of a file system: changes of its names, sizes and attributes that no record and no
//! slot holds.
//!
//! A journal commits a prefix: with one change it makes durable all that were made before it, and
//! programs rely on that. What Holdfast makes durable by itself must therefore extend what the file
//! system has committed, and a sync is absorbed only while nothing is pending (invariants 9 and
//! 10). A row counts what is pending and knows one way to make it nothing: a commit of the file
//! system that began after the changes (invariant 11). It never guesses: what nobody told it of is
//! not in it.
//!
//! ```text
//!              note                    begin                  end(true)
//!   (clean) ─────────> pending ─────────────────> committing ──────────> (clean)
//!      ^                 │  ^                          │
//!      └─────────────────┘  └──────────────────────────┘
//!         hold (the last)            end(false)
//! ```
//!
//! A change that is noted while a commit is under way belongs to the next *epoch*: the commit may
//! miss it.

use crate::clock::monotonic_ns;
use crate::counter::Tally;
use crate::moved::Moved;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// File systems with managed files at a time; further ones have no row, and everything on them
/// counts as pending.
pub(crate) const LEDGER_ROWS: usize = 16;

/// The word: epoch (32 bits), whether a commit is under way (1 bit), changes pending (31 bits).
const COMMITTING: u64 = 1 << 31;
const PENDING: u64 = COMMITTING - 1;
const EPOCH: u64 = 1 << 32;

/// A commit was worth while if so many syncs were absorbed until the next one.
const WORTH_SYNCS: u64 = 32;
/// So many commits in a row that were not are borne: a program that makes a file longer and syncs
/// it may need two, and goes on syncing others.
const IN_VAIN_BORNE: u32 = 2;
/// From then on, of so many times what a commit takes, one is for commits that serve one file
/// alone.
const REST: u64 = 128;
/// Each further one in a row doubles the rest, up to so many times.
const DOUBLES_MAX: u32 = 5;
/// No rest is longer.
const REST_NS_MAX: u64 = 1_000_000_000;

/// A file system that makes changes durable file by file is had commit at most this often: it takes
/// longer there than a sync.
const COMMIT_EVERY_NS: u64 = 1_000_000_000;
/// But for the first few: what a program makes while it starts does not wait for the next one.
const COMMITS_AT_ONCE: u32 = 2;
/// When a change was noted: between which two commits of its file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u32);

impl Epoch {
    /// A number other than 0 for it.
    pub fn to_raw(self) -> u64 {
        u64::from(self.0) + 1
    }

    /// What [`Epoch::to_raw`] gave; 0 is none.
    pub fn from_raw(raw: u64) -> Option<Self> {
        u32::try_from(raw.checked_sub(1)?).ok().map(Self)
    }
}

/// When a change was noted on each of the file systems that have a row.
#[derive(Default)]
pub struct Epochs(pub(crate) [Option<Epoch>; LEDGER_ROWS]);

/// How a file system makes changes durable; the keeper knows, as soon as it has a file there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Commits {
    /// Nobody has said so far.
    Unknown = 0,
    /// In the order in which they were made, all together: the journals of ext4 and xfs.
    InOrder = 1,
    /// File by file, each with what its own sync covers: btrfs, and ext4 without a journal.
    ByFile = 2,
}

/// The changes on one file system.
#[repr(C, align(64))]
#[derive(Default)]
pub struct LedgerRow {
    /// Device number + 1, or 0 for a free row.
    device: AtomicU64,
    word: AtomicU64,
    commits: AtomicU32,
    /// Managed files there.
    files: AtomicU32,
    /// 1 where a commit writes out no files, so that a sync may wait for it.
    commits_quickly: AtomicU32,
    /// Since when the keeper had better commit, in nanoseconds of the monotonic clock: a sync was
    /// made really because changes are pending. 0: it need not.
    wanted_ns: AtomicU64,
    /// When it was had commit last, by the same clock.
    committed_ns: AtomicU64,
    /// How often it was, up to [`COMMITS_AT_ONCE`].
    committed: AtomicU32,
    /// Nanoseconds of the monotonic clock before which no commit is worth while that serves one
    /// file's first sync alone.
    quiet_until_ns: AtomicU64,
    /// Commits in a row that were not worth while.
    in_vain: AtomicU32,
    /// Syncs of files there that were absorbed.
    pub(crate) absorbed: Tally,
    /// How many they were at the last commit.
    absorbed_before: AtomicU64,
    /// What the journal's count was behind the keeper's last sync there, + 1; 0: whatever such a
    /// sync took with it, somebody else's has been behind it.
    own_sync: AtomicU64,
    /// Calls begun that take a name from a file and that no slot holds.
    takings_begun: AtomicU64,
    /// Those of them that are over. What a process leaves that dies in one stays: then it is never
    /// certain again that none is under way.
    takings_ended: AtomicU64,
    moved: Moved,
    /// The client that synced a directory there last.
    directory_by: AtomicU32,
}

/// A journal of which nobody knows how often it was written.
const UNCOUNTED: u64 = u64::MAX - 1;

impl LedgerRow {
    /// Whether the row is about the file system.
    #[inline]
    pub(crate) fn is_about(&self, device: u64) -> bool {
        self.device.load(Ordering::SeqCst) == device + 1
    }

    /// A file there is managed from now on. Of what was done before the first one nobody knows: it
    /// is pending, and how the file system commits is to be learned.
    pub(crate) fn enter(&self, device: u64) {
        if self.files.fetch_add(1, Ordering::SeqCst) == 0 {
            self.commits.store(Commits::Unknown as u32, Ordering::SeqCst);
            self.note();
            if self.device.swap(device + 1, Ordering::SeqCst) != device + 1 {
                self.committed.store(0, Ordering::SeqCst);
                self.committed_ns.store(0, Ordering::SeqCst);
                self.moved.forget_which();
            }
        }
    }

    /// A file there is managed no more.
    pub(crate) fn leave(&self) {
        self.files.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether it has managed files.
    pub fn is_in_use(&self) -> bool {
        self.files.load(Ordering::SeqCst) != 0
    }

    /// The file system's device number.
    pub(crate) fn device(&self) -> Option<u64> {
        self.device.load(Ordering::SeqCst).checked_sub(1)
    }

    /// Notes a change. Who makes it notes it before the call, so that nobody builds on it unseen,
    /// and once more when it is done, since a commit in between may have missed it.
    pub fn note(&self) -> Epoch {
        let before = self.update(|word| if word & PENDING == PENDING { word } else { word + 1 });
        Epoch((before / EPOCH) as u32)
    }

    /// A change that was noted once, in `epoch`, is held by a slot now. One that a commit has taken
    /// up since is no longer counted by itself: nothing happens then.
    pub fn hold(&self, epoch: Epoch) {
        self.update(|word| {
            let pending = word & PENDING;
            let counts = (word / EPOCH) as u32 == epoch.0 && pending != 0 && pending != PENDING;
            word - u64::from(counts)
        });
    }

    /// A call begins that may take a name from a file there, which no slot holds.
    pub fn begin_taking(&self) {
        self.takings_begun.fetch_add(1, Ordering::SeqCst);
    }

    /// It is over.
    pub fn end_taking(&self) {
        self.takings_ended.fetch_add(1, Ordering::SeqCst);
    }

    /// How many such calls there were, if none is under way. The same answer twice: none began or
    /// was under way in between.
    pub fn takings(&self) -> Option<u64> {
        // In this order: one that ends in between counts as under way.
        let ended = self.takings_ended.load(Ordering::SeqCst);
        let begun = self.takings_begun.load(Ordering::SeqCst);
        (begun == ended).then_some(begun)
    }

    /// A client is about to sync a directory there; whether the last one was another client's. A
    /// hint: nothing but time may depend on it.
    pub fn shares_directories(&self, client: u32) -> bool {
        let last = self.directory_by.load(Ordering::Relaxed);
        if last != client {
            self.directory_by.store(client, Ordering::Relaxed);
        }
        last != 0 && last != client
    }

    /// The files there of which names were changed.
    pub fn moved(&self) -> &Moved {
        &self.moved
    }

    /// Whether nothing is pending.
    #[inline]
    pub fn is_clean(&self) -> bool {
        self.word.load(Ordering::SeqCst).is_multiple_of(EPOCH)
    }

    /// Whether something is pending that no commit under way covers.
    pub fn has_pending(&self) -> bool {
        self.word.load(Ordering::SeqCst) & PENDING != 0
    }

    /// Whether nothing is pending but one change, which was noted once in `epoch`.
    pub fn is_clean_but(&self, epoch: Option<Epoch>) -> bool {
        let word = self.word.load(Ordering::SeqCst);
        let own = epoch.is_some_and(|epoch| (word / EPOCH) as u32 == epoch.0);
        word % EPOCH <= u64::from(own)
    }

    /// Begins a commit of everything noted so far; false when there is nothing. One at a time: the
    /// keeper's.
    pub fn begin(&self) -> bool {
        let before = self.update(|word| match word % EPOCH {
            0 => word,
            _ => (word / EPOCH).wrapping_add(1).wrapping_mul(EPOCH) | COMMITTING,
        });
        self.wanted_ns.store(0, Ordering::SeqCst);
        !before.is_multiple_of(EPOCH)
    }

    /// Ends it. After a failure what it was to cover is pending again.
    pub fn end(&self, succeeded: bool) {
        self.update(|word| {
            let word = word & !COMMITTING;
            word + u64::from(!succeeded && word & PENDING != PENDING)
        });
    }

    /// Whether a file system which makes changes durable file by file is to commit now, behind the
    /// sync of a client: something is pending there, and the last commit is a second ago.
    pub fn is_due(&self) -> bool {
        self.is_due_at(monotonic_ns())
    }

    /// As [`LedgerRow::is_due`], by a clock of the caller's.
    pub fn is_due_at(&self, now_ns: u64) -> bool {
        !self.is_clean() && self.may_commit_at(now_ns)
    }

    /// Whether nobody has a managed file there, and who is the first is to be followed by such a
    /// commit: what the ledger begins with is pending until then.
    pub fn is_to_begin(&self) -> bool {
        !self.is_in_use() && self.may_commit_at(monotonic_ns())
    }

    fn may_commit_at(&self, now_ns: u64) -> bool {
        let is_free = self.committed.load(Ordering::SeqCst) < COMMITS_AT_ONCE;
        self.commits() == Commits::ByFile
            && self.commits_quickly.load(Ordering::SeqCst) != 0
            && (is_free || now_ns >= self.next_commit_ns())
    }

    fn next_commit_ns(&self) -> u64 {
        match self.committed_ns.load(Ordering::SeqCst) {
            0 => 0,
            before_ns => before_ns.saturating_add(COMMIT_EVERY_NS),
        }
    }

    /// It was had commit, which ended at `now_ns`.
    pub fn committed_at(&self, now_ns: u64) {
        self.committed_ns.store(now_ns.max(1), Ordering::SeqCst);
        // One at a time.
        let committed = self.committed.load(Ordering::SeqCst) + 1;
        self.committed.store(committed.min(COMMITS_AT_ONCE), Ordering::SeqCst);
    }

    /// The keeper has synced something there, and a journal of which all earlier changes are a part
    /// was perhaps written: `count` is its count now.
    pub fn note_own_sync(&self, count: Option<u64>) {
        self.own_sync.store(count.map_or(UNCOUNTED, |count| count.min(UNCOUNTED - 1)) + 1, Ordering::SeqCst);
    }

    /// What [`LedgerRow::may_leave_out`] looks at.
    pub fn own_sync(&self) -> u64 {
        self.own_sync.load(Ordering::SeqCst)
    }

    /// Whether a sync of the kernel's may have made less durable than natively: the keeper's last
    /// one may have taken with it what was changed of the file, so that there was nothing to
    /// commit, while something is pending that was changed since.
    #[inline]
    pub fn may_leave_out(&self) -> bool {
        self.own_sync.load(Ordering::SeqCst) != 0 && self.commits() == Commits::InOrder && !self.is_clean()
    }

    /// Whether the journal was written by somebody else since `own_sync`, as its count says now:
    /// what the keeper's sync took with it that one would have taken natively. Then no sync leaves
    /// anything out until the keeper's next one.
    pub fn is_made_up_for(&self, own_sync: u64, count: Option<u64>) -> bool {
        let others = count.is_some_and(|count| own_sync != UNCOUNTED + 1 && count + 1 != own_sync);
        if others {
            let _ = self.own_sync.compare_exchange(own_sync, 0, Ordering::SeqCst, Ordering::Relaxed);
        }
        others
    }

    /// Says whether a commit there writes out no files.
    pub fn set_commits_quickly(&self, quickly: bool) {
        self.commits_quickly.store(u32::from(quickly), Ordering::SeqCst);
    }

    /// Whether a commit there writes out no files.
    pub fn commits_quickly(&self) -> bool {
        self.commits_quickly.load(Ordering::SeqCst) != 0
    }

    /// Says how the file system makes changes durable.
    pub fn set_commits(&self, commits: Commits) {
        self.commits.store(commits as u32, Ordering::SeqCst);
    }

    /// How the file system makes changes durable.
    #[inline]
    pub fn commits(&self) -> Commits {
        match self.commits.load(Ordering::SeqCst) {
            1 => Commits::InOrder,
            2 => Commits::ByFile,
            _ => Commits::Unknown,
        }
    }

    /// A commit was made, which took so long. One at a time: the keeper's.
    pub fn rest(&self, took_ns: u64) {
        self.rest_at(monotonic_ns(), took_ns, self.absorbed.get());
    }

    fn rest_at(&self, now_ns: u64, took_ns: u64, absorbed: u64) {
        let since = absorbed.saturating_sub(self.absorbed_before.swap(absorbed, Ordering::Relaxed));
        let before = self.in_vain.load(Ordering::Relaxed);
        let in_vain =
            if since >= WORTH_SYNCS { 0 } else { (before + 1).min(IN_VAIN_BORNE + 1 + DOUBLES_MAX) };
        self.in_vain.store(in_vain, Ordering::Relaxed);
        let doubles = in_vain.checked_sub(IN_VAIN_BORNE + 1);
        let rest_ns = doubles.map_or(0, |doubles| took_ns.saturating_mul(REST << doubles).min(REST_NS_MAX));
        self.quiet_until_ns.store(now_ns.saturating_add(rest_ns), Ordering::Relaxed);
    }

    /// Whether the last commit is so short a time ago that another one had better not serve one
    /// file's first sync alone.
    pub fn rests(&self) -> bool {
        self.rests_at(monotonic_ns())
    }

    fn rests_at(&self, now_ns: u64) -> bool {
        now_ns < self.quiet_until_ns.load(Ordering::Relaxed)
    }

    /// Asks the keeper for a commit when it has time.
    pub(crate) fn want(&self) {
        let _ = self.wanted_ns.compare_exchange(0, monotonic_ns(), Ordering::SeqCst, Ordering::Relaxed);
    }

    /// From when on, by the monotonic clock, the keeper is to have it commit by itself; `None`:
    /// nobody asked, nothing is pending, or it commits behind the syncs of clients.
    pub fn wanted_from_ns(&self) -> Option<u64> {
        let wanted_ns = self.wanted_ns.load(Ordering::SeqCst);
        let quickly = self.commits_quickly.load(Ordering::SeqCst) != 0;
        let from_ns = wanted_ns.max(self.next_commit_ns());
        (wanted_ns != 0 && !quickly && !self.is_clean()).then_some(from_ns)
    }

    /// Changes the word; what it was before.
    fn update(&self, change: impl Fn(u64) -> u64) -> u64 {
        let mut word = self.word.load(Ordering::SeqCst);
        loop {
            match self.word.compare_exchange(word, change(word), Ordering::SeqCst, Ordering::SeqCst) {
                Ok(before) => return before,
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn what_a_slot_holds_is_not_pending() {
        let row = LedgerRow::default();
        let (first, second) = (row.note(), row.note());
        assert!(!row.is_clean() && !row.is_clean_but(Some(first)));
        row.hold(second);
        assert!(row.is_clean_but(Some(first)) && !row.is_clean());
        row.hold(first);
        assert!(row.is_clean());
        // Never below what others noted.
        row.hold(first);
        assert!(row.is_clean());
    }

    #[test]
    fn a_commit_covers_what_was_noted_before_it_began() {
        let row = LedgerRow::default();
        assert!(!row.begin());
        let before = row.note();
        assert!(row.begin());
        assert!(!row.is_clean());
        let during = row.note();
        // Taken up by the commit: it is not what was noted since.
        row.hold(before);
        row.end(true);
        assert!(!row.is_clean() && row.is_clean_but(Some(during)) && !row.is_clean_but(Some(before)));
    }

    #[test]
    fn after_commits_in_vain_there_is_a_rest() {
        let row = LedgerRow::default();
        assert!(!row.rests_at(0) && !row.rests_at(1000));
        // Worth while, and then the two that are borne.
        for absorbed in [WORTH_SYNCS, WORTH_SYNCS, WORTH_SYNCS + 1] {
            row.rest_at(1000, 10, absorbed);
            assert!(!row.rests_at(1000));
        }
        // In vain, again and again.
        for times in 0..=2 * DOUBLES_MAX {
            row.rest_at(0, 10, WORTH_SYNCS + 1);
            let rest_ns = (10 * REST) << times.min(DOUBLES_MAX);
            assert!(row.rests_at(rest_ns - 1) && !row.rests_at(rest_ns));
        }
        row.rest_at(0, u64::MAX, WORTH_SYNCS + 1);
        assert!(row.rests_at(REST_NS_MAX - 1) && !row.rests_at(REST_NS_MAX));
        row.rest_at(0, 10, 3 * WORTH_SYNCS);
        assert!(!row.rests_at(0));
    }

    #[test]
    fn a_commit_behind_a_sync_is_due_once_a_second() {
        let row = LedgerRow::default();
        row.set_commits(Commits::ByFile);
        assert!(!row.is_due_at(5 * COMMIT_EVERY_NS));
        row.set_commits_quickly(true);
        assert!(!row.is_due_at(0));
        row.note();
        assert!(row.is_due_at(0));
        for _ in 0..COMMITS_AT_ONCE {
            assert!(row.is_due_at(1000));
            row.committed_at(1000);
        }
        assert!(!row.is_due_at(1000 + COMMIT_EVERY_NS - 1) && row.is_due_at(1000 + COMMIT_EVERY_NS));
        row.set_commits(Commits::InOrder);
        assert!(!row.is_due_at(u64::MAX));
    }

    #[test]
    fn a_commit_is_wanted_for_what_is_pending() {
        let row = LedgerRow::default();
        row.want();
        assert_eq!(row.wanted_from_ns(), None);
        row.note();
        assert!(row.wanted_from_ns().is_some());
        let now_ns = monotonic_ns();
        row.committed_at(now_ns);
        assert_eq!(row.wanted_from_ns(), Some(now_ns + COMMIT_EVERY_NS));
        row.set_commits_quickly(true);
        assert_eq!(row.wanted_from_ns(), None);
        row.set_commits_quickly(false);
        assert!(row.begin());
        row.end(false);
        assert_eq!(row.wanted_from_ns(), None);
    }

    #[test]
    fn a_commit_that_failed_covers_nothing() {
        let row = LedgerRow::default();
        let epoch = row.note();
        assert!(row.begin());
        row.end(false);
        assert!(!row.is_clean() && !row.is_clean_but(Some(epoch)));
        row.hold(epoch);
        assert!(!row.is_clean());
        assert!(row.begin());
        row.end(true);
        assert!(row.is_clean());
    }
}
