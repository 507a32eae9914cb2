//! Programs without Holdfast beside those under it: backups, copies and snapshots that are taken
//! while a program writes, two keepers with two pools, clients that come and go. Everyone sees
//! every write at once, and nobody's is lost.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use holdfast_e2e::{need, report};
use holdfast_testkit::rounds;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Commits rows to a database and blocks to a file, for ever or as many as said; tells each once it
/// is durable.
const WRITER: &str = "
import os, sqlite3, sys
db = sqlite3.connect(os.path.join(sys.argv[1], 'db'), isolation_level=None, timeout=30)
db.execute('PRAGMA synchronous=FULL')
db.execute('CREATE TABLE IF NOT EXISTS item(id INTEGER PRIMARY KEY, text TEXT)')
log = os.open(os.path.join(sys.argv[1], 'log'), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
first = int(sys.argv[2])
for row in range(first, first + int(sys.argv[3])):
    db.execute('INSERT INTO item VALUES(?, ?)', (row, 'row %d' % row * 20))
    os.write(log, b'%09d\\n' % row)
    os.fsync(log)
    print(row, flush=True)
print('end', flush=True)
sys.stdin.read()
";

/// A writer under Holdfast, ended with the test.
struct Writer {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    family: Vec<u32>,
}

impl Writer {
    fn start(pool: &Pool, options: &[&str], dir: &Path, first: u64, count: u64) -> Self {
        let (first, count) = (first.to_string(), count.to_string());
        let program = ["--", "python3", "-c", WRITER, text(dir), &first, &count];
        let mut child = pool.run(options).args(program).spawn();
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines, family: Vec::new() }
    }

    /// Waits for the acknowledgement of this row or a later one; returns it.
    fn until(&mut self, row: u64) -> u64 {
        loop {
            let line = self.lines.next().expect("the writer goes on").expect("text");
            if line.parse().is_ok_and(|told: u64| told >= row) {
                self.family = proc::descendants(self.child.id());
                return line.parse().expect("a number");
            }
            assert_ne!(line, "end", "the writer ended before row {row}");
        }
    }

    /// Lets it come to its end, and returns the supervisor's status.
    fn end(mut self) -> Option<i32> {
        while self.lines.next().is_some_and(|line| line.is_ok_and(|line| line != "end")) {}
        drop(self.child.stdin.take());
        self.child.wait().expect("wait").code()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.family.extend(proc::descendants(self.child.id()));
        drop(self.child.kill());
        for pid in &self.family {
            if proc::alive(*pid) && !proc::is_holdfast(*pid) {
                proc::kill_hard(*pid);
            }
        }
        drop(self.child.wait());
    }
}

/// A copy holds the log's lines up to `acknowledged` without a gap, and a sound database with those
/// rows. `instant`: it is of one moment, so that the database is sound by SQLite's own recovery.
fn must_hold(dir: &Path, acknowledged: u64, instant: bool) {
    let log =
        std::fs::read_to_string(dir.join("log")).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    for row in 0..=acknowledged {
        assert_eq!(
            log.get(row as usize * 10..row as usize * 10 + 9),
            Some(&*format!("{row:09}")),
            "{}",
            text(dir)
        );
    }
    if instant {
        // In a place of its own, where SQLite may roll its journal back.
        let aside = disk::directory();
        Cmd::new("cp").arg("-a").arg(dir.join(".")).arg(aside.path()).ok();
        let question =
            format!("PRAGMA integrity_check; SELECT count(*) FROM item WHERE id <= {acknowledged}");
        let told = Cmd::new("sqlite3").arg(aside.path().join("db")).arg(question).ok().stdout;
        assert_eq!(told, format!("ok\n{}\n", acknowledged + 1), "{}", text(dir));
    }
}

fn sound(dir: &Path, rows: u64) {
    let question = "PRAGMA integrity_check; SELECT count(*) FROM item";
    let told = Cmd::new("sqlite3").arg(dir.join("db")).arg(question).ok().stdout;
    assert_eq!(told, format!("ok\n{rows}\n"), "{}", text(dir));
}

fn fresh(disk: &Disk, name: &str) -> PathBuf {
    let dir = disk.root.join(name);
    std::fs::create_dir(&dir).expect("directory");
    dir
}

/// What the kernel has open for a loop device stands in no process's table: what was synced through
/// the device was undone by recovery.
#[test]
fn a_loop_device_over_a_file_is_an_outsider() {
    need::root();
    const PROGRAM: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for number in range(100):
    os.pwrite(fd, b'x' * 4096, number * 4096)
    os.fsync(fd)
";
    for fence in ["fanotify", "inotify"] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let image = disk.root.join("image");
        std::fs::write(&image, vec![0; 1 << 20]).expect("an image");
        let attached = Cmd::new("losetup").args(["-f", "--show"]).arg(&image).ok().stdout;
        let image = image.to_str().expect("paths are text");
        let (output, summary) = pool.run_summarised(&["--fence", fence], &["python3", "-c", PROGRAM, image]);
        Cmd::new("losetup").args(["-d", attached.trim()]).ok();
        output.ok();
        assert_eq!(report::number(&summary, "writes_absorbed"), 0, "{fence}\n{summary:#}");
        assert!(output.stderr.contains("outside Holdfast has it open"), "{}", output.told());
    }
}

/// tar, rsync and cp read while the program writes: what was acknowledged before they began is in
/// what they made.
#[test]
fn backup_tools_see_every_write_at_once() {
    for fence in ["fanotify", "inotify"] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let (dir, aside) = (fresh(&disk, "data"), disk::directory());
        let mut writer = Writer::start(&pool, &["--fence", fence, "--age-max", "60000"], &dir, 0, 1_000_000);
        for round in 0..3 * rounds() {
            for tool in ["tar", "rsync", "cp"] {
                let copy = aside.path().join(format!("{tool}-{round}"));
                std::fs::create_dir(&copy).expect("directory");
                let acknowledged = writer.until(20 * (round + 1));
                let output = match tool {
                    "tar" => {
                        let archive = aside.path().join("archive.tar");
                        // 1: a file changed while it was read, which is so.
                        Cmd::new("tar")
                            .arg("-cf")
                            .arg(&archive)
                            .arg("-C")
                            .args([&dir, Path::new(".")])
                            .output()
                            .expect(&[0, 1]);
                        Cmd::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&copy).output()
                    }
                    "rsync" => {
                        Cmd::new("rsync").args(["-a", "--inplace"]).arg(dir.join("log")).arg(&copy).output()
                    }
                    _ => Cmd::new("cp").arg("-a").arg(dir.join("log")).arg(&copy).output(),
                };
                output.ok();
                must_hold(&copy, acknowledged, false);
            }
        }
        let status = pool.status();
        assert!(report::number(&status, "writes_absorbed") > 0, "{fence}: nothing was absorbed\n{status:#}");
        drop(writer);
        wait_until(Duration::from_secs(40), "the keeper's end", || proc::keepers(&pool.path).is_empty());
    }
}

/// rsync, cp and tar that write files which the program has written before and writes afterwards.
#[test]
fn tools_that_write_the_same_files_lose_nothing() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let (dir, aside) = (fresh(&disk, "data"), disk::directory());
    let script = "
import os, subprocess, sys
path, other = sys.argv[1], sys.argv[2]
clean = {'LD_PRELOAD': '', 'HOLDFAST_SOCKET': '', 'PATH': os.environ['PATH']}
for round in range(4):
    for tool in (['cp', other, path], ['rsync', '--inplace', '--ignore-times', '--whole-file', other, path],
                 ['dd', 'if=' + other, 'of=' + path, 'bs=1000', 'conv=notrunc', 'status=none']):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        for block in range(50): os.pwrite(fd, b'%02d' % round * 500, block * 1000)
        os.fsync(fd)
        os.close(fd)
        subprocess.run(tool, env=clean, check=True)
        assert open(path, 'rb').read() == open(other, 'rb').read(), tool
        fd = os.open(path, os.O_RDWR)
        os.pwrite(fd, b'mine', 17)
        os.fsync(fd)
        os.close(fd)
print('written')
";
    let other = aside.path().join("other");
    std::fs::write(&other, vec![b'o'; 50_000]).expect("file");
    for fence in ["fanotify", "inotify"] {
        let path = dir.join(fence);
        let options = ["--fence", fence, "--age-max", "60000"];
        let program = ["python3", "-c", script, text(&path), text(&other)];
        let (output, summary) = pool.run_summarised(&options, &program);
        output.ok();
        assert!(output.stdout.contains("written"), "{}", output.told());
        assert!(report::number(&summary, "writes_absorbed") >= 50, "{fence}: {summary:#}");
        let mut expected = vec![b'o'; 50_000];
        expected[17..21].copy_from_slice(b"mine");
        assert!(std::fs::read(&path).expect("file") == expected, "{fence}: another content");
    }
}

/// A snapshot of btrfs and one of a loop device, taken after `drain` while the program goes on.
#[test]
fn snapshots_after_a_drain_hold_what_was_acknowledged_before() {
    let (disk, pool) = (Disk::new(Kind::Btrfs), Pool::new());
    let volume = disk.root.join("volume");
    Cmd::new("btrfs").args(["subvolume", "create"]).arg(&volume).ok();
    let mut writer = Writer::start(&pool, &["--age-max", "60000"], &volume, 0, 1_000_000);
    for round in 0..3 * rounds() {
        let acknowledged = writer.until(30 * (round + 1));
        pool.command("drain").ok();
        let snapshot = disk.root.join(format!("snapshot-{round}"));
        Cmd::new("btrfs").args(["subvolume", "snapshot", "-r"]).args([&volume, &snapshot]).ok();
        must_hold(&snapshot, acknowledged, true);
    }
    let status = pool.status();
    assert!(report::number(&status, "writes_absorbed") > 50, "{status:#}");
    drop(writer);

    // A copy of the device itself, as a volume manager makes one; the file system stands still
    // meanwhile.
    let (disk, pool) = (Disk::new(Kind::Xfs), Pool::new());
    let (dir, aside) = (fresh(&disk, "data"), disk::directory());
    // Write-behind brings the page cache up to date file by file: a copy without the log is of one
    // moment only if nobody writes from the drain on.
    let behind = std::env::var("HOLDFAST_E2E_RUN_OPTIONS").is_ok_and(|options| options.contains("behind"));
    let count = if behind { 61 } else { 1_000_000 };
    let mut writer = Writer::start(&pool, &["--age-max", "60000"], &dir, 0, count);
    let acknowledged = writer.until(60);
    pool.command("drain").ok();
    let image = aside.path().join("image");
    Cmd::new("fsfreeze").arg("-f").arg(&disk.root).ok();
    let copied = Cmd::new("cp").arg("--sparse=always").arg(disk.image()).arg(&image).output();
    Cmd::new("fsfreeze").arg("-u").arg(&disk.root).ok();
    copied.ok();
    let snapshot = aside.path().join("snapshot");
    std::fs::create_dir(&snapshot).expect("directory");
    Cmd::new("mount").args(["-o", "loop,nouuid"]).args([&image, &snapshot]).ok();
    let held = std::panic::catch_unwind(|| must_hold(&snapshot.join("data"), acknowledged, true));
    Cmd::new("umount").arg(&snapshot).ok();
    held.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if !behind {
        writer.until(acknowledged + 20);
    }
}

/// Two keepers with two pools: each serves its own programs, and a file of one is an outsider's to
/// the other.
#[test]
fn two_pools_serve_two_programs_and_share_a_file() {
    let disk = Disk::new(Kind::Ext4);
    let (one, two) = (Pool::new(), Pool::new());
    let (left, right) = (fresh(&disk, "left"), fresh(&disk, "right"));
    let mut first = Writer::start(&one, &["--age-max", "60000"], &left, 0, 200);
    let mut second = Writer::start(&two, &["--age-max", "60000"], &right, 0, 200);
    first.until(100);
    second.until(100);
    assert_ne!(proc::keeper(&one.path), proc::keeper(&two.path));
    for pool in [&one, &two] {
        let status = pool.status();
        assert!(report::number(&status, "writes_absorbed") >= 200, "{status:#}");
    }
    // A third program under the second pool writes into the first one's database.
    let rows: String = (1000..1100).map(|row| format!("INSERT INTO item VALUES({row}, 'other');")).collect();
    let script = format!(".timeout 20000\n{rows}");
    let output = two.run(&[]).args(["--", "sqlite3", text(&left.join("db"))]).stdin(script).ok();
    assert_eq!(output.stderr_of_program(), "", "{}", output.told());
    assert_eq!((first.end(), second.end()), (Some(0), Some(0)));
    sound(&left, 300);
    sound(&right, 200);
    for pool in [&one, &two] {
        let dry = report::parse(&pool.recover(&["--dry-run"]).ok().stdout);
        assert_eq!(report::number(&dry, "records"), 0, "{dry:#}");
    }
}

/// A run inside a run: the inner pool's program is no client of the outer keeper.
#[test]
fn a_run_inside_a_run_uses_the_inner_pool() {
    let disk = Disk::new(Kind::Ext4);
    let (outer, inner) = (Pool::new(), Pool::new());
    let dir = fresh(&disk, "data");
    let holdfast = need::holdfast();
    let line = format!(
        "echo outer > {dir}/outer; {holdfast} run --volatile --durability=write --size 64M --summary={dir}/inner.json --pool {pool} -- \
         dd if=/dev/zero of={dir}/inner bs=4k count=30 conv=fsync status=none",
        dir = text(&dir),
        holdfast = text(&holdfast),
        pool = inner.text()
    );
    let (output, summary) = outer.run_summarised(&[], &["sh", "-c", &line]);
    output.ok();
    let told = report::parse(&std::fs::read_to_string(dir.join("inner.json")).expect("summary"));
    assert_eq!(report::number(&told, "writes_absorbed"), 30, "{told:#}\n{}", output.told());
    assert!(report::number(&summary, "writes_absorbed") < 30, "{summary:#}");
}

/// Clients that come and go on one pool, many at a time, killed or ended, while one stays: every
/// acknowledged row is there.
#[test]
fn clients_come_and_go() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let stays = fresh(&disk, "stays");
    let mut steady = Writer::start(&pool, &[], &stays, 0, 1_000_000);
    steady.until(5);
    let keeper = proc::keeper(&pool.path);
    let mut rows = BTreeMap::new();
    for round in 0..6 * rounds() {
        let dirs: Vec<PathBuf> =
            (0..3).map(|number| fresh(&disk, &format!("goes-{round}-{number}"))).collect();
        let mut writers: Vec<Writer> = dirs.iter().map(|dir| Writer::start(&pool, &[], dir, 0, 60)).collect();
        for (number, mut writer) in writers.drain(..).enumerate() {
            let acknowledged = writer.until(10 * number as u64);
            rows.insert(dirs[number].clone(), acknowledged);
            if (round as usize + number).is_multiple_of(2) {
                assert_eq!(writer.end(), Some(0));
                rows.insert(dirs[number].clone(), 59);
            }
        }
        assert_eq!(proc::keeper(&pool.path), keeper, "another keeper");
    }
    let last = steady.until(50);
    wait_until(Duration::from_secs(10), "the killed clients' burial", || {
        report::find(&pool.status(), "clients").and_then(|list| list.as_array().map(Vec::len)) == Some(1)
    });
    drop(steady);
    wait_until(Duration::from_secs(40), "the keeper's end", || proc::keepers(&pool.path).is_empty());
    rows.insert(stays, last);
    for (dir, acknowledged) in rows {
        must_hold(&dir, acknowledged, true);
    }
}

/// The kernel needs a descriptor of the keeper's for each open that it asks about, and refuses the
/// open where there is none left: outsiders were told EPERM by a keeper with a low limit and many
/// files. Without the right to raise its limit it manages fewer.
#[test]
fn a_keeper_with_few_descriptors_refuses_nobodys_open() {
    const FILES: &str = "
import os, sys
files = []
for number in range(80):
    fd = os.open('%s/file-%d' % (sys.argv[1], number), os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(2):
        os.write(fd, b'synced ')
        os.fsync(fd)
    files.append(fd)
    if len(files) > 30: os.close(files.pop(0))
print('ready', flush=True)
input()
";
    const OPEN: &str = "
import collections, os, sys, threading
told = collections.Counter()
def look():
    for _ in range(3):
        for number in range(80):
            try:
                os.close(os.open('%s/file-%d' % (sys.argv[1], number), os.O_RDONLY))
                told['opened'] += 1
            except OSError as error:
                told[error.strerror] += 1
threads = [threading.Thread(target=look) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(dict(told))
";
    for limit in [64, 120] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let summary = tempfile::NamedTempFile::new().expect("temporary file");
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        let dir = text(&disk.root);
        let mut child = Cmd::new("setpriv")
            .args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "bash", "-c", &script, "bash"])
            .arg(need::holdfast())
            .args(["run", "--volatile", "--size=64M", "--pool", pool.text()])
            .arg(format!("--summary={}", summary.path().display()))
            .args(["--", "python3", "-c", FILES, dir])
            .spawn();
        let lines = proc::lines(&mut child);
        assert_eq!(lines.recv_timeout(Duration::from_secs(60)).as_deref(), Ok("ready"));
        let told = Cmd::new("python3").args(["-c", OPEN, dir]).ok().stdout;
        assert_eq!(told.trim(), "{'opened': 3840}", "limit {limit}");
        drop(child.stdin.take());
        assert!(child.wait().expect("the run ends").code().is_some());
        let summary = std::fs::read_to_string(summary.path()).expect("summary");
        let summary = report::parse(&summary);
        assert!(summary.to_string().contains("may have no more files open"), "limit {limit}\n{summary:#}");
        assert!(report::flag(&summary, "drained"), "limit {limit}\n{summary:#}");
        assert!(report::number(&summary, "syncs_absorbed") > 0, "limit {limit}\n{summary:#}");
    }
}
