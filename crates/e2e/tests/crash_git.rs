//! git commits and collections cut off under load: every commit that was reported is reachable
//! afterwards and `git fsck` is content.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::workload::git::Git;

fn git(kind: Kind) -> Git {
    Git { kind, packs: true }
}

#[test]
fn survives_kills() {
    crash::survives_kills(&git(Kind::Ext4));
}

#[test]
fn survives_a_power_cut_of_ext4() {
    crash::survives_power_cut(&git(Kind::Ext4), Kind::Ext4);
}

#[test]
fn survives_a_power_cut_of_xfs() {
    crash::survives_power_cut(&git(Kind::Xfs), Kind::Xfs);
}

#[test]
fn control_without_syncs_loses_commits() {
    crash::control_loses_in_power_cut(&git(Kind::Ext4), Kind::Ext4);
    crash::control_loses_in_power_cut(&git(Kind::Xfs), Kind::Xfs);
}

#[test]
fn control_checker_accepts_a_plain_kill() {
    crash::checker_accepts_native_kill(&git(Kind::Ext4));
}

#[test]
fn control_native_survives_a_power_cut() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        crash::native_survives_power_cut(&git(kind), kind);
    }
}
