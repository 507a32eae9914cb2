//! PostgreSQL under pgbench cut off: every acknowledged row is there afterwards, the sums of
//! pgbench's tables agree, pg_amcheck is content and every page has its checksum. It runs as the
//! user `postgres`: once with its directory declared exclusive, once behind the fanotify fence, for
//! which that user is given the capability.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::workload::postgres::{Fence, Postgres};

#[test]
fn survives_kills_when_exclusive() {
    crash::survives_kills(&Postgres::new(Fence::Exclusive));
}

#[test]
fn survives_kills_behind_fanotify() {
    crash::survives_kills(&Postgres::new(Fence::Fanotify));
}

#[test]
fn survives_a_power_cut_of_ext4_when_exclusive() {
    crash::survives_power_cut(&Postgres::new(Fence::Exclusive), Kind::Ext4);
}

#[test]
fn survives_a_power_cut_of_xfs_when_exclusive() {
    crash::survives_power_cut(&Postgres::new(Fence::Exclusive), Kind::Xfs);
}

#[test]
fn survives_a_power_cut_of_ext4_behind_fanotify() {
    crash::survives_power_cut(&Postgres::new(Fence::Fanotify), Kind::Ext4);
}

#[test]
fn control_without_syncs_loses_rows() {
    crash::control_loses_in_power_cut(&Postgres::new(Fence::Exclusive), Kind::Ext4);
    crash::control_loses_in_power_cut(&Postgres::new(Fence::Exclusive), Kind::Xfs);
}

#[test]
fn control_checker_accepts_a_plain_kill() {
    crash::checker_accepts_native_kill(&Postgres::new(Fence::Exclusive));
}

#[test]
fn control_native_survives_a_power_cut() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::native_survives_power_cut(&Postgres::new(Fence::Exclusive), kind);
    }
}
