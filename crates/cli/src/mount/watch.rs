//! What happens while a directory is mounted: signals unmount it, and the death of server or keeper
//! ends it. It polls nothing on a timer and never touches a file behind the mount.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use anyhow::Context;
use holdfast_recovery::{RecoverOptions, recover};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::fuse::Mounted;
use super::place::Place;
use super::server::Server;
use crate::report;
use crate::signals::Signals;
use crate::supervise::{Recovered, pidfd_of};

/// How a mount ended.
pub struct Ended {
    /// Whether the server served until it was unmounted, or we ended it.
    pub is_well: bool,
    /// Set if the keeper died before.
    pub keeper_lost: Option<Recovered>,
}

/// What is watched.
pub struct Watch<'a> {
    /// Where it is mounted.
    pub place: &'a Place,
    /// The mount.
    pub mounted: &'a Mounted,
    /// Its server.
    pub server: Server,
    /// Readable when the keeper has ended.
    pub keeper: &'a OwnedFd,
    /// The keeper's pool.
    pub pool: &'a Path,
    /// Signals for us.
    pub signals: &'a Signals,
}

impl Watch<'_> {
    /// Returns once nobody uses the mount any more.
    pub fn until_the_end(mut self) -> anyhow::Result<Ended> {
        let server_fd = pidfd_of(self.server.child.id())?;
        let mut asked = 0;
        loop {
            let mut watched = [server_fd.as_fd(), self.signals.as_fd(), self.keeper.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut watched, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the server"),
            }
            let [server, signals, keeper] = watched.map(|fd| !fd.revents().is_empty());
            if server {
                return self.server_ended(asked > 1);
            }
            if keeper {
                return self.keeper_died();
            }
            while signals && let Some(signal) = self.signals.take() {
                if matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) {
                    asked += 1;
                    self.unmount(asked)?;
                }
            }
        }
    }

    /// The first signal unmounts, and lets who has files open there finish; the next one does not.
    fn unmount(&mut self, asked: u32) -> anyhow::Result<()> {
        if asked > 1 {
            self.server.kill();
        } else if self.mounted.is_there() && !self.mounted.unmount()? {
            self.mounted.detach();
            report::say(&format!(
                "{} is unmounted for whoever comes now; it ends with the last program that has a file open there \
                 (or at once, if asked again)",
                self.place.point.display()
            ));
        }
        Ok(())
    }

    fn server_ended(mut self, by_us: bool) -> anyhow::Result<Ended> {
        let status = self.server.wait()?;
        let was_there = self.mounted.is_there();
        self.mounted.detach();
        let is_well = by_us || status.success() && !was_there;
        if !is_well {
            let how = match (status.signal(), status.code()) {
                (Some(signal), _) => format!("was killed by signal {signal}"),
                (None, Some(0)) => "was cut off from the kernel".to_owned(),
                (None, code) => format!("ended with status {}", code.unwrap_or_default()),
            };
            report::say(&format!(
                "the server of {point} {how}: {point} is unmounted, and programs that have files open there get \
                 errors. What was acknowledged is kept and brought to the disk now; mount it again, and start them anew",
                point = self.place.point.display()
            ));
        }
        Ok(Ended { is_well, keeper_lost: None })
    }

    fn keeper_died(mut self) -> anyhow::Result<Ended> {
        report::say(&format!(
            "the keeper of pool {} died; programs get EIO; {} is unmounted; recovering",
            self.pool.display(),
            self.place.point.display()
        ));
        self.mounted.detach();
        let recovered = recover(self.pool, &RecoverOptions::default(), &mut |_, _, _| {});
        self.server.kill();
        self.server.wait()?;
        Ok(Ended { is_well: true, keeper_lost: Some(recovered) })
    }
}
