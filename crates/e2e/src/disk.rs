//! File systems on loop devices whose power can be cut: `xfs_io -x -c shutdown` stops them without flushing anything. Guards
//! unmount and detach at the end, whatever happened.

use std::path::{Path, PathBuf};
use std::time::Duration;

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
            // A power cut must find what was not synced still unsynced, so no timer may commit it before.
            Kind::Ext4 => ("mkfs.ext4", &["-q", "-F", "-m", "0"], "commit=300"),
            Kind::Xfs => ("mkfs.xfs", &["-q", "-f"], "defaults"),
            Kind::Btrfs => ("mkfs.btrfs", &["-q", "-f"], "commit=300"),
        }
    }
}

/// A mounted file system on a loop device.
pub struct Disk {
    kind: Kind,
    /// Where it is mounted.
    pub root: PathBuf,
    device: String,
    // Removed last: it holds the image and the mount point.
    _home: TempDir,
}

impl Disk {
    /// Makes and mounts one, large enough for any of the programs.
    pub fn new(kind: Kind) -> Self {
        Self::with_size(kind, 2 << 30)
    }

    /// Makes and mounts one of a given size.
    pub fn with_size(kind: Kind, size_bytes: u64) -> Self {
        need::root();
        need::tool("xfs_io");
        let home = directory();
        let image = home.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(size_bytes)).expect("image");
        let (mkfs, options, _) = kind.mkfs();
        Cmd::new(mkfs).args(options).arg(&image).ok();
        let root = home.path().join("mount");
        std::fs::create_dir(&root).expect("mount point");
        let device = Cmd::new("losetup").args(["--show", "-f"]).arg(&image).ok().stdout.trim().to_owned();
        let disk = Self { kind, root, device, _home: home };
        disk.mount();
        disk
    }

    fn mount(&self) {
        let (_, _, options) = self.kind.mkfs();
        Cmd::new("mount").args(["-o", options, &self.device]).arg(&self.root).ok();
    }

    fn unmount(&self) -> bool {
        Cmd::new("umount").arg(&self.root).output().status.success()
    }

    /// Cuts the power: from now on the file system fails, and whatever was not on the device is gone.
    pub fn cut_power(&self) {
        Cmd::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.root).ok();
    }

    /// Power is back: unmounts what is left (nobody may use it any more) and mounts it again.
    pub fn restore_power(&self) {
        wait_until(
            Duration::from_secs(20),
            &format!("umount of {} ({})", self.root.display(), self.users()),
            || self.unmount(),
        );
        self.mount();
    }

    /// Brings everything below to the device; only this file system, so that no other test's unsynced data is saved.
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
        drop(Cmd::new("losetup").args(["-d", &self.device]).output());
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
