//! Files: their names, slots, sizes and times, and the file systems that they lie on.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::wait_until;
use holdfast_e2e::running::{Running, SOON};
use holdfast_e2e::{need, report};

use super::{BEHIND, LATE, text};

/// Where every write is promised to be durable, a file that was made without a name got one, a
/// later sync of another file made that durable, and what it had been written before was gone.
#[test]
fn bytes_of_a_file_without_a_name_are_durable_once_it_has_one() {
    let script = "
import os, sys, time
root = os.path.dirname(sys.argv[1])
fd = os.open(root, os.O_TMPFILE | os.O_RDWR)
os.write(fd, b'n' * 5000)
root_fd = os.open('/', os.O_RDONLY)
os.link('/proc/self/fd/%d' % fd, sys.argv[1], src_dir_fd=root_fd, follow_symlinks=True)
os.write(fd, b'l' * 10)
other = os.open(root + '/other', os.O_RDWR | os.O_CREAT)
os.write(other, b'o')
os.fsync(other)
print('ready', flush=True)
time.sleep(60)
";
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let file = disk.root.join("file");
        let mut run = Running::python(&pool, &["--durability=write", LATE], script, &file);
        run.until("ready");
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        pool.recover(&[]).ok();
        let found = std::fs::read(&file).expect("the file, by its name");
        assert!(found == [vec![b'n'; 5000], vec![b'l'; 10]].concat(), "{kind:?}: {} bytes", found.len());
    }
}

/// Two rounds at once gave back the slots of removed files, the second one those that new files had
/// by then: what these had synced was lost. It takes more open files than slots.
#[test]
fn files_keep_their_slots_while_others_are_removed() {
    let script = "
import os, random, sys, time
root = sys.argv[1]
os.mkdir(root)
for child in range(2):
    if os.fork() == 0:
        number = 0
        while True:
            number += 1
            name = f'{root}/removed-{child}-{number}'
            fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, b'removed')
            os.fsync(fd)
            os.close(fd)
            os.unlink(name)
def write(child):
    draw = random.Random(child)
    acknowledged = os.open(f'{sys.argv[2]}-{child}', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    files = [os.open(f'{root}/held-{child}-{n}', os.O_RDWR | os.O_CREAT, 0o600) for n in range(400)]
    for number in range(1, 1 << 30):
        which = draw.randrange(len(files))
        os.pwrite(files[which], b'%09d' % number, 0)
        os.fsync(files[which])
        os.write(acknowledged, b'%d %d\\n' % (which, number))
for child in range(3):
    if os.fork() == 0:
        write(child)
time.sleep(float(sys.argv[3]))
os.write(1, b'ready\\n')
time.sleep(60)
";
    for round in 0..6 {
        let (disk, pool, notes) = (Disk::new(Kind::Ext4), Pool::with_size("16M"), disk::directory());
        let (root, told) = (disk.root.join("root"), notes.path().join("told"));
        let seconds = format!("{}", 0.8 + 0.1 * f64::from(round));
        let program = ["--", "python3", "-c", script, text(&root), text(&told), &seconds];
        let mut run = Running::start(&pool.run(&["--durability=sync"]).args(program));
        run.until("ready");
        run.stop_all(&pool);
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        pool.recover(&[]).ok();
        for child in 0..3 {
            let told = std::fs::read_to_string(format!("{}-{child}", text(&told))).expect("acknowledgements");
            let mut last = std::collections::BTreeMap::new();
            for line in told.lines() {
                let (which, number) = line.split_once(' ').expect("two numbers");
                last.insert(which.to_owned(), number.parse::<u64>().expect("a number"));
            }
            assert!(last.len() > 20, "{} files", last.len());
            for (which, number) in last {
                let path = root.join(format!("held-{child}-{which}"));
                let found = std::fs::read_to_string(&path).unwrap_or_default();
                let found: u64 = found.parse().unwrap_or_default();
                assert!(
                    found >= number,
                    "round {round}: {} has {found}, {number} was acknowledged",
                    text(&path)
                );
            }
        }
    }
}

/// Where the bytes of a mapping lie was in a journal that the next sync, which the log answered,
/// did not commit.
#[test]
fn what_was_pushed_from_a_mapping_is_there_when_another_file_is_synced_later() {
    let script = "
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None)
SIZE = 1 << 20
other = os.open(sys.argv[1] + '.other', os.O_RDWR | os.O_CREAT, 0o600)
for _ in range(2):
    os.write(other, b'o')
    os.fsync(other)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.posix_fallocate(fd, 0, SIZE)
os.fsync(fd)
map = mmap.mmap(fd, SIZE)
os.fsync(other)
map[:] = b'm' * SIZE
assert libc.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), 7) == 0
os.pwrite(other, b'acknowledged', 0)
os.fsync(other)
os.write(1, b'ready\\n')
time.sleep(60)
";
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
        let file = disk.root.join("file");
        let mut run = Running::python(&pool, &[], script, &file);
        run.until("ready");
        disk.cut_power();
        run.kill_all(&pool);
        disk.restore_power();
        pool.recover(&[]).ok();
        let found = std::fs::read(&file).expect("file");
        assert!(
            found == vec![b'm'; 1 << 20],
            "{kind:?}: {} bytes",
            found.iter().filter(|byte| **byte == b'm').count()
        );
    }
}

/// link(a, b), link(a, c), write, unlink(c): the removal of one name was taken for that of the
/// file, and the slot then knew none that was left.
#[test]
fn h16_a_file_that_loses_one_of_its_names_keeps_its_bytes() {
    // Without the right to open files by their handles: names are all that recovery has.
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::of_user("nobody", ""));
    disk::give_to(&disk.root, "nobody");
    disk.settle();
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
fd = os.open('a', os.O_WRONLY | os.O_CREAT, 0o600)
os.pwrite(fd, b'1' * 4096, 0)
os.link('a', 'b')
os.link('a', 'c')
os.pwrite(fd, b'2' * 4096, 4096)
os.unlink('c')
os.pwrite(fd, b'3' * 4096, 8192)
print('ready', flush=True)
time.sleep(60)
";
    let mut run = Running::python(&pool, &[LATE], script, &disk.root);
    run.until("ready");
    disk.cut_power();
    run.kill_all(&pool);
    disk.restore_power();
    let told = pool.recover(&[]);
    let expected = [[b'1'; 4096], [b'2'; 4096], [b'3'; 4096]].concat();
    let found = std::fs::read(disk.root.join("b")).unwrap_or_default();
    assert!(found == expected, "{} bytes of b\n{}", found.len(), told.told());
}

/// A program kept a number of a slot that had gone to another file, and wrote into that.
#[test]
fn h20_a_slot_in_new_hands_is_closed_to_its_old_owner() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = "
import os, sys
os.chdir(sys.argv[1])
new = lambda name: os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
old, other = new('x'), new('y')
os.pwrite(old, b'x' * 100, 0)
os.pwrite(other, b'y' * 100, 0)
os.rename('y', 'x')
files = [new('z%d' % number) for number in range(8)]
for fd in files: os.pwrite(fd, b'z' * 100, 0)
assert os.pwrite(old, b'old' * 30, 0) == 90
for fd in files: assert os.pread(fd, 200, 0) == b'z' * 100, os.pread(fd, 200, 0)
assert os.pread(old, 200, 0) == b'old' * 30 + b'x' * 10
";
    let (output, summary) = pool.run_summarised(&BEHIND, &["python3", "-c", script, text(&disk.root)]);
    output.ok();
    assert!(report::number(&summary, "writes_absorbed") >= 10, "{summary:#}");
}

/// A volume that others mount, too, failed over to them without the pool.
#[test]
fn h25_unknown_file_systems_are_left_alone() {
    let memory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    let of = format!("of={}", text(&memory.path().join("file")));
    let dd = ["dd", "if=/dev/zero", &of, "bs=4k", "count=10", "conv=fsync"];
    let (output, summary) = Pool::new().run_summarised(&["--exclusive", text(memory.path())], &dd);
    output.ok();
    assert_eq!(report::number(&summary, "writes_absorbed"), 0, "{summary:#}");
}

/// A late drain changed the times that `cp -p` had set; tools skipped files whose size looked old;
/// a descriptor of the keeper's kept a program from being started.
#[test]
fn h26_times_and_sizes_are_what_the_program_made_them() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = "
import fcntl, os, subprocess, sys
os.chdir(sys.argv[1])
fd = os.open('timed', os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b't' * 5000)
os.utime('timed', (1000000000, 1000000000))
fd = os.open('sized', os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b's' * 5000)
assert os.fstat(fd).st_size == os.stat('sized').st_size == 5000
fcntl.flock(fd, fcntl.LOCK_EX)
os.close(fd)
fcntl.flock(os.open('sized', os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
fd = os.open('script', os.O_WRONLY | os.O_CREAT, 0o700)
os.write(fd, b'#!/bin/sh\\nexit 7\\n')
os.close(fd)
assert subprocess.run(['./script']).returncode == 7
";
    let (output, summary) = pool.run_summarised(&BEHIND, &["python3", "-c", script, text(&disk.root)]);
    output.ok();
    assert!(report::number(&summary, "writes_absorbed") >= 2, "{summary:#}");
    let modified = std::fs::metadata(disk.root.join("timed")).and_then(|meta| meta.modified()).expect("file");
    assert_eq!(
        modified,
        std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
        "the program set this time"
    );
}

/// What the keeper brought to the kernel later made files look newer than their last write: to
/// their program, and for good.
#[test]
fn h26_a_file_is_as_old_as_its_last_write() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = "
import os, sys, time
os.chdir(sys.argv[1])
def times(name):
    stat = os.stat(name)
    return stat.st_mtime_ns, stat.st_ctime_ns
def rests(name, seconds=0.6):
    seen = times(name)
    until = time.time() + seconds
    while time.time() < until:
        assert times(name) == seen, (name, seen, times(name))
        time.sleep(0.001)
    return seen
fd = os.open('drained', os.O_RDWR | os.O_CREAT, 0o600)
for page in range(0, 100, 3):
    os.pwrite(fd, b'd' * 4096, page * 4096)
first = rests('drained')
assert first[0] == first[1]
os.chmod('drained', 0o640)
changed = rests('drained')
assert changed[0] == first[0] and changed[1] > first[1], (first, changed)
os.utime('drained', (1000000000, 1000000000))
os.pwrite(fd, b'e' * 100, 50)
last = rests('drained')
assert last[0] == last[1] > changed[1], (changed, last)
fd = os.open('set', os.O_RDWR | os.O_CREAT, 0o600)
# Set while bytes wait in the log, most times: before the time of the last write and after it.
for turn in range(20):
    os.write(fd, b's' * 5000)
    os.utime('set', (1000000000, 1000000000))
    assert rests('set', 0.25 if turn % 4 == 3 else 0)[0] == 1000000000 * 10 ** 9
assert rests('set')[0] == 1000000000 * 10 ** 9
os.write(fd, b's' * 5000)
os.utime('set', (1000000000, 4000000000))
assert rests('set')[0] == 4000000000 * 10 ** 9
os.write(fd, b's' * 5000)
assert rests('set')[0] < 4000000000 * 10 ** 9
print(last[0])
";
    let options = ["--write-behind=at-once", "--age-max=200", "--fence=fanotify"];
    let (output, summary) = pool.run_summarised(&options, &["python3", "-c", script, text(&disk.root)]);
    let told = output.ok().stdout.trim().parse::<i64>().expect("nanoseconds");
    assert!(report::number(&summary, "writes_absorbed") >= 30, "{summary:#}");
    let meta = std::fs::metadata(disk.root.join("drained")).expect("file");
    assert_eq!(meta.mtime() * 1_000_000_000 + meta.mtime_nsec(), told, "the time that its program saw");
}

/// A directory that a program had made, and not noted yet, was lost, while what another one synced
/// after it was not: natively that sync commits both.
#[test]
fn what_is_made_while_others_sync_is_not_overtaken() {
    need::tool("strace");
    let calls =
        ["os.mkdir('made')", "os.symlink('to', 'made')", "os.mkfifo('made')", "os.link('old', 'made')"];
    for (kind, call) in [Kind::Ext4, Kind::Xfs].into_iter().flat_map(|kind| calls.map(|call| (kind, call))) {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let directory = disk.root.join("sub");
        std::fs::create_dir(&directory).expect("directory");
        std::fs::write(directory.join("old"), "").expect("file");
        disk.settle();
        let others = "
import os, sys, time
os.chdir(sys.argv[1])
def sync(name):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, b'bytes')
    os.fsync(fd)
for name in 'before', 'known', 'after':
    sync(name)
    print('synced', name, flush=True)
    input()
time.sleep(60)
";
        let mut other = Running::python(&pool, &[LATE], others, &disk.root);
        other.until("synced before");
        // The kernel has made it, and the program has not heard of it for two seconds.
        let script =
            format!("import os, sys; os.chdir(sys.argv[1]); print('ready', flush=True); input(); {call}");
        let delay = "inject=mkdir,mkdirat,symlink,symlinkat,mknod,mknodat,link,linkat:delay_exit=2000000";
        let strace = ["--", "strace", "-f", "-qq", "-o", "/dev/null", "-e", delay];
        let cmd = pool.run(&[LATE]).args(strace).args(["python3", "-c", &script, text(&directory)]);
        let mut run = Running::start(&cmd);
        run.until("ready");
        // By now nothing is pending any more: the death of a process that the other one started is
        // a change that nobody knows of.
        other.go_on();
        other.until("synced known");
        run.go_on();
        let made = directory.join("made");
        wait_until(2 * SOON, "what is made", || std::fs::symlink_metadata(&made).is_ok());
        other.go_on();
        other.until("synced after");
        disk.cut_power();
        run.kill_all(&pool);
        drop(other);
        disk.restore_power();
        let told = pool.recover(&[]);
        told.ok();
        assert_eq!(std::fs::read(disk.root.join("after")).expect("synced"), b"bytes", "{}", told.told());
        assert!(std::fs::symlink_metadata(&made).is_ok(), "{kind:?}: {call} is lost\n{}", told.told());
    }
}
