//! The server of a mount: how `mount` starts it under the library, as `run` starts a program, and
//! what the hidden subcommand does. They talk by one byte each time.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, bail};
use holdfast_mount::{MOUNTED, OPEN, SERVES};

use super::place::Place;
use crate::args::MountServerArgs;
use crate::signals::Signals;
use crate::{locate, preload, user};

/// The hidden subcommand: serves what is mounted by the device that is its standard input.
pub fn serve(args: &MountServerArgs) -> anyhow::Result<u8> {
    let device = std::io::stdin().as_fd().try_clone_to_owned().context("no device")?;
    let talk = std::io::stdout().as_fd().try_clone_to_owned().context("nobody to talk to")?;
    // No working directory of the user's stays busy.
    std::env::set_current_dir("/").context("the server cannot change to /")?;
    holdfast_mount::serve(&args.directory, device, UnixStream::from(talk), args.alone)
        .with_context(|| format!("the server of {} stopped", args.directory.display()))?;
    Ok(0)
}

/// A server that was started.
pub struct Server {
    /// Its process.
    pub child: Child,
    talk: UnixStream,
}

impl Server {
    /// Starts one; returns once it has the directory open.
    pub fn start(
        place: &Place,
        library: &Path,
        socket: &Path,
        device: OwnedFd,
        signals: &Signals,
    ) -> anyhow::Result<Self> {
        let (talk, theirs) = UnixStream::pair().context("cannot make a socket")?;
        let mut command = Command::new(locate::executable()?);
        command
            .arg("mount-server")
            .args(place.is_over().then_some("--alone"))
            .arg("--")
            .arg(&place.directory);
        let inherited = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        command.env("LD_PRELOAD", preload::with_library(&inherited, library));
        command.env("HOLDFAST_SOCKET", socket).env_remove(user::WATCH_VARIABLE);
        command.env("HOLDFAST_FRONT_END", "mount");
        command.stdin(Stdio::from(device)).stdout(Stdio::from(OwnedFd::from(theirs)));
        // What a terminal sends is ours to act on.
        command.process_group(0);
        signals.give_to(&mut command);
        let child = command.spawn().context("cannot start the server")?;
        drop(command);
        let mut server = Self { child, talk };
        match server.hears(OPEN) {
            Ok(()) => Ok(server),
            Err(error) => Err(server.give_up(error)),
        }
    }

    /// Tells it that the mount is there; returns once it serves.
    pub fn mounted(&mut self) -> anyhow::Result<()> {
        // If it is gone, its missing answer says so.
        let _ = self.talk.write_all(&[MOUNTED]);
        self.hears(SERVES)
    }

    fn hears(&mut self, word: u8) -> anyhow::Result<()> {
        let mut said = [0];
        match self.talk.read(&mut said) {
            Ok(1) if said[0] == word => Ok(()),
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
