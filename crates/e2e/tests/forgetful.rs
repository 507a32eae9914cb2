//! Power cuts at any instant, while everything runs, of a disk with a volatile write cache: what
//! was not flushed is gone, or a random part of it is there, in any order; or a flush fails before.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::site::Workload;
use holdfast_e2e::workload::many::Crew;
use holdfast_e2e::workload::operations::operations;
use holdfast_e2e::workload::redis::Redis;
use holdfast_e2e::workload::sqlite::{DELETE, WAL};

const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

fn crew(synced: bool) -> Crew {
    let seed = holdfast_testkit::Random::named("crew").draw() | 1;
    Crew { seed, processes: 2, threads: 2, operations: 1_000_000, synced, disk_may_fail: true }
}

fn survives_on_all(workload: &dyn Workload) {
    for kind in KINDS {
        crash::survives_forgetful_disk(workload, kind);
    }
}

#[test]
fn operations_survive_on_ext4() {
    crash::survives_forgetful_disk(&operations(), Kind::Ext4);
}

#[test]
fn operations_survive_on_xfs() {
    crash::survives_forgetful_disk(&operations(), Kind::Xfs);
}

#[test]
fn operations_survive_on_btrfs() {
    crash::survives_forgetful_disk(&operations(), Kind::Btrfs);
}

#[test]
fn many_writers_survive() {
    survives_on_all(&crew(false));
}

#[test]
fn sqlite_survives_with_a_rollback_journal() {
    survives_on_all(&DELETE);
}

#[test]
fn sqlite_survives_with_a_write_ahead_log() {
    survives_on_all(&WAL);
}

#[test]
fn redis_survives() {
    survives_on_all(&Redis);
}

/// A journal's commit fails, and the kernel tells it once: later syncs of directories and files
/// that depended on it succeeded, and what had not reached the disk was given up in the log.
#[test]
fn what_a_failed_commit_took_is_not_given_up() {
    for kind in KINDS {
        crash::survives_failed_flush(&DELETE, kind);
        crash::survives_failed_flush(&WAL, kind);
    }
}

#[test]
fn control_without_syncs_loses_data() {
    for kind in KINDS {
        crash::control_loses_on_forgetful_disk(&crew(true), kind);
        crash::control_loses_on_forgetful_disk(&WAL, kind);
    }
}

/// What was under way may be torn natively, so only a program that expects that can be asked.
#[test]
fn control_native_survives() {
    for kind in KINDS {
        crash::native_survives_forgetful_disk(&WAL, kind);
    }
}
