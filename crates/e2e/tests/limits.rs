//! The limits that a process is started with (`setrlimit`) and memory that is full: Holdfast says
//! what is missing before a program starts, and the program keeps the limits that it was given.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::{self, wait_until};
use rustix::process::Signal;

/// What is refused is refused so soon, and what a signal ends has ended, on a machine that is busy.
const SOON: Duration = Duration::from_secs(40);

/// The command with limits in `prlimit` spelling, and without the right to exceed them.
fn limited(limits: &[&str], command: &Cmd) -> Cmd {
    Cmd::new("setpriv")
        .args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "prlimit"])
        .args(limits)
        .args(command.words())
}

/// A keeper that has no descriptor left for whoever connects serves nobody: `run` waited for it for
/// ever.
#[test]
fn too_few_descriptors_are_refused_before_the_program_starts() {
    for most in [10, 16, 19, 20, 21, 22, 40, 63] {
        let pool = Pool::new();
        let command = pool.run(&[]).args(["--", "echo", "started"]);
        let output = limited(&[&format!("--nofile={most}:{most}")], &command).limit(SOON).output();
        output.expect(&[120]).says(&["open descriptors", "RLIMIT_NOFILE"], &[]);
        assert_eq!(output.stdout, "", "{most}");
        assert!(!pool.path.exists(), "{most}: a pool that nobody asked for stays");
    }
    let (pool, place) = (Pool::new(), disk::directory());
    let file = place.path().join("file");
    let file = file.to_str().expect("paths are text");
    let write = format!("dd if=/dev/zero of={file} bs=4k count=9 oflag=dsync status=none && ulimit -n");
    let command = pool.run(&["--write-behind=on"]).args(["--", "sh", "-c", &write]);
    let output = limited(&["--nofile=64:64"], &command).limit(SOON).output();
    assert_eq!(output.ok().stdout, "64\n");
    assert_eq!(std::fs::metadata(file).expect("written").len(), 9 * 4096);
}

/// A file system in a file of another one: while that one is frozen, its disk does not answer.
struct Stuck {
    outer: Disk,
    inner: PathBuf,
}

impl Stuck {
    fn new() -> Self {
        let outer = Disk::with_size(Kind::Ext4, 256 << 20);
        let (image, inner) = (outer.root.join("image"), outer.root.join("inner"));
        std::fs::create_dir(&inner).expect("a directory");
        Cmd::new("dd").args(["if=/dev/zero", "bs=1M", "count=100", "status=none"]).arg(of(&image)).ok();
        Cmd::new("mkfs.ext4").args(["-q", "-F"]).arg(&image).ok();
        Cmd::new("mount").args(["-o", "loop"]).args([&image, &inner]).ok();
        Self { outer, inner }
    }

    fn goes_on(&self) {
        Cmd::new("fsfreeze").arg("-u").arg(&self.outer.root).output();
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.goes_on();
        Cmd::new("umount").arg("-l").arg(&self.inner).output();
    }
}

fn of(path: &Path) -> String {
    format!("of={}", path.display())
}

/// Writes and syncs a file, has the disk stop, and writes and syncs it anew.
const WRITER: &str = "
import os, subprocess, sys
inner, outer = sys.argv[1:]
fd = os.open(inner + '/file', os.O_RDWR | os.O_CREAT, 0o600)
def write(byte):
    for block in range(40):
        os.pwrite(fd, byte * 65536, block * 65536)
        os.fsync(fd)
write(b'a')
subprocess.run(['fsfreeze', '-f', outer], check=True)
write(b'b')
print('written', flush=True)
";

/// A disk may take for ever, and whoever waits for it must be able to stop. What was acknowledged
/// comes to the disk all the same.
#[test]
fn a_signal_ends_the_wait_for_the_disk() {
    let (disk, pool) = (Stuck::new(), Pool::new());
    let command = pool.run(&["--age-max=60s"]).args(["--", "python3", "-c", WRITER]);
    let mut run = command.args([&disk.inner, &disk.outer.root]).spawn();
    let lines = proc::lines(&mut run);
    assert_eq!(lines.recv_timeout(SOON).expect("the program writes").trim(), "written");
    let is_of_ours = |pid: &u32| proc::is_holdfast(*pid);
    wait_until(SOON, "the program's end", || proc::descendants(run.id()).iter().all(is_of_ours));
    // A signal that is meant for both of them would come sooner.
    std::thread::sleep(Duration::from_secs(3));
    assert!(run.try_wait().expect("a child").is_none(), "nothing was left to be brought to the disk");
    proc::signal(run.id(), Signal::TERM);
    wait_until(SOON, "the end of `run`", || run.try_wait().expect("a child").is_some());
    let output = run.wait_with_output().expect("a child");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(121), "{told}");
    assert!(told.contains("a signal ended the wait") && told.contains("holdfast status"), "{told}");
    disk.goes_on();
    wait_until(SOON, "the keeper's end", || proc::keepers(&pool.path).is_empty());
    pool.recover(&[]).ok();
    let file = std::fs::read(disk.inner.join("file")).expect("the file");
    assert!(file.len() == 40 * 65536 && file.iter().all(|byte| *byte == b'b'), "{} bytes", file.len());
}

/// A pool that would be larger than a file may be is refused in words; SIGXFSZ ended `run` without
/// one.
#[test]
fn a_pool_above_the_limit_of_file_sizes_is_refused() {
    let pool = Pool::new();
    let command = pool.run(&[]).args(["--", "echo", "started"]);
    let output = limited(&["--fsize=100000:100000"], &command).output();
    output.expect(&[120]).says(&["100000 bytes at most", "RLIMIT_FSIZE"], &[]);
    assert_eq!(output.stdout, "");
    assert!(!pool.path.exists());
    // What only the program has to heed is no reason.
    assert_eq!(limited(&["--fsize=100000:unlimited"], &command).output().ok().stdout, "started\n");
}

/// What Holdfast takes for itself is not the program's.
#[test]
fn a_program_has_the_limits_and_the_ignored_signals_that_it_was_given() {
    let seen = "grep -h -e SigIgn -e 'Max file size' /proc/self/status /proc/self/limits";
    for trap in [":", "trap '' XFSZ"] {
        let pool = Pool::new();
        let shell = |command: &Cmd| {
            let words = Cmd::new("sh").args(["-c", &format!("{trap}; exec \"$@\""), "sh"]);
            limited(&["--fsize=7777777:8888888888"], &words.args(command.words()))
                .output()
                .ok()
                .stdout
                .clone()
        };
        let native = shell(&Cmd::new("sh").args(["-c", seen]));
        let held = shell(&pool.run(&[]).args(["--", "sh", "-c", seen]));
        assert_eq!(held, native);
        assert!(native.contains("7777777") && native.contains("8888888888"), "{native}");
    }
}

/// Raises its own limit, and writes what is larger than that was.
const RAISER: &str = "
import os, resource, sys
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
for block in range(60):
    os.pwrite(fd, bytes([block + 1]) * 100_000, block * 100_000)
    os.fsync(fd)
";

/// The keeper brings to the disk what a program may write: it died of the limit that it had with
/// the pool's first program, and the program got EIO.
#[test]
fn a_program_that_raises_its_limit_writes_past_the_old_one() {
    let (place, pool) = (disk::directory(), Pool::formatted());
    let file = place.path().join("file");
    let command = pool.run(&["--write-behind=at-once"]).args(["--", "python3", "-c", RAISER]).arg(&file);
    let output = limited(&["--fsize=1000000:unlimited"], &command).output();
    assert!(output.ok().stderr.contains("syncs absorbed"), "{}", output.told());
    let written = std::fs::read(&file).expect("the file");
    let is_right = |(at, byte): (usize, &u8)| usize::from(*byte) == at / 100_000 + 1;
    assert!(written.len() == 6_000_000 && written.iter().enumerate().all(is_right));
}

/// A small tmpfs.
struct Memory(tempfile::TempDir);

impl Memory {
    fn new(size: &str) -> Self {
        let memory = Self(tempfile::tempdir().expect("a directory"));
        let options = format!("size={size},mode=1777");
        Cmd::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(memory.0.path()).ok();
        memory
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        Cmd::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

/// A copy of a pool may have holes, which on a full file system ended keeper, program and whoever
/// looked with SIGBUS.
#[test]
fn a_pool_with_holes_gets_its_bytes_or_is_refused() {
    let (memory, place) = (Memory::new("40M"), disk::directory());
    let [made, pool, fill] = ["made", "pool", "fill"].map(|name| memory.0.path().join(name));
    let to = |subcommand: &str| Cmd::holdfast(subcommand).arg("--pool").arg(&pool);
    Cmd::holdfast("format").args(["--volatile", "--size=32M", "--pool"]).arg(&made).ok();
    Cmd::new("cp").arg("--sparse=always").args([&made, &pool]).ok();
    std::fs::remove_file(&made).expect("it is there");
    let bytes = |path: &Path| std::fs::metadata(path).expect("a file").blocks() * 512;
    assert!(bytes(&pool) < 16 << 20, "the copy has no holes");
    Cmd::new("dd").args(["if=/dev/zero", "bs=1M", "status=none"]).arg(of(&fill)).output().expect(&[1]);

    let write = ["if=/dev/urandom", "bs=64k", "count=200", "oflag=dsync", "status=none"];
    let file = place.path().join("file");
    let run = to("run").args(["--volatile", "--", "dd"]).args(write).arg(of(&file));
    run.output().expect(&[120]).says(&["has holes", "bytes of it are missing", "0 bytes are free"], &[]);
    assert!(!file.exists(), "the program ran");
    for looks in ["status", "recover"] {
        to(looks).output().expect(&[1]).says(&["has holes"], &[]);
    }
    to("recover").arg("--dry-run").output().expect(&[1]).says(&["has holes"], &[]);

    std::fs::remove_file(&fill).expect("it is there");
    run.ok();
    assert_eq!(std::fs::metadata(&file).expect("written").len(), 200 * 65536);
    assert!(bytes(&pool) >= 32 << 20, "the pool still has holes");
}
