//! Times of files that were in state Behind, as programs are to see them: those of their writes,
//! not those of the moments at which the keeper brought the bytes to the kernel.
//!
//! The row of a file knows what times the kernel showed right after the keeper's own last change.
//! As long as it shows the same, nobody else has changed the file, and the row's times are right;
//! else the kernel's are. Nothing here decides on durability, and nothing is lost with it.

use std::time::Duration;

use crate::numbers::AtomicGeneration;
use crate::sync::{AtomicU64, Ordering};
use holdfast_pool::Generation;

/// A time of a file, with the kernel's precision; 0 when not known. Later times are larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileTime(u64);

/// Seconds from the earliest time that file systems know (1901) to 1970.
const BEFORE_1970_S: i64 = 1 << 31;
const NS_BITS: u32 = 30;
const SECOND_NS: u64 = 1_000_000_000;

impl FileTime {
    /// A time that nobody knows.
    pub const UNKNOWN: Self = Self(0);

    /// From seconds since 1970 and nanoseconds. What lies outside of 1901 to 2446 is not known.
    #[inline]
    pub fn new(seconds: i64, ns: i64) -> Self {
        let seconds = seconds.saturating_add(BEFORE_1970_S);
        let known = (0..1 << (64 - NS_BITS)).contains(&seconds) && (0..SECOND_NS as i64).contains(&ns);
        if known { Self((seconds as u64) << NS_BITS | ns as u64) } else { Self::UNKNOWN }
    }

    /// From nanoseconds since 1970.
    #[inline]
    pub fn from_ns(ns: u64) -> Self {
        Self::new((ns / SECOND_NS) as i64, (ns % SECOND_NS) as i64)
    }

    /// Seconds since 1970 and nanoseconds, if it is known.
    #[inline]
    pub fn parts(self) -> Option<(i64, i64)> {
        let parts = ((self.0 >> NS_BITS) as i64 - BEFORE_1970_S, (self.0 & ((1 << NS_BITS) - 1)) as i64);
        (self != Self::UNKNOWN).then_some(parts)
    }
}

/// The two times that a write moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Last change of its bytes.
    pub modified: FileTime,
    /// Last change of any kind.
    pub changed: FileTime,
}

/// One file: fits a cache line, as `FileRow` has no room for it.
#[repr(C, align(64))]
#[derive(Default)]
pub struct TimesRow {
    /// Changes with everything below. Its two lowest bits: 0 at rest, 2 while the keeper changes
    /// the file, odd while the row is being written.
    version: AtomicU64,
    /// Generation of the slot's use.
    generation: AtomicGeneration,
    kernel_modified: AtomicU64,
    kernel_changed: AtomicU64,
    modified: AtomicU64,
    changed: AtomicU64,
    written_ns: AtomicU64,
    unlogged: AtomicU64,
}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<TimesRow>() == 64);

const AT_REST: u64 = 0;
const BEING_WRITTEN: u64 = 1;
const FILE_IN_HAND: u64 = 2;
const PHASES: u64 = 4;
/// Looks at a row that is being written, which takes some stores.
const LOOKS_MAX: u32 = 10_000;
/// The last of them, for which whoever writes it may have to get a processor first.
const PATIENT_LOOKS: u32 = 50;
const PATIENCE: Duration = Duration::from_micros(200);

/// What a row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    version: u64,
    kernel: Times,
    shown: Times,
    written_ns: u64,
    unlogged: u64,
}

/// What the file row says of a file's changes: `FileRow::written_ns` and `FileRow::unlogged`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes {
    /// When it was last written in state Behind.
    pub written_ns: u64,
    /// Changes that the log does not hold.
    pub unlogged: u64,
}

impl Account {
    /// Whether the keeper is changing the file, so that the kernel's times say nothing.
    #[inline]
    pub fn is_in_hand(&self) -> bool {
        self.version % PHASES == FILE_IN_HAND
    }

    /// Whether the kernel's times are those that the keeper left.
    #[inline]
    pub fn is_as_left(&self, kernel: Times) -> bool {
        kernel == self.kernel && kernel.changed != FileTime::UNKNOWN
    }

    /// The time of modification that the kernel does not show: the keeper's own write moved it.
    pub fn owes(&self) -> Option<FileTime> {
        let owes = self.shown.modified != self.kernel.modified && self.shown.modified != FileTime::UNKNOWN;
        owes.then_some(self.shown.modified)
    }

    /// The times of a file of which the kernel says `kernel`.
    pub fn times(&self, kernel: Times, now: Changes) -> Times {
        let is_written = now.written_ns != self.written_ns;
        // The clock of writes is coarser than the kernel's, and runs behind it by a tick at most.
        let written = FileTime::from_ns(now.written_ns).max(self.shown.changed);
        let is_noted = now.unlogged != self.unlogged;
        if (self.is_in_hand() || self.is_as_left(kernel)) && !is_noted {
            return if is_written { Times { modified: written, changed: written } } else { self.shown };
        }
        let is_modified = !self.is_in_hand() && kernel.modified != self.kernel.modified;
        let modified = match (is_modified, is_written) {
            (false, true) => written,
            (false, false) => self.shown.modified,
            // A write, an explicit time before the last write, or one after it.
            (true, true) if kernel.changed <= written => written,
            (true, _) => kernel.modified,
        };
        let changed = if is_written { kernel.changed.max(written) } else { kernel.changed };
        Times { modified, changed }
    }
}

impl TimesRow {
    /// What the row says of this use of its slot; `None` while nothing is known better than by the
    /// kernel.
    pub fn look(&self, generation: Generation) -> Option<Account> {
        for number in 0..LOOKS_MAX {
            let version = self.version.load(Ordering::SeqCst);
            if version % 2 == BEING_WRITTEN {
                match LOOKS_MAX - number {
                    1..=PATIENT_LOOKS => crate::sync::pause(PATIENCE),
                    _ => crate::sync::spin_loop(),
                }
                continue;
            }
            let time = |word: &AtomicU64| FileTime(word.load(Ordering::SeqCst));
            let is_known = self.generation.load(Ordering::SeqCst) == generation;
            let account = Account {
                version,
                kernel: Times { modified: time(&self.kernel_modified), changed: time(&self.kernel_changed) },
                shown: Times { modified: time(&self.modified), changed: time(&self.changed) },
                written_ns: self.written_ns.load(Ordering::SeqCst),
                unlogged: self.unlogged.load(Ordering::SeqCst),
            };
            if self.version.load(Ordering::SeqCst) == version {
                return is_known.then_some(account);
            }
        }
        // Whoever wrote it died in it, or stands still.
        None
    }

    fn write(&self, phase: u64, words: impl FnOnce()) {
        let version = self.version.load(Ordering::SeqCst) / PHASES * PHASES;
        self.version.store(version + PHASES + BEING_WRITTEN, Ordering::SeqCst);
        words();
        self.version.store(version + PHASES + phase, Ordering::SeqCst);
    }

    fn set_shown(&self, generation: Generation, shown: Times, changes: Changes) {
        self.generation.store(generation, Ordering::SeqCst);
        self.modified.store(shown.modified.0, Ordering::SeqCst);
        self.changed.store(shown.changed.0, Ordering::SeqCst);
        self.written_ns.store(changes.written_ns, Ordering::SeqCst);
        self.unlogged.store(changes.unlogged, Ordering::SeqCst);
    }

    fn set_kernel(&self, kernel: Times) {
        self.kernel_modified.store(kernel.modified.0, Ordering::SeqCst);
        self.kernel_changed.store(kernel.changed.0, Ordering::SeqCst);
    }

    /// The keeper is about to change the file, of which programs see `shown` meanwhile and
    /// afterwards. `changes`: as they were before `shown` was made of the kernel's times. One at a
    /// time writes a row.
    pub fn begin(&self, generation: Generation, shown: Times, changes: Changes) {
        self.write(FILE_IN_HAND, || self.set_shown(generation, shown, changes));
    }

    /// The keeper has changed it, and the kernel says `kernel`; not known: the kernel is right from
    /// here on.
    pub fn end(&self, kernel: Times) {
        self.write(AT_REST, || self.set_kernel(kernel));
    }

    /// The kernel's times are right: `kernel`.
    pub fn settle(&self, generation: Generation, kernel: Times, changes: Changes) {
        self.write(AT_REST, || {
            self.set_shown(generation, kernel, changes);
            self.set_kernel(kernel);
        });
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn at(ns: u64) -> FileTime {
        FileTime::from_ns(ns)
    }

    fn both(ns: u64) -> Times {
        Times { modified: at(ns), changed: at(ns) }
    }

    #[test]
    fn times_keep_their_order_and_their_parts() {
        let list = [(-2_147_483_648, 1), (-1, 5), (0, 0), (0, 999_999_999), (1, 0), (15_032_385_535, 0)];
        for pair in list.windows(2) {
            assert!(FileTime::new(pair[0].0, pair[0].1) < FileTime::new(pair[1].0, pair[1].1));
        }
        for (seconds, ns) in list {
            assert_eq!(FileTime::new(seconds, ns).parts(), Some((seconds, ns)));
        }
        for (seconds, ns) in [(i64::MAX, 0), (-2_147_483_649, 0), (1 << 40, 0), (0, 1_000_000_000), (0, -1)] {
            assert_eq!(FileTime::new(seconds, ns).parts(), None);
        }
    }

    const USE: Generation = Generation::new(3);

    /// A row whose file was written at 100 and drained at 110.
    fn drained() -> (TimesRow, Changes) {
        let row = TimesRow::default();
        let changes = Changes { written_ns: 100, unlogged: 7 };
        row.settle(USE, both(50), Changes { written_ns: 0, unlogged: 7 });
        let before = row.look(USE).unwrap();
        let shown = before.times(both(50), changes);
        assert_eq!(shown, both(100), "a write that nobody brought to the kernel yet");
        row.begin(USE, shown, changes);
        assert_eq!(row.look(USE).unwrap().times(both(105), changes), both(100), "in the middle of it");
        row.end(both(110));
        (row, changes)
    }

    #[test]
    fn a_drain_moves_no_time_and_others_do() {
        let (row, changes) = drained();
        let account = row.look(USE).unwrap();
        assert_eq!(account.times(both(110), changes), both(100));
        assert_eq!(account.owes(), Some(at(100)));
        // A later write, known to the log alone.
        assert_eq!(account.times(both(110), Changes { written_ns: 120, ..changes }), both(120));
        // Somebody else's write.
        assert_eq!(account.times(both(130), changes), both(130));
        // A mode, by who is seen and by who is not.
        let mode = Times { modified: at(110), changed: at(130) };
        let seen = Times { modified: at(100), changed: at(130) };
        assert_eq!(account.times(mode, changes), seen);
        assert_eq!(account.times(mode, Changes { unlogged: 8, ..changes }), seen);
        // In the kernel's same tick.
        let seen = Times { modified: at(100), changed: at(110) };
        assert_eq!(account.times(both(110), Changes { unlogged: 8, ..changes }), seen);
        assert!(row.look(USE.next()).is_none(), "another use of the slot");
    }

    #[test]
    fn explicit_times_count_until_the_next_write() {
        let (row, changes) = drained();
        for explicit in [20, 5000] {
            let kernel = Times { modified: at(explicit), changed: at(130) };
            let account = row.look(USE).unwrap();
            assert_eq!(account.times(kernel, changes), kernel);
            // Written before it, and after it, and not drained yet.
            assert_eq!(account.times(kernel, Changes { written_ns: 120, ..changes }), kernel);
            assert_eq!(account.times(kernel, Changes { written_ns: 140, ..changes }), both(140));
        }
        // Of a program's own call more is known: the clock of writes lags by a tick.
        let kernel = Times { modified: at(20), changed: at(133) };
        row.settle(USE, kernel, changes);
        let account = row.look(USE).unwrap();
        assert_eq!(account.times(kernel, changes), kernel);
        assert_eq!(account.times(kernel, Changes { written_ns: 132, ..changes }), both(133));
        assert_eq!(account.owes(), None);
    }

    #[test]
    fn who_looks_waits_for_a_writer_that_lost_its_processor() {
        let (row, changes) = drained();
        let is_written = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                row.write(AT_REST, || {
                    is_written.store(true, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                });
            });
            while !is_written.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert_eq!(row.look(USE).expect("known").times(both(110), changes), both(100));
        });
    }

    #[test]
    fn what_a_dead_keeper_left_half_written_is_not_believed() {
        let (row, _) = drained();
        row.version.store(row.version.load(Ordering::SeqCst) + BEING_WRITTEN, Ordering::SeqCst);
        assert!(row.look(USE).is_none());
    }
}
