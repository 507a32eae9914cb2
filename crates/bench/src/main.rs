//! `holdfast-bench`: Holdfast beside what people run today, on the machine at hand.
//!
//! Every benchmark runs real, unmodified programs on all its sides in turn (A B C A B C ...),
//! prints the median and the spread of each side, and the ratios the project promises with their
//! bars. A missed bar is information and never an exit code; a side that could not run is an error.
//! It must never touch files outside its own directories, and never print a number without the
//! machine it came from.
mod append_api;
mod bare;
mod behind_reads;
mod behind_writes;
mod catalog;
mod fio;
mod fio_benches;
mod keeperless;
mod lab;
mod lifecycle;
mod machine;
mod maildir;
mod mount;
mod postgres;
mod presence;
mod recovery;
mod redis;
mod report;
mod rocksdb;
mod running;
mod saves;
mod sqlite;
mod stages;
mod varmail;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;

use crate::catalog::{BENCHMARKS, Benchmark};
use crate::lab::{Lab, Options};

/// Compare Holdfast with native, eatmydata and tmpfs on this machine.
#[derive(Parser)]
#[command(name = "holdfast-bench", version, after_help = EXAMPLES)]
struct Args {
    /// Benchmarks to run, or `all`; without any, the quick ones
    names: Vec<String>,
    /// Times each side is run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of one run of one side, in seconds; counts of operations scale with it
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Directory on the file system to measure
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Pool to use; created when missing, and removed at the end if it was
    #[arg(long)]
    pool: Option<PathBuf>,
    /// Size of a pool that is created, in MiB
    #[arg(long, default_value_t = 4096)]
    pool_mib: u64,
    /// Pass `--exclusive DIR` to Holdfast: no fence against outsiders
    #[arg(long)]
    exclusive: bool,
    /// The holdfast program [default: the one beside this program]
    #[arg(long)]
    holdfast: Option<PathBuf>,
    /// Write everything, samples included, to this file as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// List the benchmarks and their bars, run nothing
    #[arg(long)]
    list: bool,
}

const EXAMPLES: &str = "Examples:
  cargo build --release && cargo run --release -p holdfast-bench
  holdfast-bench --list
  holdfast-bench all --json results.json
  holdfast-bench fio-randwrite sqlite-wal --rounds 9 --dir /mnt/xfs --pool /mnt/pmem/bench.pool";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let done = match args.get(1).map(String::as_str) {
        Some(worker::WORKER) => worker::run(&args[2..]),
        Some(maildir::DELIVERER) => maildir::run(&args[2..]),
        Some(saves::EDITOR) => saves::run(&args[2..]),
        Some(varmail::SERVER) => varmail::run(&args[2..]),
        _ => run(Args::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    if args.list {
        for benchmark in BENCHMARKS {
            let quick = if benchmark.quick { "quick" } else { "" };
            println!("{:15} {:6} {}", benchmark.name, quick, benchmark.about);
        }
        return Ok(());
    }
    let chosen = choose(&args.names)?;
    require_tools(&chosen)?;
    let lab = Lab::new(Options {
        rounds: args.rounds,
        seconds: args.seconds,
        dir: args.dir,
        pool: args.pool,
        pool_bytes: args.pool_mib << 20,
        exclusive: args.exclusive,
        holdfast: args.holdfast,
    })?;
    let machine = describe(&lab);
    println!("{machine}");
    let mut results = report::Results { machine, outcomes: Vec::new(), failed: Vec::new() };
    for benchmark in chosen {
        match (benchmark.run)(&lab) {
            Ok(mut outcome) => {
                outcome.name = benchmark.name;
                outcome.about = benchmark.about;
                outcome.notes.extend(lab.take_absorbed_notes(benchmark.absorbs));
                print!("\n{outcome}");
                results.outcomes.push(outcome);
            }
            Err(error) => {
                lab.take_absorbed_notes(false);
                println!("\n{}: FAILED: {error:#}", benchmark.name);
                results.failed.push(report::Failure { name: benchmark.name, error: format!("{error:#}") });
            }
        }
        if let Some(path) = &args.json {
            let text = serde_json::to_string_pretty(&results).context("could not encode the results")?;
            std::fs::write(path, text).with_context(|| format!("could not write {}", path.display()))?;
        }
    }
    match results.failed.len() {
        0 => Ok(()),
        n => bail!("{n} of {} benchmarks could not run", n + results.outcomes.len()),
    }
}

fn choose(names: &[String]) -> Result<Vec<&'static Benchmark>> {
    if names.is_empty() {
        return Ok(BENCHMARKS.iter().filter(|b| b.quick).collect());
    }
    if names.iter().any(|name| name == "all") {
        return Ok(BENCHMARKS.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            BENCHMARKS
                .iter()
                .find(|b| b.name == name)
                .with_context(|| format!("there is no benchmark {name}; --list shows all"))
        })
        .collect()
}

fn require_tools(chosen: &[&Benchmark]) -> Result<()> {
    let mut missing: Vec<(&str, &str)> = chosen
        .iter()
        .flat_map(|benchmark| benchmark.tools)
        .filter(|(program, _)| machine::find_program(program).is_none())
        .copied()
        .collect();
    missing.sort_unstable();
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let programs: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    bail!("not installed: {}; install with: apt-get install {}", programs.join(", "), packages.join(" "))
}

/// One paragraph: CPU, memory, kernel, file system under test, media of the pool.
fn describe(lab: &Lab) -> String {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    let memory_gib = machine::field("/proc/meminfo", "MemTotal")
        .and_then(|kib| kib.split(' ').next()?.parse::<f64>().ok())
        .unwrap_or(0.0)
        / (1024.0 * 1024.0);
    let fence = if lab.options.exclusive { "none (--exclusive)" } else { "automatic" };
    format!(
        "machine: {cpus} x {}, {memory_gib:.0} GiB, Linux {}\nfiles: {} on {}\npool: {} of {} MiB, {}\nrounds: {}, \
         {} s per run, sides in turn; median (min .. max); fence against outsiders: {fence}",
        machine::field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown CPU".into()),
        std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        lab.options.dir.display(),
        machine::file_system(&lab.options.dir).unwrap_or_else(|| "an unknown file system".into()),
        lab.pool.display(),
        lab.options.pool_bytes >> 20,
        machine::media(&lab.pool),
        lab.options.rounds,
        lab.options.seconds,
    )
}
