//! Both ends of starting a keeper: the hidden `keeper` subcommand, and how `run` starts it and
//! hears that it is ready. The keeper lives in its own session and outlives the supervisor; nothing
//! here may tie the two.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use holdfast_keeper::KeeperError;
use holdfast_keeper::audience::{Audience, Level, Stage};
use holdfast_keeper::config::KeeperConfig;
use holdfast_recovery::Report;
use indicatif::ProgressBar;
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
    Failed {
        /// The whole sentence.
        message: String,
        /// True when another live keeper owns the pool.
        busy: bool,
    },
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
            let busy = matches!(&error, KeeperError::Pool(pool) if pool.is_busy());
            announce(&Readiness::Failed { message: error.to_string(), busy });
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
    /// Another one owns the pool; the message names it.
    Busy(String),
    /// It refused.
    Refused(String),
}

/// Starts a keeper and waits until it is ready.
pub fn start(config: &KeeperConfig) -> anyhow::Result<Started> {
    let mut command = Command::new(locate::executable()?);
    command.arg("keeper").stdin(Stdio::piped()).stdout(Stdio::piped());
    preload::keep_out(command.env_remove(user::WATCH_VARIABLE));
    let mut child = command.spawn().context("cannot start the keeper")?;
    let mut input = child.stdin.take().expect("it was asked for");
    let sent = serde_json::to_vec(config).context("cannot write the configuration")?;
    // If the keeper is already dead, its missing answer says so.
    let _ = input.write_all(&sent);
    drop(input);

    let output = child.stdout.take().expect("it was asked for");
    match read_line(output, &config.pool)? {
        Some(Readiness::Ready { recovered, .. }) => Ok(Started::Ready(child, recovered)),
        Some(Readiness::Failed { message, busy }) => {
            let _ = child.wait();
            Ok(if busy { Started::Busy(message) } else { Started::Refused(message) })
        }
        None => {
            let status = child.wait().context("cannot wait for the keeper")?;
            let how = match status.signal() {
                Some(signal) => format!("it was killed by signal {signal}"),
                None => format!("it exited with status {}", status.code().unwrap_or_default()),
            };
            Ok(Started::Refused(format!(
                "the keeper of pool {} never became ready: {how}",
                config.pool.display()
            )))
        }
    }
}

/// Reads the keeper's one line; a spinner turns while a recovery makes it late.
fn read_line(output: ChildStdout, pool: &Path) -> anyhow::Result<Option<Readiness>> {
    const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    const TICK: Duration = Duration::from_millis(100);
    let mut waiting = [PollFd::new(&output, PollFlags::IN)];
    // An interrupted poll only shows the spinner early.
    let late = matches!(poll(&mut waiting, Some(&QUIET)), Ok(0));
    let spinner = late.then(|| {
        let spinner = ProgressBar::new_spinner().with_message(format!("recovering pool {}", name_of(&pool)));
        spinner.enable_steady_tick(TICK);
        spinner
    });
    let mut line = String::new();
    let read = BufReader::new(output).read_line(&mut line).context("cannot hear the keeper");
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    if read? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).with_context(|| format!("the keeper said {line:?}"))
}
