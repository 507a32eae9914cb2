//! Directories that `holdfast mount` serves to a test: how they are mounted, and how their servers,
//! or all of it, are killed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::cmd::Cmd;
use crate::disk::{Disk, Kind};
use crate::pool::Pool;
use crate::proc::{self, wait_until};
use crate::report;
use crate::running::Running;

/// What comes by itself may take so long on a busy machine.
pub const SOON: Duration = Duration::from_secs(30);

/// A file of the tests' own.
pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A path as text.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// Whether a directory is served.
pub fn is_mounted(point: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("mounts");
    let (point, kind) = (format!(" {} ", text(point)), " - fuse.holdfast ");
    table.lines().any(|line| line.contains(&point) && line.contains(kind))
}

/// A directory that is served.
pub struct Mount {
    /// The supervisor, until it has ended.
    pub supervisor: Option<Child>,
    point: PathBuf,
    summary: tempfile::NamedTempFile,
    /// All that it started.
    pub family: Vec<u32>,
}

/// The command line that serves a directory.
pub fn command(pool: &Pool, options: &[&str], directory: &Path) -> Cmd {
    pool.as_user(
        Cmd::holdfast("mount")
            .args(["--volatile", "--size=64M", "--pool", pool.text()])
            .args(options)
            .arg(directory),
    )
}

impl Mount {
    /// Serves a directory over itself.
    pub fn over(pool: &Pool, options: &[&str], directory: &Path) -> Self {
        Self::start(pool, options, directory, directory)
    }

    /// Serves a directory at a place.
    pub fn start(pool: &Pool, options: &[&str], directory: &Path, point: &Path) -> Self {
        Self::started_by(&[], pool, options, directory, point)
    }

    /// The same by another program, which executes it.
    pub fn started_by(by: &[&str], pool: &Pool, options: &[&str], directory: &Path, point: &Path) -> Self {
        let summary = tempfile::NamedTempFile::new().expect("temporary file");
        // The pool's user writes it.
        Cmd::new("chmod").arg("666").arg(summary.path()).ok();
        let told = format!("--summary={}", text(summary.path()));
        let cmd = command(pool, options, directory);
        let mut words = cmd.words().to_vec();
        words.insert(words.len() - 1, told.into());
        let words = [by.iter().map(OsString::from).collect(), words].concat();
        let mut supervisor = Cmd::new(&words[0]).args(&words[1..]).spawn();
        let mut is_there = || {
            let ended = supervisor.try_wait().expect("wait");
            assert!(ended.is_none(), "it ended: {:?}", ended.map(|_| said(&mut supervisor)));
            // A mount that nobody serves any more is taken away first.
            let is_dead = || {
                std::fs::metadata(point).is_err_and(|error| error.kind() == std::io::ErrorKind::NotConnected)
            };
            is_mounted(point) && !is_dead()
        };
        wait_until(SOON, "the mount", &mut is_there);
        let family = proc::descendants(supervisor.id());
        Self { supervisor: Some(supervisor), point: point.to_owned(), summary, family }
    }

    /// The supervisor.
    pub fn pid(&self) -> u32 {
        self.supervisor.as_ref().expect("not ended").id()
    }

    /// Servers and their holders.
    pub fn all_servers(&self) -> Vec<u32> {
        let is_server = |pid: &u32| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.split(|byte| *byte == 0).any(|word| word == b"mount-server"))
        };
        proc::descendants(self.pid()).into_iter().filter(is_server).collect()
    }

    /// The server, and its holder.
    pub fn servers(&self) -> [u32; 2] {
        let mut found = Vec::new();
        // One that takes over is alone for a moment.
        wait_until(Duration::from_secs(5), "a server with a holder", || {
            found = self.all_servers();
            found.len() == 2
        });
        found.try_into().unwrap_or_else(|found| panic!("no server with a holder: {found:?}"))
    }

    /// The server.
    pub fn server(&self) -> u32 {
        self.servers()[0]
    }

    /// Kills the server; returns once another one goes on.
    pub fn kill_server(&self) {
        let killed = self.server();
        proc::kill_hard(killed);
        let is_followed = || {
            let found = self.all_servers();
            found.len() == 2 && !found.contains(&killed)
        };
        wait_until(SOON, "another server", is_followed);
    }

    /// Waits for the end; its exit status, what it said, and the summary.
    pub fn end(mut self) -> (i32, String, Value) {
        let mut supervisor = self.supervisor.take().expect("not ended");
        let mut status = None;
        wait_until(SOON, "the end of the mount", || {
            status = supervisor.try_wait().expect("wait");
            status.is_some()
        });
        let said = said(&mut supervisor);
        assert!(!is_mounted(&self.point), "{said}");
        let left = || self.family.iter().copied().filter(|pid| proc::alive(*pid)).count();
        wait_until(SOON, "the end of its processes", || left() == 0);
        let told = std::fs::read_to_string(self.summary.path()).expect("summary");
        let summary = if told.is_empty() { Value::Null } else { report::parse(&told) };
        (status.and_then(|status| status.code()).unwrap_or(-1), said, summary)
    }

    /// Unmounts as a user would, and all must be well.
    pub fn unmount(self) -> Value {
        Cmd::new("umount").arg(&self.point).ok();
        let (status, said, summary) = self.end();
        assert_eq!(status, 0, "{said}");
        assert!(said.contains("everything is on the disk"), "{said}");
        assert!(report::flag(&summary, "drained"), "{summary:#}");
        summary
    }

    /// Kills all of it, and takes away the mount that nobody serves any more.
    pub fn kill_all(mut self) {
        let mut supervisor = self.supervisor.take().expect("not ended");
        // A server may have started its holder since the mount was there. Who is stopped starts
        // nobody: they are all found once nobody new is.
        let (mut found, mut stopped) = (vec![supervisor.id()], Vec::new());
        while !found.is_empty() {
            found.iter().for_each(|pid| proc::signal(*pid, Signal::STOP));
            found = proc::descendants(supervisor.id());
            found.retain(|pid| !stopped.contains(pid));
            stopped.extend_from_slice(&found);
        }
        self.family.append(&mut stopped);
        drop(supervisor.kill());
        self.family.iter().for_each(|pid| proc::kill_hard(*pid));
        drop(supervisor.wait());
        wait_until(SOON, "their end", || !self.family.iter().any(|pid| proc::alive(*pid)));
    }
}

/// What a program said on standard error, once it has ended.
pub fn said(child: &mut Child) -> String {
    use std::io::Read;
    let mut told = String::new();
    drop(child.stderr.take().expect("piped").read_to_string(&mut told));
    told
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(mut supervisor) = self.supervisor.take() else { return };
        drop(supervisor.kill());
        self.family.iter().for_each(|pid| proc::kill_hard(*pid));
        drop(supervisor.wait());
        drop(Cmd::new("umount").arg("-l").arg(&self.point).output());
    }
}

/// A disk in a view of the mounts that nobody else has: a mount whose server was killed makes
/// programs fail that look at all mounts, such as mkfs.btrfs in other tests.
pub fn disk(kind: Kind) -> Disk {
    disk_with_size(kind, 2 << 30)
}

/// As [`disk`].
pub fn disk_with_size(kind: Kind, size_bytes: u64) -> Disk {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("root");
    Cmd::new("mount").args(["--make-rprivate", "/"]).ok();
    Disk::with_size(kind, size_bytes)
}

/// A directory of a disk.
pub fn directory(disk: &Disk, name: &str) -> PathBuf {
    let directory = disk.root.join(name);
    std::fs::create_dir(&directory).expect("made");
    directory
}

/// The program of `programs/appends.c`, linked statically.
pub fn appends(home: &Path) -> PathBuf {
    let program = home.join("appends");
    let source = here("programs/appends.c");
    Cmd::new("musl-gcc").args(["-static", "-O1", "-o"]).arg(&program).arg(source).ok();
    program
}

/// The file holds the lines 0 to `last`, and maybe more, without a gap.
pub fn must_hold(file: &Path, last: u64) {
    let found = std::fs::read_to_string(file).expect("file");
    let lines: Vec<&str> = found.lines().collect();
    assert!(lines.len() as u64 > last, "{} lines, {last} was acknowledged", lines.len());
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("{number:09}"), "line {number}");
    }
}

/// The last number that it said, once it has said this one.
pub fn acknowledged(program: &mut Running, count: u64) -> u64 {
    program.until(&format!("ack {count}"));
    let rest = program.lines.try_iter().last();
    rest.map_or(count, |line| line["ack ".len()..].parse().expect("a number"))
}

/// The last line that it said, once it has said another one than those so far.
pub fn goes_on(program: &mut Running) -> u64 {
    program.lines.try_iter().for_each(drop);
    let line = program.until("ack ");
    line["ack ".len()..].parse().expect("a number")
}

/// Takes a dead mount away, unless its supervisor did before it was killed itself.
pub fn clear(point: &Path) {
    if is_mounted(point) {
        let umount = Cmd::new("umount").arg(point).output();
        assert!(umount.status.success() || !is_mounted(point), "{}", umount.stderr);
    }
}
