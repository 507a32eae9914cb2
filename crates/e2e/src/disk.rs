//! File systems on loop devices whose power can be cut, in one of two ways. `xfs_io -x -c shutdown`
//! stops the file system without flushing anything. A forgetful disk below it forgets what was not
//! flushed, at any instant. Guards unmount and detach at the end, whatever happened.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use holdfast_forgetful::{Counts, Page};
use tempfile::TempDir;

use crate::cmd::Cmd;
use crate::need;
use crate::proc::wait_until;

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// ext4, with a journal that is not committed by time within a test.
    Ext4,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl Kind {
    fn mkfs(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            // A power cut must find what was not synced still unsynced, so no timer may commit it
            // before.
            Kind::Ext4 => ("mkfs.ext4", &["-q", "-F", "-m", "0"], "commit=300"),
            Kind::Xfs => ("mkfs.xfs", &["-q", "-f"], "defaults"),
            Kind::Btrfs => ("mkfs.btrfs", &["-q", "-f"], "commit=300"),
        }
    }
}

/// How the power is cut.
enum Power {
    /// By the shutdown ioctl.
    Ioctl,
    /// By a disk that forgets.
    Disk(holdfast_forgetful::Disk),
}

/// A mounted file system on a loop device.
pub struct Disk {
    kind: Kind,
    /// Where it is mounted.
    pub root: PathBuf,
    device: Mutex<String>,
    image: PathBuf,
    // Before the home that it lies in.
    power: Power,
    // Removed last: it holds the image and the mount point.
    _home: TempDir,
}

/// The program, where nobody serves files: mkfs.btrfs looks at all mounts, and fails if it finds a
/// disk of another test whose server is dead.
pub fn without_fuse(program: &str) -> Cmd {
    let script = "umount -a -l -t fuse; exec \"$0\" \"$@\"";
    Cmd::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", script, program])
}

impl Disk {
    /// Makes and mounts one, large enough for any of the programs.
    pub fn new(kind: Kind) -> Self {
        Self::with_size(kind, 2 << 30)
    }

    /// Makes and mounts one of a given size.
    pub fn with_size(kind: Kind, size_bytes: u64) -> Self {
        need::tool("xfs_io");
        let home = directory();
        let image = home.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(size_bytes)).expect("image");
        Self::on(kind, home, image, Power::Ioctl)
    }

    /// Makes and mounts one on a disk that forgets what was not flushed when its power is cut.
    pub fn forgetful(kind: Kind) -> Self {
        let home = directory();
        let platter = home.path().join("platter");
        std::fs::create_dir(&platter).expect("mount point");
        // The file systems rely on blocks of 4 KiB that are never torn, as the disks of today
        // promise.
        let disk = holdfast_forgetful::Disk::start(
            Command::new(need::own("holdfast-forgetful")),
            &platter,
            2 << 30,
            4096,
        );
        Self::on(kind, home, disk.file(), Power::Disk(disk))
    }

    fn on(kind: Kind, home: TempDir, image: PathBuf, power: Power) -> Self {
        need::root();
        let (mkfs, options, _) = kind.mkfs();
        let root = home.path().join("mount");
        std::fs::create_dir(&root).expect("mount point");
        let disk = Self { kind, root, device: Mutex::default(), image, power, _home: home };
        disk.attach();
        let device = disk.device().clone();
        without_fuse(mkfs).args(options).arg(device).ok();
        disk.mount();
        disk
    }

    /// The file that holds the file system.
    pub fn image(&self) -> &Path {
        &self.image
    }

    fn device(&self) -> MutexGuard<'_, String> {
        self.device.lock().expect("no holder panics")
    }

    fn attach(&self) {
        let attached = Cmd::new("losetup").args(["--show", "-f"]).arg(&self.image).ok();
        *self.device() = attached.stdout.trim().to_owned();
    }

    fn detach(&self) {
        drop(Cmd::new("losetup").args(["-d", &self.device()]).output());
    }

    /// Mounts it where it was.
    pub fn mount(&self) {
        let (_, _, options) = self.kind.mkfs();
        Cmd::new("mount").args(["-o", options, &self.device()]).arg(&self.root).ok();
    }

    fn unmount(&self) -> bool {
        Cmd::new("umount").arg(&self.root).output().status.success()
    }

    /// Whether the kernel still has the file system, as far as it shows that.
    fn is_alive(&self) -> bool {
        let device = self.device();
        let name = Path::new(&*device).file_name().unwrap_or_default();
        let file_systems = std::fs::read_dir("/sys/fs/btrfs").into_iter().flatten().flatten();
        ["ext4", "xfs"].iter().any(|kind| Path::new("/sys/fs").join(kind).join(name).exists())
            || file_systems.into_iter().any(|entry| entry.path().join("devices").join(name).exists())
    }

    /// Whether a cut is an instant: what a sync said before it is true, whoever was writing.
    ///
    /// The ioctl is none: an fsync under way in the kernel may be told of success (one cut in
    /// twenty, ext4 and xfs alike) for data that the shutdown then takes away. A real disk does not
    /// do that.
    pub fn cuts_at_an_instant(&self) -> bool {
        matches!(self.power, Power::Disk(_))
    }

    /// Cuts the power: from now on the file system fails, and whatever was not on the device is
    /// gone.
    pub fn cut_power(&self) {
        self.cut_power_seeded(0);
    }

    /// The same. The seed decides what becomes of blocks that a forgetful disk had not flushed.
    pub fn cut_power_seeded(&self, seed: u64) {
        match &self.power {
            Power::Ioctl => drop(Cmd::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.root).ok()),
            Power::Disk(disk) => drop(disk.cut(seed)),
        }
    }

    /// Power is back: unmounts what is left (nobody may use it any more) and mounts it again.
    pub fn restore_power(&self) {
        wait_until(
            Duration::from_secs(20),
            &format!("umount of {} ({})", self.root.display(), self.users()),
            || self.unmount(),
        );
        // A process in a mount namespace of its own may have a copy of the mount from before: a
        // file system that is mounted again then is the one that the cut shut down.
        // Where the root of the mounts is private, a keeper of `holdfast mount` has one to its end.
        wait_until(Duration::from_secs(60), "the end of its last mount", || !self.is_alive());
        if let Power::Disk(disk) = &self.power {
            // A new device: the old one may remember what the disk forgot.
            self.detach();
            disk.restore();
            self.attach();
        }
        self.mount();
    }

    /// A copy of what is on the device now.
    pub fn copy(&self) -> PathBuf {
        let copy = self.image.with_extension("copy");
        Cmd::new("cp").arg("--sparse=always").arg(&self.image).arg(&copy).ok();
        copy
    }

    /// Puts a copy in the place of what is on the device, and mounts it.
    pub fn replace(&self, copy: &Path) {
        wait_until(Duration::from_secs(20), "umount", || self.unmount());
        self.detach();
        Cmd::new("cp").arg("--sparse=always").arg(copy).arg(&self.image).ok();
        self.attach();
        self.mount();
    }

    /// Lets the next flush of a forgetful disk fail.
    pub fn fail_a_flush(&self) {
        match &self.power {
            Power::Ioctl => panic!("only a forgetful disk fails when told to"),
            Power::Disk(disk) => drop(disk.fail_flushes(1)),
        }
    }

    /// Lets the power of a forgetful disk go in the midst of such a page, after `whole` others.
    pub fn tear(&self, page: Page, whole: u64) {
        match &self.power {
            Power::Ioctl => panic!("only a forgetful disk tears when told to"),
            Power::Disk(disk) => drop(disk.tear(page, whole)),
        }
    }

    /// What a forgetful disk has seen.
    pub fn counts(&self) -> Option<Counts> {
        match &self.power {
            Power::Ioctl => None,
            Power::Disk(disk) => Some(disk.counts()),
        }
    }

    /// Brings everything below to the device; only this file system, so that no other test's
    /// unsynced data is saved.
    pub fn settle(&self) {
        Cmd::new("sync").arg("-f").arg(&self.root).ok();
    }

    fn users(&self) -> String {
        let held = |pid: &str| {
            let links = ["cwd", "exe"].into_iter().map(|name| PathBuf::from(format!("/proc/{pid}/{name}")));
            let fds = std::fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten()
                .flatten()
                .map(|fd| fd.path());
            links.chain(fds).any(|link| std::fs::read_link(link).is_ok_and(|to| to.starts_with(&self.root)))
        };
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let pids: Vec<String> = pids.filter(|pid| pid.parse::<u32>().is_ok() && held(pid)).collect();
        format!("users when first tried: {}", if pids.is_empty() { "none".into() } else { pids.join(" ") })
    }
}

impl std::fmt::Display for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.cuts_at_an_instant() { "a forgetful disk" } else { "a loop device" };
        write!(f, "{:?} on {how}", self.kind)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if !(0..40).any(|_| {
            let done = self.unmount();
            if !done {
                std::thread::sleep(Duration::from_millis(50));
            }
            done
        }) {
            drop(Cmd::new("umount").arg("-l").arg(&self.root).output());
        }
        self.detach();
    }
}

/// A fresh directory that every user may enter.
pub fn directory() -> TempDir {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::Builder::new().prefix("holdfast-e2e-").tempdir().expect("temporary directory");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("permissions");
    dir
}

/// Gives a path to a user.
pub fn give_to(path: &Path, user: &str) {
    Cmd::new("chown").arg("-R").arg(user).arg(path).ok();
}
