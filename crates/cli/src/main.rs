//! The `holdfast` program: reads the command line, calls one module per subcommand and turns what
//! they return into an exit status. It is the only place that prints errors.

mod args;
mod attach;
mod config;
mod doctor;
mod elf;
mod exit;
mod export;
mod format;
mod gain;
mod golang;
mod install;
mod keeper_process;
mod limits;
mod locate;
mod look;
mod mount;
mod named;
mod notify;
mod options;
mod preload;
mod program;
mod recover;
mod run;
mod serve;
mod signals;
mod supervise;
mod user;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use anyhow::Context;
use args::{Arguments, Command};
use exit::{EXIT_NOT_MOUNTED, EXIT_REFUSED};
use holdfast_look::{report, sizes, verdict, words};

// Deliberate bugs are for the tests' own build alone.
const _: () = assert!(!holdfast_canary::ARMED || cfg!(feature = "canaries"));

fn main() -> ExitCode {
    #[cfg(feature = "canaries")]
    if let Some(name) = std::env::var_os(holdfast_canary::VARIABLE)
        && !holdfast_canary::arm_named(name.as_encoded_bytes())
    {
        report::say(&format!("{} names no deliberate bug", holdfast_canary::VARIABLE));
        return ExitCode::from(EXIT_REFUSED);
    }
    limits::lift();
    let line: Vec<_> = std::env::args_os().collect();
    if mount::helper::is_meant(&line) {
        return concluded(mount::helper::run(&line));
    }
    let arguments = match Arguments::from_line(line) {
        Ok(arguments) => arguments,
        Err(error) if !error.use_stderr() => return concluded((told(&error), 1)),
        Err(error) => return refuse_line(&error),
    };
    concluded(match arguments.command {
        Command::Run(args) => (run::run(*args), EXIT_REFUSED),
        Command::Mount(args) => (mount::run(*args), EXIT_NOT_MOUNTED),
        Command::Serve(args) => (serve::run(*args), 1),
        Command::Top(args) => (look::top(&args), 1),
        Command::Files(args) => (look::files(&args), 1),
        Command::Metrics(args) => (look::metrics(&args), 1),
        Command::Recover(args) => (recover::run(&args), 1),
        Command::Status(args) => (look::status(&args), 1),
        Command::Drain(args) => (look::drain(&args), 1),
        Command::Format(args) => (format::run(&args), 1),
        Command::Install(args) => (install::install(&args), 1),
        Command::Remove(args) => (install::remove(&args), 1),
        Command::Config(args) => (config::run(&args), 1),
        Command::Doctor(args) => (doctor::run(&args), 1),
        Command::Bench(args) => (gain::bench(&args), 1),
        Command::Demo(args) => (gain::demo(&args), 1),
        Command::Completions(args) => (export::completions(&args), 1),
        Command::Man(args) => (export::man(&args), 1),
        Command::MountServer(args) => (mount::serve(&args), 1),
        Command::BenchWorker(args) => (gain::work(&args), 1),
        Command::Keeper => (keeper_process::serve(), 1),
    })
}

/// The exit status of what was done; what went wrong is said.
fn concluded((result, code_on_error): (anyhow::Result<u8>, u8)) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            report::say(&sentence(&error));
            let refused = error.downcast_ref::<program::Refused>().map(program::Refused::exit_code);
            let misnamed = error.is::<named::NoPool>().then_some(named::EXIT_USAGE);
            ExitCode::from(refused.or(misnamed).unwrap_or(code_on_error))
        }
    }
}

/// Prints help or a version, which a reader may have seen enough of.
fn told(asked: &clap::Error) -> anyhow::Result<u8> {
    // What is printed stays in a buffer, and nobody hears what becomes of that at the end.
    match asked.print().and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(0),
    }
}

/// What is wrong with the command line. The names in it may be somebody else's.
fn refuse_line(error: &clap::Error) -> ExitCode {
    // There is nobody left to tell.
    let _ = std::io::stderr().write_all(words::shown_lines(&error.render().to_string()).as_bytes());
    ExitCode::from(named::EXIT_USAGE)
}

/// The error and its causes in one line; a cause that the error already names is not said again.
fn sentence(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_said_once() {
        let cause =
            anyhow::anyhow!("disk full").context("cannot write x: disk full").context("cannot make x");
        assert_eq!(sentence(&cause), "cannot make x: cannot write x: disk full");
    }
}
