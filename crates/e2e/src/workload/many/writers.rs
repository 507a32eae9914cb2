//! The program of the many writers. Each operation is noted in the journal by one append once it
//! returned. An error ends the writer that meets it; the program then fails.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use super::{LOGS, Operation, Operations, SHARED_FILES, file_name, log_name};

/// Runs with the arguments DIR JOURNAL SEED PROCESSES THREADS OPERATIONS SYNCED, and perhaps
/// PROCESS. The processes are started as this very program with `prefix` before the arguments.
pub fn run(prefix: &[&str], arguments: &[String]) -> ExitCode {
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(seed), Some(processes), Some(threads), Some(operations), Some(synced)) =
        (number(2), number(3), number(4), number(5), number(6))
    else {
        eprintln!("the writers need: DIR JOURNAL SEED PROCESSES THREADS OPERATIONS SYNCED [PROCESS]");
        return ExitCode::from(2);
    };
    let (dir, journal) = (Path::new(&arguments[0]), Path::new(&arguments[1]));
    let well = match number(7) {
        None => {
            // Processes that meet a file at the same moment are strangers to each other, and leave
            // it to the kernel. One that was there before spares them that; in one run of eight
            // they meet.
            let first = (seed % 8 != 0).then(|| take(dir));
            let well = start(prefix, arguments, processes);
            drop(first);
            well
        }
        Some(process) => std::thread::scope(|scope| {
            let writers: Vec<_> = (process * threads..(process + 1) * threads)
                .map(|writer| scope.spawn(move || write(dir, journal, seed, writer, operations, synced == 1)))
                .collect();
            writers.into_iter().all(|writer| writer.join().expect("no writer panics").is_ok())
        }),
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn open(dir: &Path, name: String, append: bool) -> io::Result<File> {
    File::options().create(true).write(!append).append(append).open(dir.join(name))
}

fn open_all(dir: &Path) -> io::Result<Vec<File>> {
    let files = (0..SHARED_FILES).map(|file| open(dir, file_name(file), false));
    files.chain((0..LOGS).map(|log| open(dir, log_name(log), true))).collect()
}

/// Opens all files and makes a change that changes nothing, so that they become Holdfast's.
fn take(dir: &Path) -> io::Result<Vec<File>> {
    let files = open_all(dir)?;
    files.iter().try_for_each(|file| file.set_len(0))?;
    Ok(files)
}

/// Starts the processes and waits for all of them.
fn start(prefix: &[&str], arguments: &[String], processes: u64) -> bool {
    let program = std::env::current_exe().expect("the program's own path");
    let process =
        |number: u64| Command::new(&program).args(prefix).args(arguments).arg(number.to_string()).spawn();
    let children: io::Result<Vec<_>> = (0..processes).map(process).collect();
    let ends =
        children.expect("processes").into_iter().map(|mut child| child.wait().expect("wait").success());
    // All of them, not only up to the first that failed.
    ends.filter(|well| !well).count() == 0
}

/// One writer.
fn write(
    dir: &Path,
    journal: &Path,
    seed: u64,
    writer: u64,
    operations: u64,
    synced: bool,
) -> io::Result<()> {
    let mut journal = File::options().create(true).append(true).open(journal)?;
    let mut files = open_all(dir)?;
    for (operation, number) in Operations::new(seed, writer).zip(1..=operations) {
        let file = match operation {
            Operation::Write { file, offset, bytes } => {
                let file = &files[file as usize];
                file.write_all_at(&bytes, offset)?;
                file
            }
            Operation::Append { log, bytes } => {
                let mut file = &files[(SHARED_FILES + log) as usize];
                file.write_all(&bytes)?;
                file
            }
        };
        if synced {
            file.sync_all()?;
            File::open(dir)?.sync_all()?;
        }
        journal.write_all(format!("{writer} {number}\n").as_bytes())?;
        // New descriptions now and then, so that files come and go under the keeper's eyes.
        if number % 50 == 0 {
            files = open_all(dir)?;
        }
    }
    Ok(())
}
