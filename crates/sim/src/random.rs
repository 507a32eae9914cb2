//! Choices: drawn, or all of them one way after the other.

use holdfast_testkit::Random;

/// Choices among a number of possibilities: drawn, or each once.
pub trait Choices {
    /// A number below `end`.
    fn choose(&mut self, end: usize) -> usize;

    /// A seed for what comes later.
    fn next_seed(&mut self) -> u64;
}

impl Choices for Random {
    fn choose(&mut self, end: usize) -> usize {
        self.below(end)
    }

    fn next_seed(&mut self) -> u64 {
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

    fn next_seed(&mut self) -> u64 {
        0
    }
}
