//! Tests with a rule taken out: the build that can have deliberate bugs, and which of them a test
//! does not miss. It plays tests by their names and knows nothing of what they show.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cmd::Cmd;

/// The `holdfast` that can have deliberate bugs.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("HOLDFAST_CANARIES_BIN").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/canaries/canaries/holdfast"),
        PathBuf::from,
    );
    path.canonicalize().unwrap_or_else(|error| {
        panic!("{}: {error}: docs/testing.md, Known histories, says how to build it", path.display())
    })
}

/// A bug may need a moment that does not come each time: so often a test may miss it.
const TRIES: usize = 3;
/// Rules that are taken out beside each other.
const BESIDE: usize = 2;

/// The bugs that survive the test of this executable that stands beside each; one after the other,
/// for tests that must be alone.
pub fn survivors(rules: &[(&str, &str)]) -> Vec<String> {
    survivors_of(rules, 1)
}

/// The same for tests that wait more than they compute, and may do so beside each other.
pub fn survivors_side_by_side(rules: &[(&str, &str)]) -> Vec<String> {
    survivors_of(rules, BESIDE)
}

fn survivors_of(rules: &[(&str, &str)], threads: usize) -> Vec<String> {
    let (holdfast, this) = (binary(), std::env::current_exe().expect("the test's own path"));
    let survives_once = |bug: &str, test: &str| {
        let cmd = Cmd::new(&this).args(["--exact", test, "--test-threads=1"]).env("HOLDFAST_BIN", &holdfast);
        let output = cmd.env("HOLDFAST_CANARY", bug).limit(Duration::from_secs(120)).output();
        let [passed, failed] =
            ["1 passed; 0 failed;", "0 passed; 1 failed;"].map(|end| output.stdout.contains(end));
        assert!(passed != failed, "{test} with {bug} was not run\n{}", output.told());
        passed
    };
    let next = AtomicUsize::new(0);
    let survivors = || -> Vec<String> {
        let taken = std::iter::from_fn(|| rules.get(next.fetch_add(1, Ordering::Relaxed)));
        let survive = taken.filter(|(bug, test)| (0..TRIES).all(|_| survives_once(bug, test)));
        survive.map(|(bug, test)| format!("{bug} in {test}")).collect()
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(survivors)).collect();
        let found = all.into_iter().map(|thread| thread.join());
        found.flat_map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
