//! SIGKILL at random instants of a run's whole life, hundreds of times: program, keeper,
//! supervisor, all of them, and recoveries. Everything acknowledged is there afterwards.
//! `HOLDFAST_E2E_ROUNDS` multiplies the rounds, `HOLDFAST_E2E_SEED` repeats them.

use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::site::Workload;
use holdfast_e2e::storm::Storm;
use holdfast_e2e::workload::fio::Fio;
use holdfast_e2e::workload::many::Crew;
use holdfast_e2e::workload::redis::Redis;
use holdfast_e2e::workload::rocksdb::DbBench;
use holdfast_e2e::workload::sqlite::{DELETE, WAL, WAL_INOTIFY};
use holdfast_testkit::rounds;

fn storm(name: &str, kind: Kind, times: u64, mut workload: impl FnMut(u64) -> Box<dyn Workload>) {
    let disk = Disk::new(kind);
    let mut storm = Storm::new(&disk, name);
    while storm.goes_on(times * rounds()) {
        let workload = workload(storm.random());
        storm.kill(&*workload);
    }
    storm.tell(name);
}

/// A crew of any size, which may be through before the kill.
fn crew(choice: u64) -> Box<dyn Workload> {
    let operations = [40, 400, 1_000_000][choice as usize % 3];
    Box::new(Crew {
        seed: choice,
        processes: 1 + choice / 3 % 3,
        threads: 1 + choice / 9 % 3,
        operations,
        synced: false,
        disk_may_fail: false,
    })
}

#[test]
fn many_writers_survive_on_ext4() {
    storm("kills of many writers on ext4", Kind::Ext4, 160, crew);
}

#[test]
fn many_writers_survive_on_xfs() {
    storm("kills of many writers on xfs", Kind::Xfs, 60, crew);
}

#[test]
fn many_writers_survive_on_btrfs() {
    storm("kills of many writers on btrfs", Kind::Btrfs, 60, crew);
}

#[test]
fn sqlite_survives() {
    storm("kills of sqlite3", Kind::Ext4, 60, |choice| match choice % 3 {
        0 => Box::new(DELETE),
        1 => Box::new(WAL),
        _ => Box::new(WAL_INOTIFY),
    });
}

#[test]
fn redis_survives() {
    storm("kills of redis-server", Kind::Ext4, 40, |_| Box::new(Redis));
}

#[test]
fn db_bench_survives() {
    storm("kills of db_bench", Kind::Ext4, 30, |_| Box::new(DbBench::FillSync));
}

#[test]
fn fio_verifies() {
    storm("kills of fio", Kind::Ext4, 30, |_| Box::new(Fio));
}
