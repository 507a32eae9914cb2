//! Passes signals on to the program. The signals are blocked here and read from a descriptor, so
//! that dispositions stay as they were and the program inherits them; it gets the mask that we were
//! started with. Nothing here may start a thread: one with an open mask would take the signals.
// `CommandExt::pre_exec` is the only way to give a child another mask than one's own.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::Context;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// What is passed on. SIGTSTP is left alone: a terminal stops the whole group, and so do we.
const FORWARDED: [Signal; 8] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGCONT,
];

/// `si_code` of a signal the kernel made, such as a terminal's; it went to the whole foreground
/// group.
const SI_KERNEL: i32 = 0x80;

/// Signals held back for the program.
pub struct Signals {
    descriptor: SignalFd,
    /// The mask before.
    inherited: SigSet,
}

impl Signals {
    /// Blocks the signals from here on; call it before the program is spawned, or one could be
    /// lost.
    pub fn hold() -> anyhow::Result<Self> {
        let set: SigSet = FORWARDED.into_iter().collect();
        let inherited = set.thread_swap_mask(SigmaskHow::SIG_BLOCK).context("cannot block signals")?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .context("cannot make a descriptor for signals")?;
        Ok(Self { descriptor, inherited })
    }

    /// Lets a child that is about to be spawned have the signals.
    pub fn give_to(&self, command: &mut Command) {
        let inherited = self.inherited;
        // SAFETY: between fork and exec the closure makes one system call and nothing else: it
        // takes no lock, allocates nothing and touches nothing that the parent's other threads may
        // hold.
        unsafe {
            command.pre_exec(move || Ok(inherited.thread_set_mask()?));
        }
    }

    /// The next one that has arrived, for who acts on it by itself.
    pub fn take(&self) -> Option<Signal> {
        let info = self.descriptor.read_signal().ok().flatten()?;
        Signal::try_from(info.ssi_signo.cast_signed()).ok()
    }

    /// Takes what has arrived. Whether something of it asks this process to end: there is no
    /// program any more that could be meant.
    pub fn ask_to_end(&self) -> bool {
        let mut asked = false;
        while let Some(signal) = self.take() {
            asked |= matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT);
        }
        asked
    }

    /// Sends everything that has arrived to the process behind `pidfd`.
    pub fn forward(&self, pidfd: BorrowedFd<'_>) {
        while let Ok(Some(info)) = self.descriptor.read_signal() {
            // The program is in our process group: what the terminal sent has reached it already.
            if info.ssi_code == SI_KERNEL {
                continue;
            }
            if let Some(signal) = rustix::process::Signal::from_named_raw(info.ssi_signo.cast_signed()) {
                // It fails only when the program is gone, which the caller is about to see.
                let _ = rustix::process::pidfd_send_signal(pidfd, signal);
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
