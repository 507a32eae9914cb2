//! Deaths of keepers and programs: who hears of them, and what they must not do to others.

use std::os::unix::fs::MetadataExt;

use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::running::{Running, SOON};

use super::{APPEND, BEHIND, text};

/// A program whose keeper died went on alone; the next keeper wrote older records over what it had
/// synced.
#[test]
fn h11_nothing_is_acknowledged_after_the_keepers_death() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    let mut run = Running::python(&pool, &[], APPEND, &file);
    run.until("ack 100");
    proc::kill_hard(proc::keeper(&pool.path));
    assert_eq!(run.until("errno"), "errno 5");
}

/// The same of a child that was forked after the keeper's death: what it synced, as a native
/// program's, was undone by the records that the keeper had left.
#[test]
fn h11_nothing_is_acknowledged_to_those_who_are_forked_later() {
    let script = "
import os, sys, time
def tried(who, fd):
    try:
        os.pwrite(fd, who, 0)
        os.fsync(fd)
        said = b'acknowledged'
    except OSError as error:
        said = b'errno %d' % error.errno
    os.write(1, who + b' ' + said + b'\\n')
files = [os.open(sys.argv[1] + name, os.O_RDWR | os.O_CREAT, 0o600) for name in ('one', 'two')]
for fd in files:
    tried(b'parent', fd)
os.write(1, b'ready\\n')
input()
for generation in b'child', b'grandchild':
    if os.fork():
        time.sleep(60)
    tried(generation, files[0])
    tried(generation, os.open(sys.argv[1] + 'two', os.O_RDWR))
    tried(generation, os.open(sys.argv[1] + 'new', os.O_RDWR | os.O_CREAT, 0o600))
os.write(1, b'end\\n')
time.sleep(60)
";
    for options in [&[][..], &["--durability=sync"]] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let mut run = Running::python(&pool, options, script, &disk.root.join("file-"));
        run.until("ready");
        proc::kill_hard(proc::keeper(&pool.path));
        run.go_on();
        for who in ["child", "grandchild"] {
            for _ in 0..3 {
                assert_eq!(run.until(who), format!("{who} errno 5"), "{options:?}");
            }
        }
        run.until("end");
    }
}

/// Files that no keeper ever manages are none of its death's business: pid files on /run, shared
/// memory, what a service writes on its way out.
#[test]
fn h11_what_was_never_managed_goes_on() {
    let script = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
os.write(fd, b'x')
os.fsync(fd)
os.write(1, b'ready\\n')
input()
for path in sys.argv[1] + '.new', '/dev/shm/holdfast-e2e-%d' % os.getpid(), '/proc/self/comm':
    try:
        for _ in range(2):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(fd, b'x')
            if '/proc' not in path: os.fsync(fd)
        said = b'works'
    except OSError as error:
        said = b'errno %d' % error.errno
    os.write(1, b'new ' + said + b'\\n')
    if '/shm' in path: os.unlink(path)
os.write(1, b'end\\n')
time.sleep(60)
";
    for options in [&[][..], &["--durability=sync"]] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let mut run = Running::python(&pool, options, script, &disk.root.join("file"));
        run.until("ready");
        proc::kill_hard(proc::keeper(&pool.path));
        run.go_on();
        for said in ["new errno 5", "new works", "new works"] {
            assert_eq!(run.until("new"), said, "{options:?}");
        }
        run.until("end");
    }
}

/// The keeper died with bytes that only the log had; outsiders read old ones until somebody came
/// and recovered.
#[test]
fn h12_recovery_follows_the_keepers_death_at_once() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let script = "
import os, sys, time
os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600), b'n' * 100000)
print('ready', flush=True)
time.sleep(60)
";
    let mut run = Running::python(&pool, &BEHIND, script, &file);
    run.until("ready");
    // Its end may be there already, for the sake of who looks at its size.
    let blocks = std::fs::metadata(&file).expect("file").blocks();
    assert!(blocks * 512 < 50_000, "nothing but the log has the bytes: {blocks} blocks");
    proc::kill_hard(proc::keeper(&pool.path));
    // The program lives on, and so does the supervisor.
    wait_until(SOON, "what was acknowledged", || {
        std::fs::read(&file).is_ok_and(|bytes| bytes == [b'n'; 100_000])
    });
}

/// A child that never called us kept the socket open, and nobody heard of its parent's death; a
/// program that closed all its descriptors was taken for dead.
#[test]
fn h22_a_dead_program_is_noticed_though_its_child_lives() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let mut steady = Running::python(&pool, &[], APPEND, &disk.root.join("steady"));
    steady.until("ack 5");
    let script = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
os.write(fd, b'parent')
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print('ready', os.getpid(), flush=True)
while True: os.pwrite(fd, b'p' * 4096, 0)
";
    let mut run = Running::python(&pool, &[], script, &disk.root.join("file"));
    let parent: u32 =
        run.until("ready").rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("a number");
    let is_client = || pool.status()["clients"].as_array().is_some_and(|all| all.contains(&parent.into()));
    assert!(is_client(), "{:#}", pool.status());
    proc::kill_hard(parent);
    wait_until(SOON, "the keeper's notice of the death", || !is_client());
    let script = "
import os, sys
os.closerange(3, 1 << 20)
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
for number in range(50):
    os.write(fd, b'line')
    os.fsync(fd)
";
    let closed = disk.root.join("closed");
    pool.run(&[]).args(["--", "python3", "-c", script, text(&closed)]).limit(4 * SOON).ok();
    drop(run);
    drop(steady);
    wait_until(2 * SOON, "the keeper's end, with its last client", || proc::keepers(&pool.path).is_empty());
}
