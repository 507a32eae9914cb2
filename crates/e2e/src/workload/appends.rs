//! A program of ours that appends lines to a file and acknowledges each: where it is built, and
//! what must be in the file.

use std::path::{Path, PathBuf};

use crate::cmd::Cmd;
use crate::site::{Site, Workload};

/// One such program under load.
pub trait Appends {
    /// What is run.
    fn title(&self) -> String;

    /// How it is started on this file.
    fn command(&self, lines: String) -> Vec<String>;

    /// The line that it acknowledges by this word.
    fn line(&self, ack: &str) -> String;
}

impl<A: Appends> Workload for A {
    fn name(&self) -> String {
        format!("lines of {}", self.title())
    }

    fn prepare(&self, site: &Site) {
        std::fs::write(site.path("lines"), "").expect("written");
    }

    fn program(&self, site: &Site) -> Vec<String> {
        self.command(site.path("lines"))
    }

    fn life_ms_max(&self) -> u64 {
        // A busy machine takes a while to start it.
        1000
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let text = std::fs::read_to_string(site.path("lines")).map_err(|error| error.to_string())?;
        let mut lines = text.lines();
        for ack in acks {
            match lines.next() {
                Some(line) if line == self.line(ack) => {}
                other => return Err(format!("line {ack} is {other:?}")),
            }
        }
        Ok(())
    }
}

/// A directory where programs of one kind are built; on a file system of which no test manages
/// files. Kept to the end of the process, which nobody tells; it is small, and its name is one.
pub(super) fn home(kind: &str) -> PathBuf {
    let home = std::env::temp_dir().join(format!("holdfast-e2e-{kind}"));
    std::fs::create_dir_all(&home).expect("a directory");
    home
}

/// Has a compiler, told by `command` where, make a program. Several suites may build at once: each
/// moves what it has made into place.
pub(super) fn build(program: &Path, command: impl FnOnce(&Path) -> Cmd) {
    let own = program.with_extension(std::process::id().to_string());
    command(&own).ok();
    std::fs::rename(&own, program).expect("renamed");
}
