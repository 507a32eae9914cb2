//! A mail server's store, after filebench's `varmail`: several threads remove messages, make new
//! ones, and read and extend others, with an fsync behind each write. No directory is synced. The
//! program that does it is this one, on every side; it knows nothing of Holdfast.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::lab::{Lab, Side};
use crate::maildir::sides;
use crate::report::{Check, Outcome, Run, interleave};
use crate::worker::Random;

/// The argument that makes this program a mail server.
pub const SERVER: &str = "--mail-server";
/// Messages that are there at first, and whose names are used again.
const MESSAGES: u64 = 1000;
const THREADS: u64 = 4;
/// Bytes of a new message at first, and of what is added to it later.
const MESSAGE_BYTES: usize = 8192;
const ADDED_BYTES: usize = 8192;

/// Rounds per second: a message removed, one made, one read and extended, one read.
pub fn rounds(lab: &Lab) -> Result<Outcome> {
    let runs = sides(lab)?
        .into_iter()
        .map(|(label, side)| -> Run<'_> { (label.to_owned(), Box::new(move || sample(lab, &side))) })
        .collect();
    let mut outcome = Outcome::default();
    let series = interleave(lab.options.rounds, "rounds/s", runs)?;
    for (one, other) in [(1, 0), (1, 2), (3, 0)] {
        outcome.checks.push(Check::ratio(&series[one], &series[other], None));
    }
    outcome.series = series;
    outcome.notes.push(format!(
        "{THREADS} threads, {MESSAGES} messages; {MESSAGE_BYTES} bytes made, {ADDED_BYTES} added, two syncs a round"
    ));
    Ok(outcome)
}

fn sample(lab: &Lab, side: &Side) -> Result<f64> {
    let dir = lab.home(side).join("varmail");
    fs::remove_dir_all(&dir).ok();
    fs::create_dir(&dir)?;
    for message in 0..MESSAGES {
        fs::write(dir.join(message.to_string()), [0x5a; MESSAGE_BYTES])?;
    }
    lab.settle()?;
    let program = std::env::current_exe()?.display().to_string();
    let seconds = lab.options.seconds.to_string();
    let told = lab.run(side, &[program, SERVER.into(), dir.display().to_string(), seconds])?;
    told.trim().parse().with_context(|| format!("the mail server printed {told:?}"))
}

/// Serves; `args` follow [`SERVER`]: directory, seconds.
pub fn run(args: &[String]) -> Result<()> {
    let [dir, seconds] = args else { bail!("a mail server needs a directory and seconds") };
    let (dir, limit) = (Path::new(dir), Duration::from_secs(seconds.parse().context("that is no number")?));
    let start = Instant::now();
    let rounds: Result<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=THREADS)
            .map(|thread| scope.spawn(move || serve(dir, Random::new(thread), || start.elapsed() >= limit)))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    ensure!(seconds > 0.0, "no time has passed");
    println!("{:.0}", rounds?.iter().sum::<u64>() as f64 / seconds);
    Ok(())
}

fn serve(dir: &Path, mut random: Random, is_over: impl Fn() -> bool) -> Result<u64> {
    let mut rounds = 0;
    let mut buffer = Vec::new();
    while !is_over() {
        let mut message = || dir.join(random.below(MESSAGES).to_string());
        there(fs::remove_file(message()))?;
        // Another thread may have made it meanwhile.
        let mut made = File::options().append(true).create(true).open(message())?;
        made.write_all(&[0x5a; MESSAGE_BYTES])?;
        made.sync_all()?;
        drop(made);
        if let Some(mut file) = there(File::options().read(true).append(true).open(message()))? {
            buffer.clear();
            file.read_to_end(&mut buffer)?;
            file.write_all(&[0xa5; ADDED_BYTES])?;
            file.sync_all()?;
        }
        if let Some(mut file) = there(File::open(message()))? {
            buffer.clear();
            file.read_to_end(&mut buffer)?;
        }
        rounds += 1;
    }
    Ok(rounds)
}

/// `None`: another thread has removed it.
fn there<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
