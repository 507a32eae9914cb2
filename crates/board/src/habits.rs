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
    /// Whether a new file of this kind is likely to be renamed over another one soon. Each time
    /// that is said counts against it, until it has come true.
    pub fn expects_rename_over(&self, kind: u64) -> bool {
        let row = self.row(kind);
        let value = row.load(Ordering::Relaxed);
        if value >= EXPECTED {
            // Of two at once one may get lost.
            row.store(value - 1, Ordering::Relaxed);
        }
        value >= EXPECTED
    }

    /// A file of this kind was renamed over another one; it was logged (`was_logged`), which was
    /// for nothing, or left to the kernel as expected.
    pub fn note_rename_over(&self, kind: u64, was_logged: bool) {
        let row = self.row(kind);
        let value = row.load(Ordering::Relaxed);
        if was_logged || value > 0 {
            let more = if was_logged { EXPECTED } else { 1 };
            row.store((value + more).min(MOST), Ordering::Relaxed);
        }
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
        habits.note_rename_over(kind, false);
        assert!(!habits.expects_rename_over(kind), "nothing was lost by that");
        habits.note_rename_over(kind, true);
        for _ in 0..100 {
            assert!(habits.expects_rename_over(kind));
            habits.note_rename_over(kind, false);
        }
        let in_vain = (0..100).take_while(|_| habits.expects_rename_over(kind)).count();
        assert!((1..=MOST as usize).contains(&in_vain), "{in_vain}");
    }
}
