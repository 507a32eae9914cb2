//! One thread at a time, for those that wait for the disk meanwhile: a lock that sleeps as
//! everything on the board does.

use std::sync::atomic::Ordering;
use std::time::Duration;

use holdfast_board::{AtomicU32, wait, wake};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and perhaps somebody waits.
const WANTED: u32 = 2;
/// Nobody depends on this being right: a wake-up ends the sleep.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The lock.
#[derive(Default)]
pub(super) struct Turn(AtomicU32);

/// Whose turn it is; it ends when this is dropped.
pub(super) struct Taken<'a>(&'a Turn);

impl Turn {
    /// Waits for its turn.
    pub fn take(&self) -> Taken<'_> {
        if self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.swap(WANTED, Ordering::Acquire) != FREE {
                wait(&self.0, WANTED, LOOK_AGAIN);
            }
        }
        Taken(self)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, Ordering::Release) == WANTED {
            wake(&self.0.0, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nobody_sleeps_for_ever() {
        let (turn, inside) = (Turn::default(), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let _taken = turn.take();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
