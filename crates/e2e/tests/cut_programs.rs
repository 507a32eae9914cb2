//! Programs as users have them, in the default mode, cut off again and again at random instants of
//! their whole life by disks that forget what was not flushed, on ext4, xfs and btrfs. What each
//! acknowledged is noted outside of what is cut; its own checker and the notes judge what recovery
//! leaves. The same cuts without Holdfast must lose nothing, and without syncs they must.
//!
//! `HOLDFAST_E2E_ROUNDS=167` is 1,000 cuts of each program (334 of PostgreSQL, which takes
//! longest); `HOLDFAST_E2E_SEED` repeats the choices of a run.

use holdfast_e2e::crash;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::site::Workload;
use holdfast_e2e::storm::Storm;
use holdfast_e2e::workload::dpkg::Dpkg;
use holdfast_e2e::workload::editor::{Editor, Saves};
use holdfast_e2e::workload::git::Git;
use holdfast_e2e::workload::leveldb::LevelDb;
use holdfast_e2e::workload::maildir::Maildir;
use holdfast_e2e::workload::postgres::{Fence, Postgres};
use holdfast_e2e::workload::rocksdb::DbBench;
use holdfast_e2e::workload::rsync::Rsync;
use holdfast_e2e::workload::sqlite::{DELETE, WAL};
use holdfast_testkit::rounds;

/// A program, from the file system and a random number.
type Make = fn(Kind, u64) -> Box<dyn Workload>;

fn blow(name: &str, kind: Kind, (make, cuts): (Make, u64), natively: bool) {
    let disk = Disk::forgetful(kind);
    let name = format!("{name} on {kind:?}");
    let storm = if natively { Storm::native(&disk, &name) } else { Storm::with_defaults(&disk, &name) };
    // What they share is made once.
    let first = make(kind, 0);
    let mut storm = storm.given_to(first.user());
    while storm.goes_on(cuts * rounds()) {
        let choice = storm.random();
        storm.cut_power(&*make(kind, choice));
    }
    storm.tell(&name);
}

fn cut(name: &str, kind: Kind, program: (Make, u64)) {
    blow(&format!("power cuts of {name}"), kind, program, false);
}

fn cut_natively(name: &str, program: (Make, u64)) {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        blow(&format!("native power cuts of {name}"), kind, program, true);
    }
}

macro_rules! programs {
    ($($program:ident, $cuts:literal: $make:expr;)*) => {$(
        mod $program {
            use super::*;

            /// The program, and how often it is cut off on each file system.
            const PROGRAM: (Make, u64) = ($make, $cuts);
            const NAME: &str = stringify!($program);

            #[test]
            fn survives_on_ext4() {
                cut(NAME, Kind::Ext4, PROGRAM);
            }

            #[test]
            fn survives_on_xfs() {
                cut(NAME, Kind::Xfs, PROGRAM);
            }

            #[test]
            fn survives_on_btrfs() {
                cut(NAME, Kind::Btrfs, PROGRAM);
            }

            #[test]
            fn control_survives_natively() {
                cut_natively(NAME, PROGRAM);
            }

            #[test]
            fn control_without_syncs_loses() {
                crash::control_loses_on_forgetful_disk(&*PROGRAM.0(Kind::Ext4, 0), Kind::Ext4);
            }
        }
    )*};
}

programs! {
    leveldb, 2: |_, seed| Box::new(LevelDb { seed: seed % 1_000_000 });
    rocksdb, 2: |_, choice| Box::new(if choice % 2 == 0 { DbBench::FillSync } else { DbBench::Overwrite });
    sqlite, 2: |_, choice| Box::new(if choice % 2 == 0 { DELETE } else { WAL });
    git, 2: |kind, choice| Box::new(Git { kind, packs: choice % 2 == 0 });
    dpkg, 2: |kind, _| Box::new(Dpkg::new(kind));
    rsync, 2: |kind, _| Box::new(Rsync { kind });
    editor, 2: |_, choice| {
        let saves = [Saves::Over, Saves::VimRenames, Saves::VimCopies][choice as usize % 3];
        Box::new(Editor { saves })
    };
    postgres, 1: |_, _| Box::new(Postgres::new(Fence::Exclusive));
    maildir, 2: |_, choice| {
        let (seed, deliverers, links) = (choice % 1_000_000, 1 + choice / 5 % 2, choice % 2 == 0);
        Box::new(Maildir { seed, deliverers, deliveries: 1_000_000, links })
    };
}
