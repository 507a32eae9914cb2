//! The processes of a side, by descriptors instead of numbers: nobody else can be hit.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How long a process may take until it stands still: a sync that is under way ends first.
const STILL_MAX: Duration = Duration::from_secs(20);

/// Processes that are stopped and killed together.
pub struct Victims(Vec<(u32, OwnedFd)>);

impl Victims {
    /// Takes hold of them.
    pub fn of(pids: impl IntoIterator<Item = u32>) -> anyhow::Result<Self> {
        let open = |pid: u32| {
            let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let known = known.with_context(|| format!("{pid} is not a process id"))?;
            let fd = pidfd_open(known, PidfdFlags::empty());
            Ok((pid, fd.with_context(|| format!("cannot watch process {pid}"))?))
        };
        Ok(Self(pids.into_iter().map(open).collect::<anyhow::Result<_>>()?))
    }

    /// Stops them all, and returns once none of them is inside the kernel any more: what was not
    /// acknowledged by now never is.
    pub fn stop(&self) -> anyhow::Result<()> {
        for (pid, fd) in &self.0 {
            pidfd_send_signal(fd, Signal::STOP).with_context(|| format!("cannot stop process {pid}"))?;
        }
        let told = Instant::now();
        while !self.0.iter().all(|(pid, _)| is_still(*pid)) {
            if told.elapsed() > STILL_MAX {
                bail!("a process does not stop");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Kills them all and waits for their ends.
    pub fn kill(&self) -> anyhow::Result<()> {
        for (_, fd) in &self.0 {
            // One that is already gone is as good as killed.
            let _ = pidfd_send_signal(fd, Signal::KILL);
        }
        for (_, fd) in &self.0 {
            loop {
                match poll(&mut [PollFd::new(fd, PollFlags::IN)], None) {
                    Ok(_) => break,
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error).context("cannot wait for a process"),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Victims {
    fn drop(&mut self) {
        // Nobody is left stopped, whatever failed.
        for (_, fd) in &self.0 {
            let _ = pidfd_send_signal(fd, Signal::CONT);
        }
    }
}

/// Whether each thread of a process is stopped, or gone.
fn is_still(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let Ok(stat) = std::fs::read_to_string(thread.path().join("stat")) else { return true };
        // The name before it may hold anything.
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
        matches!(state, Some('T' | 't' | 'Z' | 'X'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn who_is_stopped_stands_still_and_who_is_killed_is_gone() {
        let mut child = Command::new("sleep").arg("100").spawn().expect("started");
        let victims = Victims::of([child.id()]).expect("watched");
        victims.stop().expect("stopped");
        assert!(is_still(child.id()));
        victims.kill().expect("killed");
        child.wait().expect("ended");
        assert!(Victims::of([0]).is_err());
    }
}
