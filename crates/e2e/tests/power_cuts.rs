//! Power cut hundreds of times, at random instants of a run's whole life, with everything killed at
//! once: by the shutdown ioctl, with all processes stopped, and by forgetful disks, with all of
//! them running. `HOLDFAST_E2E_ROUNDS` multiplies the rounds, `HOLDFAST_E2E_SEED` repeats them.

use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::site::Workload;
use holdfast_e2e::storm::Storm;
use holdfast_e2e::workload::many::Crew;
use holdfast_e2e::workload::operations::Operations;
use holdfast_e2e::workload::sqlite::{DELETE, WAL};
use holdfast_testkit::rounds;

/// Small, so that it is made, mounted and replayed quickly: xfs is at least this large.
const DISK_BYTES: u64 = 300 << 20;

fn storm(name: &str, disk: &Disk, times: u64) {
    let mut storm = Storm::new(disk, name);
    for _ in 0..times * rounds() {
        let choice = storm.random();
        let workload: Box<dyn Workload> = match choice % 5 {
            0 => Box::new(DELETE),
            1 => Box::new(WAL),
            2 => Box::new(Operations { seed: choice }),
            _ => Box::new(Crew {
                // Odd: files that processes meet at would be left to the kernel, which keeps only
                // what was synced.
                seed: choice | 1,
                processes: 1 + choice / 5 % 2,
                threads: 1 + choice / 10 % 3,
                operations: 1_000_000,
                synced: false,
                disk_may_fail: true,
            }),
        };
        storm.cut_power(&*workload);
    }
    storm.tell(name);
}

#[test]
fn ext4_survives_shutdowns() {
    storm("shutdowns of ext4", &Disk::with_size(Kind::Ext4, DISK_BYTES), 120);
}

#[test]
fn xfs_survives_shutdowns() {
    storm("shutdowns of xfs", &Disk::with_size(Kind::Xfs, DISK_BYTES), 120);
}

#[test]
fn ext4_survives_on_a_forgetful_disk() {
    storm("power cuts of ext4", &Disk::forgetful(Kind::Ext4), 50);
}

#[test]
fn xfs_survives_on_a_forgetful_disk() {
    storm("power cuts of xfs", &Disk::forgetful(Kind::Xfs), 50);
}

#[test]
fn btrfs_survives_on_a_forgetful_disk() {
    storm("power cuts of btrfs", &Disk::forgetful(Kind::Btrfs), 50);
}
