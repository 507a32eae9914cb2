//! Names on btrfs behind a commit that the keeper asked for. What was synced before it the kernel
//! does not follow any more, so a later sync of something else would not make a rename durable,
//! which natively, without that commit, it does. Each change is made between a commit and a sync,
//! the device is copied, and the copy is looked at.

use std::fs;
use std::path::Path;

use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::report;
use holdfast_e2e::running::Running;

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
while commits() == before and time.monotonic() < limit:
    number += 1
    os.mkdir(root + '/pending-%d' % number)
    put('/third-%d' % number)
    time.sleep(0.2)
print('commit seen' if commits() != before else 'no commit', flush=True)
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

#[test]
fn a_commit_of_the_keepers_takes_no_name_from_the_next_sync() {
    let disk = Disk::new(Kind::Btrfs);
    let pool = Pool::new().logs_from_sync();
    let mut run = Running::python(&pool, &[], SCRIPT, &disk.root);
    run.until("commit seen");
    run.until("ack");
    // Before the next commit.
    run.stop_all(&pool);
    let copy = disk.copy();
    run.kill_all(&pool);
    disk.replace(&copy);
    let recovered = pool.recover(&[]);
    let told = report::parse(&recovered.ok().stdout);
    let wrong = wrong(&disk.root);
    assert!(wrong.is_empty(), "{wrong:#?}\n{told:#}");
}
