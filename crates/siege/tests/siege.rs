//! A sample of all short sequences, in which nothing may differ, and the controls without which
//! that would prove nothing: syncs that do nothing, and deliberate bugs, must be found.
//! `HOLDFAST_E2E_SEED` repeats the choices, `HOLDFAST_E2E_ROUNDS` multiplies the time.

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_testkit::rounds;
use serde_json::Value;

/// Seconds for each file system.
const SAMPLE_S: u64 = 20;

fn siege() -> Cmd {
    Cmd::new(env!("CARGO_BIN_EXE_holdfast-siege"))
}

/// What it found, by file system. Fails the test when it could not play.
fn found(output: &Output) -> Value {
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", output.told());
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}\n{}", output.told()))
}

/// How long an outsider waits behind each of its steps. Shorter than that is the window in which
/// nobody has heard of it yet (docs/crash/others.md).
const PAUSE_MS: &str = "20";

fn sample(fs: &str) {
    // The same cases each time, so that a difference shows where it came in. New ones are searched
    // for by the command.
    let seed = std::env::var("HOLDFAST_E2E_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
    let seconds = (SAMPLE_S * rounds()).to_string();
    let output = siege()
        .args(["--fs", fs, "--length", "1,2,3,4", "--seconds", &seconds, "--keep-going"])
        .args(["--seed", &seed.to_string()])
        .args(["--outsider-pause", PAUSE_MS])
        .output();
    for line in output.stdout.lines().filter(|line| line.starts_with("tally: ")) {
        holdfast_e2e::tally::say(line.trim_start_matches("tally: "));
    }
    output.ok();
    let with_records = output.stdout.contains(", 0 with records");
    assert!(!with_records, "no recovery found a record: the test proves nothing\n{}", output.told());
}

#[test]
fn what_ext4_leaves_natively_is_left() {
    sample("ext4");
}

#[test]
fn what_xfs_leaves_natively_is_left() {
    sample("xfs");
}

#[test]
fn what_btrfs_leaves_natively_is_left() {
    sample("btrfs");
}

/// Without syncs something must be lost, on each file system, or the power cut is none.
#[test]
fn without_syncs_something_is_lost() {
    for fs in ["ext4", "xfs", "btrfs"] {
        let output = siege().args(["--fs", fs, "--length", "1", "--forget", "--whole", "--json"]).output();
        let found = found(&output);
        assert!(!found[fs]["differences"].as_array().expect("a list").is_empty(), "{}", output.told());
    }
}

/// Each deliberate bug, and a case that shows it and nothing else, on a file system.
const BUGS: &[(&str, &str, &str)] = &[
    ("RecordsCoarse", "ext4", "utimens a/live; otrunc a/live"),
    ("TimesOvertaken", "btrfs", "unlink b/clean; append a/live; utimens a/live; fsync a/live"),
    ("CommitSkipped", "ext4", "mkdir a/new1; unlink a/made"),
    ("PendingIgnored", "ext4", "mkdir a/new1; unlink a/made"),
    ("OutsidersUncounted", "ext4", "o:falloc a/made; fsync a"),
    ("SynchronousUnsynced", "ext4", "append a/old; sappend a/old"),
    ("SynchronousUnsynced", "ext4", "sfalloc a/old"),
    ("SynchronousUnsynced", "ext4", "scopy a/old"),
    ("SynchronousUnsynced", "xfs", "ssplice a/live"),
    ("OwnPendingIgnored", "btrfs", "fchmod a/live; punch a/live"),
    ("RecoverNoTruncate", "ext4", "shrink a/live; fsync a/live"),
    ("RecoverNoPunch", "ext4", "punch a/live; fsync a/live"),
    ("RenameForgotten", "ext4", "rename a/made a/moved; fsync a"),
];

#[test]
fn deliberate_bugs_are_found() {
    let holdfast = holdfast_e2e::canaries::binary();
    for (bug, fs, case) in BUGS {
        for canary in [None, Some(bug)] {
            let mut cmd =
                siege().args(["--fs", fs, "--case", case, "--strict"]).arg("--holdfast").arg(&holdfast);
            // A removal among others' changes is not held by default: then nothing is out of order.
            if case.contains("unlink a/made") {
                cmd = cmd.args(["--run-option", "--durability=write"]);
            }
            if let Some(bug) = canary {
                // The keeper may do in time by itself what the bug leaves out.
                cmd = cmd.args(["--canary", bug, "--times", "20"]);
            }
            let output = cmd.output();
            assert_eq!(output.status.code(), Some(i32::from(canary.is_some())), "{bug}\n{}", output.told());
        }
    }
}

/// A difference names a command; that command finds it again.
#[test]
fn a_difference_is_repeated_by_its_command() {
    let output = siege()
        .args(["--fs", "xfs", "--length", "2", "--forget", "--whole", "--json", "--seed", "5"])
        .output();
    let found = found(&output);
    let case = found["xfs"]["differences"][0][1]["case"].as_str().expect("a case").to_owned();
    let output = siege().args(["--fs", "xfs", "--forget", "--case", &case]).output();
    assert_eq!(output.status.code(), Some(1), "{}", output.told());
    assert!(output.stdout.contains(&case), "{}", output.told());
}

/// Nothing tells of a new file in its first milliseconds; it is looked at, and within one tick of
/// the clock its time of change need not move.
#[test]
fn what_outsiders_set_at_a_new_file_is_seen() {
    for case in [
        "over a/made; fsync a/made; o:link a/made b/link2; fsync b/link2",
        "rename a/made a/moved1; o:utimens a/moved1; fdatasync a/moved1",
        "rename a/made a/moved1; o:link a/moved1 b/link2; fsync b/link2",
    ] {
        siege().args(["--fs", "xfs", "--case", case, "--times", "8", "--outsider-pause", PAUSE_MS]).ok();
    }
}
