//! fio with `--verify=crc32c` cut off under load: every file that was completed before verifies
//! afterwards, block by block.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::workload::fio::{Fio, job};
use holdfast_e2e::{pool::Pool, report};

#[test]
fn verifies_its_own_writes_in_one_run() {
    let pool = Pool::new();
    let disk = holdfast_e2e::disk::Disk::new(Kind::Ext4);
    let file = disk.root.join("file");
    let argv = job(file.to_str().expect("text"), &["--fsync=1", "--do_verify=1", "--verify_fatal=1"]);
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let (output, summary) = pool.run_summarised(&[], &argv);
    output.ok();
    assert!(report::number(&summary, "writes_absorbed") >= 128, "{summary:#}");
    assert!(report::number(&summary, "syncs_absorbed") >= 100, "{summary:#}");
}

#[test]
fn survives_kills() {
    crash::survives_kills(&Fio);
}

#[test]
fn survives_a_power_cut_of_ext4() {
    crash::survives_power_cut(&Fio, Kind::Ext4);
}

#[test]
fn survives_a_power_cut_of_xfs() {
    crash::survives_power_cut(&Fio, Kind::Xfs);
}

#[test]
fn control_without_syncs_loses_files() {
    crash::control_loses_in_power_cut(&Fio, Kind::Ext4);
    crash::control_loses_in_power_cut(&Fio, Kind::Xfs);
}

#[test]
fn control_checker_accepts_a_plain_kill() {
    crash::checker_accepts_native_kill(&Fio);
}

#[test]
fn control_native_survives_a_power_cut() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::native_survives_power_cut(&Fio, kind);
    }
}
