//! What changes names is pending until it is committed, and nothing else is: syncs beside it are
//! absorbed. Told by counts, on each file system.

use std::path::Path;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;
use serde_json::Value;

const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

fn run(kind: Kind, pool: &Pool, script: &str, more: &[&str]) -> Value {
    let disk = Disk::new(kind);
    let program = [&["python3", "-c", script, text(&disk.root)], more].concat();
    let (output, summary) = pool.run_summarised(&[], &program);
    output.ok();
    summary
}

fn count(summary: &Value, name: &str) -> u64 {
    report::number(summary, name)
}

/// Processes that end beside a log, of each kind that ends: by exec, fork and vfork.
const ENDING: &str = "
import os, subprocess, sys
log = os.open(sys.argv[1] + '/log', os.O_WRONLY | os.O_CREAT, 0o644)
def entry():
    os.write(log, b'x' * 100)
    os.fdatasync(log)
entry()
for number in range(20):
    subprocess.run(['true'])
    entry()
    if os.fork() == 0:
        os.listdir(sys.argv[1])
        os._exit(0)
    os.wait()
    entry()
    os.posix_spawn('/bin/true', ['true'], os.environ)
    os.wait()
    entry()
";

/// A file's directory is moved, and at its name stands what leads nowhere, or what its user may not
/// read, while other files are synced.
const NOWHERE: &str = "
import os, sys, time
os.chdir(sys.argv[1])
os.mkdir('d')
def put(name):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b'x' * 100)
    os.fsync(fd)
    os.write(fd, b'x' * 100)
    os.fsync(fd)
put('d/file')
if sys.argv[2] == 'closed': os.chmod('d', 0o300)
elif sys.argv[2] != 'box':
    os.rename('d', 'e')
    if sys.argv[2] == 'loop': os.symlink('d', 'd')
    else:
        open('f', 'w').close()
        os.symlink('f/x', 'd')
put('other')
# Longer than what is absorbed may stay in the log.
time.sleep(1.5)
put('last')
";

/// No round of the keeper's got any further than there, and each `drain` and each end failed. A
/// user who may make a file in a directory and not read it had EIO from its first sync.
#[test]
fn a_directory_that_cannot_be_opened_stops_nothing() {
    let cases = [("loop", false), ("link", false), ("closed", false), ("closed", true), ("box", true)];
    for kind in KINDS {
        for (how, by_user) in cases {
            let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
            let pool = if by_user { pool.given_to("nobody", "") } else { pool };
            let place = disk.root.join("place");
            // Of root's box nobody but root reads the names.
            let make = if how == "box" { "&& mkdir $0/d && chmod 1733 $0/d" } else { "" };
            let script = format!("mkdir $0 && chmod 777 $0 {make}");
            Cmd::new("sh").args(["-c", &script]).arg(&place).ok();
            let script = if how == "box" { NOWHERE.replace("os.mkdir('d')", "") } else { NOWHERE.to_owned() };
            let told = pool.run(&[]).args(["--", "python3", "-c", &script, text(&place), how]).ok().told();
            // On btrfs what is pending leaves the first syncs to the kernel.
            assert!(
                kind == Kind::Btrfs || told.contains("100 % of 6 syncs absorbed"),
                "{kind:?}, {how}: {told}"
            );
        }
    }
}

/// Makes and syncs files in a directory that another process has elsewhere every other moment, or
/// has a link stand for.
const SWAPPED: &str = "
import os, signal, sys, time
root = sys.argv[1] + '/'
os.mkdir(root + 'above')
os.mkdir(root + 'elsewhere')
swapper = os.fork()
if swapper == 0:
    while True:
        os.rename(root + 'above', root + 'aside')
        os.symlink(root + 'elsewhere', root + 'above')
        os.unlink(root + 'above')
        os.rename(root + 'aside', root + 'above')
end = time.time() + 5
synced = 0
while time.time() < end:
    for number in range(8):
        try:
            fd = os.open(root + 'above/file-%d' % number, os.O_CREAT | os.O_RDWR, 0o644)
        except FileNotFoundError:
            continue
        os.write(fd, b'x')
        os.fsync(fd)
        os.close(fd)
        synced += 1
os.kill(swapper, signal.SIGKILL)
print('synced', synced > 100)
";

#[test]
fn no_sync_fails_because_its_directory_is_elsewhere_for_a_moment() {
    for pool in [Pool::new(), Pool::new().logs_from_sync()] {
        let disk = Disk::new(Kind::Ext4);
        let (output, _) = pool.run_summarised(&[], &["python3", "-c", SWAPPED, text(&disk.root)]);
        assert_eq!(output.ok().stdout, "synced True\n");
    }
}

#[test]
fn a_process_that_ends_leaves_nothing_pending() {
    for kind in KINDS {
        for pool in [Pool::new(), Pool::new().logs_from_sync()] {
            let summary = run(kind, &pool, ENDING, &[]);
            let (real, by_keeper) = (count(&summary, "syncs_real"), count(&summary, "keeper_fsyncs"));
            println!("{kind:?}: {real} syncs of 61 are real, {by_keeper} by the keeper");
            assert!(real <= 6 && by_keeper <= 25, "{kind:?}: {summary:#}");
        }
    }
}

/// A database with a rollback journal, which it makes and removes in each transaction, beside other
/// programs that need the processor; and something pending when it begins.
const JOURNALS: &str = "
import os, sqlite3, sys
busy = []
for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 0):
    child = os.fork()
    if child == 0:
        while True: pass
    busy.append(child)
db = sqlite3.connect(sys.argv[1] + '/app.db', isolation_level=None)
db.execute('CREATE TABLE item(n)')
os.mkdir(sys.argv[1] + '/new')
for number in range(200): db.execute('INSERT INTO item VALUES(1)')
for child in busy:
    os.kill(child, 9)
    os.wait()
";

#[test]
fn what_is_pending_once_does_not_stay_so() {
    for kind in KINDS {
        for pool in [Pool::new(), Pool::new().logs_from_sync()] {
            let summary = run(kind, &pool, JOURNALS, &[]);
            let real = count(&summary, "syncs_real");
            println!("{kind:?}: {real} syncs of 804 are real");
            assert!(real <= 100 && count(&summary, "syncs_absorbed") >= 700, "{kind:?}: {summary:#}");
        }
    }
}

/// What a client does itself is no stranger's, however long it is in the midst of it.
#[test]
fn no_program_is_a_stranger_on_a_busy_machine() {
    let pools = [Pool::new(), Pool::new().logs_from_sync()];
    for (kind, pool) in [Kind::Ext4, Kind::Btrfs].into_iter().zip(&pools) {
        for (script, syncs) in [(JOURNALS, 804), (APPENDS, 200)] {
            let summary = run(kind, pool, script, &["2"]);
            let real = count(&summary, "syncs_real");
            println!("{kind:?}: {real} syncs of {syncs} are real");
            assert!(real <= syncs / 10, "{kind:?}: {summary:#}");
        }
    }
}

const APPENDS: &str = "
import os, sys
busy = []
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        while True: pass
    busy.append(child)
log = os.open(sys.argv[1] + '/log', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
for number in range(200):
    os.write(log, b'x' * 100)
    os.fsync(log)
for child in busy:
    os.kill(child, 9)
    os.wait()
";
