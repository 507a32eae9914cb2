//! Waits for the program and watches the keeper. When the keeper dies, recovery runs at once in a
//! thread, while signals still reach the program. It polls nothing on a timer and never touches the
//! program's files.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread::JoinHandle;

use anyhow::Context;
use holdfast_canary::{Canary, on};
use holdfast_recovery::{PoolError, RecoverOptions, Report, recover};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::report;
use crate::signals::Signals;

/// What recovery said after the keeper died.
pub type Recovered = Result<Report, PoolError>;

/// How a run ended.
pub struct Ended {
    /// The program's status.
    pub status: ExitStatus,
    /// Set if the keeper died before the program ended.
    pub keeper_lost: Option<Recovered>,
}

/// A descriptor that becomes readable when the process ends.
pub fn pidfd_of(pid: u32) -> anyhow::Result<OwnedFd> {
    let known = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let known = known.with_context(|| format!("{pid} is not a process id"))?;
    pidfd_open(known, PidfdFlags::empty()).with_context(|| format!("cannot watch process {pid}"))
}

/// Returns once the program has ended and, if the keeper died, the pool is recovered.
pub fn until_the_end(
    program: &mut Child,
    keeper: &OwnedFd,
    signals: &Signals,
    pool: &Path,
) -> anyhow::Result<Ended> {
    let program_fd = pidfd_of(program.id())?;
    let mut recovery: Option<JoinHandle<Recovered>> = None;
    loop {
        let mut watched = vec![PollFd::new(&program_fd, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
        if recovery.is_none() {
            watched.push(PollFd::new(keeper, PollFlags::IN));
        }
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the program"),
        }
        let ready = |index: usize| watched.get(index).is_some_and(|fd| !fd.revents().is_empty());
        if ready(2) {
            report::say(&format!(
                "the keeper of pool {} died; the program gets EIO; recovering",
                pool.display()
            ));
            let pool = pool.to_path_buf();
            recovery = Some(std::thread::spawn(move || {
                if on(Canary::RecoveryPutOff) {
                    std::thread::sleep(std::time::Duration::from_secs(45));
                }
                recover(&pool, &RecoverOptions::default(), &mut |_, _, _| {})
            }));
        }
        if ready(1) {
            signals.forward(program_fd.as_fd());
        }
        if ready(0) {
            let status = program.wait().context("cannot wait for the program")?;
            let keeper_lost = recovery.map(|thread| thread.join().expect("panics abort"));
            return Ok(Ended { status, keeper_lost });
        }
    }
}
