//! RocksDB's db_bench cut off under load, filling and overwriting with sync: every acknowledged
//! write is in the log files afterwards, without a gap, and `ldb checkconsistency` is content.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::workload::rocksdb::DbBench;

#[test]
fn fillsync_survives_kills() {
    crash::survives_kills(&DbBench::FillSync);
}

#[test]
fn overwrite_survives_kills() {
    crash::survives_kills(&DbBench::Overwrite);
}

#[test]
fn fillsync_survives_a_power_cut_of_ext4() {
    crash::survives_power_cut(&DbBench::FillSync, Kind::Ext4);
}

#[test]
fn fillsync_survives_a_power_cut_of_xfs() {
    crash::survives_power_cut(&DbBench::FillSync, Kind::Xfs);
}

#[test]
fn overwrite_survives_a_power_cut_of_ext4() {
    crash::survives_power_cut(&DbBench::Overwrite, Kind::Ext4);
}

#[test]
fn overwrite_survives_a_power_cut_of_xfs() {
    crash::survives_power_cut(&DbBench::Overwrite, Kind::Xfs);
}

#[test]
fn control_without_syncs_loses_writes() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::control_loses_in_power_cut(&DbBench::FillSync, kind);
        crash::control_loses_in_power_cut(&DbBench::Overwrite, kind);
    }
}

#[test]
fn control_checker_accepts_a_plain_kill() {
    crash::checker_accepts_native_kill(&DbBench::FillSync);
    crash::checker_accepts_native_kill(&DbBench::Overwrite);
}

#[test]
fn control_native_survives_a_power_cut() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::native_survives_power_cut(&DbBench::FillSync, kind);
        crash::native_survives_power_cut(&DbBench::Overwrite, kind);
    }
}
