//! Write-behind, seen through real programs: every way to read or look at a file shows the newest
//! write, to the program, its children and outsiders.

use std::io::{BufRead, BufReader};

use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{need, report};

/// Nothing is drained by itself within a test.
const BEHIND: [&str; 3] = ["--write-behind=at-once", "--age-max=3600000", "--fence=fanotify"];

/// Writes a new file for each way to read it, and reads it that way at once.
const READERS: &str = "
import ctypes, mmap, os, random, socket, subprocess, sys
root = sys.argv[1]
random.seed(5)

def through(*command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, **more).stdout

def sendfile(fd, path, size):
    near, far = socket.socketpair()
    sent = os.sendfile(near.fileno(), os.open(path, os.O_RDONLY), 0, size)
    return far.recv(sent, socket.MSG_WAITALL)

def copy_range(fd, path, size):
    target = os.open(path + '.copy', os.O_RDWR | os.O_CREAT)
    os.copy_file_range(os.open(path, os.O_RDONLY), target, size, 0, 0)
    return os.pread(target, size + 1, 0)

def readv(fd, path, size):
    parts = [bytearray(7), bytearray(5000), bytearray(size)]
    got = os.readv(os.open(path, os.O_RDONLY), parts)
    return b''.join(parts)[:got]

def preadv(fd, path, size):
    parts = [bytearray(7), bytearray(5000), bytearray(size)]
    got = os.preadv(fd, parts, 0)
    return b''.join(parts)[:got]

def mapped(fd, path, size):
    with open(path, 'rb') as file:
        return mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)[:]

def mapped_later(fd, path, size):
    with open(path, 'rb') as file:
        view = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        os.pwrite(fd, b'seen through the mapping', 50)
        assert view[50:74] == b'seen through the mapping'
        os.pwrite(fd, contents[50:74], 50)
        return view[:]

def forked(fd, path, size):
    out, into = os.pipe()
    if os.fork() == 0:
        os.write(into, os.pread(fd, size, 0))
        os._exit(0)
    got = b''
    while len(got) < size:
        got += os.read(out, size)
    return got

def stdio(fd, path, size):
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    file = libc.fopen(path.encode(), b'r')
    buffer = ctypes.create_string_buffer(size + 10)
    got = libc.fread(buffer, 1, size + 10, ctypes.c_void_p(file))
    return buffer.raw[:got]

def cursor(fd, path, size):
    other = os.open(path, os.O_RDWR)
    got = b''
    while True:
        part = os.read(other, 1000)
        if not part:
            return got
        got += part

def ends(fd, path, size):
    assert os.stat(path).st_size == os.lstat(path).st_size == os.fstat(fd).st_size == size
    assert os.lseek(os.open(path, os.O_RDONLY), 0, os.SEEK_END) == size
    assert os.lseek(fd, -10, os.SEEK_END) == size - 10 == os.lseek(fd, 0, os.SEEK_CUR)
    assert abs(os.stat(path).st_mtime - __import__('time').time()) < 5
    assert int(through('stat', '-c', '%s', path)) == size
    assert os.lseek(fd, 0, os.SEEK_HOLE) > 0
    return os.pread(fd, size, 0)

ways = [sendfile, copy_range, readv, preadv, mapped, mapped_later, forked, stdio, cursor, ends,
    lambda fd, path, size: os.pread(fd, 1 << 20, 0),
    lambda fd, path, size: open(path, 'rb').read(),
    lambda fd, path, size: through('cat', path),
    lambda fd, path, size: through('cat', stdin=os.open(path, os.O_RDONLY)),
    lambda fd, path, size: through('sh', '-c', 'cat < ' + path),
    lambda fd, path, size: through('dd', 'if=' + path, 'bs=333', 'status=none'),
    lambda fd, path, size: through('tail', '-c', '+1', path),
    lambda fd, path, size: through('sh', '-c', 'cp %s %s.cp; cat %s.cp' % (path, path, path)),
    lambda fd, path, size: through('sh', '-c', 'mv %s %s.mv; cat %s.mv' % (path, path, path)),
    lambda fd, path, size: through('sh', '-c', 'ln %s %s.ln; rm %s; cat %s.ln' % (path, path, path, path)),
    lambda fd, path, size: through('tar', '-cO', '-C', root, os.path.basename(path))[512:512 + size],
    lambda fd, path, size: (os.unlink(path), os.pread(fd, size, 0))[1],
    lambda fd, path, size: (os.ftruncate(fd, size + 9), os.ftruncate(fd, size), os.pread(fd, size + 9, 0))[2],
    lambda fd, path, size: (os.utime(path, (5, 5)), os.stat(path).st_mtime == 5 and os.pread(fd, size, 0))[1],
]
for number, way in enumerate(ways):
    path = '%s/file-%d' % (root, number)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    contents = bytearray()
    for part in range(40):
        offset = random.randrange(30000)
        more = random.randbytes(random.choice([1, 100, 4096, 9000]))
        if part % 3 == 0:
            os.lseek(fd, offset, os.SEEK_SET)
            os.write(fd, more)
            assert os.lseek(fd, 0, os.SEEK_CUR) == offset + len(more)
        else:
            os.pwrite(fd, more, offset)
        contents.extend(bytes(max(0, offset + len(more) - len(contents))))
        contents[offset:offset + len(more)] = more
    seen = way(fd, path, len(contents))
    assert seen == contents, 'way %d sees something else' % number
    os.write(1, b'way %d\\n' % number)
";

#[test]
fn every_way_to_read_sees_the_newest_write() {
    need::root();
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::with_size(kind, 1 << 30), Pool::new());
        let root = disk.root.to_str().expect("paths are text");
        let (output, summary) = pool.run_summarised(&BEHIND, &["python3", "-c", READERS, root]);
        output.ok();
        assert!(output.stdout.contains("way 23\n"), "{}", output.told());
        assert!(
            report::number(&summary, "drained_bytes") > 24 * 10_000,
            "write-behind was not at work\n{summary:#}"
        );
    }
}

/// Fills one new file after the other and says when it is full.
const FILES: &str = "
import os, sys
for number in range(60):
    fd = os.open('%s/file-%d' % (sys.argv[1], number), os.O_RDWR | os.O_CREAT, 0o644)
    for part in range(50):
        os.write(fd, bytes([number + 1]) * 700)
    os.write(1, b'%d\\n' % number)
";

/// What the kernel is asked of a file that depends on its newest bytes without reading them: where
/// a lock relative to its end lies, whether it has blocks at all, what a loop device over it has.
const ABOUT_NEWEST: &str = r"
import fcntl, os, struct, subprocess, sys
root = sys.argv[1]

def lock(fd, command, kind, whence, start, length):
    said = fcntl.fcntl(fd, command, struct.pack('hhqqi4x', kind, whence, start, length, 0))
    return struct.unpack('hhqqi4x', said)

def locked(path):
    # Seen by another process.
    out, into = os.pipe()
    if os.fork() == 0:
        found = lock(os.open(path, os.O_RDWR), fcntl.F_GETLK, fcntl.F_WRLCK, 0, 0, 0)
        os.write(into, ('%d %d' % (found[2], found[3])).encode())
        os._exit(0)
    os.wait()
    return os.read(out, 100).decode()

path = root + '/locks'
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
for command in [fcntl.F_SETLK, fcntl.F_SETLKW, 37, 38]:
    for number in range(300):
        os.write(fd, b'x' * 100)
        os.fsync(fd)
    lock(fd, command, fcntl.F_WRLCK, os.SEEK_END, -10, 5)
    print('lock', command, locked(path))
    lock(fd, command, fcntl.F_UNLCK, os.SEEK_SET, 0, 0)

path = root + '/blocks'
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
for number in range(100):
    os.write(fd, b'DATA' * 1000)
    os.fsync(fd)
print('blocks', os.fstat(fd).st_blocks > 0, os.fstat(fd).st_blocks <= 784)
subprocess.run(['tar', '-cSf', root + '/archive', '-C', root, 'blocks'], check=True)
restored = subprocess.run(['tar', '-xOf', root + '/archive'], check=True, stdout=subprocess.PIPE).stdout
print('restored', restored == b'DATA' * 100_000)

path = root + '/image'
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, 1 << 20)
for number in range(256):
    os.pwrite(fd, bytes([number]) * 4096, number * 4096)
    os.fsync(fd)
device = subprocess.run(['losetup', '-f', '--show', path], check=True, stdout=subprocess.PIPE).stdout.strip()
over = os.open(device, os.O_RDWR)
print('device', all(os.pread(over, 1, number * 4096) == bytes([number]) for number in range(256)))
os.pwrite(over, b'L' * 4096, 8192)
os.fsync(over)
os.pwrite(fd, b'P' * 4096, 12288)
os.fsync(fd)
os.close(over)
subprocess.run(['losetup', '-d', device], check=True)
print('both', os.pread(fd, 1, 8192), os.pread(fd, 1, 12288))
os.close(fd)
";

#[test]
fn the_kernel_is_asked_about_the_newest_bytes() {
    need::root();
    let expected = [
        "lock 6 29990 5",
        "lock 7 59990 5",
        "lock 37 89990 5",
        "lock 38 119990 5",
        "blocks True True",
        "restored True",
        "device True",
        "both b'L' b'P'",
    ];
    for kind in [Kind::Ext4, Kind::Xfs] {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let run = pool.run(&BEHIND).args(["--", "python3", "-c", ABOUT_NEWEST]);
        let said = run.arg(&disk.root).ok().stdout;
        assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{kind:?}");
        let image = std::fs::read(disk.root.join("image")).expect("the image");
        assert_eq!((image[8192], image[12288]), (b'L', b'P'), "{kind:?}");
    }
}

/// Maps new files before their first sync, to be read, and looks there for what it writes next;
/// then has one of them become writable.
const MAPPED: &str = "
import ctypes, mmap, os, sys, time
for number in range(3):
    fd = os.open('%s/file-%d' % (sys.argv[1], number), os.O_RDWR | os.O_CREAT, 0o644)
    if os.fstat(fd).st_size == 0:
        os.pwrite(fd, b'x' * 4096, 0)
    seen = mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    for round in range(300):
        os.pwrite(fd, bytes([round % 250]) * 4096, 0)
        os.fdatasync(fd)
        assert seen[0] == round % 250 and seen[4095] == round % 250, (number, round, seen[0])
        time.sleep(0.0005)
libc = ctypes.CDLL(None, use_errno=True)
for line in open('/proc/self/maps'):
    if line.rstrip().endswith('file-2'):
        start, end = (int(part, 16) for part in line.split()[0].split('-'))
        assert libc.mprotect(ctypes.c_void_p(start), end - start, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        ctypes.memset(start, 0x53, 100)
assert os.pread(fd, 2, 99) == bytes([0x53, 299 % 250])
for round in range(20):
    os.pwrite(fd, b'y', 4095)
    os.fsync(fd)
";

#[test]
fn what_is_mapped_before_its_first_sync_shows_the_newest_bytes() {
    need::root();
    for kind in [Kind::Ext4, Kind::Xfs] {
        for behind in ["--write-behind=on", "--write-behind=at-once", "--write-behind=off"] {
            let (disk, pool) = (Disk::new(kind), Pool::new());
            let options = ["--fence=fanotify", "--durability=sync", behind];
            // One that was there, of which the keeper hears at its first sync.
            std::fs::write(disk.root.join("file-0"), [0; 4096]).expect("a file");
            let run = pool.run(&options).args(["--", "python3", "-c", MAPPED]).arg(&disk.root);
            let output = run.ok();
            // The last ones are the kernel's.
            assert!(output.stderr.contains(" % of 920 syncs"), "{behind}: {}", output.told());
            assert!(!output.stderr.contains("100 % of"), "{behind}: {}", output.told());
        }
    }
}

#[test]
fn an_outsider_never_reads_old_bytes() {
    need::root();
    let (disk, pool) = (Disk::with_size(Kind::Ext4, 1 << 30), Pool::new());
    let root = disk.root.to_str().expect("paths are text");
    let mut child = pool.run(&BEHIND).args(["--", "python3", "-c", FILES, root]).spawn();
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut seen = 0;
    for line in lines {
        let number: u8 = line.expect("a line").parse().expect("a number");
        let bytes = std::fs::read(disk.root.join(format!("file-{number}"))).expect("file");
        assert_eq!(bytes.len(), 35_000, "file {number}");
        assert!(bytes.iter().all(|byte| *byte == number + 1), "file {number}");
        seen += 1;
    }
    assert!(child.wait().expect("it ends").success());
    assert_eq!(seen, 60);
}

/// Processes write stripes of the same pages, each its own, and read them back at once.
const STRIPES: &str = "
import os, random, sys
path, processes, stripe = sys.argv[1], 4, 600
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(fd, bytes(processes * 64 * stripe), 0)

def work(mine):
    random.seed(mine)
    fd = os.open(path, os.O_RDWR) if mine % 2 else os.dup(globals()['fd'])
    known = [bytes(stripe)] * 64
    for turn in range(4000):
        index = random.randrange(64)
        start = (index * processes + mine) * stripe
        first = random.randrange(stripe)
        length = random.randrange(1, stripe - first + 1)
        if turn % 3:
            more = bytes([random.randrange(256)]) * length
            assert os.pwrite(fd, more, start + first) == length
            known[index] = known[index][:first] + more + known[index][first + length:]
        elif os.pread(fd, stripe, start) != known[index]:
            os.write(2, b'process %d, stripe %d\\n' % (mine, index))
            return 1
    for index in range(64):
        if os.pread(fd, stripe, (index * processes + mine) * stripe) != known[index]:
            return 2
    with open('%s-known-by-%d' % (path, mine), 'wb') as file:
        file.write(b''.join(known))
    return 0

children = []
for mine in range(processes):
    child = os.fork()
    if child == 0:
        os._exit(work(mine))
    children.append(child)
sys.exit(max(os.waitpid(child, 0)[1] for child in children) != 0)
";

#[test]
fn processes_that_share_pages_never_lose_a_byte() {
    need::root();
    let (disk, pool) = (Disk::with_size(Kind::Ext4, 1 << 30), Pool::new());
    for options in [
        &BEHIND[..],
        &["--write-behind=at-once", "--age-max=10"],
        &["--write-behind=at-once", "--read-cache=0", "--age-max=50"],
    ] {
        let file = disk.root.join("shared");
        let program = ["python3", "-c", STRIPES, file.to_str().expect("paths are text")];
        let (output, summary) = pool.run_summarised(options, &program);
        output.ok();
        assert!(report::number(&summary, "drained_bytes") > 100_000, "{summary:#}");
        // What each process knew in the end is in the file that the keeper left.
        let bytes = std::fs::read(&file).expect("file");
        for mine in 0..4 {
            let known = std::fs::read(disk.root.join(format!("shared-known-by-{mine}"))).expect("known");
            assert_eq!(known.len(), 64 * 600);
            for (index, known) in known.chunks(600).enumerate() {
                let held = &bytes[(index * 4 + mine) * 600..][..600];
                let differs = (0..600).filter(|&at| held[at] != known[at]).collect::<Vec<_>>();
                assert!(differs.is_empty(), "stripe {index} of process {mine}, {options:?}: {differs:?}");
            }
        }
        std::fs::remove_file(&file).expect("remove");
    }
}

/// A file whose mode takes the right to write from its own user, who has it open all the time.
const READ_ONLY: &str = "
import os, sys
name = sys.argv[1] + '/file'
fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'a' * 5000)
if sys.argv[2] == 'fchmod': os.fchmod(fd, 0o444)
else: os.chmod(name, 0o444)
os.pwrite(fd, b'b' * 6000, 100)
os.fsync(fd)
os.ftruncate(fd, 3000)
os.fsync(fd)
os.link(name, name + '-link')
os.rename(name, name + '-renamed')
os.unlink(name + '-link')
fd = os.open(sys.argv[1] + '/made', os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
os.write(fd, b'c' * 9000)
os.fsync(fd)
";

#[test]
fn files_their_user_may_not_write_to_any_more_are_drained() {
    need::root();
    for call in ["fchmod", "chmod"] {
        let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&disk.root, mode).expect("mode");
        let root = disk.root.to_str().expect("paths are text");
        pool.run(&["--write-behind=at-once", "--exclusive", root])
            .args(["--", "python3", "-c", READ_ONLY, root, call])
            .user("nobody", "")
            .output()
            .ok();
        let mut renamed = vec![b'b'; 3000];
        renamed[..100].fill(b'a');
        assert!(std::fs::read(disk.root.join("file-renamed")).expect("file") == renamed);
        assert!(std::fs::read(disk.root.join("made")).expect("file") == [b'c'; 9000]);
    }
}
