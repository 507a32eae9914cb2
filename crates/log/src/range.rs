//! Checksums of any range of a segment for the price of summing the segment once.
//!
//! The sum of two ranges behind each other is that of the first, moved by the length of the second,
//! plus (xor) that of the second. So the sum of a range is the difference of what ends with it and
//! what ends before it.

use std::sync::LazyLock;

/// Ranges begin at a multiple of this many bytes.
const LINE_BYTES: usize = crate::record::RECORD_HEADER_BYTES as usize;

/// For each power of two: what moving by as many lines makes of each bit of a checksum.
static MOVES: LazyLock<Vec<[u32; 32]>> = LazyLock::new(|| {
    let lines =
        |power: usize| std::array::from_fn(|bit| crc32c::crc32c_combine(1 << bit, 0, LINE_BYTES << power));
    (0..16).map(lines).collect()
});

/// The checksum moved by `lines` lines.
fn moved(crc: u32, lines: usize) -> u32 {
    let powers = MOVES.iter().enumerate().filter(|(power, _)| lines >> power & 1 == 1);
    powers.fold(crc, |crc, (_, bits)| {
        bits.iter().enumerate().filter(|(bit, _)| crc >> bit & 1 == 1).fold(0, |sum, (_, part)| sum ^ part)
    })
}

/// The sums of one segment.
pub(crate) struct Sums<'a> {
    segment: &'a [u8],
    /// The checksum of all bytes before each line, as far as it was needed.
    lines: Vec<u32>,
}

impl<'a> Sums<'a> {
    pub(crate) fn new(segment: &'a [u8]) -> Self {
        Self { segment, lines: vec![0] }
    }

    /// The checksum of the bytes before a line.
    fn before(&mut self, line: usize) -> u32 {
        while self.lines.len() <= line {
            let (from, sum) = ((self.lines.len() - 1) * LINE_BYTES, self.lines.last().copied().unwrap_or(0));
            self.lines.push(crc32c::crc32c_append(sum, &self.segment[from..from + LINE_BYTES]));
        }
        self.lines[line]
    }

    /// `crc32c_append(crc, ..)` of `bytes` bytes from `from` on, which is a multiple of a line.
    pub(crate) fn append(&mut self, crc: u32, from: usize, bytes: usize) -> u32 {
        let (first, count) = (from / LINE_BYTES, bytes / LINE_BYTES);
        let sum = moved(crc ^ self.before(first), count) ^ self.before(first + count);
        crc32c::crc32c_append(sum, &self.segment[from + count * LINE_BYTES..from + bytes])
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use holdfast_pool::SEGMENT_BYTES;

    use super::*;

    #[test]
    fn sums_of_ranges_are_those_of_their_bytes() {
        let segment: Vec<u8> =
            (0..SEGMENT_BYTES as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 23) as u8).collect();
        let mut sums = Sums::new(&segment);
        for (crc, from, bytes) in
            [(0, 0, 0), (7, 64, 1), (u32::MAX, 128, 64), (9, 640, 100_001), (1, 64, 2_097_088)]
        {
            assert_eq!(
                sums.append(crc, from, bytes),
                crc32c::crc32c_append(crc, &segment[from..from + bytes])
            );
        }
    }
}
