//! Files before their first sync: which new ones the log may stand for alone, and who is waited for
//! before it does.

use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use holdfast_board::{FileState, Way};
use holdfast_cache::{Errno, Outcome, Place, Reason};
use holdfast_media::Bytes;
use rustix::fs::{XattrFlags, setxattr};

use super::durable::{Bench, bench};
use holdfast_disk::{Disk, DiskFile, OsFile};
use holdfast_durable::{Held, KEEPER_ID, ManagedFile, Newcomer};

/// A new file with some bytes that nobody has synced.
fn unsynced(bench: &Bench, name: &str) -> Arc<ManagedFile<OsFile>> {
    let path = bench.directory.path().join(name);
    fs::write(&path, "unsynced").unwrap();
    let description = bench.durable.disk.open(&path).unwrap();
    let identity = description.identity().unwrap();
    let newcomer = Newcomer {
        identity: &identity,
        path: &path,
        created: true,
        noted: None,
        fenced: false,
        bypass: None,
        unsynced: true,
    };
    let place = bench.durable.free_slot(|_| false).unwrap();
    assert!(bench.durable.take_slot(place, Held::Open(description), &newcomer).is_ok());
    bench.durable.file(place).unwrap()
}

#[test]
fn the_log_stands_alone_only_for_a_new_file_that_was_written_and_nothing_else() {
    // Recovery builds such a file from one record of its content: what that does not hold would be
    // lost although the program synced it.
    let bench = bench("unsynced-held");
    let at = |name: &str| bench.directory.path().join(name);
    let after = |name: &str, what: &dyn Fn(&Path)| {
        let file = unsynced(&bench, name);
        what(&at(name));
        bench.durable.leave_unsynced(&file)
    };
    assert!(after("written", &|_| {}).unwrap());
    let attribute = |path: &Path| setxattr(path, "user.note", b"kept", XattrFlags::CREATE).unwrap();
    assert!(!after("attribute", &attribute).unwrap());
    let past = SystemTime::now() - Duration::from_secs(3600);
    let times = |path: &Path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_times(FileTimes::new().set_modified(past)).unwrap();
    };
    assert!(!after("times", &times).unwrap());
    // Written to once more, so that its times say nothing.
    let linked = |path: &Path| {
        fs::hard_link(path, at("link")).unwrap();
        fs::write(path, "linked").unwrap();
    };
    assert!(!after("linked", &linked).unwrap());
    let renamed = |path: &Path| {
        fs::rename(path, at("other")).unwrap();
        fs::write(at("other"), "renamed").unwrap();
    };
    assert!(!after("renamed", &renamed).unwrap());
    // By no name of its own it would be found again: it stays the kernel's.
    let unnamed = after("removed", &|path| fs::remove_file(path).unwrap());
    assert_eq!(unnamed.map_err(|error| error.kind()), Err(io::ErrorKind::Unsupported));
}

#[test]
fn a_file_comes_back_to_the_log_only_when_nobody_writes_to_it_without() {
    // A write that was begun while the file was left to the kernel landed after the sync that was
    // to cover it.
    let bench = bench("unsynced-passing");
    let file = bench.managed();
    bench.durable.bypass(&file, Reason::MappedShared).unwrap();
    let header = bench.durable.board.header();
    let ino = bench.durable.board.row(bench.place.slot).inode().ino;
    let call = header.begin_passing(7, ino, 0).unwrap();
    assert!(!bench.durable.take_back(&file, || false));
    assert_eq!(bench.state(), FileState::Bypassed);
    call.end();
    assert!(bench.durable.take_back(&file, || false));
    assert_eq!(bench.state(), FileState::Through);
    // What a dead client left is taken away with its lanes.
    header.begin_passing(7, ino, 0).unwrap();
    bench.durable.repair_lanes(7);
    assert!(!header.is_passed(ino));
}

/// Found by the fuzzer: removed while it was left to the kernel and written on, such a file was
/// logged, and recovery asked a person about records of a file that no program had said it removed.
#[test]
fn a_file_that_lost_its_name_meanwhile_does_not_come_back_to_the_log() {
    let bench = bench("unsynced-lost-name");
    let file = bench.managed();
    bench.durable.bypass(&file, Reason::MappedShared).unwrap();
    let path = file.meta().path.clone();
    let other = path.with_file_name("other");
    fs::rename(&path, &other).unwrap();
    assert!(bench.durable.take_back(&file, || false));
    assert_eq!(bench.state(), FileState::Through);
    assert_eq!(file.meta().path, other, "the slot has the name that it got meanwhile");
    bench.durable.bypass(&file, Reason::MappedShared).unwrap();
    fs::remove_file(&other).unwrap();
    assert!(!bench.durable.take_back(&file, || false));
    assert_eq!(bench.state(), FileState::Bypassed);
    // The kernel's for good, in the other mode as well.
    bench.durable.board.header().logs_on_sync.set(true);
    assert!(!bench.durable.take_back(&file, || false));
}

/// With a fence that only notices, a file was taken for an outsider's and taken back in the midst
/// of a write, which failed.
#[test]
fn no_write_fails_because_its_file_was_taken_back() {
    let house = super::house("unsynced-taken-back", 1000);
    let (file, place) = house.create("file");
    super::write_at(&house.client, place, &file, 0, b"first");
    let board = house.client.board();
    let row = board.row(place.slot);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // As the keeper does, its writers kept out.
            while !is_over.load(Ordering::SeqCst) {
                for way in [Way::Bypass, Way::TakeBackUnsynced, Way::Log] {
                    assert!(board.lock_file(place.slot, KEEPER_ID));
                    board.go(place.slot, way);
                    row.unlock_exclusive(KEEPER_ID);
                }
            }
        });
        let begun = Instant::now();
        let mut made = [0; 3];
        while begun.elapsed() < Duration::from_millis(500) {
            let bytes = b"second";
            let raw = || file.write_at(bytes, 0).map_err(super::errno);
            let parts = [Bytes::from_slice(bytes)];
            let written = house.client.write(place, Place::At(0), &parts, raw, || Err(Errno(29)));
            is_over.store(written.is_err(), Ordering::SeqCst);
            made[match written.unwrap() {
                Outcome::Absorbed { .. } | Outcome::Passed { .. } => 0,
                Outcome::Kernel => 1,
                Outcome::Stale => 2,
            }] += 1;
        }
        is_over.store(true, Ordering::SeqCst);
        assert!(made[0] > 0, "{made:?}");
    });
}

/// A file among others goes back to the kernel with nothing live, so that no record of before is
/// ever replayed over what is written then; and its next sync is real.
#[test]
fn a_file_that_is_logged_no_more_has_no_live_record() {
    let house = super::house("unsynced-among-others", 60_000);
    let (file, place) = house.create("file");
    super::write_at(&house.client, place, &file, 0, b"logged");
    let row = house.client.board().row(place.slot);
    let is_live = || row.has_live_records();
    assert!(is_live() && row.state() == FileState::Through);
    house.client.unlog(place).unwrap();
    assert!(!is_live() && row.state() == FileState::Unsynced && row.needs_real_sync());
    // It is the kernel's.
    let parts = [Bytes::from_slice(b"passed")];
    let raw = || file.write_at(b"passed", 0).map_err(super::errno);
    let passed = house.client.write(place, Place::At(0), &parts, raw, || Err(Errno(29)));
    assert!(passed == Ok(Outcome::Passed { bytes: 6 }) && !is_live(), "{passed:?}");
    // Once is enough.
    house.client.unlog(place).unwrap();
    assert_eq!(row.state(), FileState::Unsynced);
}
