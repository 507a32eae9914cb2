//! The limits of this process beside those of the program that it starts. Holdfast makes pools and
//! brings files to the disk: it must not be ended for that without a word, nor be held to a limit
//! of the size of files that the program may exceed. The program gets what we were given.
// `CommandExt::pre_exec` is the only way to give a child other limits than one's own.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::signal::{SigHandler, Signal, signal};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What this process was started with.
#[derive(Clone, Copy)]
struct Given {
    /// How large files may become.
    size: Rlimit,
    /// SIGXFSZ was ignored.
    is_ignored: bool,
}

static GIVEN: OnceLock<Given> = OnceLock::new();

/// Lets this process make files as large as it may, and makes a file that is larger an error that
/// is told, where the kernel would end the process. Called once, before there are threads.
pub fn lift() {
    let size = getrlimit(Resource::Fsize);
    let soft = Rlimit { current: size.maximum, maximum: size.maximum };
    // Some may exceed the limit that they were started with.
    let lifted = setrlimit(Resource::Fsize, Rlimit { current: None, maximum: None });
    // It fails for nobody.
    let _ = lifted.or_else(|_| setrlimit(Resource::Fsize, soft));
    // SAFETY: to ignore a signal runs no code of ours.
    let before = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
    let _ = GIVEN.set(Given { size, is_ignored: matches!(before, Ok(SigHandler::SigIgn)) });
}

/// Lets a program that is about to be started have what we were started with.
pub fn give_back(command: &mut Command) {
    let Some(given) = GIVEN.get().copied() else { return };
    // SAFETY: between fork and exec the closure makes two system calls and nothing else: it takes
    // no lock, allocates nothing and touches nothing that the parent's other threads may hold.
    unsafe {
        command.pre_exec(move || {
            setrlimit(Resource::Fsize, given.size)?;
            if !given.is_ignored {
                signal(Signal::SIGXFSZ, SigHandler::SigDfl)?;
            }
            Ok(())
        });
    }
}
