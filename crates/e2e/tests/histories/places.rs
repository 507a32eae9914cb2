//! Where bytes are: in the file that they belong to and no other, and in copies of its volume.

use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::report;
use holdfast_e2e::running::{Running, SOON};
use rustix::process::Signal;

use super::{APPEND, BEHIND, LATE, text};

/// A directory was replaced by a link to another user's: recovery, as root, wrote there.
#[test]
fn h27_recovery_builds_nothing_behind_a_link() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (directory, elsewhere) = (disk.root.join("directory"), disk.root.join("elsewhere"));
    std::fs::create_dir(&directory).expect("directory");
    disk.settle();
    // With the first file of a directory the keeper syncs it; the second is in the log alone.
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
for name in 'first', 'second':
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, b'bytes')
    os.fsync(fd)
print('ready', flush=True)
time.sleep(60)
";
    let mut run = Running::python(&pool, &[LATE], script, &directory);
    run.until("ready");
    disk.cut_power();
    run.kill_all(&pool);
    disk.restore_power();
    assert!(!directory.join("second").exists(), "the crash takes the file");
    // Even the directory that it was in, which its handle would tell, is not reached by a link.
    std::fs::rename(&directory, &elsewhere).expect("rename");
    std::os::unix::fs::symlink(&elsewhere, &directory).expect("link");
    let told = pool.recover(&[]);
    let is_built = elsewhere.join("second").exists();
    assert!(!is_built, "recovery wrote behind the link\n{}", told.told());
}

/// Another file stood at the name of a slot, and got the slot's bytes.
#[test]
fn h27_recovery_writes_to_no_other_file() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    std::fs::write(&file, "").expect("file");
    disk.settle();
    let mut run = Running::python(&pool, &[LATE], APPEND, &file);
    run.until("ack 20");
    // Within the allowance for a file's times: later on they, too, would tell that it is another
    // one.
    let mut stopped = proc::keepers(&pool.path);
    stopped.extend(proc::descendants(run.child.id()));
    stopped.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
    std::fs::rename(&file, disk.root.join("kept")).expect("rename");
    std::fs::write(&file, "of somebody else").expect("file");
    run.kill_all(&pool);
    // Only processes died: by itself recovery would write to no file at all.
    let told = pool.recover(&["--replay"]);
    let found = std::fs::read_to_string(&file).expect("file");
    assert_eq!(found, "of somebody else", "{}", told.told());
}

/// What a copy of the disk without the pool holds after `and`.
fn copied(options: &[&str], word: &str, and: impl FnOnce(&Pool)) -> String {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    // A page a line: the keeper brings the last page of a file to the kernel soon, for its size and
    // times.
    let script = APPEND.replace("%09d", "%4095d");
    let program = ["--", "python3", "-c", &script, text(&file), "100", word];
    let mut run = Running::start(&pool.run(options).args(program));
    run.until("ack 99");
    and(&pool);
    disk.cut_power();
    run.kill_all(&pool);
    disk.restore_power();
    std::fs::read_to_string(&file).unwrap_or_default()
}

fn all_lines() -> String {
    (0..100).map(|number| format!("{number:4095}\n")).collect()
}

/// A snapshot of the volume lacked what the log had.
#[test]
fn h28_a_drained_file_system_can_be_copied_without_the_pool() {
    let found = copied(&BEHIND, "", |pool| drop(pool.command("drain").ok()));
    assert!(found == all_lines(), "{} bytes are there after a drain", found.len());
}

/// `sync` was the kernel's alone, which had nothing of the file.
#[test]
fn h28_a_program_that_syncs_all_file_systems_syncs_the_log_with_them() {
    let found = copied(&BEHIND, "sync", |_| ());
    assert!(found == all_lines(), "{} bytes are there after a sync", found.len());
}

/// The same of a program that nobody asked to drain, and that has been idle for a while.
#[test]
fn h28_bytes_wait_in_the_log_for_about_a_second() {
    let found = copied(&["--write-behind=at-once", "--fence=fanotify"], "", |pool| {
        wait_until(SOON, "a clean pool", || report::number(&pool.status(), "files_dirty") == 0);
    });
    assert!(found == all_lines(), "{} bytes are there after a while", found.len());
}
