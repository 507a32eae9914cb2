//! Changes of names that no slot holds, counted by file system.
//!
//! A journalling file system makes every earlier rename, link or new directory durable with the next `fsync` of
//! anything, and programs rely on it. So a sync is absorbed only while no such change is pending (invariant 9).

use crate::sync::{AtomicU64, Ordering};

/// File systems told apart; on further ones every sync is real.
pub(crate) const NAMES_ROWS: usize = 16;

/// The changes on one file system.
#[repr(C, align(64))]
#[derive(Default)]
pub struct NamesRow {
    /// Device number + 1, or 0 for a free row.
    device: AtomicU64,
    changed: AtomicU64,
    synced: AtomicU64,
}

impl NamesRow {
    pub(crate) fn claim(&self, device: u64) -> bool {
        let key = device + 1;
        let held = self.device.load(Ordering::SeqCst);
        held == key
            || held == 0
                && match self.device.compare_exchange(0, key, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => true,
                    Err(other) => other == key,
                }
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.device.load(Ordering::SeqCst) != 0
    }

    /// Counts a change: before it is made, so that nobody builds on it unseen, and when it is done, so that no sync in
    /// between covers it.
    pub fn note(&self) {
        self.changed.fetch_add(1, Ordering::SeqCst);
    }

    /// How many changes there were.
    pub fn changed(&self) -> u64 {
        self.changed.load(Ordering::SeqCst)
    }

    /// What a sync that begins now will cover, if there is anything to cover.
    pub fn pending(&self) -> Option<u64> {
        let changed = self.changed.load(Ordering::SeqCst);
        (changed > self.synced.load(Ordering::SeqCst)).then_some(changed)
    }

    /// A sync that began when `pending` gave `covered` has succeeded.
    pub fn cover(&self, covered: u64) {
        self.synced.fetch_max(covered, Ordering::SeqCst);
    }
}
