//! What becomes of new files, by the kind of their names: programs save a file by writing another
//! one, syncing it and renaming it over the first. Where no slot can hold such a rename it has to
//! be settled, so logging that sync costs more than leaving it to the kernel.
//!
//! Hints for speed, shared by all clients: nothing may depend on them. Two kinds of names may share
//! a row.

use crate::sync::{AtomicU32, Ordering};

const ROWS: usize = 256;
/// From so much on a kind of files is taken to be renamed over others.
const EXPECTED: u32 = 4;
/// More than that is forgotten too slowly.
const MOST: u32 = 12;
/// Of so many files that are left to the kernel as expected, the next one is logged nevertheless: a
/// slot may well hold its rename. Each time in a row that none could, twice as many.
const LEFT_MIN: u32 = 16;
const DOUBLES_MAX: u32 = 8;

/// What became of a file that was renamed over another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renamed {
    /// Its slot holds the rename.
    Held,
    /// It was logged, for nothing: the rename was settled.
    Settled,
    /// Its syncs were left to the kernel.
    Left,
}

/// What is known of a kind of files, as a word.
#[derive(Clone, Copy, Default)]
struct Habit {
    /// How likely a rename is.
    value: u32,
    /// Files that were left to the kernel since one was logged.
    left: u32,
    /// Logged ones in a row of which no slot could hold the rename.
    in_vain: u32,
}

impl Habit {
    fn from_word(word: u32) -> Self {
        Self { value: word & 0xff, in_vain: word >> 8 & 0xff, left: word >> 16 }
    }

    fn to_word(self) -> u32 {
        self.value | self.in_vain << 8 | self.left << 16
    }

    /// Whether a file of this kind is left to the kernel.
    fn expect(&mut self) -> bool {
        if self.value < EXPECTED {
            return false;
        }
        if self.left >= LEFT_MIN << self.in_vain {
            self.left = 0;
            return false;
        }
        self.left += 1;
        self.value -= 1;
        true
    }

    fn note(&mut self, renamed: Renamed) {
        match renamed {
            Renamed::Held => *self = Self::default(),
            Renamed::Settled => {
                // It was not the first of its kind, but one more that was tried.
                self.in_vain = (self.in_vain + u32::from(self.value > 0)).min(DOUBLES_MAX);
                self.value = (self.value + EXPECTED).min(MOST);
            }
            Renamed::Left if self.value > 0 => self.value = (self.value + 1).min(MOST),
            Renamed::Left => {}
        }
    }
}

/// The table.
#[repr(C)]
pub struct Habits {
    rows: [AtomicU32; ROWS],
}

impl Default for Habits {
    fn default() -> Self {
        Self { rows: std::array::from_fn(|_| AtomicU32::new(0)) }
    }
}

impl Habits {
    /// Whether a new file of this kind is likely to be renamed over another one soon, and no slot
    /// to hold that. Each time that is said counts against it, until it has come true.
    pub fn expects_rename_over(&self, kind: u64) -> bool {
        self.update(kind, Habit::expect)
    }

    /// A file of this kind was renamed over another one.
    pub fn note_rename_over(&self, kind: u64, renamed: Renamed) {
        self.update(kind, |habit| habit.note(renamed));
    }

    fn update<R>(&self, kind: u64, change: impl FnOnce(&mut Habit) -> R) -> R {
        let row = self.row(kind);
        let word = row.load(Ordering::Relaxed);
        let mut habit = Habit::from_word(word);
        let result = change(&mut habit);
        // Of two at once one may get lost.
        if habit.to_word() != word {
            row.store(habit.to_word(), Ordering::Relaxed);
        }
        result
    }

    fn row(&self, kind: u64) -> &AtomicU32 {
        &self.rows[(kind % ROWS as u64) as usize]
    }
}

/// The kind of a name: its directory as it is named there, and what stands behind the last dot of
/// the name itself, but for digits. What looks like a random ending is any random ending.
pub fn kind_of(path: &[u8]) -> u64 {
    const RANDOM_BYTES_MIN: usize = 6;
    let name_at = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (directory, name) = path.split_at(name_at);
    let ending_at = name.iter().rposition(|&byte| byte == b'.').map_or(name.len(), |dot| dot + 1);
    let ending = &name[ending_at..];
    let is_random = ending.len() >= RANDOM_BYTES_MIN && ending.iter().all(u8::is_ascii_alphanumeric);
    let ending = if is_random { b"*" } else { ending };
    let kept = ending.iter().filter(|byte| !byte.is_ascii_digit());
    // FNV-1a.
    directory.iter().chain(kept).fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn names_that_programs_make_up_are_of_one_kind() {
        for (one, other) in [
            ("s.tmp", "t.tmp"),
            ("/etc/a.json.2041", "/etc/b.json.17"),
            ("d/x.dpkg-new", "d/y.dpkg-new"),
            ("d/file.ABC12x", "d/file.q81hhF"),
            ("d/tmpab12", "d/tmpzz"),
        ] {
            assert_eq!(kind_of(one.as_bytes()), kind_of(other.as_bytes()), "{one}, {other}");
        }
        for (one, other) in [("s.tmp", "d/s.tmp"), ("app.db", "app.db-journal"), ("a.tmp", "a")] {
            assert_ne!(kind_of(one.as_bytes()), kind_of(other.as_bytes()), "{one}, {other}");
        }
    }

    #[test]
    fn what_is_expected_in_vain_is_expected_no_more() {
        let habits = Habits::default();
        let kind = kind_of(b"s.tmp");
        habits.note_rename_over(kind, Renamed::Left);
        assert!(!habits.expects_rename_over(kind), "nothing was lost by that");
        habits.note_rename_over(kind, Renamed::Settled);
        let in_vain = (0..100).take_while(|_| habits.expects_rename_over(kind)).count();
        assert!((1..=MOST as usize).contains(&in_vain), "{in_vain}");
    }

    #[test]
    fn slots_are_asked_again_less_and_less() {
        let habits = Habits::default();
        let kind = kind_of(b"s.tmp");
        let save = |renamed| {
            let left = habits.expects_rename_over(kind);
            habits.note_rename_over(kind, if left { Renamed::Left } else { renamed });
            !left
        };
        // The first one, and then fewer and fewer.
        let logged = (0..100_000).filter(|_| save(Renamed::Settled)).count();
        assert!((8..50).contains(&logged), "{logged} were logged for nothing");
        // Once one is held, all are tried.
        let left = (0..10_000).take_while(|_| !save(Renamed::Held)).count();
        assert!(left <= (LEFT_MIN << DOUBLES_MAX) as usize, "{left}");
        assert!((0..100).all(|_| save(Renamed::Held)));
    }
}
