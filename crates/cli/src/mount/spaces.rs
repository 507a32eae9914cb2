//! Two views of the mounts: the users', where the directory is covered by our mount, and one for
//! keeper and server, where it is not. Without it the keeper, which finds files by their names,
//! would wait for the very server that waits for it.
// `CommandExt::pre_exec` is the only way to have a child begin in another view than one's own.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use nix::sched::{CloneFlags, setns, unshare};
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{chroot, fchdir};

/// A view of the mounts.
pub struct View {
    mounts: File,
    root: OwnedFd,
}

impl View {
    /// That of this process.
    fn own() -> anyhow::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            mounts: File::open("/proc/self/ns/mnt")
                .context("cannot see its own mounts (is /proc mounted?)")?,
            root: open("/", flags, Mode::empty()).context("cannot open /")?,
        })
    }

    /// From here on this process has this view.
    fn enter(&self) -> rustix::io::Result<()> {
        setns(self.mounts.as_fd(), CloneFlags::CLONE_NEWNS)
            .map_err(|error| rustix::io::Errno::from_raw_os_error(error as i32))?;
        // One that lives in a directory of its own goes back there.
        fchdir(&self.root).and_then(|()| chroot("."))
    }

    /// Has a child that is about to be spawned begin in this view.
    pub fn give_to(&self, command: &mut Command) -> anyhow::Result<()> {
        let mounts = self.mounts.try_clone().context("cannot copy a descriptor")?;
        let root = self.root.try_clone().context("cannot copy a descriptor")?;
        let view = Self { mounts, root };
        // SAFETY: between fork and exec the closure makes system calls and nothing else: it takes
        // no lock, allocates nothing and touches nothing that the parent's other threads may hold.
        unsafe {
            command.pre_exec(move || Ok(view.enter()?));
        }
        Ok(())
    }
}

/// The views that there are: the users', and the one of keeper and server.
pub struct Views {
    users: View,
    /// Where who is started later has to begin.
    pub inner: View,
}

/// From here on this process, and what it starts, sees what is mounted now, and what is mounted
/// elsewhere later, but nothing that is mounted later on the file system that begins at `volume`.
pub fn part(volume: &Path) -> anyhow::Result<Views> {
    let users = View::own()?;
    unshare(CloneFlags::CLONE_NEWNS).context(
        "cannot have a view of its own of the mounts (CAP_SYS_ADMIN is missing): give --at MOUNTPOINT",
    )?;
    // What is unmounted elsewhere must not stay in use here.
    let both = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", both)
        .and_then(|()| mount_change(volume, MountPropagationFlags::PRIVATE))
        .context("cannot keep its view of the mounts apart")?;
    Ok(Views { users, inner: View::own()? })
}

impl Views {
    /// This process sees what the users see again. What it started meanwhile does not.
    pub fn back(&self) -> anyhow::Result<()> {
        self.users.enter().context("cannot go back to the users' mounts")
    }
}
