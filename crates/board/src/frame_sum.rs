//! The sum of what a frame holds: a store that none of us made does not go to a file.
//!
//! It guards against mistakes, not against who means it. Bytes count with the place that they have
//! in their page, so sums of bytes that do not overlap add up, and a write changes a sum without
//! looking at the rest of the page. Any change of one aligned word changes it.

use core::array;

const WORD_BYTES: usize = 8;
/// Words that are taken at a time: the processor has registers that hold several.
const LANES: usize = 4;
/// Odd, and so is what each word counts with: no bit of a word is lost.
const FIRST_WEIGHT: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a word counts with, by its number in the page.
fn weight(word: usize) -> u64 {
    FIRST_WEIGHT.wrapping_add(2 * word as u64)
}

/// The sum of these bytes, of which the first is byte `at` of a page.
pub fn sum_of(at: u32, bytes: &[u8]) -> u64 {
    let at = at as usize;
    let (head, rest) = bytes.split_at((at.wrapping_neg() % WORD_BYTES).min(bytes.len()));
    let (whole, tail) = rest.split_at(rest.len() / WORD_BYTES * WORD_BYTES);
    let first = at.div_ceil(WORD_BYTES);
    let ends = sum_of_part(at, head).wrapping_add(sum_of_part(first * WORD_BYTES + whole.len(), tail));
    ends.wrapping_add(sum_of_words(first, whole))
}

/// That of bytes that lie within one word.
fn sum_of_part(at: usize, bytes: &[u8]) -> u64 {
    let mut word = [0; WORD_BYTES];
    let skip = at % WORD_BYTES;
    match word.get_mut(skip..skip + bytes.len()) {
        Some(place) => place.copy_from_slice(bytes),
        None => return 0,
    }
    weight(at / WORD_BYTES).wrapping_mul(u64::from_le_bytes(word))
}

/// That of whole words, by additions alone: those of a piece weigh what the first one does, and two
/// more for each word before them.
fn sum_of_words(first: usize, bytes: &[u8]) -> u64 {
    let (lines, rest) = bytes.split_at(bytes.len() / (LANES * WORD_BYTES) * (LANES * WORD_BYTES));
    // Of each lane: its words, and those with the number of lines that do not come before them.
    let (mut all, mut counted) = ([0u64; LANES], [0u64; LANES]);
    let count = (lines.len() / (LANES * WORD_BYTES)) as u64;
    for line in lines.chunks_exact(LANES * WORD_BYTES) {
        let words: [u64; LANES] = array::from_fn(|lane| word(&line[lane * WORD_BYTES..]));
        for lane in 0..LANES {
            all[lane] = all[lane].wrapping_add(words[lane]);
            counted[lane] = counted[lane].wrapping_add(all[lane]);
        }
    }
    let mut sum = 0u64;
    for lane in 0..LANES {
        // Each word with the number of lines before it.
        let later = count.wrapping_mul(all[lane]).wrapping_sub(counted[lane]);
        let weighed = weight(first + lane).wrapping_mul(all[lane]);
        sum = sum.wrapping_add(weighed).wrapping_add(later.wrapping_mul(2 * LANES as u64));
    }
    let rest_first = first + lines.len() / WORD_BYTES;
    rest.chunks_exact(WORD_BYTES)
        .zip(rest_first..)
        .fold(sum, |sum, (bytes, index)| sum.wrapping_add(weight(index).wrapping_mul(word(bytes))))
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    /// The definition, word by word.
    fn plainly(at: u32, bytes: &[u8]) -> u64 {
        let places = (at as usize..).zip(bytes);
        places.fold(0, |sum, (at, byte)| {
            let word = u64::from(*byte) << (at % WORD_BYTES * 8);
            sum.wrapping_add(weight(at / WORD_BYTES).wrapping_mul(word))
        })
    }

    fn page() -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..4096).map(|_| next()).collect()
    }

    #[test]
    fn sums_of_parts_add_up_wherever_a_page_is_cut() {
        let page = page();
        for (lo, hi) in [(0, 4096), (0, 1), (4095, 4096), (1, 4095), (7, 9), (8, 16), (3, 5), (100, 3333)] {
            let all = sum_of(lo as u32, &page[lo..hi]);
            assert_eq!(all, plainly(lo as u32, &page[lo..hi]), "{lo}..{hi}");
            for cut in (lo..=hi).step_by(13) {
                let parts = [sum_of(lo as u32, &page[lo..cut]), sum_of(cut as u32, &page[cut..hi])];
                assert_eq!(parts[0].wrapping_add(parts[1]), all, "{lo}..{cut}..{hi}");
            }
        }
        assert_eq!(sum_of(5, &[]), 0);
    }

    #[test]
    fn every_changed_bit_counts_and_so_do_words_that_change_places() {
        let page = page();
        let sum = sum_of(0, &page);
        for at in 0..page.len() {
            let mut changed = page.clone();
            changed[at] ^= 1 << (at % 8);
            assert_ne!(sum_of(0, &changed), sum, "byte {at}");
        }
        for at in (0..page.len() - 8).step_by(8) {
            let mut changed = page.clone();
            changed[at..at + 16].rotate_left(8);
            assert_ne!(sum_of(0, &changed), sum, "word at {at}");
        }
        // What is cleared or set to one value, of bytes that had one value before.
        for (before, after) in [(b'x', 0), (0, 0xff), (0xff, 0), (1, 0x80)] {
            for bytes in [64, 100, 128, 512, 1024, 4096] {
                let was = [before; 4096];
                let mut changed = was;
                changed[..bytes].fill(after);
                assert_ne!(sum_of(0, &changed), sum_of(0, &was), "{bytes} bytes of {before} to {after}");
            }
        }
    }
}
