//! Seeded numbers for delays and choices. Every use prints its seed, and `HOLDFAST_E2E_SEED`
//! repeats a run's choices.

/// A small generator (SplitMix64).
pub struct Random {
    state: u64,
    seed: u64,
}

impl Random {
    /// A generator for the named test; prints its seed.
    pub fn new(test: &str) -> Self {
        let seed = std::env::var("HOLDFAST_E2E_SEED").ok().map_or_else(
            || std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64),
            |text| text.parse().expect("HOLDFAST_E2E_SEED is a number"),
        );
        println!("{test}: HOLDFAST_E2E_SEED={seed}");
        Self::from_seed(seed)
    }

    /// A generator with a seed of the caller's.
    pub fn from_seed(seed: u64) -> Self {
        Self { state: seed, seed }
    }

    /// What it began with.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` up to and without `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next_u64() % (high - low)
    }
}

/// How many times each kill is repeated: `HOLDFAST_E2E_ROUNDS`, else 1.
pub fn rounds() -> u64 {
    std::env::var("HOLDFAST_E2E_ROUNDS")
        .ok()
        .map_or(1, |text| text.parse().expect("HOLDFAST_E2E_ROUNDS is a number"))
}
