//! Recovery ([`super::recovered`]), and what it must not decide: files that are set aside for a
//! person, put off, or that nobody may write to.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind, give_to};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::running::Running;

use super::recovered::{
    BYTES, KINDS, OVERWRITE, disk_of, is_put_off, is_set_aside, killed, old_file, whole, write_natively,
};
use super::{LATE, text};

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
