//! Finding a file's row by device and inode. The keeper's one writer changes the table, everybody
//! reads it.
//!
//! Every word here has a check, of an empty place, too: who would not find a file that the log
//! stands for would go past it, and read what the page cache lacks. Whoever meets a word that a
//! stray store left says so and waits until the keeper, which knows all files by itself, has mended
//! the table.

use core::time::Duration;

use crate::board::Board;
use crate::files::FileRow;
use crate::mix::{mix, mix_file, upper};
use crate::numbers::Inode;
use crate::stalls::Stall;
use crate::strays::Stray;
use crate::sync::{AtomicU64, Ordering, fence, pause, spin_loop};
use holdfast_pool::{Generation, Slot};

/// No change of the table takes so long, unless the keeper stands still.
const STRANGE_NS: u64 = 100_000_000;
const PAUSE: Duration = Duration::from_millis(20);
/// Until the keeper has mended the table.
const MENDED_SOON: Duration = Duration::from_millis(1);
/// An empty place. Zeros are none: they are what stray stores most often leave.
const EMPTY: u64 = 0x9d3c_62a5 << 32;

/// A word of the table, or what it says of a row, is not what the keeper stored.
#[derive(Debug)]
struct Damaged;

/// A file that the table is to have.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Its slot.
    pub slot: Slot,
    /// The generation of the slot's use.
    pub generation: Generation,
    /// Its device.
    pub dev: u64,
    /// Its inode.
    pub ino: u64,
}

/// The word of a file: its slot's, and above it a check of slot, device and inode.
fn word_of(slot: Slot, dev: u64, ino: u64) -> u64 {
    let check = mix(dev, ino, slot.word().into());
    (check & !u64::from(u32::MAX)) | u64::from(slot.word())
}

impl Board {
    fn bucket_of(&self, dev: u64, ino: u64) -> usize {
        upper(mix_file(dev, ino)) as usize & (self.plan.bucket_count as usize - 1)
    }

    /// The table of a board that is being made, of which nobody knows yet.
    pub(crate) fn clear_table(&self) {
        self.tables.buckets().iter().for_each(|bucket| bucket.store(EMPTY, Ordering::Relaxed));
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
                    match found {
                        Ok(found) => return found,
                        Err(Damaged) => self.await_mending(),
                    }
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

    #[cold]
    fn await_mending(&self) {
        self.header().ring_strange();
        pause(MENDED_SOON);
    }

    fn probe(&self, dev: u64, ino: u64) -> Result<Option<Slot>, Damaged> {
        let buckets = self.tables.buckets();
        let mut at = self.bucket_of(dev, ino);
        for _ in 0..buckets.len() {
            let word = buckets[at].load(Ordering::Acquire);
            if word == EMPTY {
                return Ok(None);
            }
            let slot = Slot::from_word(word as u32).ok_or(Damaged)?;
            let row = self.files().get(slot.index()).ok_or(Damaged)?;
            let known = (row.dev.load(Ordering::Relaxed), row.ino.load(Ordering::Relaxed));
            if word != word_of(slot, known.0, known.1) {
                return Err(Damaged);
            }
            if known == (dev, ino) {
                return Ok(Some(slot));
            }
            at = (at + 1) & (buckets.len() - 1);
        }
        Ok(None)
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

    /// Enters a file into its row and into the table. Only the keeper's one writer calls it.
    pub fn insert(&self, slot: Slot, dev: u64, ino: u64) {
        let row = &self.files()[slot.index()];
        row.set_inode(Inode { device: dev, ino });
        let buckets = self.tables.buckets();
        let mut at = self.bucket_of(dev, ino);
        for _ in 0..buckets.len() {
            if buckets[at].load(Ordering::Relaxed) == EMPTY {
                break;
            }
            at = (at + 1) & (buckets.len() - 1);
        }
        // Only a client's stray stores leave no bucket free.
        buckets[at].store(word_of(slot, dev, ino), Ordering::Release);
    }

    /// Takes a file out of the table, closing the gap it leaves. Only the keeper's one writer calls
    /// it.
    pub fn remove(&self, slot: Slot, dev: u64, ino: u64) {
        let buckets = self.tables.buckets();
        let mask = buckets.len() - 1;
        let word = word_of(slot, dev, ino);
        let mut gap = self.bucket_of(dev, ino);
        let mut looks = 0;
        while buckets[gap].load(Ordering::Relaxed) != word {
            looks += 1;
            if buckets[gap].load(Ordering::Relaxed) == EMPTY || looks > mask {
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
            if held == EMPTY {
                break;
            }
            let other = Slot::from_word(held as u32).and_then(|slot| self.files().get(slot.index()));
            let Some(other) = other else { break };
            let home = self.bucket_of(other.dev.load(Ordering::Relaxed), other.ino.load(Ordering::Relaxed));
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(gap) & mask) {
                buckets[gap].store(held, Ordering::Release);
                gap = at;
            }
            at = (at + 1) & mask;
        }
        buckets[gap].store(EMPTY, Ordering::Release);
        version.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes table and rows say of all files that the table is to have what they should, and of no
    /// other; whether they did not. Only the keeper's one writer calls it.
    pub fn mend_table(&self, listed: &[Listed]) -> bool {
        let says = |file: &Listed| {
            let row = &self.files()[file.slot.index()];
            row.generation() == file.generation
                && matches!(self.probe(file.dev, file.ino), Ok(Some(slot)) if slot == file.slot)
        };
        let taken = self.tables.buckets().iter().filter(|it| it.load(Ordering::Relaxed) != EMPTY);
        if taken.count() == listed.len() && listed.iter().all(says) {
            return false;
        }
        let version = &self.header().table_version;
        self.end_table_change();
        version.fetch_add(1, Ordering::AcqRel);
        self.clear_table();
        for file in listed {
            self.insert(file.slot, file.dev, file.ino);
            self.files()[file.slot.index()].begin_use(file.generation);
        }
        version.fetch_add(1, Ordering::AcqRel);
        true
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Plan;

    #[test]
    fn a_stray_store_hides_no_file_and_is_mended() {
        let (board, _fd) = Board::create(Plan::new(256, 16)).unwrap();
        let listed: Vec<_> = (0..200u32)
            .map(|index| Listed {
                slot: Slot::new(index),
                generation: Generation::new(u64::from(index) + 9),
                dev: 3,
                ino: u64::from(index) * 7,
            })
            .collect();
        for file in &listed {
            board.insert(file.slot, file.dev, file.ino);
            board.files()[file.slot.index()].begin_use(file.generation);
        }
        assert!(!board.mend_table(&listed));
        let has = |file: &Listed| matches!(board.probe(file.dev, file.ino), Ok(Some(it)) if it == file.slot);
        let row = &board.files()[77];
        let at =
            (0..1024).find(|&at| board.tables.buckets()[at].load(Ordering::Relaxed) as u32 == 78).unwrap();
        let bucket = &board.tables.buckets()[at];
        let stores: [&dyn Fn(); 6] = [
            &|| row.dev.store((1 << 40) | 3, Ordering::Relaxed),
            &|| row.ino.store((77 * 7) ^ 1, Ordering::Relaxed),
            &|| bucket.store(0, Ordering::Relaxed),
            &|| bucket.store(EMPTY, Ordering::Relaxed),
            &|| _ = bucket.fetch_xor(1 << 50, Ordering::Relaxed),
            &|| _ = bucket.fetch_xor(2, Ordering::Relaxed),
        ];
        for (index, store) in stores.into_iter().enumerate() {
            store();
            assert!(!has(&listed[77]), "{index}");
            // One that looks exactly like an empty place is seen by who counts them alone.
            assert!(index == 3 || board.probe(3, 77 * 7).is_err(), "{index}");
            assert!(board.mend_table(&listed), "{index}");
            assert!(listed.iter().all(has), "{index}");
            assert!(!board.mend_table(&listed), "{index}");
        }
        row.begin_use(Generation::new(1));
        assert!(board.mend_table(&listed));
        assert_eq!(row.generation(), listed[77].generation);
    }
}
