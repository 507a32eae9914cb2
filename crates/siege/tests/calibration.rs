//! The simulator's disks are held to the kernels: a sample of the cases that both know, in which
//! neither may differ, and the controls: models that are wrong, which must. `HOLDFAST_E2E_SEED`
//! repeats the choices, `HOLDFAST_E2E_ROUNDS` multiplies the time.

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_siege::calibrate::WEAKER;
use holdfast_testkit::rounds;
use serde_json::Value;

/// Seconds for each file system.
const SAMPLE_S: u64 = 6;

fn calibrate(fs: &str) -> Cmd {
    Cmd::new(env!("CARGO_BIN_EXE_holdfast-siege")).args(["--calibrate", "--fs", fs])
}

/// The kinds of differences that it found. Fails the test when it could not compare.
fn kinds(fs: &str, output: &Output) -> Vec<String> {
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", output.told());
    let found: Value =
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}\n{}", output.told()));
    assert_eq!(found[fs]["unjudged"], 0, "{}", output.told());
    let differences = found[fs]["differences"].as_array().expect("a list");
    differences.iter().map(|difference| difference["kind"].as_str().expect("a kind").to_owned()).collect()
}

fn sample(fs: &str) {
    let seed = std::env::var("HOLDFAST_E2E_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let seconds = (SAMPLE_S * rounds()).to_string();
    let output = calibrate(fs).args(["--seconds", &seconds, "--seed", &seed.to_string()]).output();
    for line in output.stdout.lines().filter(|line| line.starts_with("tally: ")) {
        holdfast_e2e::tally::say(line.trim_start_matches("tally: "));
    }
    output.ok();
}

#[test]
fn the_simulated_ext4_leaves_what_ext4_leaves() {
    sample("ext4");
}

#[test]
fn the_simulated_xfs_leaves_what_xfs_leaves() {
    sample("xfs");
}

#[test]
fn the_simulated_btrfs_leaves_what_btrfs_leaves() {
    sample("btrfs");
}

/// A wrong model, a file system, a case that shows it, and how.
const WRONG: &[(&str, &str, &str, &str)] = &[
    ("data-sync-commits", "ext4", "mkdir a/new1; over a/live; fdatasync a/live", "Refused"),
    ("data-sync-commits", "xfs", "mkdir a/new1; over a/live; fdatasync a/live", "Refused"),
    ("directory-sync-covers-all", "btrfs", "mkdir a/new1; mkdir b/new2; fsync b", "Refused"),
    ("synced-bytes-lost", "ext4", "over a/old; fsync a/old", "Weaker"),
    ("synced-bytes-lost", "xfs", "over a/old; fsync a/old", "Weaker"),
    ("synced-bytes-lost", "btrfs", "over a/old; fsync a/old", "Weaker"),
    ("sync-commits-nothing", "ext4", "create a/new1; fsync a/new1", "Weaker"),
    ("sync-commits-nothing", "xfs", "create a/new1; fsync a/new1", "Weaker"),
    ("sync-commits-nothing", "btrfs", "create a/new1; fsync a/new1", "Weaker"),
    ("unordered", "ext4", "mkdir a/new1; unlink a/old", "Weaker"),
    ("unordered", "xfs", "mkdir a/new1; unlink a/old", "Weaker"),
];

#[test]
fn wrong_models_are_refused() {
    for (wrong, fs, case, kind) in WRONG {
        let right = calibrate(fs).args(["--json", "--case", case]).output();
        assert!(kinds(fs, &right).is_empty(), "{case}\n{}", right.told());
        let output = calibrate(fs).args(["--json", "--case", case, "--wrong", wrong]).output();
        let kinds = kinds(fs, &output);
        assert!(kinds.iter().any(|found| found == kind), "{wrong} on {fs}: {kinds:?}\n{}", output.told());
    }
}

/// Each way in which a model is weaker on purpose is still one, and the only reason of its case.
#[test]
fn what_is_weaker_on_purpose_still_is() {
    for weaker in WEAKER {
        let fs = weaker.on[0].name();
        let output = calibrate(fs).args(["--json", "--case", weaker.case]).output();
        assert!(kinds(fs, &output).is_empty(), "{}\n{}", weaker.name, output.told());
        let output = calibrate(fs).args(["--json", "--strict", "--case", weaker.case]).output();
        let found = kinds(fs, &output);
        assert_eq!(
            found,
            ["Weaker"],
            "{} is needed no more: take it from WEAKER\n{}",
            weaker.name,
            output.told()
        );
    }
}
