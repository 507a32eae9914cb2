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
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, Arc::clone(&came), signal as usize)
                .context("cannot take signals")?;
        }
        Ok(Self(came))
    }

    /// Fails once one came.
    pub fn check(&self) -> anyhow::Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted(signal as u8).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_told_of_by_its_number() {
        let interrupt = Interrupt(Arc::default());
        interrupt.check().expect("none came");
        interrupt.0.store(15, Ordering::Relaxed);
        let error = interrupt.check().expect_err("one came");
        assert_eq!(error.downcast_ref::<Interrupted>(), Some(&Interrupted(15)));
    }
}
