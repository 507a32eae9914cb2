//! A disk that fails: the kernel drops the pages it could not write, the log still has them
//! (invariant 4).
//!
//! The disk is a loop device on a sparse file in a small tmpfs. While that is full, every block
//! that the sparse file does not have fails: those of the test's file. Or it is a whole file system
//! that is shut down.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind, directory};
use holdfast_e2e::need;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::proc::wait_until;

const BYTES: usize = 4 << 20;

/// Writes the file once, says so, then syncs every 100 ms and tells how that went; ends when told.
const WRITER: &str = "
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
block = bytes(range(256)) * 256
for at in range(0, 4 << 20, len(block)): os.pwrite(fd, block, at)
print('written', flush=True)
for _ in range(600):
    try:
        os.fsync(fd)
        print('synced', flush=True)
    except OSError as error:
        print('error', error.errno, flush=True)
    if os.path.exists(sys.argv[2]): break
    time.sleep(0.1)
";

struct FailingDisk {
    home: tempfile::TempDir,
    device: String,
}

impl FailingDisk {
    fn new() -> Self {
        need::root();
        let home = directory();
        let backing = home.path().join("backing");
        std::fs::create_dir(&backing).expect("directory");
        Cmd::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(&backing).ok();
        let image = backing.join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(256 << 20)).expect("image");
        // Without a journal, whose failure would stop the whole file system for good.
        Cmd::new("mkfs.ext4")
            .args(["-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard", "-N", "64"])
            .arg(&image)
            .ok();
        let device = Cmd::new("losetup").args(["--show", "-f"]).arg(&image).ok().stdout.trim().to_owned();
        let disk = Self { home, device };
        std::fs::create_dir(disk.root()).expect("mount point");
        Cmd::new("mount").args(["-o", "errors=continue", &disk.device]).arg(disk.root()).ok();
        disk
    }

    fn root(&self) -> PathBuf {
        self.home.path().join("mount")
    }

    fn ballast(&self) -> PathBuf {
        self.home.path().join("backing/ballast")
    }

    /// A file of zeros whose blocks the disk does not have any more. (Blocks that are only
    /// allocated would not do: ext4 itself loses what is written again to those after an error.)
    fn file(&self) -> PathBuf {
        let path = self.root().join("data");
        std::fs::write(&path, vec![0; BYTES]).expect("write");
        Cmd::new("sync").arg("-f").arg(self.root()).ok();
        Cmd::new("fallocate").arg("--dig-holes").arg(self.home.path().join("backing/image")).ok();
        path
    }

    fn fail(&self) {
        // Ends with «no space left», which is what it is for.
        let of = format!("of={}", self.ballast().display());
        Cmd::new("dd").args(["if=/dev/zero", &of, "bs=64k"]).output();
    }

    fn heal(&self) {
        std::fs::remove_file(self.ballast()).expect("ballast");
    }

    /// What the disk holds, not what the page cache remembers.
    fn contents(&self) -> Vec<u8> {
        Cmd::new("umount").arg(self.root()).ok();
        Cmd::new("mount").arg(&self.device).arg(self.root()).ok();
        std::fs::read(self.root().join("data")).expect("read")
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        for _ in 0..20 {
            if Cmd::new("umount").arg(self.root()).output().status.success() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(Cmd::new("losetup").args(["-d", &self.device]).output());
        drop(Cmd::new("umount").arg("-l").arg(self.home.path().join("backing")).output());
    }
}

fn expected() -> Vec<u8> {
    (0..BYTES).map(|at| at as u8).collect()
}

struct Writer {
    child: std::process::Child,
    told: PathBuf,
    stop: PathBuf,
}

impl Writer {
    fn start(disk: &FailingDisk, pool: &Pool, file: &Path) -> Self {
        let (told, stop) = (disk.home.path().join("told"), disk.home.path().join("stop"));
        let script = disk.home.path().join("writer.py");
        std::fs::write(&script, WRITER).expect("script");
        let line = format!(
            "exec python3 {} {} {} >{}",
            script.display(),
            file.display(),
            stop.display(),
            told.display()
        );
        let child = pool.run(&["--age-max", "300"]).args(["--", "sh", "-c", &line]).spawn();
        Self { child, told, stop }
    }

    fn told(&self) -> String {
        std::fs::read_to_string(&self.told).unwrap_or_default()
    }

    fn until(&self, what: &str, holds: impl Fn(&str) -> bool) {
        wait_until(Duration::from_secs(20), what, || holds(&self.told()));
    }

    fn end(mut self) -> i32 {
        std::fs::write(&self.stop, "").expect("stop");
        self.child.wait().expect("wait").code().unwrap_or(-1)
    }
}

#[test]
fn what_a_failed_sync_dropped_is_written_again_from_the_log() {
    let (disk, pool) = (FailingDisk::new(), Pool::new());
    let file = disk.file();
    disk.fail();
    let writer = Writer::start(&disk, &pool, &file);
    writer.until("an error that reaches the program", |told| told.contains("error 5"));
    disk.heal();
    writer.until("a sync that succeeds afterwards", |told| {
        told.rsplit("error 5").next().is_some_and(|after| after.contains("synced"))
    });
    assert_eq!(writer.end(), 0, "everything is on disk in the end");
    assert!(disk.contents() == expected(), "the disk does not hold what was acknowledged");
}

#[test]
fn a_disk_that_stays_broken_loses_nothing_that_recovery_could_not_bring_back() {
    let (disk, pool) = (FailingDisk::new(), Pool::new());
    let file = disk.file();
    disk.fail();
    let writer = Writer::start(&disk, &pool, &file);
    writer.until("many errors", |told| told.matches("error 5").count() > 20);
    assert_eq!(writer.end(), 121, "the run says that not all is on disk");
    disk.heal();
    pool.recover(&[]).ok();
    assert!(disk.contents() == expected(), "recovery did not bring back what was acknowledged");
}

/// Moves a file that was synced, and moves it on over another one, which its slot has no room for;
/// waits until its file system is shut down, then syncs both directories, the file and all of the
/// file system, and tells how each went.
const READER: &str = "
import ctypes, os, sys, time
root, down = sys.argv[1:]
new, cur = (os.open(root + '/' + name, os.O_RDONLY | os.O_DIRECTORY) for name in ('new', 'cur'))
mail = os.open(root + '/new/mail', os.O_WRONLY | os.O_CREAT)
os.write(mail, b'mail')
for fd in (mail, new, cur): os.fsync(fd)
os.rename(root + '/new/mail', root + '/new/read')
os.rename(root + '/new/read', root + '/cur/mail')
print('moved', flush=True)
while not os.path.exists(down): time.sleep(0.01)
def syncfs(fd):
    if ctypes.CDLL(None, use_errno=True).syncfs(fd): raise OSError(ctypes.get_errno(), 'syncfs')
for call, fd in ((os.fsync, cur), (os.fdatasync, new), (os.fsync, mail), (syncfs, cur)):
    try:
        call(fd)
        print('synced', flush=True)
    except OSError as error:
        print('error', error.errno, flush=True)
";

/// xfs tells of success for the sync of a directory whose last changes went with its journal. A
/// mail that a reader had moved from `new/` to `cur/` in the moment of a power cut was in `new/`
/// again, though both directories had been synced.
#[test]
fn no_sync_succeeds_once_a_journal_has_failed() {
    for kind in [Kind::Xfs, Kind::Ext4] {
        let (disk, pool, home) = (Disk::new(kind), Pool::new(), directory());
        let (told, down) = (home.path().join("told"), home.path().join("down"));
        for name in ["new", "cur"] {
            std::fs::create_dir(disk.root.join(name)).expect("directory");
        }
        std::fs::write(disk.root.join("cur/mail"), "older").expect("older mail");
        disk.settle();
        let script = home.path().join("reader.py");
        std::fs::write(&script, READER).expect("script");
        let line = format!(
            "exec python3 {} {} {} >{}",
            script.display(),
            disk.root.display(),
            down.display(),
            told.display()
        );
        let mut child = pool.run(&[]).args(["--", "sh", "-c", &line]).spawn();
        let said = || std::fs::read_to_string(&told).unwrap_or_default();
        wait_until(Duration::from_secs(20), "a mail that is moved", || said() == "moved\n");
        disk.cut_power();
        std::fs::write(&down, "").expect("down");
        child.wait().expect("wait");
        let said = said();
        assert_eq!(said, format!("moved\n{}", "error 5\n".repeat(4)), "{disk}");
        disk.restore_power();
        pool.recover(&[]).ok();
        assert_eq!(
            std::fs::read(disk.root.join("new/read")).expect("mail"),
            b"mail",
            "the move is lost, and told of"
        );
    }
}
