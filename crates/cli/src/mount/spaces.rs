//! Two views of the mounts: the users', where the directory is covered by our mount, and one for
//! keeper and server, where it is not. Without it the keeper, which finds files by their names,
//! would wait for the very server that waits for it.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::Context;
use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{chroot, fchdir};

/// The view that was left.
pub struct Users {
    mounts: File,
    root: OwnedFd,
}

/// From here on this process, and what it starts, sees what is mounted now, and what is mounted
/// elsewhere later, but nothing that is mounted later on the file system that begins at `volume`.
pub fn part(volume: &Path) -> anyhow::Result<Users> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let users = Users {
        mounts: File::open("/proc/self/ns/mnt").context("cannot see its own mounts (is /proc mounted?)")?,
        root: open("/", flags, Mode::empty()).context("cannot open /")?,
    };
    unshare(CloneFlags::CLONE_NEWNS).context(
        "cannot have a view of its own of the mounts (CAP_SYS_ADMIN is missing): give --at MOUNTPOINT",
    )?;
    // What is unmounted elsewhere must not stay in use here.
    let both = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", both)
        .and_then(|()| mount_change(volume, MountPropagationFlags::PRIVATE))
        .context("cannot keep its view of the mounts apart")?;
    Ok(users)
}

impl Users {
    /// This process sees what the users see again. What it started meanwhile does not.
    pub fn back(self) -> anyhow::Result<()> {
        setns(self.mounts.as_fd(), CloneFlags::CLONE_NEWNS).context("cannot go back to the users' mounts")?;
        // One that lives in a directory of its own goes back there.
        fchdir(&self.root).and_then(|()| chroot(".")).context("cannot go back to its root directory")?;
        Ok(())
    }
}
