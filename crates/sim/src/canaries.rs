//! Deliberate bugs (`holdfast-canary`), one after the other: each must make the simulator fail, or
//! its silence about the product proves nothing. Every bug runs in a process of its own, so that
//! one that corrupts memory or never ends is caught as such and spoils nothing else.

use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use holdfast_canary::Canary;
use holdfast_sim::check::Effort;
use holdfast_sim::run::{Failure, Only, Shared, Worker};
use holdfast_sim::stories::{STORIES, Story, first_of_interest};
use serde::{Deserialize, Serialize};

/// One thread explores the exhaustive sets of so many operations, before it goes on with seeds like
/// the other.
const EXHAUSTIVE_OPERATIONS: usize = 4;
/// It does so in as many rounds, each of which takes every so manieth history: all sets come up
/// soon.
const ROUNDS: u64 = 199;
/// The threads that look for one bug.
const THREADS: u32 = 2;
/// A bug has so many seconds of a processor for each thread, and of a shared machine this many
/// times as many.
const SHARE_MIN: u32 = 4;
/// How often it is seen what was used.
const LOOK: Duration = Duration::from_millis(100);
/// What a thread may take to end a history after the time is over; one that does not come back is a
/// failure, too.
const HISTORY_S_MAX: u64 = 10;
const WHAT_CHARS_MAX: usize = 96;

/// How one bug fared.
#[derive(Serialize, Deserialize)]
pub struct Fate {
    /// Whether anything failed.
    pub caught: bool,
    /// Crash images checked until then.
    pub images: u64,
    /// How long that took.
    pub seconds: f64,
    /// The first failure.
    pub what: String,
    /// The arguments that play it again.
    pub again: String,
}

/// Runs one bug in this process and prints its fate as JSON.
pub fn one(canary: Canary, effort: Effort, limit: Duration) -> anyhow::Result<()> {
    holdfast_canary::arm(Some(canary));
    let begun = Instant::now();
    let shared: &'static Shared = Box::leak(Box::new(Shared::default()));
    let (sender, failures) = channel::<Failure>();
    let workers: Vec<_> = (0..u64::from(THREADS))
        .map(|index| {
            let failures = sender.clone();
            std::thread::spawn(move || {
                let mut worker = Worker::new(effort, shared, failures).part(index, ROUNDS);
                let stops = || shared.stop.load(Ordering::Relaxed);
                if index == 1 {
                    // The known histories against whose rule this is.
                    (worker.index, worker.of) = (0, 1);
                    let known = STORIES.iter().filter(|story| story.bugs.contains(&canary.name()));
                    for history in known.flat_map(Story::histories).take_while(|_| !stops()) {
                        if let Some(from) = first_of_interest(&history) {
                            worker.check(&history, from, Only::ALL);
                        }
                    }
                }
                if index == 0 {
                    // The directed ones, and the shortest.
                    (worker.index, worker.of) = (0, 1);
                    worker.directed();
                    if canary.breaks().ends_with("(spill)") {
                        worker.spilled(2);
                    }
                    worker.exhaustive(1);
                    worker.of = ROUNDS;
                }
                // Even to pass over all of them takes its time.
                for round in (0..ROUNDS).filter(|_| index == 0).take_while(|_| !stops()) {
                    worker.index = round;
                    worker.exhaustive(EXHAUSTIVE_OPERATIONS);
                }
                worker.index = index;
                worker.of = 2;
                worker.seeds(1, u64::MAX, None);
            })
        })
        .collect();
    drop(sender);
    let until = begun + limit * SHARE_MIN;
    let first = loop {
        match failures.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) if used() < limit * THREADS && Instant::now() < until => {}
            heard => break heard,
        }
    };
    let seconds = begun.elapsed().as_secs_f64();
    shared.stop.store(true, Ordering::Relaxed);
    // One failure says all: who still explores ends with the process. Without one, a thread that
    // does not come back from its history is the failure.
    let until = Instant::now() + Duration::from_secs(HISTORY_S_MAX);
    let ended = || workers.iter().all(std::thread::JoinHandle::is_finished);
    while first.is_err() && !ended() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let never_ends = !ended();
    let (caught, what, again) = match first {
        Ok(failure) => (true, failure.violation.what, failure.replay),
        Err(RecvTimeoutError::Timeout) if never_ends => (true, "a step never ends".into(), String::new()),
        Err(_) => (false, String::new(), String::new()),
    };
    let images = shared.images.load(Ordering::Relaxed);
    println!("{}", serde_json::to_string(&Fate { caught, images, seconds, what, again })?);
    Ok(())
}

/// What this process has used of processors.
fn used() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).expect("less than a second"))
}

/// Runs all bugs, prints a table and says whether all were caught.
pub fn all(limit: Duration) -> anyhow::Result<ExitCode> {
    let widest = Canary::SIMULATED.iter().map(|canary| canary.name().len()).max().unwrap_or(0);
    let (begun, mut caught, mut images) = (Instant::now(), 0, 0);
    println!("{:widest$}  {:14} {:>8} {:>6}  caught by", "canary", "breaks", "images", "s");
    for &canary in Canary::SIMULATED {
        let fate = child(&["--canary", canary.name()], limit)?;
        caught += usize::from(fate.caught);
        images += fate.images;
        let what = if fate.caught { shorten(&fate.what) } else { "SURVIVED".to_owned() };
        println!(
            "{:widest$}  {:14} {:>8} {:>6.2}  {what}",
            canary.name(),
            canary.breaks(),
            fate.images,
            fate.seconds
        );
        if !fate.caught {
            println!("{:widest$}  {}: no test would notice", "", canary.story());
        }
    }
    println!("{caught} of {} canaries caught, {images} crash images checked", Canary::SIMULATED.len());
    println!(
        "tally: canaries: canaries {}, canaries caught {caught}, crash images {images}; {:.1} s",
        Canary::SIMULATED.len(),
        begun.elapsed().as_secs_f64()
    );
    Ok(if caught == Canary::SIMULATED.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Starts this program with `arguments`, which make it print a fate.
pub fn child(arguments: &[&str], limit: Duration) -> anyhow::Result<Fate> {
    let begun = Instant::now();
    let output = Command::new(std::env::current_exe()?)
        .args(arguments)
        .args(["--canary-seconds", &limit.as_secs_f64().to_string(), "--json"])
        .stdin(Stdio::null())
        .output()
        .context("the simulator cannot start itself")?;
    if let Ok(fate) = serde_json::from_slice(&output.stdout) {
        return Ok(fate);
    }
    // An assertion of the product, or of the simulated machine, ended the process.
    let said = String::from_utf8_lossy(&output.stderr);
    let mut lines = said.lines().skip_while(|line| !line.contains("panicked at"));
    let place = lines.next().with_context(|| format!("{arguments:?}: {} {said}", output.status))?;
    let what = format!(
        "an assertion: {} ({})",
        lines.next().unwrap_or_default(),
        place.rsplit("panicked at ").next().unwrap_or_default()
    );
    Ok(Fate { caught: true, images: 0, seconds: begun.elapsed().as_secs_f64(), what, again: String::new() })
}

/// The beginning of what failed, for a table.
pub fn shorten(what: &str) -> String {
    let line = what.split("; recovery says").next().unwrap_or_default();
    let short: String = line.chars().take(WHAT_CHARS_MAX).collect();
    if short.len() < line.len() { short + "..." } else { short }
}

/// The bug with this name.
pub fn named(name: &str) -> Result<Canary, String> {
    let found = Canary::SIMULATED.iter().find(|canary| canary.name() == name);
    found.copied().ok_or_else(|| {
        let all: Vec<&str> = Canary::SIMULATED.iter().map(|canary| canary.name()).collect();
        format!("there are: {}", all.join(", "))
    })
}
