//! Both ends of starting a keeper: the hidden `keeper` subcommand, and how `run` starts it and
//! hears that it is ready. The keeper lives in its own session and outlives the supervisor; nothing
//! here may tie the two.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use holdfast_keeper::KeeperError;
use holdfast_keeper::audience::{Audience, Level, Stage};
use holdfast_keeper::config::KeeperConfig;
use holdfast_look::progress::Spinner;
use holdfast_recovery::{PoolError, Report};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::words::name_of;
use crate::{locate, preload, report, user};

/// The one line a keeper says on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Readiness {
    /// Clients may connect.
    Ready {
        /// Where.
        socket: PathBuf,
        /// What recovery did before.
        recovered: Option<Report>,
    },
    /// It will not serve.
    Failed(Failure),
}

/// Why a keeper does not serve. What one says itself is the whole sentence.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Failure {
    /// Somebody has the pool who will let go of it.
    Busy(String),
    /// There is no pool.
    Absent(String),
    /// It cannot.
    Refused(String),
    /// It was killed before it said anything.
    Killed {
        /// The pool that it was for.
        pool: PathBuf,
        /// What killed it.
        signal: i32,
    },
    /// It ended before it said anything.
    Exited {
        /// The pool that it was for.
        pool: PathBuf,
        /// Its status.
        status: i32,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let never_ready = "never became ready: it";
        match self {
            Self::Busy(said) | Self::Absent(said) | Self::Refused(said) => f.write_str(said),
            Self::Killed { pool, signal } => {
                write!(f, "the keeper of pool {} {never_ready} was killed by signal {signal}", pool.display())
            }
            Self::Exited { pool, status } => {
                write!(f, "the keeper of pool {} {never_ready} exited with status {status}", pool.display())
            }
        }
    }
}

impl std::error::Error for Failure {}

impl From<&KeeperError> for Failure {
    fn from(error: &KeeperError) -> Self {
        let kind = match error {
            KeeperError::Pool(pool) if pool.is_busy() => Self::Busy,
            KeeperError::Pool(PoolError::Absent(_)) => Self::Absent,
            _ => Self::Refused,
        };
        kind(error.to_string())
    }
}

/// The `keeper` subcommand: reads the configuration, serves until done.
pub fn serve() -> anyhow::Result<u8> {
    // Fails only for a process group leader, which somebody who starts this by hand may be.
    let _ = rustix::process::setsid();
    let config: KeeperConfig = serde_json::from_reader(std::io::stdin().lock())
        .context("the keeper cannot read its configuration")?;
    // No working directory of the user's stays busy.
    std::env::set_current_dir("/").context("the keeper cannot change to /")?;
    let starter = Arc::new(Starter { told: AtomicBool::new(false) });
    match holdfast_keeper::serve(config, Arc::clone(&starter) as Arc<dyn Audience>) {
        Ok(()) => Ok(0),
        Err(error) if starter.told.load(Ordering::SeqCst) => Err(error).context("the keeper stopped"),
        Err(error) => {
            announce(&Readiness::Failed(Failure::from(&error)));
            Ok(1)
        }
    }
}

/// Who started a keeper for a run hears when it is ready, and what holds up its end. Everything
/// else is in its summary and status.
struct Starter {
    told: AtomicBool,
}

impl Audience for Starter {
    fn stage(&self, stage: Stage<'_>) {
        if let Stage::Ready { socket, recovered } = stage {
            self.told.store(true, Ordering::SeqCst);
            announce(&Readiness::Ready { socket: socket.to_path_buf(), recovered: recovered.cloned() });
        }
    }

    fn say(&self, _level: Level, _text: &str) {}

    fn announce(&self, text: &str) {
        report::say(text);
    }
}

/// Writes the line and gives standard output up, so that nobody waits for more. A starter that has
/// died meanwhile is no reason to stop.
fn announce(readiness: &Readiness) {
    let mut line = serde_json::to_vec(readiness).expect("plain data becomes JSON");
    line.push(b'\n');
    let mut out = std::io::stdout();
    let _ = out.write_all(&line).and_then(|()| out.flush());
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(null);
    }
}

/// What came of starting a keeper.
pub enum Started {
    /// It serves.
    Ready(Child, Option<Report>),
    /// It does not.
    Failed(Failure),
}

/// Starts a keeper and waits until it is ready.
pub fn start(config: &KeeperConfig) -> anyhow::Result<Started> {
    if let Err(too_few) = holdfast_socket::refuse_too_few_descriptors() {
        // With fewer still it could not even say so itself.
        return Ok(Started::Failed(Failure::Refused(too_few.to_string())));
    }
    let sent = serde_json::to_vec(config).context("cannot write the configuration")?;
    let mut command = Command::new(locate::executable()?);
    command.arg("keeper").stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::keep_out(command.env_remove(user::WATCH_VARIABLE));
    let mut child = command.spawn().context("cannot start the keeper")?;
    let mut input = child.stdin.take().expect("it was asked for");
    // If the keeper is already dead, its missing answer says so.
    let _ = input.write_all(&sent);
    drop(input);

    let output = child.stdout.take().expect("it was asked for");
    match read_line(output, &config.pool)? {
        Some(Readiness::Ready { recovered, .. }) => Ok(Started::Ready(child, recovered)),
        Some(Readiness::Failed(failure)) => {
            let _ = child.wait();
            Ok(Started::Failed(failure))
        }
        None => {
            let (status, pool) = (child.wait().context("cannot wait for the keeper")?, config.pool.clone());
            Ok(Started::Failed(match status.signal() {
                Some(signal) => Failure::Killed { pool, signal },
                None => Failure::Exited { pool, status: status.code().unwrap_or_default() },
            }))
        }
    }
}

/// Reads the keeper's one line; a spinner turns while a recovery makes it late.
fn read_line(output: ChildStdout, pool: &Path) -> anyhow::Result<Option<Readiness>> {
    const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    let mut waiting = [PollFd::new(&output, PollFlags::IN)];
    // An interrupted poll only shows the spinner early.
    let late = matches!(poll(&mut waiting, Some(&QUIET)), Ok(0));
    let spinner = late.then(|| Spinner::new(format!("recovering pool {}", name_of(pool))));
    let mut line = String::new();
    let read = BufReader::new(output).read_line(&mut line).context("cannot hear the keeper");
    drop(spinner);
    if read? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).with_context(|| format!("the keeper said {line:?}"))
}
