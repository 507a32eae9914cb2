//! The corpus, every input that once broke something included, and a few seconds of new inputs.

use std::path::Path;
use std::time::Duration;

use holdfast_fuzz::session::{Work, corpus, inputs, supervise};
use holdfast_fuzz::{Bench, Target};

fn replay(target: Target) {
    let mut bench = Bench::new(target).unwrap();
    for (name, input) in inputs(&corpus(target)).unwrap() {
        if let Err(error) = bench.feed(&input) {
            panic!("{}/{name}: {error:#}", target.name());
        }
    }
}

#[test]
fn known_superblocks_are_opened_or_refused() {
    replay(Target::Open);
}

#[test]
fn known_segments_are_scanned() {
    replay(Target::Scan);
}

#[test]
fn known_pools_are_recovered_and_nothing_else_is_touched() {
    replay(Target::Recover);
}

/// Each target for a few seconds, in a process with bounded memory and time, as `cargo run -p
/// holdfast-fuzz` does.
#[test]
fn new_inputs_break_nothing() {
    let scratch = tempfile::tempdir_in("/dev/shm").unwrap();
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    for target in Target::ALL {
        let current = scratch.path().join(target.name());
        let work = Work { target, seed, time: Duration::from_secs(2), current, keep: None, quiet: true };
        if let Err(error) = supervise(Path::new(env!("CARGO_BIN_EXE_holdfast-fuzz")), &work) {
            panic!("{error:#}");
        }
    }
}
