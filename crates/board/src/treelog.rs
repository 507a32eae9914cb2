//! What the log of btrfs has not any more because of a commit that the keeper asked for.
//!
//! btrfs keeps a log of what was synced since its last commit (its tree log). A change of the name
//! of a file that is in it, or of a name in a directory that is in it, goes into it, too, and the
//! next sync of anything makes it durable. After a commit that log is empty: what was synced before
//! it is not followed any more. Natively that commit would come later, so whoever changes such a
//! name makes up for it by a sync of its own ([`TreeLog::misses`]).
//!
//! Two sets of files and directories, as bits: those that were synced since the last commit of ours
//! and those that were before. A bit is never taken back from the second, and may stand for another
//! file besides: at worst something is synced without need, once between two commits.

use crate::mix::{mix, mix_file, upper};
use crate::sync::{AtomicU64, Ordering};

/// Words of bits of each set.
const WORDS: usize = if cfg!(shuttle) { 1 } else { 1024 };
/// Files and directories that are remembered as being in the log again.
const RELOGGED: usize = if cfg!(shuttle) { 1 } else { 256 };

/// A time at which no commit of ours is under way: how many there were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

/// The sets, and the commits that move files from one to the other.
#[repr(C)]
pub struct TreeLog {
    begun: AtomicU64,
    ended: AtomicU64,
    /// Synced since the last commit.
    now: [AtomicU64; WORDS],
    /// Synced before it.
    before: [AtomicU64; WORDS],
    /// What was synced after it by whoever changed a name, each as a hash that nothing else has at
    /// any time.
    relogged: [AtomicU64; RELOGGED],
}

impl Default for TreeLog {
    fn default() -> Self {
        Self {
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            now: core::array::from_fn(|_| AtomicU64::new(0)),
            before: core::array::from_fn(|_| AtomicU64::new(0)),
            relogged: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

fn place(dev: u64, ino: u64) -> (usize, u64) {
    let place = upper(mix_file(dev, ino)) as usize % (WORDS * 64);
    (place / 64, 1 << (place % 64))
}

fn has(set: &[AtomicU64; WORDS], (word, bit): (usize, u64)) -> bool {
    set[word].load(Ordering::SeqCst) & bit != 0
}

impl TreeLog {
    /// A file or directory is about to be synced, or the log is to answer its syncs from now on.
    pub fn note_sync(&self, dev: u64, ino: u64) {
        let (word, bit) = place(dev, ino);
        self.now[word].fetch_or(bit, Ordering::SeqCst);
    }

    /// Whether a file or directory is in the log, or so it seems.
    pub fn has(&self, dev: u64, ino: u64) -> bool {
        has(&self.now, place(dev, ino))
    }

    /// The keeper is about to have a file system commit.
    pub fn begin_commit(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.age();
    }

    /// It has. Syncs that began meanwhile may belong to the transaction that was committed.
    pub fn end_commit(&self) {
        self.age();
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    fn age(&self) {
        for (now, before) in self.now.iter().zip(&self.before) {
            let bits = now.load(Ordering::SeqCst);
            if bits != 0 {
                // In one of the two at any time.
                before.fetch_or(bits, Ordering::SeqCst);
                now.fetch_and(!bits, Ordering::SeqCst);
            }
        }
    }

    /// Whether the keeper ever had a file system commit.
    pub fn has_commits(&self) -> bool {
        self.begun.load(Ordering::SeqCst) != 0
    }

    /// Now, unless a commit is under way.
    pub fn moment(&self) -> Option<Moment> {
        let ended = self.ended.load(Ordering::SeqCst);
        (self.begun.load(Ordering::SeqCst) == ended).then_some(Moment(ended))
    }

    /// Whether a file or directory that was synced may be missing in the log because of a commit
    /// that began before `moment`, which was taken when a name had been changed.
    pub fn misses(&self, moment: Option<Moment>, dev: u64, ino: u64) -> bool {
        let place = place(dev, ino);
        let was_synced = has(&self.before, place) || moment.is_none() && has(&self.now, place);
        was_synced && !self.is_relogged(moment, dev, ino)
    }

    /// A file or directory was synced whose names had changed, by a sync that began after `moment`:
    /// further changes of them go into the log until the next commit.
    pub fn note_relogged(&self, moment: Moment, dev: u64, ino: u64) {
        let (place, print) = Self::print(moment, dev, ino);
        self.relogged[place].store(print, Ordering::SeqCst);
    }

    /// Whether that was so and there was no commit since, at `moment`.
    pub fn is_relogged(&self, moment: Option<Moment>, dev: u64, ino: u64) -> bool {
        moment.is_some_and(|moment| {
            let (place, print) = Self::print(moment, dev, ino);
            self.relogged[place].load(Ordering::SeqCst) == print
        })
    }

    fn print(moment: Moment, dev: u64, ino: u64) -> (usize, u64) {
        // 0 is no directory.
        (upper(mix_file(dev, ino)) as usize % RELOGGED, mix(dev, ino, moment.0) | 1)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn commit(log: &TreeLog) {
        log.begin_commit();
        log.end_commit();
    }

    #[test]
    fn what_was_synced_before_a_commit_is_missing_behind_it() {
        let log = TreeLog::default();
        log.note_sync(1, 10);
        assert!(!log.has_commits() && !log.misses(log.moment(), 1, 10));
        commit(&log);
        log.note_sync(1, 11);
        let now = log.moment();
        assert!(log.has_commits() && log.misses(now, 1, 10) && !log.misses(now, 1, 11));
        assert!(!log.misses(now, 2, 10) && !log.misses(now, 1, 12));
        // Synced once more, it may have had nothing to log.
        log.note_sync(1, 10);
        assert!(log.misses(log.moment(), 1, 10));
    }

    #[test]
    fn what_is_synced_during_a_commit_may_belong_to_it() {
        let log = TreeLog::default();
        log.begin_commit();
        log.note_sync(1, 10);
        assert!(log.moment().is_none() && log.misses(log.moment(), 1, 10));
        log.end_commit();
        assert!(log.misses(log.moment(), 1, 10));
    }

    #[test]
    fn a_directory_is_in_the_log_again_until_the_next_commit() {
        let log = TreeLog::default();
        let misses = |ino| log.misses(log.moment(), 1, ino);
        log.note_sync(1, 2);
        log.note_sync(1, 3);
        commit(&log);
        let moment = log.moment().expect("no commit is under way");
        log.note_relogged(moment, 1, 2);
        assert!(!misses(2) && misses(3));
        commit(&log);
        assert!(misses(2));
        // A sync that began before that commit.
        log.note_relogged(moment, 1, 2);
        assert!(misses(2));
    }
}
