//! SQLite cut off under load, with a rollback journal and with a write-ahead log: every committed
//! row is there afterwards, whole, and `PRAGMA integrity_check` is content.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::workload::sqlite::{DELETE, WAL, WAL_INOTIFY};

#[test]
fn delete_mode_survives_kills() {
    crash::survives_kills(&DELETE);
}

#[test]
fn wal_mode_survives_kills() {
    crash::survives_kills(&WAL);
}

#[test]
fn wal_mode_survives_kills_behind_inotify() {
    crash::survives_kills(&WAL_INOTIFY);
}

#[test]
fn delete_mode_survives_a_power_cut_of_ext4() {
    crash::survives_power_cut(&DELETE, Kind::Ext4);
}

#[test]
fn delete_mode_survives_a_power_cut_of_xfs() {
    crash::survives_power_cut(&DELETE, Kind::Xfs);
}

#[test]
fn wal_mode_survives_a_power_cut_of_ext4() {
    crash::survives_power_cut(&WAL, Kind::Ext4);
}

#[test]
fn wal_mode_survives_a_power_cut_of_xfs() {
    crash::survives_power_cut(&WAL, Kind::Xfs);
}

#[test]
fn control_without_syncs_loses_rows() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::control_loses_in_power_cut(&DELETE, kind);
        crash::control_loses_in_power_cut(&WAL, kind);
    }
}

#[test]
fn control_checker_accepts_a_plain_kill() {
    crash::checker_accepts_native_kill(&DELETE);
    crash::checker_accepts_native_kill(&WAL);
}

#[test]
fn control_native_survives_a_power_cut() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::native_survives_power_cut(&DELETE, kind);
        crash::native_survives_power_cut(&WAL, kind);
    }
}
