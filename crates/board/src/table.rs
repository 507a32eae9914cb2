//! Finding a file's row by device and inode. The keeper's one writer changes the table, everybody
//! reads it.

use core::time::Duration;

use crate::board::Board;
use crate::files::FileRow;
use crate::stalls::Stall;
use crate::strays::Stray;
use crate::sync::{AtomicU64, Ordering, fence, pause, spin_loop};
use holdfast_pool::Slot;

/// No change of the table takes so long, unless the keeper stands still.
const STRANGE_NS: u64 = 100_000_000;
const PAUSE: Duration = Duration::from_millis(20);

impl Board {
    fn bucket_of(&self, dev: u64, ino: u64) -> usize {
        let mixed = (ino ^ dev.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.plan.bucket_count as usize - 1)
    }

    /// The slot of a file, by device and inode.
    pub fn find(&self, dev: u64, ino: u64) -> Option<Slot> {
        let (version, mut stall) = (&self.header().table_version, Stall::default());
        loop {
            let before = version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let found = self.probe(dev, ino);
                fence(Ordering::Acquire);
                if version.load(Ordering::Relaxed) == before {
                    return found;
                }
            }
            if !self.header().keeper_alive() {
                return None;
            }
            // It may be no change that is under way, but a stray store.
            if stall.goes_on(self.header(), None::<&FileRow>) > STRANGE_NS {
                self.header().ring_strange();
                pause(PAUSE);
            }
            spin_loop();
        }
    }

    fn probe(&self, dev: u64, ino: u64) -> Option<Slot> {
        let buckets = self.tables.buckets();
        let mut at = self.bucket_of(dev, ino);
        for _ in 0..buckets.len() {
            let slot = Slot::from_word(buckets[at].load(Ordering::Acquire))?;
            let row = self.files().get(slot.index())?;
            if row.ino.load(Ordering::Relaxed) == ino && row.dev.load(Ordering::Relaxed) == dev {
                return Some(slot);
            }
            at = (at + 1) & (buckets.len() - 1);
        }
        None
    }

    /// What the table says of a change of it that is under way, if it says so.
    pub fn table_change(&self) -> Option<Stray> {
        let version = self.header().table_version.load(Ordering::SeqCst);
        (!version.is_multiple_of(2)).then_some(Stray::Table(version))
    }

    /// No change of the table is under way, whatever it says. Only the keeper's one writer calls
    /// it.
    pub fn end_table_change(&self) {
        if self.table_change().is_some() {
            self.header().table_version.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Enters a file row, whose device and inode are set, into the table. Only the keeper's one
    /// writer calls it.
    pub fn insert(&self, slot: Slot) {
        let row = &self.files()[slot.index()];
        let buckets = self.tables.buckets();
        let mut at = self.bucket_of(row.dev.load(Ordering::Relaxed), row.ino.load(Ordering::Relaxed));
        for _ in 0..buckets.len() {
            if buckets[at].load(Ordering::Relaxed) == 0 {
                break;
            }
            at = (at + 1) & (buckets.len() - 1);
        }
        // Only a client's stray stores leave no bucket free.
        buckets[at].store(slot.word(), Ordering::Release);
    }

    /// Takes a file row out of the table, closing the gap it leaves. Only the keeper's one writer
    /// calls it.
    pub fn remove(&self, slot: Slot) {
        let row = &self.files()[slot.index()];
        let buckets = self.tables.buckets();
        let mask = buckets.len() - 1;
        let mut gap = self.bucket_of(row.dev.load(Ordering::Relaxed), row.ino.load(Ordering::Relaxed));
        let mut looks = 0;
        while buckets[gap].load(Ordering::Relaxed) != slot.word() {
            looks += 1;
            if buckets[gap].load(Ordering::Relaxed) == 0 || looks > mask {
                return;
            }
            gap = (gap + 1) & mask;
        }
        let version: &AtomicU64 = &self.header().table_version;
        self.end_table_change();
        version.fetch_add(1, Ordering::AcqRel);
        let mut at = (gap + 1) & mask;
        for _ in 0..mask {
            let held = buckets[at].load(Ordering::Relaxed);
            if held == 0 {
                break;
            }
            let Some(other) = self.files().get(held as usize - 1) else { break };
            let home = self.bucket_of(other.dev.load(Ordering::Relaxed), other.ino.load(Ordering::Relaxed));
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                buckets[gap].store(held, Ordering::Release);
                gap = at;
            }
            at = (at + 1) & mask;
        }
        buckets[gap].store(0, Ordering::Release);
        version.fetch_add(1, Ordering::AcqRel);
    }
}
