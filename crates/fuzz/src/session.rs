//! Feeding inputs for a while. The work is done in a process of its own, with bounded memory and
//! time for each input; an input that ends it (a panic, no memory, no end) is in a file by then.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Resource, Rlimit, setrlimit};

use holdfast_testkit::Random;

use crate::mutate::{input, mutate};
use crate::targets::{Bench, Target};

/// Inputs are not longer than this.
const INPUT_BYTES_MAX: usize = 700;
/// Address space of the working process: the pool, two scanning threads, what one image may need.
const MEMORY_BYTES_MAX: u64 = 768 << 20;
/// No input may take longer.
const INPUT_TIME_MAX: Duration = Duration::from_secs(10);
/// Inputs with outcomes not seen before are kept and mutated; the oldest go first.
const POOL_MAX: usize = 400;

/// The corpus in the repository.
pub fn corpus(target: Target) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name())
}

/// The inputs of a corpus, by name.
///
/// # Errors
/// When the directory or a file cannot be read.
pub fn inputs(directory: &Path) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut inputs = BTreeMap::new();
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("no corpus at {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        inputs.insert(name, std::fs::read(&path)?);
    }
    Ok(inputs)
}

/// What the working process was given.
#[derive(Clone, Debug)]
pub struct Work {
    /// What is fed.
    pub target: Target,
    /// Where the numbers begin.
    pub seed: u64,
    /// How long.
    pub time: Duration,
    /// The input at hand.
    pub current: PathBuf,
    /// Where inputs with outcomes that the corpus does not have are put, if anywhere.
    pub keep: Option<PathBuf>,
    /// Print nothing but what broke.
    pub quiet: bool,
}

/// Feeds inputs in this process until the time is over.
///
/// # Errors
/// What the input in `current` broke.
pub fn work(work: &Work) -> anyhow::Result<()> {
    bound()?;
    let watch = Watch::start();
    let mut bench = Bench::new(work.target)?;
    let mut random = Random::new(work.seed);
    let mut pool: Vec<Vec<u8>> = Vec::new();
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut known: BTreeSet<Vec<String>> = BTreeSet::new();
    let mut seeds: Vec<_> = inputs(&corpus(work.target))?.into_values().collect();
    let (begun, mut fed) = (Instant::now(), 0u64);
    while begun.elapsed() < work.time || !seeds.is_empty() {
        let (input, own) = match (seeds.pop(), pool.is_empty()) {
            (Some(input), _) => (input, false),
            (None, false) if random.below(4) > 0 => {
                let from = &pool[random.below(pool.len())];
                let other = &pool[random.below(pool.len())];
                (mutate(&mut random, from, other, INPUT_BYTES_MAX), true)
            }
            _ => (input(&mut random, INPUT_BYTES_MAX), true),
        };
        std::fs::write(&work.current, &input)?;
        watch.next();
        let outcomes = bench.feed(&input)?;
        fed += 1;
        for outcome in &outcomes {
            *counts.entry(outcome.clone()).or_default() += 1;
        }
        let fresh = outcomes.iter().any(|outcome| counts[outcome] == 1);
        if known.insert(outcomes) {
            if let (Some(keep), true, true) = (&work.keep, own, fresh) {
                std::fs::write(keep.join(format!("{:08x}", crc32c::crc32c(&input))), &input)?;
            }
            if pool.len() == POOL_MAX {
                pool.remove(0);
            }
            pool.push(input);
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{}: {fed} inputs, {:.0} per second, {} outcomes",
        work.target.name(),
        fed as f64 / seconds,
        counts.len()
    );
    for (outcome, count) in counts {
        println!("  {count:>8}  {outcome}");
    }
    println!("tally: fuzzing {}: inputs {fed}; seed {}, {seconds:.1} s", work.target.name(), work.seed);
    Ok(())
}

/// Feeds one input in this process.
///
/// # Errors
/// What it broke.
pub fn replay(target: Target, input: &[u8]) -> anyhow::Result<Vec<String>> {
    let watch = Watch::start();
    watch.next();
    Bench::new(target)?.feed(input)
}

/// Runs `work` in a process of its own, and tells how to repeat what ended it.
///
/// # Errors
/// When an input broke something; it is kept, and the message says how to replay it.
pub fn supervise(program: &Path, work: &Work) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.args(["--worker", "--target", work.target.name(), "--seed", &work.seed.to_string()]);
    command.args(["--seconds", &work.time.as_secs().to_string()]).arg("--current").arg(&work.current);
    if let Some(keep) = &work.keep {
        command.arg("--keep").arg(keep);
    }
    if work.quiet {
        command.stdout(Stdio::null());
    }
    let status = command.stdin(Stdio::null()).status().context("the working process cannot be started")?;
    if status.success() {
        return Ok(());
    }
    let input = std::fs::read(&work.current).unwrap_or_default();
    let kept =
        std::env::current_dir()?.join(format!("{}-{:08x}", work.target.name(), crc32c::crc32c(&input)));
    std::fs::write(&kept, &input)?;
    bail!(
        "{} broke ({status}), seed {}\nreplay: cargo run --release -p holdfast-fuzz -- --target {} --replay {}",
        work.target.name(),
        work.seed,
        work.target.name(),
        kept.display()
    );
}

fn bound() -> anyhow::Result<()> {
    let limit = Rlimit { current: Some(MEMORY_BYTES_MAX), maximum: Some(MEMORY_BYTES_MAX) };
    setrlimit(Resource::As, limit).context("memory cannot be bounded")
}

/// Ends the process when an input takes too long.
struct Watch(Arc<AtomicU64>);

impl Watch {
    fn start() -> Self {
        let fed = Arc::new(AtomicU64::new(0));
        let seen = Arc::downgrade(&fed);
        std::thread::spawn(move || {
            let mut last = (0, Instant::now());
            while let Some(fed) = seen.upgrade() {
                let count = fed.load(Ordering::Relaxed);
                if count != last.0 || count == 0 {
                    last = (count, Instant::now());
                } else if last.1.elapsed() > INPUT_TIME_MAX {
                    eprintln!("an input takes longer than {INPUT_TIME_MAX:?}");
                    std::process::abort();
                }
                drop(fed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self(fed)
    }

    fn next(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
