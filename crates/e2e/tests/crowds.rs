//! Several programs that make names on one file system: what each of them syncs cannot be absorbed
//! while something of the others is pending, and must cost no more than natively.

use std::path::Path;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::need;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;

const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// So many processes, each in a directory of its own, do something to new files.
const CROWD: &str = "
import os, sys
root, what, processes, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
def made(name, mode=None):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, b'x' * 500)
    if mode: os.fchmod(fd, mode)
    os.fsync(fd)
    os.close(fd)
def work(number):
    name = 'file-%d' % number
    if what == 'create': made(name)
    elif what == 'remove':
        made(name)
        os.unlink(name)
    elif what == 'rename':
        made('new-%d' % number)
        os.rename('new-%d' % number, name)
    elif what == 'link':
        made('new-%d' % number)
        os.link('new-%d' % number, name)
        os.unlink('new-%d' % number)
    elif what == 'deliver':
        made('new-%d' % number)
        os.rename('new-%d' % number, name)
        os.fsync(directory)
    elif what == 'mode': made(name, 0o644)
    elif what == 'directory':
        os.mkdir('made-%d' % number)
        made('made-%d/file' % number)
for process in range(processes):
    if os.fork() == 0:
        os.mkdir(root + '/%d' % process)
        os.chdir(root + '/%d' % process)
        directory = os.open('.', os.O_RDONLY)
        for number in range(count): work(number)
        os._exit(0)
for process in range(processes):
    assert os.wait()[1] == 0
";

/// Each sync of a file was four to five: the keeper committed what was pending, settled the file,
/// and the program's own sync was real. One of a directory was two.
#[test]
fn a_sync_that_cannot_be_absorbed_is_one_sync() {
    for kind in KINDS {
        for (what, processes) in [
            ("create", 4),
            ("remove", 4),
            ("rename", 4),
            ("deliver", 4),
            ("mode", 1),
            ("link", 1),
            ("directory", 1),
        ] {
            let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
            let program = ["python3", "-c", CROWD, text(&disk.root), what, &processes.to_string(), "100"];
            let (output, summary) = pool.run_summarised(&[], &program);
            output.ok();
            let count = |name| report::number(&summary, name);
            let syncs = count("keeper_fsyncs") + count("syncs_real");
            let natively = 100 * processes * if what == "deliver" { 2 } else { 1 };
            assert!(
                syncs <= natively + natively / 5 + 20,
                "{kind:?}, {what}: {syncs} syncs, natively {natively}\n{summary:#}"
            );
        }
    }
}

/// New files at a steady pace, each synced and closed.
const STEADY: &str = "
import os, sys, time
os.chdir(sys.argv[1])
begun = time.monotonic()
for number in range(800):
    fd = os.open('file-%d' % number, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, b'x' * 500)
    os.fsync(fd)
    os.close(fd)
    time.sleep(max(0, begun + number / 100 - time.monotonic()))
";

/// Files at rest were let go of when nothing was dirty, which never came.
#[test]
fn new_files_without_end_find_a_place() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let summary = tempfile::NamedTempFile::new().expect("temporary file");
    Cmd::new("setpriv")
        .args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "bash", "-c"])
        .args(["ulimit -n 1000; exec \"$@\"", "bash"])
        .arg(need::holdfast())
        .args(["run", "--volatile", "--size=256M", "--pool", pool.text()])
        .arg(format!("--summary={}", summary.path().display()))
        .args(["--", "python3", "-c", STEADY, text(&disk.root)])
        .ok();
    let summary = report::parse(&std::fs::read_to_string(summary.path()).expect("summary"));
    // On a busy machine some may come while the keeper is at it.
    assert!(report::number(&summary, "syncs_absorbed") > 700, "{summary:#}");
}

/// A database with a rollback journal makes and removes a file in each transaction.
const DATABASES: &str = "
import os, sqlite3, sys
for process in range(2):
    if os.fork() == 0:
        db = sqlite3.connect(sys.argv[1] + '/%d.db' % process, isolation_level=None)
        db.execute('CREATE TABLE item(text)')
        for row in range(100): db.execute('INSERT INTO item VALUES(1)')
        os._exit(0)
assert os.wait()[1] == 0 and os.wait()[1] == 0
";

#[test]
fn two_databases_sync_as_often_as_natively() {
    const SYNCS_EACH: u64 = 4;
    for kind in KINDS {
        let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
        let (output, summary) = pool.run_summarised(&[], &["python3", "-c", DATABASES, text(&disk.root)]);
        output.ok();
        let count = |name| report::number(&summary, name);
        let syncs = count("keeper_fsyncs") + count("syncs_real");
        let natively = 2 * 101 * SYNCS_EACH;
        assert!(syncs <= natively + natively / 5, "{kind:?}: {syncs}, natively {natively}\n{summary:#}");
    }
}

/// Nothing of what comes and goes beside it keeps a log out of the log for good.
const BESIDE: &str = "
import os, sys, time
os.chdir(sys.argv[1])
child = os.fork()
if child == 0:
    for number in range(1000000):
        fd = os.open('file-%d' % number, os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(fd, b'x')
        os.fsync(fd)
        os.close(fd)
        time.sleep(0.004)
log = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
for number in range(1500):
    os.write(log, b'y' * 100)
    os.fdatasync(log)
    time.sleep(0.001)
os.kill(child, 9)
os.wait()
";

#[test]
fn a_log_beside_a_few_new_files_is_absorbed() {
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new().logs_from_sync());
        let (output, summary) = pool.run_summarised(&[], &["python3", "-c", BESIDE, text(&disk.root)]);
        output.ok();
        let absorbed = report::number(&summary, "syncs_absorbed");
        let by_keeper = report::number(&summary, "keeper_fsyncs");
        println!("{kind:?}: {absorbed} of 1500, {by_keeper} by the keeper");
        assert!(absorbed > 1000, "{kind:?}: {absorbed} of 1500\n{summary:#}");
    }
}

/// Processes that open, write and sync one file, while another one gives it a second name and takes
/// that away, or puts a new file in its place.
const NAMED: &str = "
import ctypes, os, sys, time
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open('file', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'first')
os.fsync(fd)
os.close(fd)
children = []
for process in range(3):
    child = os.fork()
    if child == 0:
        while True:
            fd = os.open('file', os.O_RDWR)
            os.pwrite(fd, b'x' * 64, 64 * process)
            os.fsync(fd)
            os.close(fd)
    children.append(child)
until = time.time() + 1
while time.time() < until:
    if sys.argv[2] == 'link':
        os.link('file', 'other')
        os.unlink('other')
    else:
        fd = os.open('.', os.O_RDWR | os.O_TMPFILE, 0o644)
        os.write(fd, b'y' * 256)
        assert libc.linkat(-100, b'/proc/self/fd/%d' % fd, -100, b'other', 0x400) == 0
        os.fsync(fd)
        os.rename('other', 'file')
        os.close(fd)
    time.sleep(0.001)
for child in children:
    os.kill(child, 9)
    os.wait()
";

/// The keeper looked for such files by opening them, and took its own opens for an outsider's. On a
/// busy machine a notice may still come so late that nothing explains it: one of three goes well.
#[test]
fn no_program_is_an_outsider_because_it_changes_names() {
    for what in ["link", "nameless"] {
        let told = || {
            let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new().logs_from_sync());
            let program = ["python3", "-c", NAMED, text(&disk.root), what];
            let (output, summary) = pool.run_summarised(&["--fence=inotify"], &program);
            output.ok();
            summary.to_string()
        };
        let told: Vec<String> = (0..3).map(|_| told()).collect();
        let is_clean = |told: &String| !told.contains("outside Holdfast");
        assert!(told.iter().any(is_clean), "{what}: {told:?}");
    }
}
