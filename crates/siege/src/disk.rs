//! The file systems that cases run on: an image made once, copied for each run, mounted, and copied
//! again at the instant of the cut. What the kernel had in memory alone is not in the copy. Nothing
//! here knows Holdfast.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom as StdSeek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::without_fuse;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::Serialize;

use holdfast_testkit::loopback::{Loop, forget_btrfs};

const UNMOUNT_MAX: Duration = Duration::from_secs(20);
/// How long the kernel may take to come to rest: on a busy machine others' writes keep its threads
/// from ending ours.
const REST_MAX: Duration = Duration::from_secs(60);

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize)]
pub enum Kind {
    /// ext4.
    Ext4,
    /// ext4 with fast commits.
    Ext4Fast,
    /// xfs.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl Kind {
    /// As the command line spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Ext4Fast => "ext4-fast",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Whether unsynced changes of names, modes and sizes survive in the order in which they were
    /// made.
    pub fn commits_a_prefix(self) -> bool {
        self != Self::Btrfs
    }

    fn image_bytes(self) -> u64 {
        match self {
            Self::Ext4 | Self::Ext4Fast => 32 << 20,
            Self::Xfs => 64 << 20,
            Self::Btrfs => 128 << 20,
        }
    }

    fn mkfs(self) -> Cmd {
        let (program, options): (_, &[&str]) = match self {
            Self::Ext4 => ("mkfs.ext4", &["-q", "-F", "-m", "0", "-b", "4096", "-I", "256"]),
            Self::Ext4Fast => {
                ("mkfs.ext4", &["-q", "-F", "-m", "0", "-b", "4096", "-I", "256", "-O", "fast_commit"])
            }
            // Smaller than xfs itself would have it: a case writes some pages.
            Self::Xfs => ("mkfs.xfs", &["--unsupported", "-q", "-f", "-l", "size=8m"]),
            Self::Btrfs => ("mkfs.btrfs", &["-q", "-f"]),
        };
        without_fuse(program).args(options)
    }

    /// Its name in the kernel, and options: no timer may commit what was not synced.
    fn mount(self) -> (&'static str, &'static str) {
        match self {
            Self::Ext4 | Self::Ext4Fast => ("ext4", "commit=300"),
            Self::Xfs => ("xfs", ""),
            Self::Btrfs => ("btrfs", "commit=300"),
        }
    }
}

/// A worker's file system: the image that all its runs start from, and the place where it is
/// mounted.
pub struct Disk {
    kind: Kind,
    home: PathBuf,
    /// Where it is mounted.
    pub root: PathBuf,
}

/// A mounted one. It is unmounted in the end, whatever happened.
pub struct Mounted<'a> {
    disk: &'a Disk,
    device: PathBuf,
    done: bool,
}

impl Disk {
    /// Makes the image that all runs start from; `fill` makes the files in it.
    pub fn new(kind: Kind, home: &Path, fill: impl Fn(&Path) -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let disk = Self { kind, home: home.to_owned(), root: home.join("mount") };
        std::fs::create_dir_all(&disk.root)?;
        let fresh = disk.image("fresh");
        File::create(&fresh)?.set_len(kind.image_bytes())?;
        kind.mkfs().arg(&fresh).ok();
        let mounted = disk.mount("fresh")?;
        fill(&disk.root)?;
        mounted.unmount()?;
        disk.copy("fresh", "template")?;
        std::fs::remove_file(fresh)?;
        Ok(disk)
    }

    fn image(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// Mounts a fresh copy of the image.
    pub fn power_on(&self) -> anyhow::Result<Mounted<'_>> {
        self.copy("template", "running")?;
        self.mount("running")
    }

    /// Mounts what a cut left.
    pub fn power_back(&self) -> anyhow::Result<Mounted<'_>> {
        self.mount("cut")
    }

    fn mount(&self, image: &str) -> anyhow::Result<Mounted<'_>> {
        let device = Loop::over(&self.image(image))?;
        let (name, options) = self.kind.mount();
        let options = CString::new(options)?;
        // Reads of the comparison must not make anything dirty.
        mount(&device.path, &self.root, name, MountFlags::NOATIME, options.as_c_str())
            .with_context(|| format!("cannot mount {} ({image})", device.path.display()))?;
        Ok(Mounted { disk: self, device: device.path.clone(), done: false })
    }

    fn copy(&self, from: &str, to: &str) -> anyhow::Result<()> {
        copy_sparse(&self.image(from), &self.image(to))
    }
}

impl Mounted<'_> {
    /// What the device holds at this instant. Everybody who could change it must stand still; the
    /// kernel's own threads seldom write, and then the copy is made anew.
    pub fn cut(&self) -> anyhow::Result<()> {
        let name = self.device.file_name().expect("a device has a name").to_string_lossy().into_owned();
        // Requests that came and went, and those under way.
        let activity = || -> anyhow::Result<String> {
            let told = std::fs::read_to_string(format!("/sys/block/{name}/stat"))?;
            let fields: Vec<&str> = told.split_whitespace().collect();
            ensure!(fields.len() > 8, "/sys/block/{name}/stat says {told}");
            Ok(format!("{} writes, {} under way", fields[4], fields[8]))
        };
        let started = Instant::now();
        while started.elapsed() < REST_MAX {
            let before = activity()?;
            self.disk.copy("running", "cut")?;
            if activity()? == before && before.ends_with(" 0 under way") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        anyhow::bail!("the kernel does not come to rest")
    }

    /// Unmounts, and waits until all have let go of it.
    pub fn unmount(mut self) -> anyhow::Result<()> {
        self.done = true;
        self.try_unmount()
    }

    fn try_unmount(&self) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            match unmount(&self.disk.root, UnmountFlags::empty()) {
                Ok(()) => break,
                Err(Errno::BUSY) if started.elapsed() < UNMOUNT_MAX => {
                    std::thread::sleep(Duration::from_micros(500));
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("umount {}", self.disk.root.display()));
                }
            }
        }
        if self.disk.kind == Kind::Btrfs {
            forget_btrfs(&self.device);
        }
        Ok(())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if !self.done {
            let unmounted = unmount(&self.disk.root, UnmountFlags::empty());
            if unmounted.is_err() {
                let _ = unmount(&self.disk.root, UnmountFlags::DETACH);
            }
        }
    }
}

/// Copies what of a file is no hole. Both are on tmpfs.
fn copy_sparse(from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut source = File::open(from).with_context(|| from.display().to_string())?;
    let mut copy = File::create(to).with_context(|| to.display().to_string())?;
    let size = source.metadata()?.len();
    copy.set_len(size)?;
    let (mut at, mut buffer) = (0, vec![0; 1 << 16]);
    while at < size {
        let start = match seek(&source, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(&source, SeekFrom::Hole(start))?;
        source.seek(StdSeek::Start(start))?;
        at = start;
        while at < end {
            let length = buffer.len().min((end - at) as usize);
            source.read_exact(&mut buffer[..length])?;
            for (index, block) in buffer[..length].chunks(4096).enumerate() {
                if block.iter().any(|byte| *byte != 0) {
                    copy.seek(StdSeek::Start(at + index as u64 * 4096))?;
                    copy.write_all(block)?;
                }
            }
            at += length as u64;
        }
    }
    Ok(())
}
