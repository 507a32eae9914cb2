//! The test's end of a disk: starts the process that serves it and tells it what to do.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use crate::serve::FILE;
use crate::tear::Page;
use crate::undo;

/// What a disk has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Flushes that succeeded.
    pub flushes: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Blocks that power cuts took.
    pub blocks_lost: u64,
    /// Unflushed blocks that power cuts let through.
    pub blocks_kept: u64,
}

/// A disk served by another process, which ends with this value (or with this process).
pub struct Disk {
    mount_point: PathBuf,
    child: Child,
    pipes: Mutex<(Option<ChildStdin>, BufReader<ChildStdout>)>,
}

impl Disk {
    /// Starts `program`, which must end up in [`program`](crate::program) with the arguments that
    /// are added to it. The disk has `len` bytes and tears writes between blocks of `block_bytes`.
    pub fn start(mut program: Command, mount_point: &Path, len: u64, block_bytes: usize) -> Self {
        let mut child = program
            .arg(mount_point)
            .args([len.to_string(), block_bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {program:?}: {error}"));
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let disk = Self {
            mount_point: mount_point.to_owned(),
            child,
            pipes: Mutex::new((stdin, BufReader::new(stdout))),
        };
        assert_eq!(
            disk.answer(),
            "ready",
            "{program:?} does not serve: is /dev/fuse there, and are you root?"
        );
        disk
    }

    /// The file that is the disk.
    pub fn file(&self) -> PathBuf {
        self.mount_point.join(FILE)
    }

    /// Cuts the power at once. The seed decides what becomes of blocks that were not flushed.
    pub fn cut(&self, seed: u64) -> Counts {
        self.order(&format!("cut {seed}"))
    }

    /// Power is back, for those who open the file from now on.
    pub fn restore(&self) -> Counts {
        self.order("restore")
    }

    /// Lets the next `count` flushes fail.
    pub fn fail_flushes(&self, count: u32) -> Counts {
        self.order(&format!("fail-flushes {count}"))
    }

    /// Lets the power go in the midst of such a page, after `whole` others.
    pub fn tear(&self, page: Page, whole: u64) -> Counts {
        let [first, second] = page.mark;
        self.order(&format!("tear {} {} {first} {second} {whole}", page.bytes, page.mark_at))
    }

    /// What it has seen so far.
    pub fn counts(&self) -> Counts {
        self.order("counts")
    }

    fn order(&self, line: &str) -> Counts {
        let mut pipes = self.pipes.lock().expect("no holder panics");
        let stdin = pipes.0.as_mut().expect("open until the drop");
        writeln!(stdin, "{line}").expect("the disk's process listens");
        drop(pipes);
        let told = self.answer();
        let numbers: Vec<u64> = told.split(' ').filter_map(|word| word.parse().ok()).collect();
        match numbers[..] {
            [flushes, cuts, blocks_lost, blocks_kept] => Counts { flushes, cuts, blocks_lost, blocks_kept },
            _ => panic!("the disk's process said {told:?} to {line:?}"),
        }
    }

    fn answer(&self) -> String {
        let mut line = String::new();
        let mut pipes = self.pipes.lock().expect("no holder panics");
        pipes.1.read_line(&mut line).expect("the disk's process answers");
        line.trim_end().to_owned()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Ok(pipes) = self.pipes.get_mut() {
            pipes.0 = None;
        }
        drop(self.child.wait());
        // Nothing is left to do unless that process was killed.
        undo::take_down(&self.mount_point);
    }
}
