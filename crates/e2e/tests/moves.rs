//! Moves by outsiders that no notice of the file's own path tells of: of a file that got its name
//! by `link`, and of a directory above a file. A sync of the program's that follows covers the
//! move, as natively: after a power cut the bytes are at the new name, and nothing is at the old
//! one. And a file that is gone together with its directory, and a file system that is mounted
//! beside the one that it is a copy of.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use holdfast_e2e::canaries;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::running::Running;
use holdfast_testkit::rounds;

/// The rules, each by the deliberate bug (`crates/canary`) that takes it out, and the test that
/// must notice.
const RULES: [(&str, &str); 4] = [
    ("LinkedMovesUnheard", "a_move_of_a_file_that_was_linked_stays"),
    ("DirectoryMovesUnheard", "a_move_of_the_directory_above_a_file_stays"),
    ("RemovedParentsAwaited", "a_file_that_is_gone_with_its_directory_is_no_trouble"),
    ("MountedUuid", "a_copy_of_a_btrfs_beside_the_original_is_recovered"),
];

/// Makes a file in a way of its own, says so, and writes to it and syncs it for each line it reads.
const PROGRAM: &str = "
import os, sys
os.chdir(sys.argv[1])
os.mkdir('d')
os.sync()
exec(open('how').read())
os.fdatasync(fd)
print('ready', flush=True)
for line in sys.stdin:
    os.pwrite(fd, b'new', 0)
    if os.path.isdir('instead'): os.rename('instead', 'd')
    os.fsync(fd)
    print('done', flush=True)
";
const OPENED: &str =
    "fd = os.open('d/c', os.O_RDWR | os.O_CREAT)\nos.write(fd, b'old bytes')\nos.fsync(fd)\n";
const CONTENT: &[u8] = b"new bytes";
/// What is noticed by a thread of the keeper takes its wake-up.
const SOON: Duration = Duration::from_millis(300);

/// What an outsider moves where, and what is to be there at the end.
fn each(how: &str, from: &str, to: &str, there: &[&str], gone: &[&str]) {
    let act = |root: &Path| std::fs::rename(root.join(from), root.join(to)).expect("moved");
    each_act(how, act, there, gone);
}

fn each_act(how: &str, act: impl Fn(&Path), there: &[&str], gone: &[&str]) {
    for _ in 0..rounds() {
        for kind in [Kind::Ext4, Kind::Xfs] {
            let (disk, pool) = (Disk::new(kind), Pool::new());
            std::fs::write(disk.root.join("how"), how).expect("script");
            let options = ["--durability=sync", "--fence=fanotify", "--age-max=3600000"];
            let mut running = Running::python(&pool, &options, PROGRAM, &disk.root);
            running.until("ready");
            // New files are watched when they are a few milliseconds old.
            std::thread::sleep(SOON);
            act(&disk.root);
            std::thread::sleep(SOON);
            writeln!(running.child.stdin.as_mut().expect("piped"), "sync").expect("it listens");
            running.until("done");
            running.stop_all(&pool);
            disk.cut_power();
            running.kill_all(&pool);
            disk.restore_power();
            let recovered = pool.recover(&[]);
            recovered.expect(&[0]);
            let told = format!("{kind:?}\n{}", recovered.told());
            there.iter().for_each(|name| must_be(&disk.root.join(name), &told));
            gone.iter().for_each(|name| assert!(!disk.root.join(name).exists(), "{name} is back: {told}"));
        }
    }
}

fn must_be(file: &Path, told: &str) {
    let found = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}: {told}", file.display()));
    assert_eq!(found, CONTENT, "{}: {told}", file.display());
}

#[test]
fn a_move_of_a_file_that_was_linked_stays() {
    let how = "
fd = os.open('d', os.O_RDWR | os.O_TMPFILE)
os.write(fd, b'old bytes')
import ctypes
AT_FDCWD, AT_SYMLINK_FOLLOW = -100, 0x400
linkat = ctypes.CDLL(None).linkat
assert linkat(AT_FDCWD, b'/proc/self/fd/%d' % fd, AT_FDCWD, b'd/c', AT_SYMLINK_FOLLOW) == 0
";
    each(how, "d/c", "d/b", &["d/b"], &["d/c"]);
}

#[test]
fn a_move_of_a_file_whose_first_name_is_gone_stays() {
    let how = format!("{OPENED}os.link('d/c', 'd/n')\nos.unlink('d/c')\n");
    each(&how, "d/n", "d/b", &["d/b"], &["d/c", "d/n"]);
}

#[test]
fn a_move_of_a_second_name_stays() {
    let how = format!("{OPENED}os.link('d/c', 'd/n')\n");
    each(&how, "d/n", "d/b", &["d/b", "d/c"], &["d/n"]);
}

#[test]
fn a_move_of_the_directory_above_a_file_stays() {
    each(OPENED, "d", "e", &["e/c"], &["d"]);
}

/// An outsider removes the file, and the program puts another directory in the place of its empty
/// one: that is no missing mount, and recovery keeps nobody waiting for one.
#[test]
fn a_file_that_is_gone_with_its_directory_is_no_trouble() {
    let how = format!("{OPENED}os.mkdir('instead')\n");
    each_act(&how, |root| std::fs::remove_file(root.join("d/c")).expect("removed"), &[], &["d/c", "instead"]);
}

/// Linux gives it another UUID at each mount, for as long as both are mounted: by that one its
/// files were not found again.
#[test]
fn a_copy_of_a_btrfs_beside_the_original_is_recovered() {
    let (original, disk, pool) = (Disk::new(Kind::Btrfs), Disk::new(Kind::Btrfs), Pool::new());
    std::fs::write(original.root.join("how"), OPENED).expect("script");
    std::fs::create_dir(original.root.join("d")).expect("directory");
    std::fs::write(original.root.join("d/c"), "").expect("file");
    original.settle();
    disk.replace(&original.copy());
    let script = PROGRAM.replace("os.mkdir('d')\n", "");
    let mut running = Running::python(&pool, &["--durability=sync"], &script, &disk.root);
    running.until("ready");
    writeln!(running.child.stdin.as_mut().expect("piped"), "sync").expect("it listens");
    running.until("done");
    // What is on the device now is all that the cut leaves.
    running.stop_all(&pool);
    let left = disk.copy();
    running.kill_all(&pool);
    disk.replace(&left);
    assert_ne!(std::fs::read(disk.root.join("d/c")).expect("file"), CONTENT, "nothing is to be recovered");
    let recovered = pool.recover(&[]);
    recovered.expect(&[0]);
    must_be(&disk.root.join("d/c"), &recovered.told());
}

/// Each test above with the rule taken out that it is about; with all rules they run in this build
/// already.
#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let survived = canaries::survivors(&RULES);
    assert!(survived.is_empty(), "survived: {survived:?}");
}
