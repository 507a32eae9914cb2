//! An input read as choices. When its bytes are used up every choice is the first one, so every
//! input is an image.

use arbitrary::Unstructured;
use holdfast_pool::CHECKED_MAX;

/// The choices of one input.
pub struct Choices<'a>(Unstructured<'a>);

impl<'a> Choices<'a> {
    pub fn new(input: &'a [u8]) -> Self {
        Self(Unstructured::new(input))
    }

    /// A number from 0 up to and with `max`.
    pub fn upto(&mut self, max: u64) -> u64 {
        self.0.int_in_range(0..=max).unwrap_or(0)
    }

    /// True once in `of`.
    pub fn once_in(&mut self, of: u64) -> bool {
        self.upto(of - 1) == of - 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.upto(from.len() as u64 - 1) as usize]
    }

    /// Any number, most often one where something begins or ends.
    pub fn number(&mut self) -> u64 {
        const EDGES: [u64; 14] = [
            0,
            1,
            4095,
            1 << 31,
            (1 << 32) - 1,
            1 << 40,
            (1 << 43) + 7,
            CHECKED_MAX - (1 << 40),
            CHECKED_MAX - (1 << 40) + 1,
            CHECKED_MAX,
            1 << 62,
            i64::MAX as u64,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.upto(3) {
            0 | 1 => self.upto(300),
            2 => self.pick(&EDGES),
            _ => self.0.arbitrary().unwrap_or(0),
        }
    }

    /// Up to `max` bytes.
    pub fn bytes(&mut self, max: u64) -> Vec<u8> {
        let bytes = self.upto(max) as usize;
        let mut filled = vec![0; bytes];
        let seed = self.upto(255) as u8;
        for (at, byte) in filled.iter_mut().enumerate() {
            *byte = seed.wrapping_add((at / 3) as u8);
        }
        filled
    }
}
