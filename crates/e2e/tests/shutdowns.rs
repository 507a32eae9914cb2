//! File systems shut down by ioctl at random instants, hundreds of times, with everything killed at once and nothing flushed.
//! `HOLDFAST_E2E_ROUNDS` multiplies the rounds, `HOLDFAST_E2E_SEED` repeats them.

use holdfast_e2e::crash::Workload;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::random;
use holdfast_e2e::storm::Storm;
use holdfast_e2e::workload::many::Crew;
use holdfast_e2e::workload::operations::Operations;
use holdfast_e2e::workload::sqlite::{DELETE, WAL};

fn storm(name: &str, kind: Kind, rounds: u64) {
    // Small, so that it is made, mounted and replayed quickly: xfs is at least this large.
    let disk = Disk::with_size(kind, 300 << 20);
    let mut storm = Storm::new(&disk, name);
    for _ in 0..rounds * random::rounds() {
        let choice = storm.random();
        let workload: Box<dyn Workload> = match choice % 5 {
            0 => Box::new(DELETE),
            1 => Box::new(WAL),
            2 => Box::new(Operations { seed: choice }),
            _ => Box::new(Crew {
                // Odd: files that processes meet at would be left to the kernel, which keeps only what was synced.
                seed: choice | 1,
                processes: 1 + choice / 5 % 2,
                threads: 1 + choice / 10 % 3,
                operations: 1_000_000,
                synced: false,
            }),
        };
        storm.cut_power(&*workload);
    }
    storm.tell(name);
}

#[test]
fn ext4_survives() {
    storm("shutdowns of ext4", Kind::Ext4, 120);
}

#[test]
fn xfs_survives() {
    storm("shutdowns of xfs", Kind::Xfs, 120);
}
