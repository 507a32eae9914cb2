//! The disk itself: a platter, and a write cache above it that a power cut empties.
//!
//! A block (the unit that a disk writes in one piece) that was written several times since the last
//! flush may be found in any of these states after a cut, whatever became of its neighbours: a disk
//! orders nothing between two flushes.

use std::collections::HashMap;

use holdfast_testkit::Random;

use crate::tear::Page;

/// Why the disk did not do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The power is off, or it was since this user of the disk came.
    Off,
    /// The flush fails, as it was told to.
    Flush,
    /// Outside the disk.
    Range,
}

type Block = Box<[u8]>;

/// A disk with a volatile write cache.
pub struct Volatile {
    len: u64,
    block_bytes: usize,
    /// What survives; a block that was never written is zeros.
    platter: HashMap<u64, Block>,
    /// What does not: every state of a block since the last flush, the newest last.
    cache: HashMap<u64, Vec<Block>>,
    /// Counts the times that the power came on; whoever opened the disk before is refused.
    epoch: u64,
    on: bool,
    flushes_to_fail: u32,
    /// The power goes in the midst of such a page, after so many that are written as a whole.
    tear: Option<(Page, u64)>,
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Blocks that a power cut took.
    pub blocks_lost: u64,
    /// Unflushed blocks that a power cut let through, in any of their states.
    pub blocks_kept: u64,
}

impl Volatile {
    /// A disk of zeros that tears writes between blocks of `block_bytes` (512 or 4096).
    pub fn new(len: u64, block_bytes: usize) -> Self {
        assert!(len.is_multiple_of(block_bytes as u64), "a disk is whole blocks");
        Self {
            len,
            block_bytes,
            platter: HashMap::new(),
            cache: HashMap::new(),
            epoch: 1,
            on: true,
            flushes_to_fail: 0,
            tear: None,
            flushes: 0,
            cuts: 0,
            blocks_lost: 0,
            blocks_kept: 0,
        }
    }

    /// Bytes of the disk.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Whoever opens the disk now holds this number.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    fn reach(&self, epoch: u64) -> Result<(), Error> {
        if self.on && epoch == self.epoch { Ok(()) } else { Err(Error::Off) }
    }

    fn current(&self, block: u64) -> Option<&Block> {
        self.cache.get(&block).and_then(|states| states.last()).or_else(|| self.platter.get(&block))
    }

    /// Reads at most `len` bytes, fewer at the end of the disk.
    pub fn read(&self, epoch: u64, offset: u64, len: usize) -> Result<Vec<u8>, Error> {
        self.reach(epoch)?;
        let len = self.len.saturating_sub(offset).min(len as u64) as usize;
        let mut bytes = vec![0; len];
        self.pieces(offset, len, |block, within, range| {
            if let Some(held) = self.current(block) {
                bytes[range.clone()].copy_from_slice(&held[within..within + range.len()]);
            }
        });
        Ok(bytes)
    }

    /// Writes into the cache.
    pub fn write(&mut self, epoch: u64, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.reach(epoch)?;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.len) {
            return Err(Error::Range);
        }
        match self.torn_at(offset, bytes) {
            Some(end) => self.cut_within(offset, &bytes[..end]),
            None => self.put(offset, bytes),
        }
        Ok(())
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let mut fresh = Vec::new();
        self.pieces(offset, bytes.len(), |block, within, range| {
            let mut state = match self.current(block) {
                Some(held) => held.clone(),
                None => vec![0; self.block_bytes].into_boxed_slice(),
            };
            state[within..within + range.len()].copy_from_slice(&bytes[range]);
            fresh.push((block, state));
        });
        for (block, state) in fresh {
            self.cache.entry(block).or_default().push(state);
        }
    }

    /// Lets the power go in the midst of a page, after `whole` others that could have been torn.
    pub fn tear(&mut self, page: Page, whole: u64) {
        self.tear = Some((page, whole));
    }

    /// Where this write ends because the power goes.
    fn torn_at(&mut self, offset: u64, bytes: &[u8]) -> Option<usize> {
        let (page, whole) = self.tear?;
        if !offset.is_multiple_of(self.block_bytes as u64) {
            return None;
        }
        let old = self.read(self.epoch, offset, bytes.len()).ok()?;
        let end = page.torn_at(self.block_bytes, &old, bytes)?;
        self.tear = whole.checked_sub(1).map(|whole| (page, whole));
        self.tear.is_none().then_some(end)
    }

    /// Cuts the power in a write of which this much came through. Whatever was written before is
    /// kept: all that is wrong is the page.
    fn cut_within(&mut self, offset: u64, bytes: &[u8]) {
        self.put(offset, bytes);
        for (block, mut states) in self.cache.drain() {
            self.platter.extend(states.pop().map(|state| (block, state)));
        }
        self.turn_off();
    }

    fn turn_off(&mut self) {
        self.on = false;
        self.flushes_to_fail = 0;
        self.tear = None;
        self.cuts += 1;
    }

    /// Calls with each block of the range: its number, where the range begins in it, and its part
    /// of the range.
    fn pieces(&self, offset: u64, len: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % self.block_bytes as u64) as usize;
            let piece = (self.block_bytes - within).min(len - done);
            each(at / self.block_bytes as u64, within, done..done + piece);
            done += piece;
        }
    }

    /// Makes everything written so far durable, or fails if told to; the cache then keeps what it
    /// has.
    pub fn flush(&mut self, epoch: u64) -> Result<(), Error> {
        self.reach(epoch)?;
        if self.flushes_to_fail > 0 {
            self.flushes_to_fail -= 1;
            return Err(Error::Flush);
        }
        for (block, mut states) in self.cache.drain() {
            self.platter.extend(states.pop().map(|state| (block, state)));
        }
        self.flushes += 1;
        Ok(())
    }

    /// Lets the next `count` flushes fail.
    pub fn fail_flushes(&mut self, count: u32) {
        self.flushes_to_fail = count;
    }

    /// Cuts the power. The seed decides what became of the blocks that were not flushed: all gone,
    /// all there, or for each of them any of its states.
    pub fn cut(&mut self, seed: u64) {
        let mut random = Random::new(seed);
        // In percent; the ends are drawn as often as everything between them.
        let kept_percent = match random.below(4) {
            0 => 0,
            1 => 100,
            _ => random.below(101),
        };
        let mut blocks: Vec<_> = self.cache.drain().collect();
        blocks.sort_by_key(|(block, _)| *block);
        for (block, mut states) in blocks {
            if random.below(100) < kept_percent {
                let state = random.below(states.len());
                self.platter.insert(block, states.swap_remove(state));
                self.blocks_kept += 1;
            } else {
                self.blocks_lost += 1;
            }
        }
        self.turn_off();
    }

    /// Power is back; who opened the disk before is refused for good.
    pub fn restore(&mut self) {
        self.epoch += 1;
        self.on = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 512;

    fn disk() -> Volatile {
        Volatile::new(64 * BLOCK as u64, BLOCK)
    }

    fn cut_and_back(disk: &mut Volatile, seed: u64) -> u64 {
        disk.cut(seed);
        assert_eq!(disk.read(disk.epoch(), 0, 1), Err(Error::Off));
        disk.restore();
        disk.epoch()
    }

    #[test]
    fn what_was_written_is_read_and_what_was_flushed_survives_every_cut() {
        for seed in 0..200 {
            let mut disk = disk();
            disk.write(1, 700, &[7; 3000]).unwrap();
            assert_eq!(disk.read(1, 699, 3).unwrap(), [0, 7, 7]);
            disk.flush(1).unwrap();
            disk.write(1, 10 * BLOCK as u64, &[8; BLOCK]).unwrap();
            let epoch = cut_and_back(&mut disk, seed);
            assert_eq!(disk.read(epoch, 700, 3000).unwrap(), [7; 3000]);
        }
    }

    #[test]
    fn what_was_not_flushed_is_lost_kept_or_mixed() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..400 {
            let mut disk = disk();
            for state in 1..=2 {
                disk.write(1, 0, &[state; 2 * BLOCK]).unwrap();
            }
            let epoch = cut_and_back(&mut disk, seed);
            let found = disk.read(epoch, 0, 2 * BLOCK).unwrap();
            assert!(found[..BLOCK].iter().all(|byte| *byte == found[0]), "a block was torn");
            seen.insert((found[0], found[BLOCK]));
            assert_eq!(disk.blocks_lost + disk.blocks_kept, 2);
        }
        assert_eq!(seen.len(), 9, "each of three states of both blocks: {seen:?}");
    }

    #[test]
    fn the_same_seed_makes_the_same_cut() {
        let image = |seed| {
            let mut disk = disk();
            (0..60).for_each(|block| disk.write(1, block * BLOCK as u64, &[block as u8; BLOCK]).unwrap());
            let epoch = cut_and_back(&mut disk, seed);
            disk.read(epoch, 0, 64 * BLOCK).unwrap()
        };
        assert!((0..50).all(|seed| image(seed) == image(seed)));
    }

    #[test]
    fn who_was_there_before_the_cut_stays_out() {
        let mut disk = disk();
        let epoch = cut_and_back(&mut disk, 1);
        assert_eq!(disk.write(1, 0, &[1]), Err(Error::Off));
        assert_eq!(disk.flush(1), Err(Error::Off));
        disk.write(epoch, 0, &[1]).unwrap();
    }

    #[test]
    fn a_failed_flush_makes_nothing_durable() {
        let mut disk = disk();
        disk.write(1, 0, &[1; BLOCK]).unwrap();
        disk.fail_flushes(1);
        assert_eq!(disk.flush(1), Err(Error::Flush));
        assert_eq!(disk.platter.len(), 0);
        disk.flush(1).unwrap();
        assert_eq!(disk.platter.len(), 1);
    }

    #[test]
    fn a_page_is_torn_when_it_is_asked_for() {
        let page = Page { bytes: 2 * BLOCK, mark_at: 0, mark: [7, 7] };
        let mut disk = disk();
        disk.write(1, 0, &[7; 4 * BLOCK]).unwrap();
        disk.tear(page, 1);
        let mut newer = [8; 4 * BLOCK];
        newer[..2].copy_from_slice(&[7, 7]);
        disk.write(1, 0, &newer).unwrap();
        assert_eq!(disk.cuts, 0, "one is written as a whole");
        let mut newest = [9; 2 * BLOCK];
        newest[..2].copy_from_slice(&[7, 7]);
        disk.write(1, 0, &newest).unwrap();
        assert_eq!((disk.cuts, disk.write(1, 0, &newest)), (1, Err(Error::Off)));
        disk.restore();
        let found = disk.read(disk.epoch(), 0, 4 * BLOCK).unwrap();
        assert_eq!((&found[..BLOCK], &found[BLOCK..]), (&newest[..BLOCK], &newer[BLOCK..]));
    }

    #[test]
    fn writes_behind_the_end_are_refused() {
        let mut disk = disk();
        assert_eq!(disk.write(1, 64 * BLOCK as u64 - 1, &[1, 1]), Err(Error::Range));
        assert_eq!(disk.write(1, u64::MAX, &[1, 1]), Err(Error::Range));
        assert_eq!(disk.read(1, 64 * BLOCK as u64 - 1, 2).unwrap(), [0]);
    }
}
