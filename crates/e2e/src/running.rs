//! A run that goes on beside its test: it says lines, waits for others, is stopped and killed.

use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::cmd::Cmd;
use crate::pool::Pool;
use crate::proc::{self, wait_until};

/// What a program or keeper does at once may take so long on a machine that is busy.
pub const SOON: Duration = Duration::from_secs(5);

/// A run that says lines, and ends with the test.
pub struct Running {
    /// The supervisor.
    pub child: Child,
    /// What it says, line by line.
    pub lines: Receiver<String>,
    family: Vec<u32>,
}

impl Running {
    /// Starts a run that was put together.
    pub fn start(cmd: &Cmd) -> Self {
        let mut child = cmd.spawn();
        let lines = proc::lines(&mut child);
        Self { child, lines, family: Vec::new() }
    }

    /// Starts a script of Python's, which gets a path.
    pub fn python(pool: &Pool, options: &[&str], script: &str, place: &Path) -> Self {
        let place = place.to_str().expect("paths are text");
        Self::start(&pool.run(options).args(["--", "python3", "-c", script, place]))
    }

    /// Reads up to the line that begins so.
    pub fn until(&mut self, start: &str) -> String {
        let until = Instant::now() + 6 * SOON;
        let mut told = String::new();
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if line.starts_with(start) {
                self.family = proc::descendants(self.child.id());
                return line;
            }
            told = line;
        }
        panic!("the program never said `{start}`, but `{told}` last");
    }

    /// Ends the program's wait for a line.
    pub fn go_on(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it waits");
    }

    /// Has everybody stand still, programs first: the kernel asks the keeper before they may open.
    pub fn stop_all(&self, pool: &Pool) {
        let keepers = proc::keepers(&pool.path);
        let mut programs = proc::descendants(self.child.id());
        programs.retain(|pid| !keepers.contains(pid));
        for turn in [&programs, &keepers] {
            turn.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
            let begun = Instant::now();
            while let Some(&moving) = turn.iter().find(|pid| !proc::at_rest(**pid)) {
                assert!(begun.elapsed() < SOON, "{moving} does not stand still: {}", proc::place(moving));
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Kills supervisor, keeper and program.
    pub fn kill_all(mut self, pool: &Pool) {
        let mut gone = proc::keepers(&pool.path);
        gone.extend(proc::descendants(self.child.id()));
        drop(self.child.kill());
        gone.iter().for_each(|pid| proc::kill_hard(*pid));
        drop(self.child.wait());
        wait_until(SOON, "the end of those killed", || !gone.iter().any(|pid| proc::alive(*pid)));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.family.extend(proc::descendants(self.child.id()));
        drop(self.child.kill());
        for pid in self.family.iter().filter(|pid| proc::alive(**pid)) {
            proc::kill_hard(*pid);
        }
        drop(self.child.wait());
    }
}
