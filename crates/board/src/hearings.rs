//! Hearings: the keeper reads to its end what the kernel tells of outsiders, for clients whose sync
//! is about to make that durable.
//!
//! A client draws a number, has the kernel sync meanwhile, and waits until the keeper has heard for
//! that number. So many syncs at once share one hearing, and none of them waits for it longer than
//! for the disk. No cell is claimed: a thread that is cancelled in its sync leaves nothing behind.
//!
//! Must never answer a number by a hearing that began before the number was drawn.

use core::time::Duration;

use crate::sync::{AtomicU32, Ordering, spin_loop, spins, wait, wake};

/// Looks at the answer before going to sleep: about what a wake-up costs.
const SPINS: u32 = 1000;
/// How long a client sleeps before it looks whether the keeper still lives.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A hearing that was asked for, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "nothing is heard for certain until it is waited for"]
pub struct Hearing(u32);

/// Hearings asked for and over.
#[repr(C, align(64))]
#[derive(Default)]
pub struct Hearings {
    /// The number drawn last.
    asked: AtomicU32,
    /// Up to which number the keeper has heard.
    heard: AtomicU32,
}

impl Hearings {
    /// Asks for one. The caller then rings the keeper.
    pub(crate) fn ask(&self) -> Hearing {
        Hearing(self.asked.fetch_add(1, Ordering::SeqCst).wrapping_add(1))
    }

    /// Whether the keeper has heard since `hearing` was asked for.
    pub fn is_over(&self, hearing: Hearing) -> bool {
        self.heard.load(Ordering::SeqCst).wrapping_sub(hearing.0).cast_signed() >= 0
    }

    /// Waits until it has; false when `lives` says that nobody will.
    pub fn wait_for(&self, hearing: Hearing, lives: impl Fn() -> bool) -> bool {
        for _ in 0..spins(SPINS) {
            if self.is_over(hearing) {
                return true;
            }
            spin_loop();
        }
        loop {
            let seen = self.heard.load(Ordering::SeqCst);
            if self.is_over(hearing) {
                return true;
            }
            if !lives() {
                return false;
            }
            wait(&self.heard, seen, LOOK_AGAIN);
        }
    }

    /// The keeper's part, which one thread does: hears, if anybody asked. Returns whether anybody
    /// did.
    pub fn answer(&self, hear: impl FnOnce()) -> bool {
        let asked = self.asked.load(Ordering::SeqCst);
        if asked == self.heard.load(Ordering::SeqCst) {
            return false;
        }
        hear();
        self.heard.store(asked, Ordering::SeqCst);
        wake(&self.heard, u32::MAX);
        true
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_hearing_answers_what_was_asked_before_it_began() {
        let hearings = Hearings::default();
        assert!(!hearings.answer(|| panic!("nobody asked")));
        let first = hearings.ask();
        let mut second = None;
        assert!(hearings.answer(|| second = Some(hearings.ask())));
        let second = second.unwrap();
        assert!(hearings.is_over(first) && !hearings.is_over(second));
        assert!(!hearings.wait_for(second, || false), "nobody has heard");
        assert!(hearings.answer(|| ()) && hearings.wait_for(second, || false));
        assert!(!hearings.answer(|| panic!("nobody asked again")));
    }

    #[test]
    fn numbers_begin_again() {
        let hearings = Hearings::default();
        for word in [&hearings.asked, &hearings.heard] {
            word.store(u32::MAX, Ordering::SeqCst);
        }
        let hearing = hearings.ask();
        assert!(!hearings.is_over(hearing));
        assert!(hearings.answer(|| ()) && hearings.is_over(hearing));
    }
}
