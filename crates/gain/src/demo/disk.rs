//! An ext4 file system on a loop device whose power is cut: it is shut down without flushing, so
//! that what was not synced is gone, as it would be with the page cache.
//!
//! It is mounted where nobody but this process and its children sees it: it goes with them, and
//! nobody else keeps it from being unmounted.
#![allow(unsafe_code)] // An ioctl that rustix does not know.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sched::{CloneFlags, unshare};
use rustix::ioctl::{Setter, ioctl};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};

use crate::interrupt::Interrupt;
use crate::job;
use crate::side::find_program;

/// Sparse: what is not written takes no room.
const IMAGE_BYTES: u64 = 256 << 20;
/// How long the last user of a file system may take to let go of it.
const UNMOUNT_MAX: Duration = Duration::from_secs(20);
/// `EXT4_IOC_SHUTDOWN`.
const SHUTDOWN: u32 = 0x8004_587d;
/// `EXT4_GOING_FLAGS_NOLOGFLUSH`: the journal is not written out before.
const NO_LOG_FLUSH: u32 = 2;

/// A mounted file system.
pub struct Disk {
    image: PathBuf,
    /// Where it is mounted.
    pub root: PathBuf,
    is_mounted: bool,
}

impl Disk {
    /// Fails, saying why, where nobody may make one. Takes this process out of sight.
    pub fn may_be_made() -> anyhow::Result<()> {
        if !rustix::process::geteuid().is_root() {
            bail!("it takes root, who may mount a file system and shut it down");
        }
        for (program, package) in [("mkfs.ext4", "e2fsprogs"), ("mount", "mount")] {
            if find(program).is_none() {
                bail!("{program} is missing (apt-get install {package})");
            }
        }
        std::fs::metadata("/dev/loop-control").context("there are no loop devices (/dev/loop-control)")?;
        unshare(CloneFlags::CLONE_NEWNS).context("this root may not mount file systems")?;
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).context("this root may not mount file systems")
    }

    /// Makes and mounts one below a directory.
    pub fn new(home: &Path, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let (image, root) = (home.join("image"), home.join("mount"));
        let made = File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES));
        made.with_context(|| format!("cannot make {}", image.display()))?;
        std::fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
        let mut make = Command::new(find("mkfs.ext4").context("mkfs.ext4 is missing")?);
        make.args(["-q", "-F", "-m", "0"]).arg(&image);
        job::run(make, interrupt).context("cannot make an ext4 file system")?;
        let mut disk = Self { image, root, is_mounted: false };
        disk.mount(interrupt)?;
        Ok(disk)
    }

    /// Mounts it. No timer commits what was not synced within the little time that this takes.
    pub fn mount(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        let mut mount = Command::new(find("mount").context("mount is missing")?);
        mount.args(["-t", "ext4", "-o", "loop,commit=300"]).arg(&self.image).arg(&self.root);
        job::run(mount, interrupt).context("cannot mount a file system on a loop device")?;
        self.is_mounted = true;
        Ok(())
    }

    /// Cuts the power.
    pub fn cut(&self) -> anyhow::Result<()> {
        let root = File::open(&self.root).with_context(|| format!("cannot open {}", self.root.display()))?;
        // SAFETY: EXT4_IOC_SHUTDOWN reads one number of 32 bits, and `root` is a file of ext4.
        unsafe { ioctl(&root, Setter::<SHUTDOWN, u32>::new(NO_LOG_FLUSH)) }
            .context("cannot shut the file system down")
    }

    /// Unmounts what is left.
    pub fn unmount(&mut self) -> anyhow::Result<()> {
        let began = Instant::now();
        while let Err(error) = unmount(&self.root, UnmountFlags::empty()) {
            if began.elapsed() > UNMOUNT_MAX {
                return Err(error).with_context(|| format!("cannot unmount {}", self.root.display()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.is_mounted = false;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted && self.unmount().is_err() {
            let _ = unmount(&self.root, UnmountFlags::DETACH);
        }
    }
}

/// Where root's programs are, whatever PATH says.
fn find(program: &str) -> Option<PathBuf> {
    let usual = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|dir| Path::new(dir).join(program));
    find_program(program).or_else(|| usual.into_iter().find(|path| path.is_file()))
}
