//! Interruptions: a signal is noted, and whoever waits looks. So what was made is removed by those
//! who made it, in their own time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// A signal came, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted(pub u8);

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted; what was made is removed")
    }
}

impl std::error::Error for Interrupted {}

/// The signal that came, if one did.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// From here on signals that would end the process are noted.
    pub fn note() -> anyhow::Result<Self> {
        let came = Arc::new(AtomicUsize::new(0));
        let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        // Who started it under nohup, or in the background of a script, wants none of them heard.
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_in(ignored, *signal)) {
            signal_hook::flag::register_usize(signal, Arc::clone(&came), signal as usize)
                .context("cannot take signals")?;
        }
        Ok(Self(came))
    }

    /// None ever comes.
    #[cfg(test)]
    pub fn none() -> Self {
        Self(Arc::default())
    }

    /// Fails once one came.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted(signal as u8).into()),
        }
    }
}

/// The signals that a process ignores, from its status in /proc; none where it does not say.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

fn is_in(signals: u64, signal: i32) -> bool {
    signals >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Tells the test that it is the program that was started with signals ignored.
    const IS_STARTED: &str = "HOLDFAST_TEST_IGNORES";

    #[test]
    fn a_signal_ignored_at_the_start_stays_ignored() {
        let now = || ignored(&std::fs::read_to_string("/proc/self/status").expect("a status"));
        if std::env::var_os(IS_STARTED).is_some() {
            let _interrupt = Interrupt::note().expect("signals");
            let noted = [SIGHUP, SIGINT, SIGTERM].map(|signal| is_in(now(), signal));
            assert_eq!(noted, [true, true, false]);
            return;
        }
        let name = std::thread::current().name().expect("a name").to_owned();
        let started = Command::new("sh")
            .args(["-c", "trap '' HUP INT; exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().expect("a path"))
            .arg(name)
            .env(IS_STARTED, "1")
            .output()
            .expect("started");
        let told = String::from_utf8_lossy(&started.stdout);
        assert!(started.status.success() && told.contains("1 passed"), "{told}");
    }

    #[test]
    fn a_signal_is_told_of_by_its_number() {
        let interrupt = Interrupt(Arc::default());
        interrupt.check().expect("none came");
        interrupt.0.store(15, Ordering::Relaxed);
        let error = interrupt.check().expect_err("one came");
        assert_eq!(error.downcast_ref::<Interrupted>(), Some(&Interrupted(15)));
    }
}
