//! What happens while a directory is mounted: signals unmount it, the death of the keeper ends it,
//! and after the death of a server another one goes on, unless none can. It polls nothing on a
//! timer and never touches a file behind the mount.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::Context;
use holdfast_recovery::{RecoverOptions, recover};
use nix::sys::signal::Signal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::fuse::Mounted;
use super::server::{Server, Start};
use super::spaces::View;
use crate::report;
use crate::supervise::{Recovered, pidfd_of};

/// So many servers may end within this time; more have a reason that the next one would have, too.
const DEATHS_MAX: usize = 20;
const DEATHS_WITHIN: Duration = Duration::from_secs(60);
/// Servers that are started after one before no more are.
const TRIES_MAX: usize = 3;

/// How a mount ended.
pub struct Ended {
    /// Whether the server served until it was unmounted, or we ended it.
    pub is_well: bool,
    /// Set if the keeper died before.
    pub keeper_lost: Option<Recovered>,
}

/// What is watched.
pub struct Watch<'a> {
    /// How another server is started, and where it is mounted.
    pub start: Start<'a>,
    /// What it sees of the mounts, if not what we see.
    pub view: Option<&'a View>,
    /// The mount.
    pub mounted: &'a Mounted,
    /// Its server.
    pub server: Server,
    /// Readable when the keeper has ended.
    pub keeper: &'a OwnedFd,
    /// The keeper's pool.
    pub pool: &'a Path,
}

impl Watch<'_> {
    /// Returns once nobody uses the mount any more.
    pub fn until_the_end(mut self) -> anyhow::Result<Ended> {
        let mut server_fd = pidfd_of(self.server.child.id())?;
        let (mut asked, mut deaths) = (0, VecDeque::new());
        loop {
            let mut watched = [server_fd.as_fd(), self.start.signals.as_fd(), self.keeper.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            match poll(&mut watched, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("cannot wait for the server"),
            }
            let [server, signals, keeper] = watched.map(|fd| !fd.revents().is_empty());
            if server {
                let status = self.server.wait()?;
                let is_over = asked > 1 || status.success() || !self.goes_on(status, &mut deaths);
                if is_over {
                    return Ok(self.server_ended(status, asked > 1));
                }
                server_fd = pidfd_of(self.server.child.id())?;
                continue;
            }
            if keeper {
                return self.keeper_died();
            }
            while signals && let Some(signal) = self.start.signals.take() {
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
                self.start.place.point.display()
            ));
        }
        Ok(())
    }

    /// Whether another server went on after one that ended with `status`.
    fn goes_on(&mut self, status: ExitStatus, deaths: &mut VecDeque<Instant>) -> bool {
        let point = self.start.place.point.display();
        if !self.server.can_be_followed() {
            return false;
        }
        deaths.push_back(Instant::now());
        while deaths.front().is_some_and(|first| first.elapsed() > DEATHS_WITHIN) {
            deaths.pop_front();
        }
        if deaths.len() > DEATHS_MAX {
            report::say(&format!(
                "{} servers of {point} ended within {} s: no other one is started",
                deaths.len(),
                DEATHS_WITHIN.as_secs()
            ));
            return false;
        }
        // One may be killed before it serves; the holder has everything still.
        let mut next = self.start.next(&self.server, self.view);
        for _ in 1..TRIES_MAX {
            if next.is_err() {
                next = self.start.next(&self.server, self.view);
            }
        }
        match next {
            Ok(server) => self.server = server,
            Err(error) => {
                let how = how(status);
                report::say(&format!("after the server of {point} {how} no other one serves: {error:#}"));
                return false;
            }
        }
        report::say(&format!(
            "the server of {point} {}: another one goes on, and programs see nothing of it",
            how(status)
        ));
        true
    }

    fn server_ended(self, status: ExitStatus, by_us: bool) -> Ended {
        let was_there = self.mounted.is_there();
        self.mounted.detach();
        let is_well = by_us || status.success() && !was_there;
        if !is_well {
            let why = match self.server.can_be_followed() {
                true => "",
                false => " No other server can go on there (Linux 6.9 can do that).",
            };
            report::say(&format!(
                "the server of {point} {how}: {point} is unmounted, and programs that have files open there get \
                 errors. What was acknowledged is kept and brought to the disk now; mount it again, and start them \
                 anew.{why}",
                point = self.start.place.point.display(),
                how = how(status)
            ));
        }
        Ended { is_well, keeper_lost: None }
    }

    fn keeper_died(mut self) -> anyhow::Result<Ended> {
        report::say(&format!(
            "the keeper of pool {} died; programs get EIO; {} is unmounted; recovering",
            self.pool.display(),
            self.start.place.point.display()
        ));
        self.mounted.detach();
        let recovered = recover(self.pool, &RecoverOptions::default(), &mut |_, _, _| {});
        self.server.kill();
        self.server.wait()?;
        Ok(Ended { is_well: true, keeper_lost: Some(recovered) })
    }
}

/// How a server ended.
fn how(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(0)) => "was cut off from the kernel".to_owned(),
        (None, code) => format!("ended with status {}", code.unwrap_or_default()),
    }
}
