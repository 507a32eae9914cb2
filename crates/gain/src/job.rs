//! A program that is run to its end, or to an interruption. None is left behind.

use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt::Interrupt;

/// How long a program that is told to end has for it: a keeper brings everything to the disk.
const END_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);

/// What a program printed. Its failure is told in its own words.
pub fn run(mut command: Command, interrupt: &Interrupt) -> anyhow::Result<String> {
    interrupt.check()?;
    let name = command.get_program().to_string_lossy().into_owned();
    let file = || tempfile::tempfile_in("/dev/shm").context("cannot make a file in /dev/shm");
    let (mut told, mut complained) = (file()?, file()?);
    command.stdin(Stdio::null()).stdout(told.try_clone()?).stderr(complained.try_clone()?);
    let mut child = command.spawn().with_context(|| format!("cannot start {name}"))?;
    drop(command);
    let status = match until_end(&mut child, interrupt) {
        Ok(status) => status,
        Err(error) => {
            end(&mut child);
            return Err(error);
        }
    };
    // A signal from a terminal ends the program, too.
    interrupt.check()?;
    let read = |file: &mut std::fs::File| -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut bytes)).context("cannot read what was printed")?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    if !status.success() {
        let complained = read(&mut complained)?;
        return Err(failed(&name, status, &complained));
    }
    read(&mut told)
}

/// An error with what a program, and Holdfast around it, said.
pub fn failed(name: &str, status: ExitStatus, complained: &str) -> anyhow::Error {
    match complained.trim_end() {
        "" => anyhow!("{name} failed ({status})"),
        said => anyhow!("{}", said.trim_start_matches("holdfast: ")),
    }
}

fn until_end(child: &mut Child, interrupt: &Interrupt) -> anyhow::Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a program")? {
            return Ok(status);
        }
        interrupt.check()?;
        std::thread::sleep(LOOK);
    }
}

/// Has a program end, with what it started: a supervisor passes the signal on, and waits.
pub fn end(child: &mut Child) {
    let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
    if ended(child) {
        return;
    }
    // It fails only when the program is gone.
    let _ = kill_process(Pid::from_child(child), Signal::TERM);
    let told = Instant::now();
    while !ended(child) {
        if told.elapsed() > END_MAX {
            let _ = child.kill();
        }
        std::thread::sleep(LOOK);
    }
}
