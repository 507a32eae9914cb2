//! The rules by which recovery tells what a crash left from what others made of it since
//! (docs/crash/recovery.md), each on real kernels: what was synced by others is never undone, and
//! what the crash took comes back.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{Disk, Kind, give_to};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::wait_until;
use holdfast_e2e::report;
use holdfast_e2e::running::Running;

use super::{BEHIND, LATE, text};

const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];
const BYTES: usize = 100_000;

/// Overwrites a file that is there, half of it with each of two syncs.
const OVERWRITE: &str = "
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
const CREATE: &str = "
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
fn disk_of(kind: Kind) -> Disk {
    if kind == Kind::Btrfs { Disk::forgetful(kind) } else { Disk::new(kind) }
}

/// A file of old bytes, on the disk.
fn old_file(disk: &Disk) -> PathBuf {
    let file = disk.root.join("file");
    std::fs::write(&file, vec![b'o'; BYTES]).expect("file");
    disk.settle();
    file
}

/// Runs a program up to its word, and kills it, the keeper and the supervisor; in between `and`
/// happens.
fn killed(pool: &Pool, options: &[&str], script: &str, place: &Path, and: impl FnOnce()) {
    let mut run = Running::python(pool, options, script, place);
    run.until("ready");
    and();
    run.kill_all(pool);
}

/// What somebody outside writes, and syncs.
fn write_natively(file: &Path, at: u64) {
    let open = std::fs::File::options().write(true).open(file).expect("file");
    open.write_all_at(b"by somebody else", at).expect("written");
    open.sync_all().expect("synced");
}

/// A new file of somebody outside, on the disk.
fn write_new(file: &Path) {
    std::fs::write(file, "by somebody else").expect("file");
    std::fs::File::open(file).and_then(|open| open.sync_all()).expect("synced");
}

fn whole(file: &Path) -> Vec<u8> {
    std::fs::read(file).unwrap_or_default()
}

/// `recover` says no, of this file and in these words.
fn is_set_aside(told: &Output, file: &Path, words: &str) {
    told.expect(&[1]);
    let said = format!("{}{}", told.stdout, told.stderr);
    assert!(said.contains(text(file)) && said.contains("set aside"), "{}", told.told());
    assert!(said.contains(words), "it does not say `{words}`\n{}", told.told());
}

/// `recover` says what kept it from this file, and that it will try again.
fn is_put_off(told: &Output, file: &Path, words: &str) {
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

/// A new file that the crash had left, and that somebody removed afterwards, came back. Where the
/// names in its directory changed after the crash, nobody can tell whether the crash took it.
#[test]
fn a_new_file_that_somebody_removed_after_the_crash_stays_away() {
    for kind in KINDS {
        let (disk, pool) = (disk_of(kind), Pool::new());
        let file = disk.root.join("second");
        killed(&pool, &[LATE], CREATE, &disk.root, || {
            disk.settle();
            disk.cut_power();
        });
        disk.restore_power();
        assert!(file.exists(), "{kind:?}: the crash took it");
        std::fs::remove_file(&file).expect("removed");
        std::fs::File::open(&disk.root).and_then(|directory| directory.sync_all()).expect("synced");
        let told = pool.recover(&[]);
        is_set_aside(&told, &file, "the names in its directory were changed after the crash");
        assert!(!file.exists(), "{kind:?}\n{}", told.told());
        pool.recover(&["--force", text(&file)]).ok();
        assert_eq!(whole(&file), b"bytes of second", "{kind:?}");
    }
}

/// A file of two names lost the one that its slot knew to its own program, and its user may look
/// for no file by its handle: what was synced later was set aside.
#[test]
fn a_file_that_loses_the_name_its_user_knows_keeps_its_bytes() {
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
for name, loses in ('one', lambda: os.remove('one')), ('two', lambda: os.rename('other', 'two')):
    fd = os.open(name, os.O_RDWR)
    os.pwrite(fd, b'first!', 0)
    os.fsync(fd)
    loses()
    for word in b'second', b'third!':
        os.pwrite(fd, word, 0)
        os.fsync(fd)
        time.sleep(0.1)
print('ready', flush=True)
time.sleep(60)
";
    // Where nobody looks for what outsiders do, nobody finds afterwards that the name is gone.
    let unseen = [(Kind::Ext4, true)];
    for (kind, is_exclusive) in unseen.into_iter().chain(KINDS.map(|kind| (kind, false))) {
        let (disk, pool) = (disk_of(kind), Pool::of_user("nobody", ""));
        let at = |name: &str| disk.root.join(name);
        let options = [LATE, "--exclusive", text(&disk.root)];
        let options = &options[..if is_exclusive { 3 } else { 1 }];
        for name in ["one", "two", "other"] {
            std::fs::write(at(name), "nothing").expect("file");
            give_to(&at(name), "nobody");
            std::fs::hard_link(at(name), at(&format!("{name}-kept"))).expect("link");
        }
        std::fs::remove_file(at("other-kept")).expect("removed");
        give_to(&disk.root, "nobody");
        disk.settle();
        killed(&pool, options, script, &disk.root, || disk.cut_power());
        disk.restore_power();
        let told = pool.recover(&[]);
        told.ok();
        for name in ["one-kept", "two-kept"] {
            assert_eq!(whole(&at(name)), b"third!g", "{kind:?}, {name}\n{}", told.told());
        }
    }
}

/// A file whose mode forbids its owner to write, as git's objects do, was put off for ever: its
/// program had it open from before.
#[test]
fn a_file_that_its_owner_may_not_write_to_is_recovered() {
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
object = os.open('object', os.O_RDWR)
os.write(object, b'1' * 5000)
os.fchmod(object, 0o444)
os.fsync(object)
os.write(object, b'2' * 5000)
os.fsync(object)
print('ready', flush=True)
time.sleep(60)
";
    for kind in KINDS {
        let (disk, pool) = (disk_of(kind), Pool::of_user("nobody", ""));
        let file = disk.root.join("object");
        std::fs::write(&file, b"").expect("file");
        give_to(&file, "nobody");
        disk.settle();
        killed(&pool, &[LATE], script, &disk.root, || disk.cut_power());
        disk.restore_power();
        let told = pool.recover(&[]);
        told.ok();
        assert!(whole(&file) == [[b'1'; 5000], [b'2'; 5000]].concat(), "{kind:?}\n{}", told.told());
        assert_eq!(std::fs::metadata(&file).expect("file").mode() & 0o7777, 0o444, "{kind:?}");
    }
}

/// An init script gave a file to its service, and the file was set aside.
#[test]
fn attributes_that_change_at_boot_keep_no_records_from_a_file() {
    for kind in KINDS {
        let (disk, pool) = (disk_of(kind), Pool::new());
        let file = old_file(&disk);
        killed(&pool, &[LATE], OVERWRITE, &file, || disk.cut_power());
        disk.restore_power();
        assert!(whole(&file) != vec![b'n'; BYTES], "{kind:?}: the crash took nothing");
        std::os::unix::fs::chown(&file, Some(65_534), None).expect("chown");
        let told = pool.recover(&[]);
        told.ok();
        assert!(whole(&file) == vec![b'n'; BYTES], "{kind:?}\n{}", told.told());
        assert_eq!(std::fs::metadata(&file).expect("file").uid(), 65_534, "{kind:?}");
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

/// A new file was built beneath the mount point of the directory that it belongs to.
#[test]
fn a_new_file_waits_for_its_bind_mount() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (real, at) = (disk.root.join("real"), disk.root.join("at"));
    std::fs::create_dir(&real).expect("directory");
    std::fs::create_dir(&at).expect("directory");
    disk.settle();
    let bind = || drop(Cmd::new("mount").args(["--bind", text(&real), text(&at)]).ok());
    let unbind = || drop(Cmd::new("umount").arg("-l").arg(&at).ok());
    waits_for(&disk, &pool, &at, &bind, &unbind);
}

/// The same, of a subvolume, which has the UUID of its file system.
#[test]
fn a_new_file_waits_for_its_subvolume() {
    let (disk, pool) = (disk_of(Kind::Btrfs), Pool::new());
    let at = disk.root.join("at");
    std::fs::create_dir(&at).expect("directory");
    Cmd::new("btrfs").args(["subvolume", "create"]).arg(disk.root.join("sub")).ok();
    disk.settle();
    let mount = || {
        let device = Cmd::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&disk.root).ok().stdout;
        let device = device.trim().split('[').next().unwrap_or_default().to_owned();
        drop(Cmd::new("mount").args(["-o", "subvol=sub", &device]).arg(&at).ok());
    };
    let unmount = || drop(Cmd::new("umount").arg("-l").arg(&at).ok());
    waits_for(&disk, &pool, &at, &mount, &unmount);
}

/// A rename that only a slot held was forgotten, or made in the directory that stands beneath a
/// mount point, when what is mounted there was missing.
#[test]
fn a_rename_is_made_again_in_the_directory_that_it_was_made_in() {
    let script = "
import os, subprocess, sys, time
os.chdir(sys.argv[1])
directory = os.open('new', os.O_RDONLY)
def make(*names):
    for name in names:
        fd = os.open('tmp/' + name, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, b'bytes of ' + name.encode())
        os.fsync(fd)
        os.close(fd)
def move(*names):
    for name in names:
        os.rename('tmp/' + name, 'new/' + name)
    os.fsync(directory)
make('known')
move('known')
make('first', 'second')
# By nobody under Holdfast: the files are on the disk now, and the log still has them.
subprocess.run(['/bin/sync', '-f', '.'], env={}, check=True)
move('first', 'second')
print('ready', flush=True)
time.sleep(60)
";
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let (real, at) = (disk.root.join("real"), disk.root.join("at"));
        for directory in [&real, &at] {
            std::fs::create_dir_all(directory.join("tmp")).expect("directory");
            std::fs::create_dir_all(directory.join("new")).expect("directory");
        }
        disk.settle();
        Cmd::new("mount").args(["--bind", text(&real), text(&at)]).ok();
        killed(&pool, &[LATE], script, &at, || {
            for name in ["first", "second"] {
                let held = std::fs::read(at.join("new").join(name));
                assert_eq!(held.expect("file"), format!("bytes of {name}").as_bytes());
            }
            disk.cut_power();
        });
        Cmd::new("umount").arg("-l").arg(&at).ok();
        disk.restore_power();
        let told = pool.recover(&[]);
        told.ok();
        assert!(told.stdout.contains("second"), "the slots held no rename\n{}", told.told());
        for name in ["first", "second"] {
            let holds = format!("bytes of {name}");
            assert_eq!(whole(&real.join("new").join(name)), holds.as_bytes(), "{kind:?}\n{}", told.told());
            assert!(!real.join("tmp").join(name).exists(), "{kind:?}\n{}", told.told());
        }
        assert_eq!(std::fs::read_dir(at.join("new")).expect("directory").count(), 0, "{kind:?}");
    }
}

fn waits_for(disk: &Disk, pool: &Pool, at: &Path, mount: &dyn Fn(), unmount: &dyn Fn()) {
    mount();
    killed(pool, &[LATE], CREATE, at, || disk.cut_power());
    unmount();
    disk.restore_power();
    let told = pool.recover(&[]);
    is_put_off(&told, &at.join("second"), "another directory stands");
    assert_eq!(std::fs::read_dir(at).expect("directory").count(), 0, "{}", told.told());
    mount();
    let second = at.join("second");
    let told = pool.recover(&[]);
    told.ok();
    assert_eq!(whole(&second), b"bytes of second", "{}", told.told());
    unmount();
}

/// A file that was found by its handle alone had the path `/`, in which recovery looked for its
/// directory for ever.
#[test]
fn a_file_whose_path_nobody_knows_is_recovered() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (disk_of(kind), Pool::new());
        let directory = disk.root.join("sub");
        std::fs::create_dir(&directory).expect("directory");
        disk.settle();
        killed(&pool, &[LATE], CREATE, &directory, || {
            disk.settle();
            disk.cut_power();
        });
        disk.restore_power();
        std::fs::rename(directory.join("second"), disk.root.join("moved")).expect("renamed");
        // The kernel has not looked at it since: it knows no path of it.
        disk.restore_power();
        let told = pool.recover(&[]);
        told.ok();
        assert_eq!(whole(&disk.root.join("moved")), b"bytes of second", "{kind:?}\n{}", told.told());
        let again = pool.recover(&[]);
        again.ok();
        assert!(again.stdout.contains("\"clean\": true"), "{}", again.told());
    }
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

/// A file that was set aside: somebody changed it after the crash.
fn with_a_file_set_aside() -> (Disk, Pool, PathBuf) {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = old_file(&disk);
    killed(&pool, &[LATE], OVERWRITE, &file, || disk.cut_power());
    disk.restore_power();
    write_natively(&file, 30);
    is_set_aside(&pool.recover(&[]), &file, "changed after the crash");
    (disk, pool, file)
}

/// A program was started on the stale file, status 0.
#[test]
fn no_program_is_started_on_files_that_are_set_aside() {
    let (_disk, pool, file) = with_a_file_set_aside();
    let cat = |options: &[&str]| pool.run(options).args(["--", "cat", text(&file)]).output();
    let refused = cat(&[]);
    refused.expect(&[120]).says(&[text(&file), "--ignore-set-aside"], &["holdfast recover"]);
    assert_eq!(refused.stdout, "");
    assert!(cat(&["--ignore-set-aside"]).ok().stdout.contains("by somebody else"));
    pool.recover(&["--discard", text(&file)]).ok();
    cat(&[]).ok();
}

/// Old records were laid over what a later life of the file had written.
#[test]
fn no_old_records_go_over_a_later_life_of_their_file() {
    let (disk, pool, file) = with_a_file_set_aside();
    let script = OVERWRITE.replace("b'n'", "b'l'").replace("time.sleep(60)", "");
    pool.run(&["--ignore-set-aside"]).args(["--", "python3", "-c", &script, text(&file)]).output().ok();
    assert!(whole(&file) == vec![b'l'; BYTES]);
    let told = pool.recover(&["--force", text(&file)]);
    is_set_aside(&told, &file, "--export");
    assert!(whole(&file) == vec![b'l'; BYTES], "{}", told.told());
    let out = disk.root.join("out");
    std::fs::create_dir(&out).expect("directory");
    pool.recover(&["--export", text(&out)]).expect(&[1]);
    assert!(std::fs::read_dir(&out).expect("directory").next().is_some(), "nothing was exported");
    pool.recover(&["--discard", text(&file)]).ok();
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

/// What kept recovery from a file once (a disk that was full, mounted read-only or not at all) set
/// it aside for good, and the next recovery, by which time nothing stood in the way, wanted a word
/// from a person.
#[test]
fn what_stands_in_the_way_is_no_decision() {
    for kind in KINDS {
        let (disk, pool) = (disk_of(kind), Pool::new());
        let file = old_file(&disk);
        killed(&pool, &[LATE], OVERWRITE, &file, || disk.cut_power());
        disk.restore_power();
        let older = whole(&file);
        let remount = |how: &str| drop(Cmd::new("mount").args(["-o", how]).arg(&disk.root).ok());
        remount("remount,ro");
        is_put_off(&pool.recover(&[]), &file, "mount its file system for writing");
        pool.run(&[]).args(["--", "true"]).output().expect(&[120]).says(&[text(&file)], &["tries again"]);
        remount("remount,rw");
        Cmd::new("mount").args(["-t", "tmpfs", "none"]).arg(&disk.root).ok();
        let told = pool.recover(&[]);
        Cmd::new("umount").arg(&disk.root).ok();
        is_put_off(&told, &file, "its file system is not mounted");
        assert!(whole(&file) == older, "{kind:?}\n{}", told.told());
        let told = pool.recover(&[]);
        told.ok();
        assert!(whole(&file) == vec![b'n'; BYTES], "{kind:?}\n{}", told.told());
        assert!(pool.recover(&[]).ok().stdout.contains("\"clean\": true"), "{kind:?}");
    }
}

/// The same of a disk without room, for a file that is there in part and for one that the crash
/// took.
#[test]
fn a_full_disk_is_no_decision() {
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
# The keeper hears of processes that died on the way here, and commits for what they may have done.
time.sleep(0.5)
# With the first new one it syncs the directory.
for name in 'there', 'made', 'taken':
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b'n' * 100000)
    os.fsync(fd)
print('ready', flush=True)
time.sleep(60)
";
    for kind in [Kind::Ext4, Kind::Xfs] {
        // Whoever calls `sync` meanwhile saves what is on every disk: then the crash takes nothing.
        let crash = |_| {
            let (disk, pool) = (Disk::with_size(kind, 320 << 20), Pool::new());
            let names = ["there", "taken"].map(|name| disk.root.join(name));
            std::fs::write(&names[0], "").expect("file");
            std::fs::create_dir(disk.root.join("full")).expect("directory");
            disk.settle();
            killed(&pool, &[LATE], script, &disk.root, || disk.cut_power());
            disk.restore_power();
            (!names[1].exists()).then_some((disk, pool, names))
        };
        let (disk, pool, names) = (0..5).find_map(crash).expect("a crash takes something");
        // Space that was set apart for what is not on the disk yet comes back with each sync.
        let full = disk.root.join("full");
        let fill = |time: u32| {
            for (number, block) in ["1M", "64k", "4k", "4k"].into_iter().enumerate() {
                let to = format!("of={}/{time}-{number}", text(&full));
                drop(Cmd::new("dd").args(["if=/dev/zero", &format!("bs={block}"), &to]).output());
                disk.settle();
            }
        };
        for time in 0..2 {
            fill(time);
            is_put_off(&pool.recover(&[]), &names[1], "make room on its file system");
        }
        // Whoever makes room changes names beside the file, of which recovery knows by now that the
        // crash took it.
        std::fs::remove_dir_all(&full).expect("removed");
        let told = pool.recover(&[]);
        told.ok();
        let sizes = names.map(|name| whole(&name).iter().filter(|byte| **byte == b'n').count());
        assert_eq!(sizes, [BYTES, BYTES], "{kind:?}\n{}", told.told());
    }
}

/// Recovery was kept from a file that somebody had changed since the crash, and worked at another
/// one. What it did there was a later sign of life than that change.
#[test]
fn a_file_that_is_put_off_is_judged_by_its_own_crash() {
    let script = "
import os, sys, time
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(fd, b'n' * 1000, 0)
    os.fsync(fd)
print('ready', flush=True)
time.sleep(60)
";
    let (disk, other, pool) = (Disk::new(Kind::Ext4), Disk::with_size(Kind::Ext4, 64 << 20), Pool::new());
    let (file, there) = (old_file(&disk), old_file(&other));
    let program = ["--", "python3", "-c", script, text(&file), text(&there)];
    let mut run = Running::start(&pool.run(&[LATE]).args(program));
    run.until("ready");
    disk.cut_power();
    run.kill_all(&pool);
    disk.restore_power();
    std::thread::sleep(Duration::from_millis(100));
    write_natively(&file, 30);
    let theirs = whole(&file);
    std::thread::sleep(Duration::from_millis(100));
    Cmd::new("mount").args(["-t", "tmpfs", "none"]).arg(&disk.root).ok();
    let told = pool.recover(&[]);
    Cmd::new("umount").arg(&disk.root).ok();
    is_put_off(&told, &file, "its file system is not mounted");
    is_set_aside(&pool.recover(&[]), &file, "changed after the crash");
    assert!(whole(&file) == theirs);
    pool.recover(&["--discard", text(&file)]).ok();
}

/// Records of files that nobody may write to in place were replayed by opening them for that.
#[test]
fn an_append_only_file_is_left_to_the_kernel() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let file = disk.root.join("file");
        std::fs::write(&file, "old ").expect("file");
        Cmd::new("chattr").args(["+a", text(&file)]).ok();
        disk.settle();
        let script = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
os.write(fd, b'new')
os.fsync(fd)
print('ready', flush=True)
time.sleep(60)
";
        let mut run = Running::python(&pool, &[LATE], script, &file);
        run.until("ready");
        let status = pool.command("status").ok().stdout;
        assert!(status.contains("append-only or immutable") && status.contains(text(&file)), "{status}");
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        let told = pool.recover(&[]);
        told.ok();
        assert_eq!(whole(&file), b"old new", "{kind:?}\n{}", told.told());
        Cmd::new("chattr").args(["-a", text(&file)]).ok();
    }
}

/// The program's own `chattr` made the flag durable before the bytes, which nobody could write
/// then, or that of a directory before the names in it.
#[test]
fn a_file_is_whole_before_its_program_fixes_it() {
    const FIX: &str = "
import os, subprocess, sys, time
def sync(path):
    os.fsync(os.open(path, os.O_RDONLY))
for flag in '+a', '+i':
    for what in 'file', 'directory':
        home = f'{sys.argv[1]}{flag}{what}'
        os.mkdir(home)
        fd = os.open(f'{home}/file', os.O_RDWR | os.O_CREAT, 0o600)
        for part in b'first ', b'second ':
            os.write(fd, part)
            os.fsync(fd)
        os.write(fd, b'third')
        os.fdatasync(fd)
        fixed = f'{home}/file' if what == 'file' else home
        subprocess.run(['chattr', flag, fixed], check=True)
        sync(fixed)
        other = os.open(f'{home}-other', os.O_WRONLY | os.O_CREAT, 0o600)
        os.fsync(other)
        sync(os.path.dirname(home))
print('ready', flush=True)
time.sleep(60)
";
    for kind in KINDS {
        let (disk, pool) = (disk_of(kind), Pool::new());
        let mut run = Running::python(&pool, &[LATE], FIX, &disk.root.join("home"));
        run.until("ready");
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        let told = pool.recover(&[]);
        let homes = ["home+afile", "home+adirectory", "home+ifile", "home+idirectory"];
        let found = homes.map(|home| std::fs::read(disk.root.join(home).join("file")).unwrap_or_default());
        Cmd::new("chattr").args(["-R", "-a", "-i", text(&disk.root)]).ok();
        told.ok();
        for (home, found) in homes.iter().zip(found) {
            assert_eq!(found, b"first second third", "{kind:?} {home}\n{}", told.told());
        }
    }
}

/// One that became immutable later was set aside.
#[test]
fn a_file_that_became_immutable_waits_until_it_is_not() {
    for kind in KINDS {
        let (disk, pool) = (disk_of(kind), Pool::new());
        let file = old_file(&disk);
        killed(&pool, &[LATE], OVERWRITE, &file, || disk.cut_power());
        disk.restore_power();
        Cmd::new("chattr").args(["+i", text(&file)]).ok();
        is_put_off(&pool.recover(&[]), &file, "chattr -a -i");
        Cmd::new("chattr").args(["-i", text(&file)]).ok();
        let told = pool.recover(&[]);
        told.ok();
        assert!(whole(&file) == vec![b'n'; BYTES], "{kind:?}\n{}", told.told());
    }
}

/// A path that two files had meant both: the old records of one went over the other with them.
#[test]
fn two_files_of_one_path_are_told_apart() {
    let (disk, pool, file) = with_a_file_set_aside();
    let first = disk.root.join("first");
    std::fs::rename(&file, &first).expect("renamed");
    old_file(&disk);
    killed(&pool, &[LATE, "--ignore-set-aside"], OVERWRITE, &file, || disk.cut_power());
    disk.restore_power();
    write_natively(&file, 30);
    let (theirs, older) = (whole(&file), whole(&first));
    let told = pool.recover(&[]);
    is_set_aside(&told, &file, "--force '#");
    let report: serde_json::Value = serde_json::from_str(&told.stdout).expect("report");
    let rows = report["files"].as_array().expect("rows").iter();
    let named: Vec<&str> = rows.map(|row| row["named"].as_str().expect("named")).collect();
    assert!(matches!(named[..], [a, b] if a != b && a.starts_with('#') && b.starts_with('#')), "{named:?}");
    let refused = pool.recover(&["--force", text(&file)]);
    refused.expect(&[1]).says(&["is the name of several files"], &[named[0]]);
    assert!((whole(&file), whole(&first)) == (theirs, older), "{}", refused.told());
    pool.recover(&["--force", named[1], "--discard", named[0]]).ok();
    assert!(whole(&file) == vec![b'n'; BYTES]);
}
