//! The program that some benchmarks run on every side: reads and writes of one file by plain
//! `pread`, `pwrite` and `read`, as fast as they come, so that what fio itself takes does not blur
//! a ratio of calls of 100 ns.
//!
//! It knows nothing of Holdfast.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// The argument that makes this program a worker.
pub const WORKER: &str = "--worker";
/// Bytes of every call.
pub const BLOCK_BYTES: usize = 4096;
/// Calls between two looks at the clock.
const BURST: u64 = 256;

/// What it shall do.
#[derive(Clone, Debug)]
pub enum Work {
    /// Random blocks of a file that is written once before and read once: this share of writes, in
    /// percent.
    Mix { write_percent: u64, seconds: u64 },
    /// Blocks one after the other by `read` at the cursor.
    Cursor { seconds: u64 },
    /// Each block of the file once, in random order, with an fsync after each; tells the time of
    /// each twentieth.
    Fill,
    /// This many blocks spread over the file, then sleeps until it is told to end by its standard
    /// input.
    Backlog { blocks: u64 },
}

impl Work {
    /// The command line of a worker.
    pub fn command(&self, file: &std::path::Path) -> Result<Vec<String>> {
        let mut args = vec![std::env::current_exe()?.display().to_string(), WORKER.to_owned()];
        args.push(file.display().to_string());
        args.extend(match self {
            Self::Mix { write_percent, seconds } => {
                vec!["mix".into(), write_percent.to_string(), seconds.to_string()]
            }
            Self::Cursor { seconds } => vec!["cursor".into(), seconds.to_string()],
            Self::Fill => vec!["fill".into()],
            Self::Backlog { blocks } => vec!["backlog".into(), blocks.to_string()],
        });
        Ok(args)
    }
}

/// Numbers that are the same on every side.
pub struct Random(u64);

impl Random {
    /// `seed` is not 0.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

/// Runs a worker; `args` follow [`WORKER`].
pub fn run(args: &[String]) -> Result<()> {
    let [path, kind, rest @ ..] = args else { bail!("a worker needs a file and a kind of work") };
    let number = |at: usize| -> Result<u64> {
        rest.get(at).context("a number is missing")?.parse().context("that is no number")
    };
    let path = PathBuf::from(path);
    let mut file = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("could not open {}", path.display()))?;
    let blocks = file.metadata()?.len() / BLOCK_BYTES as u64;
    ensure!(blocks > 0, "{} is empty", path.display());
    match kind.as_str() {
        "mix" => mix(&file, blocks, number(0)?, number(1)?),
        "cursor" => cursor(&mut file, blocks, number(0)?),
        "fill" => fill(&file, blocks),
        "backlog" => backlog(&file, blocks, number(0)?),
        other => bail!("unknown work {other}"),
    }
}

fn block_at(file: &File, block: u64, buffer: &mut [u8]) -> Result<()> {
    file.read_exact_at(buffer, block * BLOCK_BYTES as u64).context("could not read")
}

/// Writes once, so that the file is one that is written to, and reads every block, so that all are
/// warm.
fn warm(file: &File, blocks: u64) -> Result<()> {
    let mut buffer = [0; BLOCK_BYTES];
    block_at(file, 0, &mut buffer)?;
    file.write_all_at(&buffer, 0)?;
    // Long enough for a file to be brought to where it belongs by whoever manages it.
    std::thread::sleep(Duration::from_millis(50));
    (0..blocks).try_for_each(|block| block_at(file, block, &mut buffer))
}

fn mix(file: &File, blocks: u64, write_percent: u64, seconds: u64) -> Result<()> {
    warm(file, blocks)?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut buffer, source) = ([0u8; BLOCK_BYTES], [0x5au8; BLOCK_BYTES]);
    let (mut reads, mut writes) = (0u64, 0u64);
    let (start, limit) = (Instant::now(), Duration::from_secs(seconds));
    while start.elapsed() < limit {
        for _ in 0..BURST {
            let block = random.below(blocks);
            if random.below(100) < write_percent {
                file.write_all_at(&source, block * BLOCK_BYTES as u64)?;
                writes += 1;
            } else {
                block_at(file, block, &mut buffer)?;
                reads += 1;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("{:.0} {:.0}", reads as f64 / seconds, writes as f64 / seconds);
    Ok(())
}

fn cursor(file: &mut File, blocks: u64, seconds: u64) -> Result<()> {
    warm(file, blocks)?;
    let mut buffer = [0u8; BLOCK_BYTES];
    let (mut reads, mut block) = (0u64, blocks);
    let (start, limit) = (Instant::now(), Duration::from_secs(seconds));
    while start.elapsed() < limit {
        for _ in 0..BURST {
            if block == blocks {
                file.seek(SeekFrom::Start(0))?;
                block = 0;
            }
            file.read_exact(&mut buffer)?;
            (block, reads) = (block + 1, reads + 1);
        }
    }
    println!("{:.0} 0", reads as f64 / start.elapsed().as_secs_f64());
    Ok(())
}

/// Twentieths of a fill whose time is told.
pub const PARTS: u64 = 20;

fn fill(file: &File, blocks: u64) -> Result<()> {
    // A permutation: an odd stride that is no neighbour of a power of two, over a power of two of
    // blocks.
    let span = blocks.next_power_of_two();
    let stride = 0x9e37_79b1 | 1;
    let source = [0xa5u8; BLOCK_BYTES];
    let mut block = 0u64;
    let mut done = 0;
    let start = Instant::now();
    let mut times = Vec::new();
    while done < blocks {
        block = (block + stride) % span;
        if block >= blocks {
            continue;
        }
        file.write_all_at(&source, block * BLOCK_BYTES as u64)?;
        file.sync_data()?;
        done += 1;
        if done * PARTS / blocks > times.len() as u64 {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    let times: Vec<String> = times.iter().map(|time| format!("{time:.6}")).collect();
    println!("{}", times.join(" "));
    Ok(())
}

fn backlog(file: &File, file_blocks: u64, blocks: u64) -> Result<()> {
    let step = (file_blocks / blocks).max(1);
    for number in 0..blocks {
        // What the reader will look for: every block says its number.
        let mut source = [0u8; BLOCK_BYTES];
        source[..8].copy_from_slice(&(number + 1).to_le_bytes());
        file.write_all_at(&source, number * step % file_blocks * BLOCK_BYTES as u64)?;
    }
    println!("written");
    std::io::stdout().flush()?;
    let mut end = String::new();
    std::io::stdin().read_line(&mut end)?;
    Ok(())
}
