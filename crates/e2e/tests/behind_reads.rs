//! Write-behind, read by others: processes that share a keeper and programs outside of it read
//! whole and fresh bytes, from the log, from loaded pages and through every transition.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{need, report};

/// Nothing is drained by itself within a test.
const BEHIND: [&str; 3] = ["--write-behind=at-once", "--age-max=3600000", "--fence=fanotify"];

fn lines_of(child: &mut Child) -> impl Iterator<Item = String> {
    BufReader::new(child.stdout.take().expect("piped")).lines().map(|line| line.expect("a line"))
}

/// Records of one number over a page boundary. Each process has its own, writes them in two threads
/// and reads everybody's in two more: a record is whole, and never goes back.
const RECORDS: &str = "
import os, random, sys, threading, time
path, first, processes, seconds = sys.argv[1], int(sys.argv[2]), 4, float(sys.argv[3])
records, size = 24, 3000
def at(owner, index): return ((index * processes + owner) * 2) * 4096 + 2700
def record(number): return number.to_bytes(8, 'little') * (size // 8)

if first == 0:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for owner in range(processes):
        for index in range(records):
            os.pwrite(fd, record(0), at(owner, index))
    os.write(1, b'ready\\n')
    sys.stdin.readline()

def work(owner):
    mine = [0] * records
    end = time.time() + seconds
    bad = []
    def write(half):
        fd = os.open(path, os.O_RDWR)
        random.seed(owner * 2 + half)
        while time.time() < end and not bad:
            index = random.randrange(records // 2) * 2 + half
            mine[index] += 1
            assert os.pwrite(fd, record(mine[index]), at(owner, index)) == size
    def read(flags):
        fd = os.open(path, flags)
        seen = {}
        while time.time() < end and not bad:
            key = random.randrange(processes), random.randrange(records)
            got = os.pread(fd, size, at(*key))
            number = int.from_bytes(got[:8], 'little')
            if got != record(number):
                bad.append('record %s is torn' % (key,))
            if number < seen.get(key, 0):
                bad.append('record %s goes back from %d to %d' % (key, seen[key], number))
            seen[key] = number
    threads = [threading.Thread(target=write, args=(half,)) for half in range(2)]
    threads += [threading.Thread(target=read, args=(flags,)) for flags in (os.O_RDWR, os.O_RDONLY)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    with open('%s-by-%d' % (path, owner), 'w') as file:
        file.write(' '.join(map(str, mine)))
    if bad:
        os.write(2, (bad[0] + '\\n').encode())
    return len(bad)

children = []
for owner in (first, first + 1):
    child = os.fork()
    if child == 0:
        os._exit(work(owner))
    children.append(child)
sys.exit(max(os.waitpid(child, 0)[1] for child in children) != 0)
";

#[test]
fn threads_children_and_strangers_read_whole_records_that_never_go_back() {
    need::root();
    let disk = Disk::with_size(Kind::Ext4, 1 << 30);
    for options in [
        &["--write-behind=at-once", "--age-max=20", "--read-cache=256K"][..],
        &["--write-behind=at-once", "--age-max=200"],
        &["--write-behind=at-once", "--age-max=50", "--read-cache=0"],
    ] {
        let pool = Pool::new();
        let file = disk.root.join("records");
        let path = file.to_str().expect("paths are text");
        let start = |first: &str| {
            let mut child =
                pool.run(options).args(["--", "python3", "-c", RECORDS, path, first, "2.5"]).spawn();
            let stdin = child.stdin.take().expect("piped");
            (child, stdin)
        };
        let (mut one, mut go) = start("0");
        let mut told = BufReader::new(one.stdout.take().expect("piped"));
        let mut line = String::new();
        told.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        // Neither parent nor child of the first: it joins its keeper.
        let (two, _stdin) = start("2");
        go.write_all(b"go\n").expect("it reads");
        for child in [one, two] {
            let output = child.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{options:?}: {said}");
        }
        let bytes = std::fs::read(&file).expect("file");
        for owner in 0..4 {
            let told = std::fs::read_to_string(disk.root.join(format!("records-by-{owner}"))).expect("told");
            let numbers: Vec<u64> = told.split(' ').map(|number| number.parse().expect("a number")).collect();
            assert!(numbers.iter().sum::<u64>() > 500, "hardly anything was written: {told}");
            for (index, number) in numbers.iter().enumerate() {
                let held = &bytes[(index * 4 + owner) * 2 * 4096 + 2700..][..3000];
                assert!(
                    held.chunks(8).all(|part| part == number.to_le_bytes()),
                    "{owner}, {index}, {options:?}"
                );
            }
        }
        std::fs::remove_file(&file).expect("remove");
    }
}

/// Makes one file of random bytes after the other, and then says which.
const FILES: &str = "
import os, random, sys
for number in range(int(sys.argv[2])):
    random.seed(number)
    contents = random.randbytes(60000)
    fd = os.open('%s/file-%d' % (sys.argv[1], number), os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, bytes(60000), 0)
    # Drains the file and leaves it in its state: the size is the kernel's too, the bytes that follow are not.
    os.lseek(fd, 0, os.SEEK_HOLE)
    for at in range(0, 60000, 1500):
        os.pwrite(fd, contents[at:at + 1500], at)
        os.pread(fd, 100, at)
    with open('%s/same-%d' % (sys.argv[2 + 1], number), 'wb') as same:
        same.write(contents)
    os.write(1, b'%d\\n' % number)
    sys.stdin.readline()
";

#[test]
fn copies_made_outside_are_fresh() {
    need::root();
    let (disk, pool) = (Disk::with_size(Kind::Ext4, 1 << 30), Pool::new());
    let (root, same) =
        (disk.root.to_str().expect("text"), tempfile::tempdir_in("/dev/shm").expect("directory"));
    let ways: [&str; 7] = [
        "cp file-N copy",
        "cp --reflink=never --sparse=always file-N copy",
        "tar -cf archive file-N && tar -xOf archive file-N > copy",
        "dd if=file-N of=copy bs=700 status=none",
        "ln file-N link-N && cat link-N > copy",
        "python3 -c 'import mmap; f = open(\"file-N\", \"rb\"); open(\"copy\", \"wb\").write(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ))'",
        "tail -c +1 file-N > copy",
    ];
    let count = ways.len().to_string();
    let same_path = same.path().to_str().expect("text");
    let mut child = pool.run(&BEHIND).args(["--", "python3", "-c", FILES, root, &count, same_path]).spawn();
    let mut go = child.stdin.take().expect("piped");
    let mut seen = 0;
    for line in lines_of(&mut child) {
        let number: usize = line.parse().expect("a number");
        let command = ways[number].replace('N', &line);
        Cmd::new("sh").args(["-c", &command]).dir(&disk.root).ok();
        let copy = std::fs::read(disk.root.join("copy")).expect("copy");
        let contents = std::fs::read(same.path().join(format!("same-{number}"))).expect("contents");
        assert!(copy == contents, "{command} made a copy of old bytes");
        seen += 1;
        go.write_all(b"\n").expect("it reads");
    }
    assert!(child.wait().expect("it ends").success());
    assert_eq!(seen, ways.len());
}

/// Appends lines, slowly, reading its own back.
const LINES: &str = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
for number in range(200):
    os.write(fd, b'line %d of a log that somebody follows\\n' % number)
    assert os.pread(fd, 20, 0).startswith(b'line 0 ')
    if number == 20:
        os.write(1, b'begun\\n')
        sys.stdin.readline()
    time.sleep(0.002)
";

#[test]
fn tail_follows_from_outside() {
    need::root();
    let (disk, pool) = (Disk::with_size(Kind::Ext4, 1 << 30), Pool::new());
    let log = disk.root.join("log");
    let path = log.to_str().expect("paths are text");
    let mut child = pool.run(&BEHIND).args(["--", "python3", "-c", LINES, path]).spawn();
    let mut go = child.stdin.take().expect("piped");
    let begun = lines_of(&mut child).next();
    assert_eq!(begun.as_deref(), Some("begun"));
    let mut tail = Command::new(need::tool("tail"))
        .args(["-n", "+1", "-f", path])
        .stdout(Stdio::piped())
        .spawn()
        .expect("tail starts");
    let mut followed = BufReader::new(tail.stdout.take().expect("piped"));
    let mut number = 0;
    while number < 200 {
        if number == 21 {
            // What was written before tail came is there; now the rest comes while it looks on.
            go.write_all(b"\n").expect("it reads");
        }
        let mut line = String::new();
        followed.read_line(&mut line).expect("a line");
        assert_eq!(line, format!("line {number} of a log that somebody follows\n"));
        number += 1;
    }
    tail.kill().expect("tail runs");
    tail.wait().expect("tail ends");
    assert!(child.wait().expect("it ends").success());
}

/// Inserts row after row and says so.
const ROWS: &str = "
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=20, isolation_level=None)
connection.execute('pragma journal_mode=' + sys.argv[2])
connection.execute('pragma synchronous=full')
connection.execute('create table t(number integer primary key, text text)')
for number in range(150):
    connection.execute('insert into t values(?, ?)', (number, 'x' * (number * 7 % 900)))
    assert connection.execute('select count(*) from t').fetchone() == (number + 1,)
    print(number, flush=True)
";

#[test]
fn a_second_sqlite_outside_sees_every_row_that_was_committed() {
    need::root();
    let disk = Disk::with_size(Kind::Ext4, 1 << 30);
    for mode in ["delete", "truncate", "wal"] {
        let pool = Pool::new();
        let file = disk.root.join(format!("{mode}.db"));
        let path = file.to_str().expect("paths are text");
        let mut child = pool.run(&BEHIND).args(["--", "python3", "-c", ROWS, path, mode]).spawn();
        let (mut asked, deadline) = (0, Instant::now() + Duration::from_secs(50));
        for line in lines_of(&mut child) {
            let number: u64 = line.parse().expect("a number");
            if number % 15 != 7 {
                continue;
            }
            assert!(Instant::now() < deadline, "it takes too long");
            let output = Cmd::new("sqlite3")
                .args([
                    path,
                    ".timeout 20000",
                    "select count(*), max(number) from t; pragma integrity_check;",
                ])
                .ok();
            let (counted, rest) = output.stdout.split_once('|').expect("two columns");
            assert!(counted.parse::<u64>().expect("a number") > number, "{mode}: {}", output.stdout);
            assert!(rest.ends_with("ok\n"), "{mode}: {}", output.stdout);
            asked += 1;
        }
        let mut said = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert!(child.wait().expect("it ends").success(), "{mode}: {said}");
        assert_eq!(asked, 10);
    }
}

/// Reads a file that it has open for writing, over and over, then changes it in ways that loaded
/// pages must follow.
const HOT: &str = "
import os, sys
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
contents = bytearray(os.urandom(64 * 4096))
os.pwrite(fd, contents, 0)
os.fsync(fd)
def check():
    for at in range(0, len(contents), 1777):
        assert os.pread(fd, 3000, at) == contents[at:at + 3000], at
    child = os.fork()
    if child == 0:
        other = os.open(path, os.O_RDONLY)
        got = b''
        while True:
            part = os.read(other, 999)
            if not part: break
            got += part
        os._exit(got != contents)
    assert os.waitpid(child, 0)[1] == 0
def write(at, more):
    contents[at:at + len(more)] = more
    assert os.pwrite(fd, more, at) == len(more)
check()
for step in range(64):
    write(step * 4096 + 100, b'%04d' % step)
    write(step * 4096 + 3000, b'apart from the first')
check()
write(8192, bytes(4096)); write(50000, b'over the edge' * 700)
check()
os.ftruncate(fd, 100000); del contents[100000:]
check()
os.ftruncate(fd, 130000); contents.extend(bytes(30000))
check()
os.lseek(fd, 0, os.SEEK_END); os.write(fd, b'more'); contents += b'more'
check()
target = os.open(path + '-2', os.O_RDWR | os.O_CREAT)
assert os.copy_file_range(fd, target, 5000, 0, 0) == 5000
assert os.copy_file_range(target, fd, 5000, 0, 30000) == 5000
contents[30000:35000] = contents[:5000]
check()
import mmap
view = mmap.mmap(fd, len(contents))
view[77:81] = b'view'; contents[77:81] = b'view'
check()
";

#[test]
fn loaded_pages_follow_every_change_of_the_file() {
    need::root();
    let (disk, pool) = (Disk::with_size(Kind::Ext4, 1 << 30), Pool::new());
    for cache in ["--read-cache=32M", "--read-cache=128K", "--read-cache=0"] {
        for age in ["--age-max=3600000", "--age-max=1"] {
            let file = disk.root.join("hot");
            let program = ["python3", "-c", HOT, file.to_str().expect("text")];
            let (output, summary) = pool.run_summarised(&["--write-behind=at-once", age, cache], &program);
            output.ok();
            assert!(report::number(&summary, "drained_bytes") > 64 * 4096, "{summary:#}");
            std::fs::remove_file(&file).expect("remove");
        }
    }
}
