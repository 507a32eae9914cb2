//! A mount whose starter goes on once it is there, as mount(8) expects. What supervisor, keeper and
//! server say reaches the starter until then, and the system's log from then on: nobody's terminal
//! or pipe stays open behind it. It must never make somebody wait who only says something.

use std::fs::File;
use std::io::{BufRead, BufReader, PipeReader, Read, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

use anyhow::Context;
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::stdio::{dup2_stderr, dup2_stdout};

use crate::exit::EXIT_NOT_MOUNTED;
use crate::locate;

/// What the starter is told once the mount is there.
const MOUNTED: u8 = b'm';
/// A line of nothing else is ours: what comes after it is for others than what came before.
const MARK: &[u8] = b"\0\n";
/// Where the system's log listens.
const LOG: &str = "/dev/log";
/// Facility daemon, severity notice.
const PRIORITY: u8 = 3 << 3 | 5;

/// Starts `holdfast mount` with these words and returns once it is mounted, or not; the status.
pub fn start(words: &[std::ffi::OsString]) -> anyhow::Result<u8> {
    let mut command = Command::new(locate::executable()?);
    command.args(["mount", "--detached"]).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the mount")?;
    let mut word = [0];
    let told = child.stdout.take().expect("it was asked for").read(&mut word);
    if matches!(told, Ok(1)) && word[0] == MOUNTED {
        return Ok(0);
    }
    let status = child.wait().context("cannot wait for the mount")?;
    // Whatever it was, nothing is mounted.
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .filter(|code| *code != 0)
        .unwrap_or(EXIT_NOT_MOUNTED))
}

/// What everybody says here goes through this.
pub struct Detached {
    starter: OwnedFd,
    marks: Receiver<()>,
    is_mounted: bool,
}

impl Detached {
    /// Leaves the starter's session, and takes what is said.
    pub fn begin() -> anyhow::Result<Self> {
        // Fails only for a process group leader, which somebody who starts this by hand may be.
        let _ = rustix::process::setsid();
        let starter = std::io::stderr().as_fd().try_clone_to_owned().context("no standard error")?;
        let copy = starter.try_clone().context("cannot copy a descriptor")?;
        let (said, say) = std::io::pipe().context("cannot make a pipe")?;
        dup2_stderr(&say).context("cannot take what is said")?;
        let (mark, marks) = channel();
        // Signals are the main thread's: this one has none of them open.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).context("cannot block signals")?;
        let relay = move || relay(said, File::from(copy), &mark);
        let spawned = Builder::new().name("relay".into()).spawn(relay);
        before.thread_set_mask().context("cannot unblock signals")?;
        spawned.context("cannot start a thread")?;
        Ok(Self { starter, marks, is_mounted: false })
    }

    /// It is mounted: the starter is told, and let go of.
    pub fn mounted(&mut self) {
        self.is_mounted = true;
        self.mark();
        let _ = std::io::stdout().write_all(&[MOUNTED]);
        let _ = std::io::stdout().flush();
        if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
            let _ = dup2_stdout(&null);
            if let Ok(copy) = null.try_clone() {
                self.starter = copy.into();
            }
        }
    }

    /// Waits until all that was said before has gone its way.
    fn mark(&self) {
        if std::io::stderr().write_all(MARK).is_ok() {
            let _ = self.marks.recv();
        }
    }
}

impl Drop for Detached {
    /// Who fails before it is mounted says why to the starter.
    fn drop(&mut self) {
        if !self.is_mounted {
            self.mark();
            let _ = dup2_stderr(&self.starter);
        }
    }
}

/// Hands on line after line: to the starter until the first mark, to the log from there on.
fn relay(said: PipeReader, starter: File, mark: &Sender<()>) {
    let (mut lines, mut line, mut starter) = (BufReader::new(said), Vec::new(), Some(starter));
    while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
        if line == MARK {
            starter = None;
            let _ = mark.send(());
        } else if let Some(starter) = &mut starter {
            let _ = starter.write_all(&line);
        } else {
            log(&line);
        }
        line.clear();
    }
}

/// A machine without a log hears nothing.
fn log(line: &[u8]) {
    let Ok(socket) = UnixDatagram::unbound() else { return };
    if socket.set_nonblocking(true).and_then(|()| socket.connect(LOG)).is_err() {
        return;
    }
    let text = String::from_utf8_lossy(line);
    let text = text.trim_end().strip_prefix("holdfast: ").unwrap_or(text.trim_end());
    let _ = socket.send(format!("<{PRIORITY}>holdfast[{}]: {text}", std::process::id()).as_bytes());
}
