//! The server of a mount: how `mount` starts it under the library, as `run` starts a program, and
//! what the hidden subcommand does. They talk by one byte each time.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, bail};
use holdfast_mount::{MOUNTED, OPEN, SERVES, SERVES_LAST};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::place::Place;
use super::spaces::View;
use crate::args::MountServerArgs;
use crate::signals::Signals;
use crate::supervise::pidfd_of;
use crate::{locate, preload, user};

/// The hidden subcommand: serves what is mounted by the device that is its standard input, or goes
/// on for a server whose holder is at the other end of it.
pub fn serve(args: &MountServerArgs) -> anyhow::Result<u8> {
    let input = std::io::stdin().as_fd().try_clone_to_owned().context("no device")?;
    let talk = std::io::stdout().as_fd().try_clone_to_owned().context("nobody to talk to")?;
    // No working directory of the user's stays busy.
    std::env::set_current_dir("/").context("the server cannot change to /")?;
    let talk = UnixStream::from(talk);
    let served = match args.successor {
        true => holdfast_mount::succeed(UnixStream::from(input), talk, args.alone),
        false => holdfast_mount::serve(&args.directory, input, talk, args.alone),
    };
    served.with_context(|| format!("the server of {} stopped", args.directory.display()))?;
    Ok(0)
}

/// How servers are started.
pub struct Start<'a> {
    /// What is mounted where.
    pub place: &'a Place,
    /// The library.
    pub library: &'a Path,
    /// Where the keeper listens.
    pub socket: &'a Path,
    /// Signals that the supervisor holds.
    pub signals: &'a Signals,
}

/// A server that was started.
pub struct Server {
    /// Its process.
    pub child: Child,
    talk: UnixStream,
    /// Whether another one can go on after it.
    can_be_followed: bool,
}

impl Start<'_> {
    /// Starts the first server, with the device; returns once it has the directory open.
    pub fn first(&self, device: OwnedFd) -> anyhow::Result<Server> {
        self.begin(device, None, false)
    }

    /// Starts another one for what a server has left that is gone; returns once it serves.
    pub fn next(&self, before: &Server, view: Option<&View>) -> anyhow::Result<Server> {
        let holder = before.talk.try_clone().context("cannot copy a descriptor")?;
        let mut server = self.begin(holder.into(), view, true)?;
        match server.mounted() {
            Ok(()) => {
                before.is_followed();
                Ok(server)
            }
            Err(error) => Err(server.give_up(error)),
        }
    }

    fn begin(&self, input: OwnedFd, view: Option<&View>, is_successor: bool) -> anyhow::Result<Server> {
        let (talk, theirs) = UnixStream::pair().context("cannot make a socket")?;
        let mut command = Command::new(locate::executable()?);
        command
            .arg("mount-server")
            .args(self.place.is_over().then_some("--alone"))
            .args(is_successor.then_some("--successor"))
            .arg("--")
            .arg(&self.place.directory);
        let inherited = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        command.env("LD_PRELOAD", preload::with_library(&inherited, self.library));
        command.env("HOLDFAST_SOCKET", self.socket).env_remove(user::WATCH_VARIABLE);
        command.env("HOLDFAST_FRONT_END", "mount");
        command.stdin(Stdio::from(input)).stdout(Stdio::from(OwnedFd::from(theirs)));
        // What a terminal sends is ours to act on.
        command.process_group(0);
        self.signals.give_to(&mut command);
        if let Some(view) = view {
            view.give_to(&mut command)?;
        }
        let child = command.spawn().context("cannot start the server")?;
        drop(command);
        let mut server = Server { child, talk, can_be_followed: false };
        match server.hears(&[OPEN]) {
            Ok(_) => Ok(server),
            Err(error) => Err(server.give_up(error)),
        }
    }
}

impl Server {
    /// Tells it that the mount is there; returns once it serves.
    pub fn mounted(&mut self) -> anyhow::Result<()> {
        // If it is gone, its missing answer says so.
        let _ = self.talk.write_all(&[MOUNTED]);
        self.can_be_followed = self.hears(&[SERVES, SERVES_LAST])? == SERVES;
        Ok(())
    }

    /// Its holder has handed everything over, and ends.
    fn is_followed(&self) {
        // Copies of our end may be left; that of a holder which is gone is no matter.
        let _ = self.talk.shutdown(Shutdown::Both);
    }

    /// Whether what it had is held for another one.
    pub fn can_be_followed(&self) -> bool {
        self.can_be_followed
    }

    fn hears(&mut self, words: &[u8]) -> anyhow::Result<u8> {
        // Its holder keeps the socket open behind it.
        let ended = pidfd_of(self.child.id())?;
        let mut watched =
            [self.talk.as_fd(), ended.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        while let Err(error) = poll(&mut watched, None) {
            if error != Errno::INTR {
                return Err(error).context("cannot wait for the server");
            }
        }
        let mut said = [0];
        let is_said = !watched[0].revents().is_empty();
        match is_said.then(|| self.talk.read(&mut said)) {
            Some(Ok(1)) if words.contains(&said[0]) => Ok(said[0]),
            _ => bail!("the mount's server ended before it served"),
        }
    }

    /// Ends a server that is not to serve; the reason why.
    pub fn give_up(mut self, error: anyhow::Error) -> anyhow::Error {
        let _ = self.child.kill();
        let _ = self.child.wait();
        error
    }

    /// Ends it as it is: what it acknowledged is in the log.
    pub fn kill(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
    }

    /// Its status, once it has ended.
    pub fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.wait().context("cannot wait for the server")
    }
}
