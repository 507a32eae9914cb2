//! The keeper of a run: the pool's own, joined, or one that is started for the run. It starts no
//! program.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use holdfast_keeper::config::KeeperConfig;
use holdfast_keeper::control::{Control, ControlError};
use holdfast_recovery::{OpenPool, RecoverOptions, Report, recover};

use crate::keeper_process::{self, Failure, Started};
use crate::recover::advice;
use crate::report::Made;
use crate::verdict::Before;
use crate::words::{name_of, quoted};
use crate::{format, report, supervise};

/// How long to wait for an owner of the pool that cannot be joined, such as a keeper that is just
/// ending.
pub const BUSY_MAX: Duration = Duration::from_secs(10);
/// How often it is seen whether it has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The keeper that serves this run.
pub struct Keeper {
    /// The conversation with it, which keeps it from ending.
    pub control: Control,
    /// Readable when it has ended.
    pub pidfd: OwnedFd,
    /// Set if this run started it.
    pub child: Option<Child>,
}

impl Keeper {
    /// What it had counted before there was a program: nothing, if it was started for this run.
    pub fn before(&mut self) -> anyhow::Result<Before> {
        Ok(match self.child {
            Some(_) => Before::default(),
            None => {
                let status = self.control.status()?;
                Before { summary: status.summary, shared_with: Some(status.keeper_pid) }
            }
        })
    }
}

/// Joins the keeper that is there, such as that of a service.
pub fn join_only(pool: &Path) -> anyhow::Result<Keeper> {
    let started = Instant::now();
    loop {
        let none = || {
            anyhow!(
                "no keeper runs for pool {pool}, and --join starts none: start one with `holdfast serve --pool {quoted}`, \
                 or its service (`systemctl start holdfast@USER`), or leave --join out",
                pool = pool.display(),
                quoted = quoted(pool)
            )
        };
        if !pool.exists() {
            bail!(
                "there is no pool {}, and --join makes none: `holdfast serve` does, or leave --join out",
                pool.display()
            );
        }
        let mut control = match Control::connect(pool) {
            Ok(control) => control,
            Err(ControlError::NoKeeper(_)) => return Err(none()),
            Err(error) => return Err(error.into()),
        };
        match stopping(&mut control, pool)? {
            None => {
                let pidfd = supervise::pidfd_of(control.keeper_pid())?;
                return Ok(Keeper { control, pidfd, child: None });
            }
            Some(why) if started.elapsed() > BUSY_MAX => bail!(why),
            // Its service is being started anew, perhaps.
            Some(_) => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Joins the pool's keeper or starts one, making the pool if it is missing.
pub fn attach(config: &KeeperConfig, size_bytes: Option<u64>) -> anyhow::Result<Keeper> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(5);
    let mut is_new = false;
    loop {
        let stopping = match join(config, size_bytes, &mut is_new)? {
            Some(mut control) => match stopping(&mut control, &config.pool)? {
                None => {
                    let pidfd = supervise::pidfd_of(control.keeper_pid())?;
                    return Ok(Keeper { control, pidfd, child: None });
                }
                stopping => stopping,
            },
            None => None,
        };
        let busy = stopping.map(|why| Ok(Started::Failed(Failure::Busy(why))));
        match busy.unwrap_or_else(|| keeper_process::start(config))? {
            Started::Ready(child, recovered) => {
                let pidfd = supervise::pidfd_of(child.id())?;
                say_what_was_recovered(recovered.as_ref(), &config.pool);
                let control = Control::connect(&config.pool)?;
                return Ok(Keeper { control, pidfd, child: Some(child) });
            }
            Started::Failed(failure) => match failure {
                // Its owner is ending, is just starting, or is a recovery: all of them soon change.
                Failure::Busy(_) if started.elapsed() <= BUSY_MAX => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(200));
                }
                Failure::Busy(_) => bail!(failure),
                // Its last keeper took it along meanwhile; there may be a new one by now.
                _ if config.temporary
                    && started.elapsed() < BUSY_MAX
                    && (matches!(failure, Failure::Absent(_)) || !config.pool.exists()) => {}
                _ => {
                    if is_new {
                        remove_unused(&config.pool);
                    }
                    remove_temporary(config);
                    bail!(failure)
                }
            },
        }
    }
}

/// Connects to a keeper if the pool has one; makes the pool if there is none, and says that it
/// `is_new`.
fn join(
    config: &KeeperConfig,
    size_bytes: Option<u64>,
    is_new: &mut bool,
) -> anyhow::Result<Option<Control>> {
    let pool = &config.pool;
    if !pool.exists() {
        let size_bytes = size_bytes.unwrap_or(format::POOL_BYTES_DEFAULT);
        let made = format::create(pool, size_bytes, config.volatile, false);
        *is_new |= made.is_ok();
        // Somebody else may have made it at the same moment.
        return if pool.exists() { Ok(None) } else { made.map(|()| None) };
    }
    match Control::connect(pool) {
        Ok(control) => Ok(Some(control)),
        // A pool that cannot be read: the keeper that is started says what to do about it. A place
        // that was ours and is a stranger's now: if our keeper were still there, it had the pool.
        Err(ControlError::NoKeeper(_) | ControlError::Pool(_) | ControlError::Stranger { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A keeper that was told to stop takes no new programs: they would lose it soon.
fn stopping(control: &mut Control, pool: &Path) -> anyhow::Result<Option<String>> {
    let status = match control.status() {
        Ok(status) => status,
        // It has just ended.
        Err(error @ ControlError::Broken { .. }) => return Ok(Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    Ok(status.stopping.then(|| {
        let clients: Vec<String> = status.clients.iter().map(u32::to_string).collect();
        format!(
            "keeper {} of pool {} was told to stop and waits for its programs (processes {}): wait for them, \
             or end them",
            status.keeper_pid,
            pool.display(),
            clients.join(" ")
        )
    }))
}

fn say_what_was_recovered(recovered: Option<&Report>, pool: &Path) {
    let is_told = |outcome: &&Report| {
        !outcome.files.is_empty() || outcome.is_superblock_mended || report::needs_attention(outcome)
    };
    if let Some(outcome) = recovered.filter(is_told) {
        report::say_lines(&recovered_in_words(outcome, pool));
    }
}

/// What recovery did, and what to do about it.
pub fn recovered_in_words(outcome: &Report, pool: &Path) -> String {
    format!(
        "recovered pool {}\n{}{}",
        name_of(pool),
        report::recovery(outcome, Made::Done),
        advice(outcome, pool)
    )
}

/// Nothing stays of a pool that nobody named, unless there is something in it.
pub fn remove_temporary(config: &KeeperConfig) {
    if config.temporary {
        remove_unused(&config.pool);
    }
}

/// Removes a pool in which there is nothing: one that was made for a keeper that refused to start.
pub fn remove_unused(pool: &Path) {
    // Such a keeper has not closed it.
    if recover(pool, &RecoverOptions::default(), &mut |_, _, _| {}).is_ok()
        && let Ok(pool) = OpenPool::open(pool, true)
    {
        pool.remove_clean();
    }
}
