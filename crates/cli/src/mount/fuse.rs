//! The kernel's side of the mount: the device, the mount, and its end. Root does it by system
//! calls, everybody else by `fusermount3`.

use std::fs::File;
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::place::{self, KIND, Place};

const DEVICE: &str = "/dev/fuse";
/// Reads ahead as large as the largest read, in KiB.
const READ_AHEAD_KIB: u32 = 1024;

/// How this user mounts.
pub enum Way {
    /// By system calls, with this device.
    Root(File),
    /// By this program, which opens the device.
    Helper(PathBuf),
}

/// Finds out how to mount, and that the kernel can.
pub fn way() -> anyhow::Result<Way> {
    let device = File::options().read(true).write(true).open(DEVICE);
    let is_missing = |error: &std::io::Error| {
        let missing = [Errno::NOENT, Errno::NXIO, Errno::NODEV];
        missing.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    };
    if device.as_ref().is_err_and(is_missing) {
        bail!("{DEVICE} is missing: `modprobe fuse`, or give the container that device (--device {DEVICE})");
    }
    if rustix::process::geteuid().is_root() {
        let denied = || format!("cannot open {DEVICE} (a container needs it by --device {DEVICE})");
        return Ok(Way::Root(device.with_context(denied)?));
    }
    if let Err(error) = device {
        bail!(
            "{DEVICE} cannot be opened by this user ({error}): `chmod 666 {DEVICE}`, as udev does, or run as root"
        );
    }
    match place::tool("fusermount3").or_else(|| place::tool("fusermount")) {
        Some(helper) => Ok(Way::Helper(helper)),
        None => {
            bail!("who is not root mounts by fusermount3, and there is none: install fuse3, or run as root")
        }
    }
}

/// A mount of ours.
pub struct Mounted {
    point: PathBuf,
    id: u64,
    helper: Option<PathBuf>,
}

/// What the file system below does not allow is not allowed through the mount either.
fn flags(place: &Place) -> MountFlags {
    let same = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
    ];
    let set = same.into_iter().filter(|(below, _)| place.facts.f_flag.contains(*below));
    set.fold(place.asked, |all, (_, flag)| all | flag)
}

/// The same in the words of fusermount3, which sets `nosuid` and `nodev` of its own accord.
fn words(flags: MountFlags) -> String {
    let known =
        [(MountFlags::RDONLY, ",ro"), (MountFlags::NOEXEC, ",noexec"), (MountFlags::NOATIME, ",noatime")];
    known.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, word)| word).collect()
}

/// Mounts as root; who has a copy of the device serves it.
pub fn mount_device(device: &File, place: &Place) -> anyhow::Result<Mounted> {
    let mode = std::fs::metadata(&place.directory).map_or(0o40_000, |facts| facts.mode());
    let data = format!(
        "fd={},rootmode={mode:o},user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    let data = std::ffi::CString::new(data).expect("it has no zero byte");
    mount(&place.directory, &place.point, KIND, flags(place), data.as_c_str()).with_context(|| {
        format!(
            "cannot mount at {} (a container needs CAP_SYS_ADMIN, and a profile that allows it)",
            place.point.display()
        )
    })?;
    Mounted::find(place, None)
}

/// `fusermount3` mounts and sends the device.
pub fn mount_by_helper(helper: PathBuf, place: &Place) -> anyhow::Result<(Mounted, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair().context("cannot make a socket")?;
    let name = place.directory.display().to_string().replace(['\\', ','], "_");
    let mut command = Command::new(&helper);
    command
        .arg("-o")
        .arg(format!("fsname={name},subtype=holdfast,default_permissions{}", words(flags(place))));
    // The socket is its standard input: no other descriptor survives the start.
    command.arg("--").arg(&place.point).env("_FUSE_COMMFD", "0").stdin(Stdio::from(OwnedFd::from(theirs)));
    let status = command.status().with_context(|| format!("cannot run {}", helper.display()))?;
    drop(command);
    if !status.success() {
        bail!("{} could not mount at {}", helper.display(), place.point.display());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    recvmsg(&ours, &mut [IoSliceMut::new(&mut byte)], &mut rights, RecvFlags::CMSG_CLOEXEC)
        .context("cannot hear fusermount3")?;
    let sent = rights.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let device = sent.context("fusermount3 sent no device")?;
    Ok((Mounted::find(place, Some(helper))?, device))
}

impl Mounted {
    fn find(place: &Place, helper: Option<PathBuf>) -> anyhow::Result<Self> {
        let mounts = place::mounts()?;
        let own = mounts.iter().rev().find(|mount| mount.point == place.point && mount.kind == KIND);
        let Some(own) = own else { bail!("{} was mounted, and is gone again", place.point.display()) };
        Ok(Self { point: place.point.clone(), id: own.id, helper })
    }

    /// Whether it is still there.
    pub fn is_there(&self) -> bool {
        place::mounts().is_ok_and(|mounts| mounts.iter().any(|mount| mount.id == self.id))
    }

    /// Unmounts; whether nobody uses it any more.
    pub fn unmount(&self) -> anyhow::Result<bool> {
        if let Some(helper) = &self.helper {
            let mut command = Command::new(helper);
            let quiet = command.args(["-q", "-u", "--"]).arg(&self.point).stderr(Stdio::null());
            let status = quiet.status().with_context(|| format!("cannot run {}", helper.display()))?;
            return Ok(status.success());
        }
        match unmount(&self.point, UnmountFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::BUSY) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot unmount {}", self.point.display())),
        }
    }

    /// Takes the mount away from everybody who comes from now on.
    pub fn detach(&self) {
        if !self.is_there() {
            return;
        }
        match &self.helper {
            Some(helper) => {
                let mut command = Command::new(helper);
                // It says itself what is in the way.
                let _ = command.args(["-u", "-z", "--"]).arg(&self.point).status();
            }
            None => drop(unmount(&self.point, UnmountFlags::DETACH)),
        }
    }

    /// Has the kernel read ahead in pieces as large as our requests; only root may say so.
    pub fn read_ahead(&self) {
        let Ok(facts) = rustix::fs::stat(&self.point) else { return };
        let (major, minor) = (rustix::fs::major(facts.st_dev), rustix::fs::minor(facts.st_dev));
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let setting = File::options().write(true).open(path);
        // A machine where that cannot be set reads in smaller pieces.
        let _ = setting.and_then(|mut setting| setting.write_all(READ_AHEAD_KIB.to_string().as_bytes()));
    }
}
