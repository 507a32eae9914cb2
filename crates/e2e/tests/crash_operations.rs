//! Random single operations on files (write, append, truncate, rename, remove), each acknowledged,
//! cut off at a random moment: the files are what exactly the acknowledged operations make of them,
//! give or take the one under way.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::workload::operations::operations;

#[test]
fn survive_kills() {
    crash::survives_kills(&operations());
}

#[test]
fn survive_a_power_cut_of_ext4() {
    crash::survives_power_cut(&operations(), Kind::Ext4);
}

#[test]
fn survive_a_power_cut_of_xfs() {
    crash::survives_power_cut(&operations(), Kind::Xfs);
}

#[test]
fn control_without_syncs_loses_operations() {
    crash::control_loses_in_power_cut(&operations(), Kind::Ext4);
    crash::control_loses_in_power_cut(&operations(), Kind::Xfs);
}

#[test]
fn control_native_survives_a_power_cut() {
    crash::native_survives_power_cut(&operations(), Kind::Ext4);
    crash::native_survives_power_cut(&operations(), Kind::Xfs);
}
