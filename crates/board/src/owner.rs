//! Owner words: who has a page or a file for itself, and how others wait for it.
//!
//! A word is 0 or names its owner, so that the keeper can open what the dead held. Waiting ends
//! with the keeper, which alone does that. Nothing here may know what the word is about.

use core::time::Duration;

use crate::header::Header;
use crate::stalls::{Held, Stall};
use crate::sync::{AtomicU32, Ordering, spin_loop, wait, wake};

/// In an owner word: somebody sleeps until it is let go.
pub(crate) const WAITERS: u32 = 0x8000_0000;
/// Spins before sleeping: about as long as a page write takes.
const SPINS: u32 = if cfg!(shuttle) { 1 } else { 200 };

/// Who waits for a word.
pub(crate) struct Waiter<'a, H> {
    pub header: &'a Header,
    /// The file that the word is about.
    pub row: Option<&'a H>,
    /// Who has the word keeps it when the file is taken from who stands still: the wait ends then.
    pub may_be_taken: bool,
}

/// Locks one owner word for `owner` (never 0); false when the keeper has died meanwhile, or takes
/// the file.
#[cold]
fn lock_slow(word: &AtomicU32, owner: u32, waiter: &Waiter<'_, impl Held>) -> bool {
    let (mut spins, mut stall) = (0, Stall::default());
    loop {
        let seen = word.load(Ordering::Relaxed);
        if seen == 0 {
            // Whoever slept must assume that others still sleep.
            let value = if spins > SPINS { owner | WAITERS } else { owner };
            if word.compare_exchange(0, value, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                return true;
            }
            continue;
        }
        spins += 1;
        if spins <= SPINS {
            spin_loop();
            continue;
        }
        let is_taken = waiter.may_be_taken && waiter.row.is_some_and(Held::is_being_taken);
        if !waiter.header.keeper_alive() || is_taken {
            return false;
        }
        stall.goes_on(waiter.header, waiter.row);
        if seen & WAITERS != 0
            || word.compare_exchange(seen, seen | WAITERS, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            wait(word, seen | WAITERS, Duration::from_millis(50));
        }
    }
}

/// Takes an owner word, sleeping while another owner holds it; false when the keeper has died, or
/// takes the file.
#[inline]
pub(crate) fn lock_word(word: &AtomicU32, owner: u32, waiter: &Waiter<'_, impl Held>) -> bool {
    word.compare_exchange(0, owner, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        || lock_slow(word, owner, waiter)
}

/// Lets an owner word go if `owner` holds it; returns whether it did.
#[inline]
pub(crate) fn unlock_word(word: &AtomicU32, owner: u32) -> bool {
    let mut seen = word.load(Ordering::Relaxed);
    // Not a plain swap: the keeper may take the word from an owner that goes on just now.
    while seen & !WAITERS == owner {
        match word.compare_exchange(seen, 0, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => {
                if seen & WAITERS != 0 {
                    wake(word, u32::MAX);
                }
                return true;
            }
            Err(now) => seen = now,
        }
    }
    false
}
