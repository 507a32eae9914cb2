//! Differential fuzzing with the kernel as oracle. Random calls by one thread, several threads or
//! several processes are made twice, through libc under Holdfast and as bare system calls on twin
//! files, and compared call by call (`conformance/fuzz/differ.c`). Afterwards everything is killed,
//! and recovery writes what the log holds over files that are right already: nothing may change, so
//! the log agrees with the kernel too.
//!
//! A failure prints its seed; `HOLDFAST_E2E_SEED` repeats the choices,
//! `HOLDFAST_DIFFERENTIAL_CALLS` says how many calls each of the tests makes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{disk, proc, report, tally};
use holdfast_testkit::Random;
use tempfile::TempDir;

const CALLS: u64 = 60_000;
/// Calls of one program run.
const CALLS_AT_ONCE: u64 = 500_000;

fn calls() -> u64 {
    let wanted = std::env::var("HOLDFAST_DIFFERENTIAL_CALLS").ok();
    wanted.map_or(CALLS, |text| text.parse().expect("HOLDFAST_DIFFERENTIAL_CALLS is a number"))
}

/// Whether all runs are asked to have files in state Behind.
fn all_behind() -> bool {
    std::env::var("HOLDFAST_E2E_RUN_OPTIONS").is_ok_and(|options| options.contains("write-behind"))
}

/// Whether files are logged from their first sync on, as by default.
fn logs_from_sync() -> bool {
    std::env::var("HOLDFAST_E2E_RUN_OPTIONS").is_ok_and(|options| options.contains("durability=sync"))
}

/// The compiled fuzzer.
fn program() -> &'static str {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let build = || {
        let home = disk::directory();
        let program = home.path().join("differ");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/fuzz/differ.c");
        Cmd::new("gcc").args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(source).ok();
        (home, program)
    };
    BUILT.get_or_init(build).1.to_str().expect("text")
}

/// Runs the fuzzer on a file system of its own; `behind`: with files in state Behind.
fn agrees(mode: &str, kind: Kind, behind: bool) {
    let disk = Disk::new(kind);
    let mut random = Random::named(mode);
    let (mut left, mut absorbed) = (calls(), 0);
    while left > 0 {
        let calls = left.min(CALLS_AT_ONCE);
        left -= calls;
        let seed = random.draw().to_string();
        let directory = disk.root.join(format!("{mode}-{seed}"));
        std::fs::create_dir(&directory).expect("directory");
        let text = directory.to_str().expect("text");
        // By turns fenced and not, with a log that is written round and one that is not.
        let pool = Pool::with_size(if random.between(0, 2) == 0 { "32M" } else { "256M" });
        let mut options = if random.between(0, 2) == 0 { vec!["--exclusive", text] } else { vec![] };
        if behind {
            options.push("--write-behind=at-once");
        }
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        let summary = format!("--summary={}", file.path().display());
        let run = pool.run(&options).arg(summary).arg("--");
        let run = run.args([program(), &seed, &calls.to_string(), mode, text]);
        let run = if behind || all_behind() { run.env("DIFFER_BEHIND", "1") } else { run };
        let output = run.limit(Duration::from_secs(60 + calls / 1000)).output();
        assert!(output.code() == 0 && output.stdout.ends_with("calls agree\n"), "{}", output.told());
        let summary = report::parse(&std::fs::read_to_string(file.path()).expect("summary"));
        assert!(report::flag(&summary, "drained"), "{summary:#}");
        absorbed += report::number(&summary, "writes_absorbed");
        Cmd::new("diff").arg("-r").arg(directory.join("held")).arg(directory.join("plain")).ok();
        std::fs::remove_dir_all(&directory).expect("removed");
    }
    let state = if behind { "behind" } else { "through" };
    let seed = random.seed();
    tally::say(&format!(
        "differential, {mode}, {state}: calls compared {}, of which absorbed {absorbed}; seed {seed}",
        calls()
    ));
    // A third of the calls write, and most files are managed; by default fewer, since names change
    // all the time, and files among others are left to the kernel.
    let absorbed_min = if logs_from_sync() { 1 } else { calls() / 6 };
    assert!(absorbed >= absorbed_min, "{absorbed} writes absorbed of {} calls", calls());
}

#[test]
fn one_thread_agrees_with_the_kernel() {
    agrees("single", Kind::Ext4, false);
}

#[test]
fn one_thread_agrees_in_state_behind() {
    agrees("single", Kind::Xfs, true);
}

#[test]
fn threads_agree_in_state_behind() {
    agrees("threads", Kind::Ext4, true);
}

#[test]
fn processes_agree_in_state_behind() {
    agrees("processes", Kind::Xfs, true);
}

#[test]
fn threads_agree_with_the_kernel() {
    agrees("threads", Kind::Xfs, false);
}

#[test]
fn processes_agree_with_the_kernel() {
    agrees("processes", Kind::Btrfs, false);
}

/// What recovery did not write. Of a file that had many names the slot's two may all be gone, and
/// recovery leaves its records to a person; what stands at those names is right, and stays so.
/// Anything else that is left is a failure.
fn set_aside(report: &serde_json::Value) -> Vec<String> {
    let files = report::find(report, "files").and_then(|files| files.as_array().cloned()).unwrap_or_default();
    let text = |file: &serde_json::Value, name| {
        report::find(file, name).and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let is_expected = |file: &serde_json::Value| match text(file, "outcome").as_str() {
        "replayed" | "unlinked" => true,
        _ => {
            let reason = text(file, "reason");
            reason.starts_with("another file stands") || reason.starts_with("it is not at any of its paths")
        }
    };
    let unexpected = files.iter().filter(|file| !is_expected(file));
    unexpected.map(|file| format!("{}: {}", text(file, "path"), text(file, "reason"))).collect()
}

#[test]
fn the_log_agrees_with_the_kernel() {
    let disk = Disk::new(Kind::Ext4);
    let mut random = Random::named("log");
    let mut left = calls();
    while left > 0 {
        let calls = left.min(20_000);
        left -= calls;
        let seed = random.draw().to_string();
        let mode = ["single", "threads", "processes"][random.between(0, 3) as usize];
        let directory = disk.root.join(format!("log-{seed}"));
        std::fs::create_dir(&directory).expect("directory");
        let text = directory.to_str().expect("text");
        let pool = Pool::with_size("512M");
        // As much as possible stays in the log until the end.
        let options =
            ["--age-max", "600000", "--batch-min", "400M", "--batch-max", "450M", "--exclusive", text];
        let run = pool.run(&options).arg("--").args([program(), &seed, &calls.to_string(), mode, text]);
        let run = if all_behind() { run.env("DIFFER_BEHIND", "1") } else { run };
        let mut supervisor = run.env("DIFFER_STAYS", "1").spawn();
        let mut told = String::new();
        let mut lines = BufReader::new(supervisor.stdout.take().expect("piped"));
        lines.read_line(&mut told).expect("a line");
        assert!(told.ends_with("calls agree\n"), "seed {seed} {mode}: {told}");
        let below = proc::descendants(supervisor.id());
        // The supervisor first, or it would recover; then the keeper, or it would bring everything
        // to disk.
        proc::kill_hard(supervisor.id());
        supervisor.wait().expect("wait");
        proc::keepers(&pool.path).into_iter().chain(below).for_each(proc::kill_hard);
        let recovered = pool.recover(&["--replay"]);
        recovered.expect(&[0, 1]);
        let aside = set_aside(&report::parse(&recovered.stdout));
        assert!(aside.is_empty(), "seed {seed} {mode}: {}", aside.join("\n"));
        let differ =
            Cmd::new("diff").arg("-r").arg(directory.join("held")).arg(directory.join("plain")).output();
        assert!(
            differ.code() == 0,
            "seed {seed} {mode}: the log differs\n{}\n{}",
            differ.told(),
            recovered.told()
        );
        std::fs::remove_dir_all(&directory).expect("removed");
    }
    tally::say(&format!("differential, log: calls compared {}; seed {}", calls(), random.seed()));
}
