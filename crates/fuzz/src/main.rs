//! The fuzzer's command line.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use holdfast_fuzz::Target;
use holdfast_fuzz::session::{Work, replay, supervise, work};

/// Feeds hostile pools to open, scan and recovery.
#[derive(Parser)]
struct Args {
    /// How long, for all targets together.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only this target.
    #[arg(long)]
    target: Option<Target>,
    /// Where the random numbers begin; without it, with the time.
    #[arg(long)]
    seed: Option<u64>,
    /// Feed this one input.
    #[arg(long, requires = "target")]
    replay: Option<PathBuf>,
    /// Put inputs with new outcomes here.
    #[arg(long)]
    keep: Option<PathBuf>,
    #[arg(long, hide = true, requires = "target")]
    worker: bool,
    #[arg(long, hide = true)]
    current: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let seed = args
        .seed
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64));
    if let (Some(target), Some(path)) = (args.target, &args.replay) {
        for outcome in replay(target, &std::fs::read(path)?)? {
            println!("{outcome}");
        }
        return Ok(());
    }
    if let (true, Some(target), Some(current)) = (args.worker, args.target, args.current) {
        return work(&Work {
            target,
            seed,
            time: Duration::from_secs(args.seconds),
            current,
            keep: args.keep,
            quiet: false,
        });
    }
    let targets = args.target.map_or(Target::ALL.to_vec(), |target| vec![target]);
    println!("seed {seed}");
    let scratch = tempfile::Builder::new().prefix("holdfast-fuzz-").tempdir_in("/dev/shm")?;
    for target in &targets {
        // Recovery is where decisions are made: it gets most of the time.
        let share = match (targets.len(), target) {
            (1, _) => args.seconds,
            (_, Target::Recover) => args.seconds * 8 / 10,
            _ => args.seconds / 10,
        };
        let current = scratch.path().join(target.name());
        let keep = args.keep.as_ref().map(|keep| keep.join(target.name()));
        if let Some(keep) = &keep {
            std::fs::create_dir_all(keep)?;
        }
        let time = Duration::from_secs(share.max(1));
        supervise(
            &std::env::current_exe()?,
            &Work { target: *target, seed, time, current, keep, quiet: false },
        )?;
    }
    Ok(())
}
