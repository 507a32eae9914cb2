//! What the keeper has open of a program's files keeps nobody from what is the kernel's: the space
//! of files that were removed, and file systems that are to be unmounted.

use std::path::Path;
use std::process::Child;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{need, proc, report};

const KINDS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];
const DURABILITIES: [&str; 2] = ["--durability=write", "--durability=sync"];

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// A small disk, and how many MiB a file may have of which only one fits.
fn small(kind: Kind) -> (Disk, u32) {
    let (bytes_mib, file_mib) = match kind {
        Kind::Ext4 => (96, 60),
        Kind::Xfs => (320, 200),
        Kind::Btrfs => (512, 300),
    };
    (Disk::with_size(kind, bytes_mib << 20), file_mib)
}

#[test]
fn the_space_of_a_removed_file_is_free_for_the_next_one() {
    for kind in KINDS {
        for durability in DURABILITIES {
            let ((disk, mib), pool) = (small(kind), Pool::new());
            let script = format!(
                "for i in 1 2 3 4; do dd if=/dev/zero of=f bs=1M count={mib} conv=fsync && rm f || exit 1; done"
            );
            pool.run(&[durability]).args(["--", "sh", "-c", &script]).dir(&disk.root).ok();
        }
    }
}

/// Fills the disk with small files that are synced, removes them all, and needs their space at once
/// in the next call, and once more by another program.
const SMALL_FILES: &str = "
import errno, os, sys
os.chdir(sys.argv[1])
def full():
    names = []
    try:
        while True:
            names.append('small-%d' % len(names))
            fd = os.open(names[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                if os.write(fd, b'x' * 200000) < 200000: return names
                os.fsync(fd)
            finally:
                os.close(fd)
    except OSError as error:
        if error.errno != errno.ENOSPC: raise
        return names
for round in range(3):
    names = [name for name in full() if os.path.exists(name)]
    assert len(names) > 50, len(names)
    fd = os.open('large', os.O_WRONLY | os.O_CREAT)
    for name in names: os.unlink(name)
    os.posix_fallocate(fd, 0, (len(names) - 10) * 200000)
    os.close(fd)
    os.unlink('large')
";

#[test]
fn nobody_is_told_of_a_full_disk_while_the_keeper_has_removed_files() {
    let (disk, _) = small(Kind::Ext4);
    for durability in DURABILITIES {
        let pool = Pool::new();
        pool.run(&[durability]).args(["--", "python3", "-c", SMALL_FILES, text(&disk.root)]).ok();
    }
}

/// What is free is told right when a large file is removed, and a moment later when a small one is.
const FREE: &str = "
import os, sys, time
os.chdir(sys.argv[1])
def free(): return os.statvfs('.').f_bfree * os.statvfs('.').f_frsize
def make(bytes):
    fd = os.open('f', os.O_WRONLY | os.O_CREAT)
    os.write(fd, b'x' * bytes)
    os.fsync(fd)
    os.close(fd)
make(4 << 20)
before = free()
os.unlink('f')
assert free() >= before + (3 << 20), 'a large file: %d, then %d' % (before, free())
make(100 << 10)
before = free()
os.unlink('f')
begun = time.monotonic()
while free() < before + (90 << 10): assert time.monotonic() - begun < 0.25, 'a small file'
";

#[test]
fn free_space_is_told_right_after_a_removal() {
    let (disk, _) = small(Kind::Ext4);
    for durability in DURABILITIES {
        let pool = Pool::new();
        pool.run(&[durability]).args(["--", "python3", "-c", FREE, text(&disk.root)]).ok();
    }
}

/// Writes files, syncs and closes them, removes one, and says so; then does it again when told,
/// with the next name.
const WRITER: &str = "
import os, sys, time
root, go = sys.argv[1], sys.argv[2]
for round in range(3):
    directory = os.path.join(root, 'made-%d' % round)
    os.mkdir(directory)
    for number in range(20):
        fd = os.open(os.path.join(directory, 'f%d' % number), os.O_WRONLY | os.O_CREAT)
        for part in range(5):
            os.write(fd, b'%d of %d\\n' % (part, number))
            os.fsync(fd)
        os.close(fd)
    os.unlink(os.path.join(directory, 'f7'))
    print('ready', flush=True)
    while not os.path.exists('%s-%d' % (go, round)): time.sleep(0.002)
";

/// The writer, with nothing open on the disk whenever it says that it is ready.
struct Writer {
    child: Child,
    lines: Receiver<String>,
    aside: tempfile::TempDir,
}

impl Writer {
    fn start(pool: &Pool, options: &[&str], disk: &Disk) -> Self {
        let aside = holdfast_e2e::disk::directory();
        let go = aside.path().join("go");
        let run = pool.run(options).dir("/");
        let mut child = run.args(["--", "python3", "-c", WRITER, text(&disk.root), text(&go)]).spawn();
        let lines = proc::lines(&mut child);
        Self { child, lines, aside }
    }

    fn ready(&self) {
        let line = self.lines.recv_timeout(Duration::from_secs(30)).expect("the writer says something");
        assert_eq!(line, "ready");
    }

    fn go_on(&self, round: u32) {
        std::fs::write(self.aside.path().join(format!("go-{round}")), b"").expect("a sign");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        (0..3).for_each(|round| self.go_on(round));
        drop(self.child.wait());
    }
}

fn must_hold(disk: &Disk, round: u32) {
    for number in 0..20 {
        let path = disk.root.join(format!("made-{round}/f{number}"));
        let expected: String = (0..5).map(|part| format!("{part} of {number}\n")).collect();
        match std::fs::read_to_string(&path) {
            Ok(found) => assert!(number != 7 && found == expected, "{}: {found:?}", path.display()),
            Err(error) => assert!(number == 7, "{}: {error}", path.display()),
        }
    }
}

/// What is pending is on the disk after a second and a bit; the keeper lets go of files that nobody
/// has open three seconds later, and before that by the notice alone.
const NOTICED: Duration = Duration::from_millis(2500);

#[test]
fn a_file_system_is_unmounted_while_a_program_lives_that_wrote_to_it() {
    need::root();
    for kind in KINDS {
        for durability in DURABILITIES {
            let (disk, pool) = (Disk::new(kind), Pool::new());
            let writer = Writer::start(&pool, &[durability], &disk);
            for round in 0..3 {
                writer.ready();
                let begun = Instant::now();
                while !Cmd::new("umount").arg(&disk.root).output().status.success() {
                    assert!(begun.elapsed() < NOTICED, "{kind:?}, {durability}, round {round}: busy");
                    std::thread::sleep(Duration::from_millis(50));
                }
                disk.mount();
                must_hold(&disk, round);
                assert!(report::number(&pool.status(), "writes_absorbed") > 0);
                writer.go_on(round);
            }
        }
    }
}

/// Without anybody who unmounts, what is written stays pending for a minute here.
#[test]
fn what_is_pending_is_brought_to_the_disk_for_who_unmounts() {
    need::root();
    for kind in KINDS {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let writer = Writer::start(&pool, &["--age-max=60s"], &disk);
        for round in 0..3 {
            writer.ready();
            let begun = Instant::now();
            while !Cmd::new("umount").arg(&disk.root).output().status.success() {
                assert!(begun.elapsed() < Duration::from_secs(20), "{kind:?}, round {round}: busy");
                std::thread::sleep(Duration::from_millis(50));
            }
            disk.mount();
            must_hold(&disk, round);
            writer.go_on(round);
        }
    }
}

/// A script that mounts, writes and unmounts, all of it under Holdfast: the first try does it, as
/// natively.
#[test]
fn a_program_under_holdfast_unmounts_what_it_has_just_written_to() {
    need::root();
    const SCRIPT: &str = "
        set -e
        for round in 1 2 3; do
            dd if=/dev/urandom of=$0/made-$round bs=64k count=20 oflag=dsync status=none
            md5sum <$0/made-$round >$1/sum
            umount $0
            mount $2 $0
            md5sum <$0/made-$round | cmp - $1/sum
        done";
    for kind in KINDS {
        let (disk, pool) = (Disk::new(kind), Pool::new());
        let aside = holdfast_e2e::disk::directory();
        let device = Cmd::new("findmnt").args(["-no", "SOURCE"]).arg(&disk.root).ok().stdout;
        let run = pool.run(&["--age-max=60s"]).dir("/");
        run.args(["--", "sh", "-c", SCRIPT, text(&disk.root), text(aside.path()), device.trim()]).ok();
    }
}

#[test]
fn a_file_system_can_be_unmounted_after_a_drain() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let writer = Writer::start(&pool, &["--fence", "inotify"], &disk);
    for round in 0..2 {
        writer.ready();
        pool.command("drain").ok();
        Cmd::new("umount").arg(&disk.root).ok();
        disk.mount();
        must_hold(&disk, round);
        writer.go_on(round);
    }
}
