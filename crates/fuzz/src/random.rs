//! Seeded numbers, and mutation of inputs.

/// A small generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator that always gives the same numbers for a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % end.max(1) as u64) as usize
    }

    /// A new input of up to `bytes_max` bytes.
    pub fn input(&mut self, bytes_max: usize) -> Vec<u8> {
        let bytes = 8 + self.below(bytes_max - 8);
        (0..bytes).map(|_| self.number() as u8).collect()
    }

    /// An input like `from`: bytes changed, inserted, removed, or taken from `other`.
    pub fn mutate(&mut self, from: &[u8], other: &[u8], bytes_max: usize) -> Vec<u8> {
        let mut input = from.to_vec();
        for _ in 0..1 + self.below(6) {
            let at = self.below(input.len() + 1);
            match self.below(6) {
                0 | 1 if at < input.len() => input[at] = self.number() as u8,
                2 if at < input.len() => input[at] ^= 1 << self.below(8),
                3 => input.insert(at, self.number() as u8),
                4 if at < input.len() => drop(input.drain(at..(at + 1 + self.below(8)).min(input.len()))),
                5 if !other.is_empty() => {
                    let begin = self.below(other.len());
                    let end = (begin + 1 + self.below(32)).min(other.len());
                    input.splice(at..at, other[begin..end].iter().copied());
                }
                _ => input.push(self.number() as u8),
            }
        }
        input.truncate(bytes_max);
        input
    }
}
