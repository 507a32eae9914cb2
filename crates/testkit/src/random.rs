//! Numbers that a seed determines, for choices and delays of tests. Whoever draws from a seed of
//! the clock says which it was.

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    seed: u64,
}

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed, seed }
    }

    /// The numbers that belong to several numbers together.
    pub fn of(parts: &[u64]) -> Self {
        let mut random = Self::new(0x5eed);
        for part in parts {
            random.state ^= part.wrapping_mul(0xff51_afd7_ed55_8ccd);
            random.state = random.draw();
        }
        Self::new(random.state)
    }

    /// Other numbers in every run of the named test, which prints the seed.
    /// `HOLDFAST_E2E_SEED` repeats the choices of a run.
    pub fn named(test: &str) -> Self {
        let seed = std::env::var("HOLDFAST_E2E_SEED").ok().map_or_else(
            || std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64),
            |text| text.parse().expect("HOLDFAST_E2E_SEED is a number"),
        );
        println!("{test}: HOLDFAST_E2E_SEED={seed}");
        Self::new(seed)
    }

    /// What it began with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// An index below `end`; 0 where there is none.
    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() % end.max(1) as u64) as usize
    }

    /// A number below `end`, which is not 0.
    pub fn number_below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// A number from `low` up to and without `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.draw() % (high - low)
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count.div_ceil(8)).flat_map(|_| self.draw().to_le_bytes()).take(count).collect()
    }
}

/// How often a test repeats what it draws: `HOLDFAST_E2E_ROUNDS`, else 1.
pub fn rounds() -> u64 {
    std::env::var("HOLDFAST_E2E_ROUNDS")
        .ok()
        .map_or(1, |text| text.parse().expect("HOLDFAST_E2E_ROUNDS is a number"))
}

#[cfg(test)]
mod tests {
    use super::Random;

    /// The first numbers of seed 0 as the published algorithm has them: histories are repeated by
    /// their seeds, so that no change may move them.
    #[test]
    fn a_seed_keeps_its_numbers() {
        let mut random = Random::new(0);
        let drawn = [random.draw(), random.draw(), random.draw()];
        assert_eq!(drawn, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }
}
