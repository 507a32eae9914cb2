//! A word that stands for others: where a table has a row, and what shows that a stray store has
//! changed one of them.
//!
//! Keeper and clients of a board must mix alike: whoever changes this raises the version of the
//! wire.

/// Mixes three words. Each bit of each counts: a change of one word always shows, and one of two
/// shows unless they were made for each other. Of a part the upper bits are best, since the lower
/// ones depend on fewer.
#[inline]
pub(crate) const fn mix(first: u64, second: u64, third: u64) -> u64 {
    let words = first.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(11)
        ^ second.wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(27)
        ^ third.wrapping_mul(0x94d0_49bb_1331_11eb).rotate_left(43);
    (words ^ words >> 29).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// The upper half alone, for a word that has room for that only.
#[inline]
pub(crate) const fn upper(mixed: u64) -> u32 {
    (mixed >> 32) as u32
}

/// A file or a directory.
#[inline]
pub(crate) const fn mix_file(dev: u64, ino: u64) -> u64 {
    mix(dev, ino, 0)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_any_bit_shows_in_the_upper_half() {
        for seed in [0, 1, 0x1234_5678_9abc_def0] {
            let words = [seed, seed ^ 7, !seed];
            let before = mix(words[0], words[1], words[2]);
            for (word, bit) in (0..3).flat_map(|word| (0..64).map(move |bit| (word, bit))) {
                let mut changed = words;
                changed[word] ^= 1 << bit;
                let flipped = (upper(mix(changed[0], changed[1], changed[2])) ^ upper(before)).count_ones();
                assert!((4..29).contains(&flipped), "bit {bit} of word {word} flips {flipped} of 32");
            }
        }
    }

    #[test]
    fn equal_words_in_other_places_are_not_taken_for_each_other() {
        let mixed = [mix(1, 2, 3), mix(2, 1, 3), mix(3, 2, 1), mix(1, 3, 2), mix(0, 0, 1), mix(0, 1, 0)];
        for (index, one) in mixed.iter().enumerate() {
            assert!(!mixed[index + 1..].contains(one), "{index}");
        }
    }

    #[test]
    fn neighbouring_files_lie_apart() {
        let mut taken = [0; 256];
        (0..256).for_each(|ino| taken[upper(mix_file(5, ino)) as usize % 256] += 1);
        assert!(taken.iter().all(|&files| files < 8), "{taken:?}");
    }
}
