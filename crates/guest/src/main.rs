//! Power cuts of a whole machine: a QEMU guest whose pool lies on DAX media and whose disk forgets
//! what was not flushed is killed from outside at random instants, booted again from the same
//! images, recovered and checked, operation by operation, against what its serial line had
//! acknowledged.
//!
//! What it shows: the DAX paths (device, file with MAP_SYNC on ext4 and xfs) on a stock kernel,
//! recovery by a freshly booted machine, and that what the disk had lost is in the pool. What it
//! cannot show: the NVM is memory of the host, so stores that were never flushed survive the kill
//! as well.
//!
//! It installs nothing and downloads nothing: what is missing is named with the command that
//! installs it.

mod initramfs;
mod kernel;
mod machine;
mod rounds;
mod scattered;
mod services;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use holdfast_e2e::workload::many::{Crew, writers};

/// Cuts the power of a QEMU guest with a pool on DAX media, and checks what is left.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    /// Power cuts of each kind of media.
    #[arg(long, default_value_t = 2)]
    cuts: u64,
    /// Repeats a run's choices.
    #[arg(long)]
    seed: Option<u64>,
    /// Where linux-image was unpacked, if it is not installed (`boot` and `lib/modules` are below).
    #[arg(long, default_value = "/", global = true)]
    kernel: PathBuf,
}

/// The other parts that this program plays.
#[derive(Subcommand)]
enum Part {
    /// Runs services under systemd from installation to removal, with a power cut between.
    ///
    /// Boots Debian 12 twice: installs the package, runs Redis and sqlite3 as three services on two
    /// pools, stops one, upgrades under them, cuts the power, and has the second boot recover
    /// before they start, hold what was acknowledged, and remove Holdfast without a trace. Takes
    /// some five minutes, and three times that beside other work: QEMU emulates the processor.
    /// Needs root, and once before: cargo build --release && crates/guest/src/root.sh
    Services {
        /// A root file system that crates/guest/src/root.sh has made.
        #[arg(long, default_value = "target/guest-root.ext4")]
        root: PathBuf,
    },
    /// Serves the disk.
    #[command(hide = true)]
    Disk { arguments: Vec<String> },
    /// In the guest: the load.
    #[command(hide = true)]
    Writers { arguments: Vec<String> },
    /// In the guest: compares the files with what was acknowledged.
    #[command(hide = true)]
    Judge { dir: String, seed: u64, processes: u64, threads: u64, noted: String },
    /// In the guest: writes to a file of scattered blocks.
    #[command(hide = true)]
    Scatter { file: PathBuf },
    /// In the guest: compares that file with what was acknowledged.
    #[command(hide = true)]
    JudgeScattered { file: PathBuf, told: u64 },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.part {
        Some(Part::Disk { arguments }) => holdfast_forgetful::program(&arguments),
        Some(Part::Writers { arguments }) => writers::run(&["writers"], &arguments),
        Some(Part::Judge { dir, seed, processes, threads, noted }) => {
            let (operations, synced, disk_may_fail) = (u64::MAX, false, false);
            let crew = Crew { seed, processes, threads, operations, synced, disk_may_fail };
            judge(&crew, Path::new(&dir), &noted)
        }
        Some(Part::Scatter { file }) => scattered::write(&file),
        Some(Part::JudgeScattered { file, told }) => {
            match scattered::judge(&file, told) {
                Ok(()) => println!("blocks whole"),
                Err(error) => println!("blocks lost: {error:#}"),
            }
            ExitCode::SUCCESS
        }
        Some(Part::Services { root }) => ended(services::run(&arguments.kernel, &root)),
        None => ended(rounds::run(&arguments.kernel, arguments.cuts, arguments.seed)),
    }
}

fn ended(result: anyhow::Result<()>) -> ExitCode {
    if let Err(error) = result {
        eprintln!("holdfast-guest: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Says one line that the host waits for.
fn judge(crew: &Crew, dir: &Path, noted: &str) -> ExitCode {
    let pairs = noted.split(',').filter_map(|pair| pair.split_once(':'));
    let noted = pairs.filter_map(|(writer, number)| Some((writer.parse().ok()?, number.parse().ok()?)));
    match crew.judge(dir, &noted.collect()) {
        Ok(()) => println!("writers whole"),
        Err(error) => println!("writers lost: {error}"),
    }
    ExitCode::SUCCESS
}
