//! Numbers that a seed determines.

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The numbers that belong to several numbers together.
    pub fn of(parts: &[u64]) -> Self {
        let mut random = Self(0x5eed);
        for part in parts {
            random.0 ^= part.wrapping_mul(0xff51_afd7_ed55_8ccd);
            random.0 = random.draw();
        }
        random
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() % end.max(1) as u64) as usize
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// Choices among a number of possibilities: drawn, or each once.
pub trait Choices {
    /// A number below `end`.
    fn choose(&mut self, end: usize) -> usize;

    /// A seed for what comes later.
    fn seed(&mut self) -> u64;
}

impl Choices for Random {
    fn choose(&mut self, end: usize) -> usize {
        self.below(end)
    }

    fn seed(&mut self) -> u64 {
        self.draw()
    }
}

/// All choices, one way after the other: what chooses is made to choose again, until there is
/// nothing that it did not choose.
#[derive(Debug, Default)]
pub struct Every {
    /// What was chosen, of how many.
    chosen: Vec<(usize, usize)>,
    at: usize,
}

impl Every {
    /// Goes on to the next way. False when there is none.
    pub fn again(&mut self) -> bool {
        self.at = 0;
        while let Some((chosen, end)) = self.chosen.pop() {
            if chosen + 1 < end {
                self.chosen.push((chosen + 1, end));
                return true;
            }
        }
        false
    }
}

impl Choices for Every {
    fn choose(&mut self, end: usize) -> usize {
        if self.at == self.chosen.len() {
            self.chosen.push((0, end.max(1)));
        }
        self.at += 1;
        self.chosen[self.at - 1].0
    }

    fn seed(&mut self) -> u64 {
        0
    }
}
