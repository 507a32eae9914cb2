//! New inputs, and mutation of old ones.

use holdfast_testkit::Random;

/// A new input of up to `bytes_max` bytes.
pub(crate) fn input(random: &mut Random, bytes_max: usize) -> Vec<u8> {
    let bytes = 8 + random.below(bytes_max - 8);
    (0..bytes).map(|_| random.draw() as u8).collect()
}

/// An input like `from`: bytes changed, inserted, removed, or taken from `other`.
pub(crate) fn mutate(random: &mut Random, from: &[u8], other: &[u8], bytes_max: usize) -> Vec<u8> {
    let mut input = from.to_vec();
    for _ in 0..1 + random.below(6) {
        let at = random.below(input.len() + 1);
        match random.below(6) {
            0 | 1 if at < input.len() => input[at] = random.draw() as u8,
            2 if at < input.len() => input[at] ^= 1 << random.below(8),
            3 => input.insert(at, random.draw() as u8),
            4 if at < input.len() => drop(input.drain(at..(at + 1 + random.below(8)).min(input.len()))),
            5 if !other.is_empty() => {
                let begin = random.below(other.len());
                let end = (begin + 1 + random.below(32)).min(other.len());
                input.splice(at..at, other[begin..end].iter().copied());
            }
            _ => input.push(random.draw() as u8),
        }
    }
    input.truncate(bytes_max);
    input
}
