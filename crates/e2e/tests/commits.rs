//! Commits and syncs of the keeper's take nothing from the syncs of programs: what natively the
//! next sync makes durable is durable behind it under Holdfast, too. btrfs keeps a log of what was
//! synced since its last commit, in which changes of names of that go; a commit that the keeper
//! asks for empties it. A journal has nothing to commit for a file that one of ours has taken
//! along. The names are changed, a file is synced, the device is copied, and the copy is looked at;
//! natively, too.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use holdfast_e2e::canaries;
use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::running::Running;

/// The rules, each by the deliberate bug that takes it out, and the test that must notice.
const RULES: [(&str, &str); 3] = [
    ("MovesSplit", "what_nobody_synced_is_at_one_name"),
    ("NamesUnlogged", "a_commit_of_the_keepers_takes_no_name_from_the_next_sync"),
    ("OwnSyncUnmatched", "a_sync_of_the_keepers_leaves_nothing_out_of_the_next_sync"),
];

/// So often the commit may be somebody else's.
const TRIES: usize = 6;

/// Names in directories of their own: a file that is synced in each, a commit that the keeper makes
/// because something is pending, the changes, and a sync of another file.
const SCRIPT: &str = "
import os, subprocess, sys, time
root = sys.argv[1]
def put(path, synced=True):
    fd = os.open(root + path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, path.encode() * 500)
    if synced: os.fsync(fd)
    os.close(fd)
def sync(path):
    fd = os.open(root + path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
uuid = subprocess.run(['findmnt', '-no', 'UUID', root], capture_output=True, text=True).stdout.strip()
def commits():
    return open('/sys/fs/btrfs/%s/commit_stats' % uuid).readline()
cases = ['rename', 'over', 'link', 'moved', 'away', 'removed', 'directory', 'elsewhere']
for name in cases: os.mkdir(root + '/' + name)
for path in ['/over/name', '/away/old', '/elsewhere/old']: put(path, False)
os.sync()
# From here on the first managed file is there, and something is pending.
put('/first')
os.mkdir(root + '/pending')
put('/second')
os.mkdir(root + '/pending-again')
for name in cases: put('/' + name + '/new')
sync('/directory')
before, limit, number = commits(), time.monotonic() + 20, 0
while len(sys.argv) < 3 and commits() == before and time.monotonic() < limit:
    number += 1
    os.mkdir(root + '/pending-%d' % number)
    put('/third-%d' % number)
    time.sleep(0.2)
if len(sys.argv) < 3 and commits() == before: sys.exit('the keeper did not have it commit')
os.rename(root + '/rename/new', root + '/rename/name')
os.rename(root + '/over/new', root + '/over/name')
os.link(root + '/link/new', root + '/link/name')
os.unlink(root + '/link/new')
os.rename(root + '/moved/new', root + '/moved/other')
os.rename(root + '/moved/other', root + '/moved/name')
os.rename(root + '/away/new', root + '/elsewhere/name')
os.unlink(root + '/removed/new')
os.unlink(root + '/directory/new')
put('/last')
print('ack', flush=True)
time.sleep(60)
";

/// What natively stands there after that sync, and what does not.
const STANDS: [&str; 6] = ["rename/name", "over/name", "link/name", "moved/name", "elsewhere/name", "last"];
const GONE: [&str; 8] = [
    "rename/new",
    "over/new",
    "link/new",
    "moved/new",
    "moved/other",
    "away/new",
    "removed/new",
    "directory/new",
];

fn wrong(root: &Path) -> Vec<String> {
    let is_new = |name: &str| {
        let found = fs::read_to_string(root.join(name)).unwrap_or_default();
        found.len() >= 2500 && (found.starts_with('/') && found.contains("/new/") || name == "last")
    };
    let missing = STANDS.iter().filter(|name| !is_new(name)).map(|name| format!("{name} is missing"));
    let back = GONE.iter().filter(|name| root.join(name).exists()).map(|name| format!("{name} is back"));
    missing.chain(back).collect()
}

/// Plays a script under Holdfast, or natively, up to its acknowledgement; what stands on the disk
/// when the power is cut then.
fn cut(kind: Kind, script: &str, pool: Option<&Pool>) -> Disk {
    let disk = Disk::new(kind);
    let native = Pool::new();
    let run = |options: &[&str]| match pool {
        Some(pool) => Running::python(pool, options, script, &disk.root),
        None => Running::start(&Cmd::new("python3").args(["-c", script]).arg(&disk.root).arg("native")),
    };
    let mut run = run(&[]);
    run.until("ack");
    // Before the next commit.
    let pool = pool.unwrap_or(&native);
    run.stop_all(pool);
    let copy = disk.copy();
    run.kill_all(pool);
    disk.replace(&copy);
    disk
}

/// The same, recovered.
fn cut_absorbed(kind: Kind, script: &str) -> Disk {
    let pool = Pool::new().logs_from_sync();
    let disk = cut(kind, script, Some(&pool));
    pool.recover(&[]).ok();
    disk
}

#[test]
fn a_commit_of_the_keepers_takes_no_name_from_the_next_sync() {
    assert_eq!(wrong(&cut(Kind::Btrfs, SCRIPT, None).root), Vec::<String>::new(), "natively");
    // The commit that the script sees may be the kernel's own, or whose sync of all file systems it
    // was that came by: behind it natively all is lost.
    let mut told = Vec::new();
    while told.len() < TRIES && told.last().is_none_or(|wrong: &Vec<String>| !wrong.is_empty()) {
        told.push(wrong(&cut_absorbed(Kind::Btrfs, SCRIPT).root));
    }
    assert!(told.iter().any(Vec::is_empty), "names are lost each time: {told:?}");
}

/// Names that are changed before there is any managed file, in a directory that was synced.
const BEFORE: &str = "
import os, sys, time
root = sys.argv[1]
def put(path):
    fd = os.open(root + path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b'x' * 3000)
    return fd
os.mkdir(root + '/dir')
os.sync()
for name in ['/dir/one', '/dir/two']: os.close(put(name))
fd = os.open(root + '/dir', os.O_RDONLY)
os.fsync(fd)
os.rename(root + '/dir/one', root + '/dir/name')
os.unlink(root + '/dir/two')
os.fsync(put('/first'))
print('ack', flush=True)
time.sleep(60)
";

#[test]
fn the_first_file_overtakes_no_name() {
    for disk in [cut(Kind::Btrfs, BEFORE, None), cut_absorbed(Kind::Btrfs, BEFORE)] {
        let stands = ["first", "dir/name", "dir/one", "dir/two"].map(|name| disk.root.join(name).exists());
        assert_eq!(stands, [true, true, false, false]);
    }
}

/// A directory in which the keeper follows changes: its sync is the kernel's while the ledger
/// rests, and what it is to commit went along with a file that natively takes nothing along.
const OF_A_DIRECTORY: &str = "
os.mkdir('d')
first = make('d/first')
os.write(first, b'x' * 4096)
os.fsync(first)
# Another program syncs directories, too.
if os.fork() == 0:
    os.fsync(os.open('d', os.O_RDONLY))
    os._exit(0)
os.wait()
os.close(make('b'))
os.close(make('d/second'))
os.pwrite(first, b'y' * 4096, 0)
os.fdatasync(first)
os.rename('b', 'c')
os.fsync(os.open('d', os.O_RDONLY))
";

/// The same of a file, which is left to the kernel then.
const OF_A_FILE: &str = "
os.mkdir('d')
first = make('d/first')
os.write(first, b'x' * 4096)
os.fsync(first)
os.close(make('b'))
second = make('d/second')
os.pwrite(first, b'y' * 4096, 0)
os.fdatasync(first)
os.rename('b', 'c')
os.fsync(second)
";

/// The last file is made before a commit that the keeper asks for, in which it is, and a name is
/// changed behind that.
const TAKEN_ALONG: [(Kind, &str, &str, &str); 6] = [
    (Kind::Ext4, OF_A_FILE, "c", "b"),
    (Kind::Xfs, OF_A_FILE, "c", "b"),
    (Kind::Ext4, OF_A_DIRECTORY, "c", "b"),
    (Kind::Xfs, OF_A_DIRECTORY, "c", "b"),
    (
        Kind::Ext4,
        "
os.mkdir('d')
os.fdatasync(make('d/a'))
last = make('a')
ctypes.CDLL(None).renameat2(-100, b'd/a', -100, b'a', 2)
os.rename('a', 'c')
os.fdatasync(last)
",
        "c",
        "a",
    ),
    (
        Kind::Xfs,
        "
os.close(make('b'))
first = make('c')
os.fsync(first)
os.rename('b', 'a')
os.mkdir('d')
last = make('d/b')
os.fsync(first)
os.unlink('a')
os.fsync(last)
",
        "d/b",
        "a",
    ),
];

#[test]
fn a_sync_of_the_keepers_leaves_nothing_out_of_the_next_sync() {
    for (kind, calls, stands, is_gone) in TAKEN_ALONG {
        let script = format!(
            "
import ctypes, os, sys, time
os.chdir(sys.argv[1])
def make(name): return os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
# Commits in vain, so that the ledger rests from the next one on.
for number in range(2):
    os.mkdir('vain-%d' % number)
    os.fsync(make('vain-%d/file' % number))
{calls}
print('ack', flush=True)
time.sleep(60)
"
        );
        for (whose, disk) in
            [("natively", cut(kind, &script, None)), ("absorbed", cut_absorbed(kind, &script))]
        {
            let is_right = disk.root.join(stands).exists() && !disk.root.join(is_gone).exists();
            assert!(
                is_right,
                "{kind:?}, {whose}: {:?}",
                fs::read_dir(&disk.root).expect("names").collect::<Vec<_>>()
            );
        }
    }
}

/// A file that nobody ever synced is moved between directories, and the keeper has something to do
/// in the one that it is moved to.
const MOVED: [&str; 8] = [
    "os.rename('b/moved', 'a/moved'); os.unlink('a/file')",
    "os.rename('b/moved', 'a/over'); os.rename('a/file', 'a/moved')",
    "os.rename('b/moved', 'a/moved'); os.unlink('a/file'); os.fsync(make('b/last'))",
    "os.rename('b', 'a/moved'); os.unlink('a/file'); os.mkdir('b')",
    "os.rename('b/moved', 'a/moved'); os.fsync(make('a/last'))",
    "os.mkdir('a/new'); os.rename('b/moved', 'a/new/moved'); os.unlink('a/file')",
    "os.link('b/moved', 'a/moved'); os.unlink('b/moved'); os.unlink('a/file')",
    "
for number in range(8): os.fsync(make('a/gone-%d' % number))
for number in range(8): os.unlink('a/gone-%d' % number)
os.rename('b/moved', 'a/moved')
time.sleep(4)",
];

#[test]
fn what_nobody_synced_is_at_one_name() {
    for calls in MOVED {
        let script = format!(
            "
import os, sys, time
os.chdir(sys.argv[1])
def make(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b'x' * 100)
    return fd
for name in 'ab': os.mkdir(name)
for name in ['a/over', 'b/moved']: os.close(make(name))
with open('inode', 'w') as file: file.write(str(os.stat('b/moved').st_ino))
os.sync()
os.fsync(make('a/file'))
{calls}
print('ack', flush=True)
time.sleep(60)
"
        );
        for disk in [cut(Kind::Btrfs, &script, None), cut_absorbed(Kind::Btrfs, &script)] {
            let inode = fs::read_to_string(disk.root.join("inode")).expect("made");
            let is_at = |name: &&str| {
                fs::metadata(disk.root.join(name)).is_ok_and(|found| found.ino().to_string() == inode)
            };
            let names: Vec<&str> = ["a/moved", "a/over", "b/moved", "a/moved/moved", "a/new/moved"]
                .into_iter()
                .filter(is_at)
                .collect();
            assert_eq!(names.len(), 1, "{calls}: {names:?}");
        }
    }
}

/// What nobody synced of one file, and the sync of another: natively a journal takes the size of an
/// append along that lies within a block of the file, and none of its bytes. Nothing is promised of
/// it but that it harms nothing else.
const APPENDED: &str = "
import os, sys, time
os.chdir(sys.argv[1])
def make(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b'a' * 5000)
    return fd
files = [make(name) for name in ['appended', 'other']]
os.sync()
os.write(files[0], b'b' * 100)
os.write(files[1], b'b' * 100)
os.fsync(files[1])
print('ack', flush=True)
time.sleep(60)
";

#[test]
fn an_append_that_nobody_synced_harms_nothing_else() {
    for disk in [cut(Kind::Ext4, APPENDED, None), cut_absorbed(Kind::Ext4, APPENDED)] {
        let read = |name| fs::read(disk.root.join(name)).expect("it was synced");
        let appended = read("appended");
        assert!(appended.starts_with(&[b'a'; 5000]) && appended.len() <= 5100, "{}", appended.len());
        assert!(appended[5000..].iter().all(|byte| b"\0b".contains(byte)), "bytes of nobody's");
        assert_eq!(read("other"), [&[b'a'; 5000][..], &[b'b'; 100]].concat());
    }
}

/// With a rule taken out, the test beside it must fail.
#[test]
fn every_rule_that_is_taken_out_is_missed() {
    let survived = canaries::survivors(&RULES);
    assert!(survived.is_empty(), "survived: {survived:?}");
}
