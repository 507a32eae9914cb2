//! Recovery ([`super::recovered`]), and where files are: their names and directories, and what is
//! mounted there.

use std::path::Path;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind, give_to};
use holdfast_e2e::pool::Pool;

use super::recovered::{CREATE, KINDS, disk_of, is_put_off, is_set_aside, killed, whole};
use super::{LATE, text};

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
