//! Signal handlers that write to the very page their thread is writing to (history 23), and
//! addresses that cannot be read: the program sees what it sees natively.

use std::path::{Path, PathBuf};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;

fn compiled(into: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/signals.c");
    let program = into.join("signals");
    Cmd::new("cc").args(["-O1", "-Wall", "-pthread", "-o"]).args([&program, &source]).ok();
    program
}

#[test]
fn handlers_and_bad_addresses_are_as_natively() {
    let place = disk::directory();
    let program = compiled(place.path());
    let native = Cmd::new(&program).dir(place.path()).ok();
    std::fs::remove_file(place.path().join("signals.data")).expect("written natively");
    let pool = Pool::new();
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let summary = format!("--summary={}", file.path().display());
    let held = pool.run(&[]).arg(summary).arg("--").arg(&program).dir(place.path()).ok();
    assert_eq!(held.stdout, native.stdout);
    assert!(native.stdout.contains("alarms 1, wrong 0"), "{}", native.stdout);
    let summary = report::parse(&std::fs::read_to_string(file.path()).expect("summary"));
    assert!(report::number(&summary, "writes_absorbed") > 7_000, "{summary:#}");
}

#[test]
fn a_fault_of_the_programs_own_ends_it_as_natively() {
    let place = disk::directory();
    let program = compiled(place.path());
    let pool = Pool::new();
    pool.run(&[]).arg("--").arg(&program).arg("die").dir(place.path()).output().expect(&[139]);
}
