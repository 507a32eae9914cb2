//! One started program: waited for, and never left behind.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// Who keeps what Holdfast said of a run.
pub trait Summaries {
    /// Keeps the summary in this file.
    fn keep_summary(&self, path: &Path) -> Result<()>;
}

/// A program that was started on a side.
pub struct Running {
    child: Child,
    text: String,
    errors: tempfile::NamedTempFile,
    summary: Option<PathBuf>,
}

impl Running {
    /// Starts `command`; its output is kept, its complaints are shown only if it fails.
    pub fn start(mut command: Command, stdin: Stdio, summary: Option<PathBuf>) -> Result<Self> {
        let errors = tempfile::NamedTempFile::new_in("/dev/shm")?;
        command.stdin(stdin).stdout(Stdio::piped()).stderr(errors.reopen()?);
        let child = command.spawn().with_context(|| format!("could not start {command:?}"))?;
        Ok(Self { child, text: format!("{command:?}"), errors, summary })
    }

    /// The program's output, for reading while it runs.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits for a good end, keeps the summary, and returns what the program printed.
    pub fn finish(mut self, lab: &impl Summaries) -> Result<String> {
        let mut output = String::new();
        if let Some(mut stdout) = self.child.stdout.take() {
            stdout.read_to_string(&mut output).context("could not read a program's output")?;
        }
        let status = self.child.wait()?;
        ensure!(status.success(), "{} failed ({status}): {}", self.text, self.complaints());
        if let Some(path) = &self.summary {
            lab.keep_summary(path)?;
        }
        Ok(output)
    }

    /// Kills without mercy and waits for the end; the program is not asked to be successful.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// What the program said on standard error.
    pub fn complaints(&self) -> String {
        let text = std::fs::read_to_string(self.errors.path()).unwrap_or_default();
        let lines: Vec<&str> = text.trim().lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }
}

impl Drop for Running {
    /// Ends a program that an error left running. SIGTERM, because a supervisor passes it on.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
                kill_process(pid, Signal::TERM).ok();
            }
            self.child.wait().ok();
        }
    }
}

/// Runs a program to a good end and returns what it printed.
pub fn done(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("could not start {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
