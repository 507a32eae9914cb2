//! The floor: what it costs to make the bytes of an operation durable on the media of the pool, and
//! nothing else. No log can be faster.

use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_media::{Bytes, Mapping, Nvm, OpenMode, allocate};

/// Size of the file that bytes are streamed to: more than the processor's caches hold of a core.
const FILE_BYTES: u64 = 16 << 20;
/// How long each sample takes.
const SAMPLE: Duration = Duration::from_millis(20);
/// Between two looks at the clock.
const BATCH: usize = 64;

/// A file beside the pool, for as long as floors are measured; removed with its directory.
pub struct Floor {
    mapping: Mapping,
}

impl Floor {
    /// Makes the file.
    pub fn at(path: &Path) -> anyhow::Result<Self> {
        allocate(path, FILE_BYTES, |_, _| {})?;
        let (mapping, _) = Mapping::open(path, OpenMode::ReadWrite)?;
        Ok(Self { mapping })
    }

    /// Operations a second if each were so many bytes, streamed past the caches and fenced.
    pub fn per_s(&self, bytes: usize) -> f64 {
        let source = vec![0x5a; bytes];
        let step = bytes.next_multiple_of(64) as u64;
        let (mut offset, mut done) = (0, 0u64);
        let started = Instant::now();
        loop {
            for _ in 0..BATCH {
                if offset + step > FILE_BYTES {
                    offset = 0;
                }
                self.mapping.write_streaming(offset, Bytes::from_slice(&source), 0);
                self.mapping.fence();
                offset += step;
            }
            done += BATCH as u64;
            let elapsed = started.elapsed();
            if elapsed >= SAMPLE {
                return done as f64 / elapsed.as_secs_f64();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_a_cost() {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
        let floor = Floor::at(&dir.path().join("floor")).expect("made");
        for bytes in [256, 4096, 4120] {
            let per_s = floor.per_s(bytes);
            assert!(per_s > 0.0 && per_s.is_finite(), "{per_s}");
        }
    }
}
