//! The rules by which recovery tells what a crash left from what others made of it since
//! (docs/crash/recovery.md), each on real kernels: what was synced by others is never undone, and
//! what the crash took comes back.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{BEHIND, LATE, text};
use holdfast_e2e::cmd::Output;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::wait_until;
use holdfast_e2e::report;
use holdfast_e2e::running::Running;

pub(super) const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

pub(super) const BYTES: usize = 100_000;

/// Overwrites a file that is there, half of it with each of two syncs.
pub(super) const OVERWRITE: &str = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
for at in 0, 50000:
    os.pwrite(fd, b'n' * 50000, at)
    os.fsync(fd)
print('ready', flush=True)
time.sleep(60)
";

/// Makes two files in a directory. With the first one the keeper syncs the directory; the second is
/// in the log alone.
pub(super) const CREATE: &str = "
import os, sys, time
os.chdir(sys.argv[1])
for name in 'first', 'second':
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, b'bytes of ' + name.encode())
    os.fsync(fd)
print('ready', flush=True)
time.sleep(60)
";

/// btrfs cannot be shut down: its disk forgets.
pub(super) fn disk_of(kind: Kind) -> Disk {
    if kind == Kind::Btrfs { Disk::forgetful(kind) } else { Disk::new(kind) }
}

/// A file of old bytes, on the disk.
pub(super) fn old_file(disk: &Disk) -> PathBuf {
    let file = disk.root.join("file");
    std::fs::write(&file, vec![b'o'; BYTES]).expect("file");
    disk.settle();
    file
}

/// Runs a program up to its word, and kills it, the keeper and the supervisor; in between `and`
/// happens.
pub(super) fn killed(pool: &Pool, options: &[&str], script: &str, place: &Path, and: impl FnOnce()) {
    let mut run = Running::python(pool, options, script, place);
    run.until("ready");
    and();
    run.kill_all(pool);
}

/// What somebody outside writes, and syncs.
pub(super) fn write_natively(file: &Path, at: u64) {
    let open = std::fs::File::options().write(true).open(file).expect("file");
    open.write_all_at(b"by somebody else", at).expect("written");
    open.sync_all().expect("synced");
}

/// A new file of somebody outside, on the disk.
fn write_new(file: &Path) {
    std::fs::write(file, "by somebody else").expect("file");
    std::fs::File::open(file).and_then(|open| open.sync_all()).expect("synced");
}

pub(super) fn whole(file: &Path) -> Vec<u8> {
    std::fs::read(file).unwrap_or_default()
}

/// `recover` says no, of this file and in these words.
pub(super) fn is_set_aside(told: &Output, file: &Path, words: &str) {
    told.expect(&[1]);
    let said = format!("{}{}", told.stdout, told.stderr);
    assert!(said.contains(text(file)) && said.contains("set aside"), "{}", told.told());
    assert!(said.contains(words), "it does not say `{words}`\n{}", told.told());
}

/// `recover` says what kept it from this file, and that it will try again.
pub(super) fn is_put_off(told: &Output, file: &Path, words: &str) {
    told.expect(&[1]);
    let said = format!("{}{}", told.stdout, told.stderr);
    assert!(said.contains(text(file)) && said.contains("put off"), "{}", told.told());
    assert!(
        said.contains("tries again") && said.contains(words),
        "it does not say `{words}`\n{}",
        told.told()
    );
}

/// The page cache had every byte, and somebody's write and sync right after the kill was undone by
/// a replay.
#[test]
fn what_others_sync_right_after_a_kill_stays() {
    for kind in KINDS {
        let (disk, pool) = (disk_of(kind), Pool::new());
        let file = old_file(&disk);
        killed(&pool, &[LATE], OVERWRITE, &file, || ());
        write_natively(&file, 30);
        let told = pool.recover(&[]);
        told.ok();
        let mut expected = vec![b'n'; BYTES];
        expected[30..46].copy_from_slice(b"by somebody else");
        assert!(whole(&file) == expected, "{kind:?}\n{}", told.told());
        // And all of it is on the disk.
        disk.cut_power();
        disk.restore_power();
        assert!(whole(&file) == expected, "{kind:?}: not on the disk");
        pool.recover(&[]).ok();
    }
}

/// A file that somebody removed after the kill was built anew.
#[test]
fn what_others_remove_right_after_a_kill_stays_away() {
    for kind in KINDS {
        let (disk, pool) = (disk_of(kind), Pool::new());
        let directory = disk.root.join("sub");
        std::fs::create_dir(&directory).expect("directory");
        disk.settle();
        killed(&pool, &[LATE], CREATE, &directory, || ());
        std::fs::remove_file(directory.join("first")).expect("removed");
        pool.recover(&[]).ok();
        assert!(!directory.join("first").exists(), "{kind:?}");
        assert_eq!(whole(&directory.join("second")), b"bytes of second", "{kind:?}");
        disk.cut_power();
        disk.restore_power();
        assert_eq!(whole(&directory.join("second")), b"bytes of second", "{kind:?}: not on the disk");
    }
}

/// What no page cache ever had is not made good by a sync.
#[test]
fn what_only_the_log_has_comes_back_after_a_kill() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (disk_of(kind), Pool::new());
        let file = old_file(&disk);
        killed(&pool, &BEHIND, OVERWRITE, &file, || ());
        let told = pool.recover(&[]);
        told.ok();
        assert!(whole(&file) == vec![b'n'; BYTES], "{kind:?}\n{}", told.told());
    }
}

/// A volume was put back to an older snapshot, and its files became what they never were.
#[test]
fn an_older_state_of_a_volume_is_left_as_it_is() {
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
for name in sys.argv[3]:
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(fd, sys.argv[2].encode(), 0)
    os.fsync(fd)
print('ready', flush=True)
time.sleep(60)
";
    let (disk, pool) = (Disk::with_size(Kind::Ext4, 64 << 20), Pool::new());
    let [a, b, c] = ["a", "b", "c"].map(|name| disk.root.join(name));
    for file in [&a, &b] {
        std::fs::write(file, "first!").expect("file");
    }
    disk.settle();
    let snapshot = disk.copy();
    std::thread::sleep(Duration::from_millis(50));
    let start = |word: &str, names: &str| {
        let program = ["--", "python3", "-c", script, text(&disk.root), word, names];
        let mut run = Running::start(&pool.run(&[LATE]).args(program));
        run.until("ready");
        run
    };
    let mut first = start("second", "ab");
    // What is in the files by now is on the disk, and known to be; the rest is written after.
    pool.command("drain").ok();
    let second = start("fourth", "bc");
    disk.cut_power();
    // Its supervisor would recover at once.
    drop(first.child.kill());
    second.kill_all(&pool);
    drop(first);
    disk.replace(&snapshot);
    let told = pool.recover(&[]);
    is_set_aside(&told, &b, "older than it was known to be");
    assert_eq!((whole(&a), whole(&b)), (b"first!".to_vec(), b"first!".to_vec()), "{}", told.told());
    assert!(!c.exists(), "{}", told.told());
    pool.run(&[]).args(["--", "cat", text(&b)]).output().expect(&[120]);
}

/// The file that showed it was closed, and its slot given back: bytes that were written after its
/// own went over the older state of another.
#[test]
fn an_older_state_is_seen_though_its_newest_file_is_closed() {
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
def write(fd, byte):
    os.pwrite(fd, byte * 6, 0)
    os.fsync(fd)
data = os.open('data', os.O_RDWR)
write(data, b'2')
print('first', flush=True)
input()
journal = os.open('journal', os.O_RDWR)
write(journal, b'3')
os.close(journal)
print('second', flush=True)
input()
write(data, b'4')
print('third', flush=True)
time.sleep(60)
";
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::with_size(kind, 320 << 20), Pool::new());
        let [data, journal] = ["data", "journal"].map(|name| disk.root.join(name));
        for file in [&data, &journal] {
            std::fs::write(file, "111111").expect("file");
        }
        let mut run = Running::python(&pool, &[LATE], script, &disk.root);
        run.until("first");
        pool.command("drain").ok();
        disk.settle();
        let snapshot = disk.copy();
        run.go_on();
        run.until("second");
        pool.command("drain").ok();
        let through = || report::find(&pool.status(), "files").map(|files| files["through"].clone());
        wait_until(Duration::from_secs(20), "the closed file's slot to be given back", || {
            through() == Some(1.into())
        });
        run.go_on();
        run.until("third");
        disk.cut_power();
        run.kill_all(&pool);
        disk.replace(&snapshot);
        let told = pool.recover(&[]);
        is_set_aside(&told, &data, "older than it was known to be");
        assert_eq!((whole(&data), whole(&journal)), (b"222222".to_vec(), b"111111".to_vec()), "{kind:?}");
    }
}

/// A word of the pool, as docs/format.md has it.
fn move_word(pool: &Pool, at: u64, by: u64) {
    let open = std::fs::File::options().read(true).write(true).open(&pool.path).expect("pool");
    let mut bytes = [0; 8];
    open.read_exact_at(&mut bytes, at).expect("word");
    let value = (u64::from_le_bytes(bytes) >> 12) + by;
    assert!(value > by, "the word at {at} was never written");
    // The check covers where the word stands.
    let sum = crc32c::crc32c_append(crc32c::crc32c(&at.to_le_bytes()), &value.to_le_bytes());
    let check = (u64::from(sum) & 0xfff) ^ 0x5a5;
    open.write_all_at(&(value << 12 | check).to_le_bytes(), at).expect("word");
}

/// The clock was an hour behind after the crash, and what somebody synced then looked older than
/// the crash.
#[test]
fn a_clock_that_was_set_back_hides_nobodys_change() {
    const HOUR_US: u64 = 3_600_000_000;
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = old_file(&disk);
    killed(&pool, &[LATE], OVERWRITE, &file, || disk.cut_power());
    disk.restore_power();
    // The keeper's clock was ahead of this one by an hour: heartbeat, and when the machine was
    // booted by it.
    move_word(&pool, 4096, HOUR_US);
    move_word(&pool, 4096 + 192, HOUR_US);
    write_natively(&file, 30);
    let theirs = whole(&file);
    let told = pool.recover(&[]);
    is_set_aside(&told, &file, "the clock was set back");
    assert!(whole(&file) == theirs, "{}", told.told());
    pool.recover(&["--discard", text(&file)]).ok();
}

/// What rsync, make and backups go by: times that were synced, and times of writes.
#[test]
fn replayed_files_are_as_old_as_their_last_change() {
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
set_last, written_last = (os.open(name, os.O_RDWR | os.O_CREAT, 0o600) for name in ('set', 'written'))
def write(fd):
    os.pwrite(fd, b'n' * 1000, 0)
    os.fsync(fd)
write(set_last)
time.sleep(0.05)
os.utime(set_last, (900000000, 900000000))
os.fsync(set_last)
os.utime(written_last, (900000000, 900000000))
os.fsync(written_last)
time.sleep(0.05)
write(written_last)
print('ready', flush=True)
time.sleep(60)
";
    for kind in KINDS {
        let (disk, pool) = (disk_of(kind), Pool::new());
        for name in ["set", "written"] {
            std::fs::write(disk.root.join(name), "").expect("file");
        }
        disk.settle();
        let modified = |name: &str| {
            let metadata = std::fs::metadata(disk.root.join(name)).expect("file");
            (metadata.mtime(), metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec())
        };
        let mut native = 0;
        killed(&pool, &[LATE], script, &disk.root, || {
            native = modified("written").1;
            disk.cut_power();
        });
        disk.restore_power();
        std::thread::sleep(Duration::from_millis(100));
        let told = pool.recover(&[]);
        told.ok();
        assert_eq!(whole(&disk.root.join("written")), vec![b'n'; 1000], "{kind:?}\n{}", told.told());
        assert_eq!(modified("set").0, 900_000_000, "{kind:?}\n{}", told.told());
        // The clock of records runs behind that of files by a tick at most.
        let differs = (modified("written").1 - native).abs();
        assert!(differs < 20_000_000, "{kind:?}: {differs} ns\n{}", told.told());
    }
}

/// xfs gave the handle of a file that the crash took to the next new one: recovery took that for
/// the lost one, and did not build it anew.
#[test]
fn a_handle_that_is_given_twice_leads_to_nobody_elses_file() {
    // xfs takes its time to free the inode of the file without a name that the first one's commit
    // made; then the second one gets it.
    let script = CREATE.replace("    os.fsync(fd)\n", "    os.fsync(fd)\n    time.sleep(0.5)\n");
    for kind in KINDS {
        let begin = || {
            let (disk, pool) = (disk_of(kind), Pool::new());
            let directory = disk.root.join("sub");
            std::fs::create_dir(&directory).expect("directory");
            disk.settle();
            killed(&pool, &[LATE], &script, &directory, || disk.cut_power());
            disk.restore_power();
            (disk, pool, directory)
        };
        // The kernel may have committed by itself, on a busy machine: then nothing was lost.
        let lost = (0..4).map(|_| begin()).find(|(_, _, directory)| !directory.join("second").exists());
        let (_disk, pool, directory) = lost.expect("a crash that takes the file");
        let theirs: Vec<PathBuf> = (0..8).map(|number| directory.join(format!("theirs-{number}"))).collect();
        for file in &theirs {
            write_new(file);
        }
        let second = directory.join("second");
        // They changed the names beside it: so somebody may have removed it as well.
        is_set_aside(&pool.recover(&[]), &second, "the names in its directory were changed after the crash");
        let told = pool.recover(&["--force", text(&second)]);
        told.ok();
        assert_eq!(whole(&second), b"bytes of second", "{kind:?}\n{}", told.told());
        for file in &theirs {
            assert_eq!(whole(file), b"by somebody else", "{kind:?}\n{}", told.told());
        }
    }
}
