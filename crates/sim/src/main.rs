//! The command: explores histories, prints a summary, and for each failure the command that plays
//! it again.

#[cfg(feature = "canaries")]
mod canaries;
#[cfg(feature = "canaries")]
mod rules;

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use holdfast_sim::check::{Counts, Effort};
use holdfast_sim::explore;
use holdfast_sim::history::History;
use holdfast_sim::run::{Failure, Only, Shared, Watchman, Worker};

/// Failures after which a run stops.
const FAILURES_MAX: usize = 20;
/// How often the threads are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// A history that is under way at so many looks never ends: most take milliseconds.
const LOOKS_MAX: u32 = 300;
/// Sequences with a spill file are this long at most: longer ones are the seeds'.
const SPILLED_OPERATIONS_MAX: usize = 4;

/// Simulates crashes of NVM and disk on one power cord under the real code of clients, keeper and
/// recovery.
#[derive(Parser)]
#[command(after_help = "Examples:
  holdfast-sim                                   the exhaustive set of 4 operations, then seeds for one minute
  holdfast-sim --exhaustive 6 --minutes 0        the whole exhaustive set
  holdfast-sim --exhaustive 0 --seeds 1000       a thousand seeded long histories
  holdfast-sim --seed 123 --crash 45 --image 6   one image of one crash point again, as a failure prints it")]
struct Args {
    /// Explore all histories of the exhaustive sets whose sequences have up to this many
    /// operations.
    #[arg(long, value_name = "OPS", default_value_t = 4)]
    exhaustive: usize,
    /// Of the exhaustive sets only the part with this number (from 0 on) of so many.
    #[arg(long, value_name = "I/N", value_parser = slice, default_value = "0/1")]
    slice: (u64, u64),
    /// Leave nothing out: recover every image wherever it comes up, and go on behind steps that
    /// change nothing. Ten times as long, for nothing new.
    #[arg(long)]
    whole: bool,
    /// Then play this many seeded long histories.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Or as many as fit into this many minutes.
    #[arg(long, value_name = "M", default_value_t = 1.0)]
    minutes: f64,
    /// The first seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    first_seed: u64,
    /// Play this seed only.
    #[arg(long, value_name = "N", conflicts_with = "history")]
    seed: Option<u64>,
    /// Play this history only, as a failure prints it.
    #[arg(long, value_name = "JSON")]
    history: Option<String>,
    /// With --seed: print its first history, for --history.
    #[arg(long, requires = "seed")]
    print: bool,
    /// With --history: check the crash points of all steps, not only of the last one.
    #[arg(long, requires = "history")]
    all_steps: bool,
    /// With --seed or --history: this crash point only.
    #[arg(long, value_name = "N")]
    crash: Option<usize>,
    /// With --crash: this image only.
    #[arg(long, value_name = "N")]
    image: Option<usize>,
    /// Images of a crash point.
    #[arg(long, value_name = "N", default_value_t = 4)]
    images: usize,
    /// Threads.
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: u64,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
    /// Instead: show one deliberate bug after the other and see that each is caught.
    #[cfg(feature = "canaries")]
    #[arg(long)]
    canaries: bool,
    /// Only this one.
    #[cfg(feature = "canaries")]
    #[arg(long, value_name = "NAME", value_parser = canaries::named)]
    canary: Option<holdfast_canary::Canary>,
    /// Instead: play the known histories, with all rules and with one after the other taken out.
    #[cfg(feature = "canaries")]
    #[arg(long)]
    stories: bool,
    /// Only this one, with all rules or with --canary.
    #[cfg(feature = "canaries")]
    #[arg(long, value_name = "NAME")]
    story: Option<String>,
    /// Seconds of a processor for each of two threads, after which one that was not caught has
    /// survived; on a machine that is shared, four times as many at most.
    #[cfg(feature = "canaries")]
    #[arg(long, value_name = "S", default_value_t = 60.0)]
    canary_seconds: f64,
}

/// Which part of the exhaustive sets.
fn slice(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    parts.filter(|(i, n)| i < n).ok_or_else(|| "a part looks like 0/4".to_owned())
}

/// What a run did.
#[derive(serde::Serialize)]
struct Summary {
    #[serde(flatten)]
    counts: Counts,
    /// Operations of the longest sequences that were all explored; `None` when the run stopped
    /// before.
    exhaustive_operations: Option<usize>,
    seeds: u64,
    seconds: f64,
    failures: usize,
}

impl Args {
    fn effort(&self) -> Effort {
        Effort { images: self.images.max(1), inside_one_in: 6, afterlife_one_in: 8, tamper_one_in: 24 }
    }

    fn work(&self, worker: &mut Worker<'_>) -> anyhow::Result<(bool, u64)> {
        let only = Only { crash: self.crash, image: self.image };
        if let Some(text) = &self.history {
            let history: History =
                serde_json::from_str(text).context("--history is not one that was printed")?;
            worker.check(&history, if self.all_steps { 0 } else { history.steps.len() - 1 }, only);
            return Ok((false, 0));
        }
        if let Some(seed) = self.seed {
            if self.print {
                println!("{}", serde_json::to_string(&explore::seeded(seed))?);
                return Ok((false, 0));
            }
            worker.seed(seed, only);
            return Ok((false, 1));
        }
        worker.whole = self.whole;
        let (index, of) = (worker.index, worker.of);
        (worker.index, worker.of) = (index + of * self.slice.0, of * self.slice.1);
        let complete = self.exhaustive > 0
            && worker.exhaustive(self.exhaustive)
            && worker.spilled(self.exhaustive.min(SPILLED_OPERATIONS_MAX));
        (worker.index, worker.of) = (index, of);
        let until = Instant::now() + Duration::from_secs_f64(self.minutes * 60.0);
        let seeds = match self.seeds {
            Some(count) => worker.seeds(self.first_seed, count, None),
            None => worker.seeds(self.first_seed, u64::MAX, Some(until)),
        };
        Ok((complete, seeds))
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default(panic);
        eprintln!("again: cargo run --release -p holdfast-sim -- {}", holdfast_sim::run::playing());
    }));
    #[cfg(feature = "canaries")]
    if let Some(done) = with_canaries(&args) {
        return done.unwrap_or_else(|error| {
            eprintln!("holdfast-sim: {error:#}");
            ExitCode::from(2)
        });
    }
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("holdfast-sim: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// What this build is for; `None`: an ordinary run, with the chosen bug if a history is played
/// again.
#[cfg(feature = "canaries")]
fn with_canaries(args: &Args) -> Option<anyhow::Result<ExitCode>> {
    let limit = Duration::from_secs_f64(args.canary_seconds);
    if let Some(story) = &args.story {
        return Some(rules::one(story, args.canary).map(|()| ExitCode::SUCCESS));
    }
    match args.canary {
        _ if args.stories => Some(rules::all(limit)),
        _ if args.canaries => Some(canaries::all(limit)),
        Some(canary) if args.history.is_some() || args.seed.is_some() => {
            holdfast_canary::arm(Some(canary));
            None
        }
        Some(canary) => Some(canaries::one(canary, args.effort(), limit).map(|()| ExitCode::SUCCESS)),
        None => None,
    }
}

fn run(args: &Args) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let shared = &Shared::default();
    let (sender, failures) = channel::<Failure>();
    let single = args.seed.is_some() || args.history.is_some();
    let threads = if single { 1 } else { args.threads.max(1) };
    let (mut counts, mut complete, mut seeds, mut failed) = (Counts::default(), true, 0, 0);
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let failures = sender.clone();
                let effort = args.effort();
                scope.spawn(move || {
                    let mut worker = Worker::new(effort, shared, failures).part(index, threads);
                    let done = args.work(&mut worker);
                    shared.ends();
                    (done, worker.counts)
                })
            })
            .collect();
        drop(sender);
        let mut told = Instant::now();
        let mut watchman = Watchman::default();
        loop {
            match failures.recv_timeout(LOOK) {
                Ok(failure) => {
                    failed += 1;
                    show(&failure);
                    if failed >= FAILURES_MAX {
                        shared.stop.store(true, Ordering::Relaxed);
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    if let Some(replay) = watchman.look(shared, LOOKS_MAX) {
                        never_ends(&replay);
                    }
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                eprintln!(
                    "{:4.0} s: {} histories, {} images",
                    begun.elapsed().as_secs_f64(),
                    shared.histories.load(Ordering::Relaxed),
                    shared.images.load(Ordering::Relaxed)
                );
            }
        }
        for worker in workers {
            let (done, counted) = worker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
            let (whole, played) = done?;
            counts.add(&counted);
            complete &= whole;
            seeds += played;
        }
        Ok(())
    })?;
    let summary = Summary {
        counts,
        exhaustive_operations: complete.then_some(args.exhaustive),
        seeds,
        seconds: begun.elapsed().as_secs_f64(),
        failures: failed,
    };
    tell(args, &summary)?;
    Ok(failed == 0)
}

/// A thread hangs where nothing that it does can end it: it cannot be waited for.
fn never_ends(replay: &str) -> ! {
    let seconds = (LOOK * LOOKS_MAX).as_secs();
    println!("FAILURE: a history never ends: nothing of it came to an end within {seconds} seconds");
    println!("again: cargo run --release -p holdfast-sim -- {replay}\n");
    std::process::exit(1);
}

fn show(failure: &Failure) {
    println!("FAILURE: {}\n{}", failure.violation, failure.history);
    for line in &failure.violation.trail {
        println!("  {line}");
    }
    println!("again: cargo run --release -p holdfast-sim -- {}\n", failure.replay);
}

fn tell(args: &Args, summary: &Summary) -> anyhow::Result<()> {
    if args.json {
        println!("{}", serde_json::to_string(summary)?);
        return Ok(());
    }
    let counts = &summary.counts;
    println!(
        "{} histories ({} seeds, {} writes in state Behind), {} crash points, {} crash images checked ({} that had come up before, {} of crashes \
         inside recovery, {} changed by others before recovery, {} served and crashed again), {} recoveries, {:.1} s, {}",
        counts.histories,
        summary.seeds,
        counts.writes_behind,
        counts.crash_points,
        counts.images,
        counts.images_known,
        counts.images_inside_recovery,
        counts.tampered,
        counts.afterlives,
        counts.recoveries,
        summary.seconds,
        match summary.failures {
            0 => "no failure".to_owned(),
            n => format!("{n} FAILURES"),
        }
    );
    if let Some(operations) = summary.exhaustive_operations {
        match args.slice {
            (_, 1) => {
                let left_out = if args.whole { 0 } else { explore::left_out(operations) };
                let run = counts.histories_of_sets;
                println!(
                    "exhaustive sets complete for sequences of up to {operations} operations on two files and two threads: \
                     {run} histories run, which stand for {} ({left_out} with steps that change nothing, all with files and \
                     threads exchanged)",
                    2 * (run + left_out)
                );
            }
            (i, n) => {
                println!("part {i} of {n} of the exhaustive sets of up to {operations} operations complete")
            }
        }
    }
    let last = args.first_seed + summary.seeds.saturating_sub(1);
    println!(
        "tally: simulator: histories {}, crash points {}, crash images {}, recoveries {}; seed {} to {last}, {:.1} s",
        counts.histories,
        counts.crash_points,
        counts.images,
        counts.recoveries,
        args.first_seed,
        summary.seconds
    );
    Ok(())
}
