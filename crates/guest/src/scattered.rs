//! Blocks all over a file, more than a pool holds: its log goes on in a spill file, which the disk
//! fetches from DAX memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, ensure};

const BLOCK_BYTES: usize = 4096;
/// Writes between two lines that tell how many were acknowledged.
const STEP: u64 = 100;

/// The block of each write, from the first on.
fn places(blocks: u64) -> impl Iterator<Item = u64> {
    let next = |at: &u64| Some((at * 1_664_525 + 1_013_904_223) % (1 << 32));
    std::iter::successors(next(&1), next).map(move |at| (at >> 8) % blocks)
}

/// Writes whole blocks, each with the number of its write in it, until the power fails.
pub fn write(path: &Path) -> ExitCode {
    let written = File::options().write(true).open(path).and_then(|file| {
        let blocks = file.metadata()?.len() / BLOCK_BYTES as u64;
        for (number, place) in (1u64..).zip(places(blocks)) {
            let bytes = number.to_le_bytes().repeat(BLOCK_BYTES / 8);
            file.write_all_at(&bytes, place * BLOCK_BYTES as u64)?;
            if number.is_multiple_of(STEP) {
                println!("scattered {number}");
            }
        }
        Ok(())
    });
    println!("failed: scattered writes: {written:?}");
    ExitCode::FAILURE
}

/// Whether each block is that of its last write of the first `told`, or a later one, and whole.
pub fn judge(path: &Path, told: u64) -> Result<()> {
    let bytes = std::fs::read(path)?;
    let mut least = vec![0; bytes.len() / BLOCK_BYTES];
    (1..=told).zip(places(least.len() as u64)).for_each(|(number, place)| least[place as usize] = number);
    for (place, (block, least)) in bytes.chunks(BLOCK_BYTES).zip(least).enumerate() {
        let (words, _) = block.as_chunks::<8>();
        let number = u64::from_le_bytes(words[0]);
        ensure!(number >= least, "block {place} is that of write {number}, {least} was acknowledged");
        ensure!(words.iter().all(|word| *word == words[0]), "block {place} is torn");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_is_old_or_torn_is_found() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let blocks: Vec<u64> = places(8).take(5).collect();
        let mut bytes = vec![0; 8 * BLOCK_BYTES];
        let put = |bytes: &mut Vec<u8>, number: u64| {
            let at = blocks[number as usize - 1] as usize * BLOCK_BYTES;
            bytes[at..at + BLOCK_BYTES].copy_from_slice(&number.to_le_bytes().repeat(BLOCK_BYTES / 8));
        };
        (1..=5).for_each(|number| put(&mut bytes, number));
        let judged = |bytes: &[u8]| {
            std::fs::write(file.path(), bytes).expect("write");
            judge(file.path(), 5).map_err(|error| error.to_string())
        };
        assert_eq!(judged(&bytes), Ok(()));
        let last = blocks[4] as usize * BLOCK_BYTES;
        let mut torn = bytes.clone();
        torn[last + BLOCK_BYTES - 1] ^= 1;
        assert!(judged(&torn).expect_err("torn").contains("torn"));
        bytes[last..last + BLOCK_BYTES].fill(0);
        assert!(judged(&bytes).expect_err("old").contains("5 was acknowledged"));
    }
}
