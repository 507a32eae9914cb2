//! redis-server with `appendfsync always` cut off under load: every acknowledged key is there
//! afterwards and redis-check-aof is content.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::workload::redis::Redis;

#[test]
fn survives_kills() {
    crash::survives_kills(&Redis);
}

#[test]
fn survives_a_power_cut_of_ext4() {
    crash::survives_power_cut(&Redis, Kind::Ext4);
}

#[test]
fn survives_a_power_cut_of_xfs() {
    crash::survives_power_cut(&Redis, Kind::Xfs);
}

#[test]
fn control_without_syncs_loses_keys() {
    crash::control_loses_in_power_cut(&Redis, Kind::Ext4);
    crash::control_loses_in_power_cut(&Redis, Kind::Xfs);
}

#[test]
fn control_checker_accepts_a_plain_kill() {
    crash::checker_accepts_native_kill(&Redis);
}

#[test]
fn control_native_survives_a_power_cut() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::native_survives_power_cut(&Redis, kind);
    }
}
