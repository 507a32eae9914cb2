//! What outsiders are told of files in state Behind, and files whose program has lent us its
//! description.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use holdfast_board::FileState;

use super::contents;
use super::durable::{Bench, CLIENT, bench};
use holdfast_disk::lease::{self, Lease};
use holdfast_disk::{Disk, DiskFile, OsFile};
use holdfast_durable::{Held, Newcomer, Writers};

#[test]
fn outsiders_are_told_size_and_time_and_nothing_is_lost_by_it() {
    // A backup tool that looked before it opened archived a file that grew a second ago with its
    // old size.
    let bench = bench("told");
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
    for (offset, size) in [(20_000, 20_004), (3, 20_004), (40_959, 40_963)] {
        bench.write(offset, b"some");
        bench.file.set_modified(old).unwrap();
        bench.durable.tell(&bench.managed()).unwrap();
        let meta = bench.file.metadata().unwrap();
        assert_eq!(meta.len(), size);
        assert!(meta.modified().unwrap() > old);
        assert_eq!(bench.state(), FileState::Behind);
    }
    // Told again, there is nothing to tell; and what was not brought to the page cache yet is still
    // due.
    bench.write(0, &[7; 9000]);
    bench.durable.tell(&bench.managed()).unwrap();
    let drained = bench.durable.counters().drained_bytes;
    bench.durable.tell(&bench.managed()).unwrap();
    assert_eq!(bench.durable.counters().drained_bytes, drained);
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    assert_eq!(contents(&bench.file)[..9000], [7; 9000]);
}

/// A bench whose file is lent: the keeper has no description of its own.
fn lent_bench(name: &str) -> Bench {
    let mut bench = bench(name);
    bench.durable.release(&bench.managed());
    let path = bench.directory.path().join("lent");
    bench.file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let lent = bench.file.try_clone().unwrap();
    lease::take(lent.as_fd(), rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
    let identity = OsFile::from(bench.file.try_clone().unwrap()).identity().unwrap();
    let place = bench.durable.free_slot(|_| false).unwrap();
    let newcomer = Newcomer {
        identity: &identity,
        path: &path,
        created: false,
        noted: None,
        fenced: true,
        bypass: None,
        unsynced: false,
    };
    let held = Held::Lent(bench.durable.disk.hold(&path).unwrap(), Arc::new(OsFile::leased(lent)));
    assert!(bench.durable.take_slot(place, held, &newcomer).is_ok());
    bench.place = place;
    bench.durable.allow_behind(&bench.managed(), false);
    bench
}

#[test]
fn a_lent_file_is_drained_and_synced_by_its_programs_description_alone() {
    let bench = lent_bench("lent");
    assert_eq!(bench.state(), FileState::Behind);
    bench.write(5000, b"newest");
    bench.durable.settle(&bench.managed(), Writers::MayBeIn).unwrap();
    assert_eq!(&contents(&bench.file)[5000..], b"newest");
    assert!(bench.managed().lent().unwrap().lease() == Lease::Whole, "we broke our own lease");
    bench.write(5000, b"NEWEST");
    assert!(!bench.durable.lease_breaks(&bench.managed(), || false).unwrap());
    assert!(bench.managed().lent().is_none() && bench.state() == FileState::Through);
    assert_eq!(&contents(&bench.file)[5000..], b"NEWEST");
    assert!(!bench.durable.is_dirty(&bench.managed()), "who was let in met a live record");
}

#[test]
fn a_sync_beside_a_programs_own_sync_of_a_lent_file_does_not_count() {
    // The two share the description's memory of errors: the program's sync takes the notice of a
    // lost page, ours succeeds.
    let bench = lent_bench("lent-syncs");
    bench.write(0, b"lost");
    let row = bench.durable.board.row(bench.place.slot);
    row.begin_sync();
    std::thread::scope(|scope| {
        let settled = scope.spawn(|| {
            assert!(bench.durable.board.lock_file(bench.place.slot, CLIENT));
            bench.durable.settle(&bench.managed(), Writers::KeptOut)
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!settled.is_finished(), "it counted");
        // The page cache gave the page up.
        bench.file.write_all_at(b"gone", 0).unwrap();
        row.end_sync(true);
        settled.join().unwrap().unwrap();
    });
    row.unlock_exclusive(CLIENT);
    assert_eq!(contents(&bench.file), b"lost");
}
